"""GPUs: NVIDIA's driver tells of them (NVML), and the PCI bus where there is no driver. Nothing of CUDA is begun."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from gpkvs.doctor.fact import Fact, Verdict
from gpkvs.pm.ddio import ddio_of
from gpkvs.text import counted

_NVML: Final = "libnvidia-ml.so.1"
_TEXT_BYTES: Final = 96
_NVIDIA, _DISPLAY = "0x10de", "0x03"  # a vendor of PCI, and the class of displays, which GPUs for computing have too
_DEVICES: Final = Path("sys/bus/pci/devices")
_PACKAGES: Final = ("cupy-cuda13x", "cupy-cuda12x", "cupy")

_GPU = "With --backend cuda a GPU runs large batches; all else runs on the processor, as gpkvs does by default."
_LINK = "Batches reach a GPU over its link; at rest a GPU lowers the generation, and raises it again under load."
_CUPY = "The backend cuda needs CuPy."
_DDIO = "Where it is on, what a GPU stores may stay in a cache; that counts for stores on persistent memory alone."


@dataclass(frozen=True)
class Gpu:
    """What NVML tells of one GPU; 0 for what it does not tell."""

    name: str
    bus: str  # its address on the PCI bus, as sysfs writes it
    width: int
    width_max: int
    generation: int
    generation_max: int


class _PciInfo(ctypes.Structure):
    """`nvmlPciInfo_t`."""

    _fields_ = [
        ("legacy", ctypes.c_char * 16),
        *[(name, ctypes.c_uint) for name in ("domain", "bus", "device", "kind", "subsystem")],
        ("address", ctypes.c_char * 32),
    ]


def find_gpus() -> tuple[str, list[Gpu]]:
    """Return the driver's version and its GPUs; "" and none without a driver."""
    try:
        nvml = ctypes.CDLL(_NVML)
    except OSError:
        return "", []
    if nvml.nvmlInit_v2():
        return "", []
    try:
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        driver = "" if nvml.nvmlSystemGetDriverVersion(text, _TEXT_BYTES) else text.value.decode()
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return driver, []
        return driver, [_gpu(nvml, number) for number in range(count.value)]
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Any, number: int) -> Gpu:
    device, pci = ctypes.c_void_p(), _PciInfo()
    if nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(device)):
        return Gpu(f"GPU of number {number}, which this user may not open", "", 0, 0, 0, 0)
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    name = f"number {number}" if nvml.nvmlDeviceGetName(device, text, _TEXT_BYTES) else text.value.decode()
    bus = "" if nvml.nvmlDeviceGetPciInfo_v3(device, ctypes.byref(pci)) else _sysfs_address(pci)

    def told(what: str) -> int:
        value = ctypes.c_uint()
        return 0 if getattr(nvml, f"nvmlDeviceGet{what}")(device, ctypes.byref(value)) else value.value

    return Gpu(
        name,
        bus,
        told("CurrPcieLinkWidth"),
        told("MaxPcieLinkWidth"),
        told("CurrPcieLinkGeneration"),
        told("MaxPcieLinkGeneration"),
    )


def _sysfs_address(pci: _PciInfo) -> str:
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"


def undriven(root: Path) -> int:
    """Return how many GPUs of NVIDIA the PCI bus has."""
    count = 0
    for device in (root / _DEVICES).glob("*"):
        with suppress(OSError):
            is_display = (device / "class").read_text().startswith(_DISPLAY)
            count += is_display and (device / "vendor").read_text().strip() == _NVIDIA
    return count


def cupy_version() -> str:
    """Return which CuPy is installed, without loading it; "" for none."""
    if find_spec("cupy") is None:
        return ""
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            return f"{package} {version(package)}"
    return "of a version that no package names"


def gpu_facts(driver: str, gpus: list[Gpu], root: Path) -> Iterator[Fact]:
    """Say which GPUs there are; having none is fine."""
    if not gpus:
        yield _no_gpu(driver, undriven(root))
        return
    yield Fact(
        "GPU",
        Verdict.FINE,
        f"{counted(len(gpus), 'GPU')}, driver {driver or 'unknown'}",
        _GPU,
        figures={"driver": driver},
    )
    for number, gpu in enumerate(gpus):
        yield link_fact(number, gpu)
        if gpu.bus:
            told = ddio_of(root / _DEVICES / gpu.bus)
            yield Fact(f"DDIO {number}", Verdict.FINE, told.value, _DDIO, figures={"ddio": told.name.lower()})
    cupy = cupy_version()
    if cupy:
        yield Fact("CuPy", Verdict.FINE, cupy, _CUPY, figures={"cupy": cupy})
    else:
        extra = "cuda13" if driver.partition(".")[0].isdigit() and int(driver.partition(".")[0]) >= 580 else "cuda12"
        mend = f"pip install '.[{extra}]', to use a GPU"
        yield Fact("CuPy", Verdict.BETTER, "not installed", _CUPY, mend, {"cupy": None})


def _no_gpu(driver: str, seen: int) -> Fact:
    figures = {"driver": driver or None, "on_the_bus": seen}
    if seen and not driver:
        value = f"{counted(seen, 'GPU')} of NVIDIA on the bus, and no driver ({_NVML}): none can be used"
    else:
        value = "none: gpkvs runs on the processor"
    return Fact("GPU", Verdict.FINE, value, _GPU, figures=figures)


def link_fact(number: int, gpu: Gpu) -> Fact:
    """Judge how a GPU is connected."""
    name = f"GPU {number}"
    figures = {
        "name": gpu.name,
        "link_width": gpu.width,
        "link_width_max": gpu.width_max,
        "link_generation": gpu.generation,
        "link_generation_max": gpu.generation_max,
    }
    if not gpu.width:
        return Fact(
            name, Verdict.UNSEEN, f"{gpu.name}; its link is not told (a virtual machine?)", _LINK, figures=figures
        )
    value = f"{gpu.name}, PCIe {gpu.generation} x{gpu.width} of {gpu.generation_max} x{gpu.width_max}"
    if gpu.width < gpu.width_max:
        mend = "put the card into a slot that has all lanes"
        return Fact(name, Verdict.BETTER, value, _LINK, mend, figures)
    return Fact(name, Verdict.FINE, value, _LINK, figures=figures)
