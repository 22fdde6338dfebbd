"""DDIO is told by a register of the root port: made-up directories of sysfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpkvs.pm.ddio import Ddio, ddio_of
from gpkvs.pm.domain import Domain, DomainName

ON, OFF = b"\xd1", b"\x51"


def gpu_behind(folder: Path, vendor: str, device: str, config: bytes) -> Path:
    """Return what /sys/bus/pci/devices has of a GPU behind a switch behind a root port."""
    port = folder / "devices" / "pci0000:16" / "0000:16:00.0"
    gpu = port / "0000:17:00.0" / "0000:18:00.0"
    gpu.mkdir(parents=True)
    (port / "vendor").write_text(f"{vendor}\n")
    (port / "device").write_text(f"{device}\n")
    (port / "config").write_bytes(config)
    link = folder / "0000:18:00.0"
    link.symlink_to(gpu)
    return link


@pytest.mark.parametrize(
    ("vendor", "device", "config", "expected"),
    [
        ("0x8086", "0x2030", bytes(0x180) + ON + bytes(100), Ddio.ON),
        ("0x8086", "0x2033", bytes(0x180) + OFF + bytes(100), Ddio.OFF),
        ("0x8086", "0x2030", bytes(64), Ddio.UNKNOWN),  # what others than root may read
        ("0x8086", "0x2034", bytes(0x180) + OFF, Ddio.UNKNOWN),  # another port: its register may be another one
        ("0x1022", "0x2030", bytes(0x180) + OFF, Ddio.UNKNOWN),
        ("nonsense", "0x2030", bytes(0x180) + OFF, Ddio.UNKNOWN),
    ],
)
def test_the_root_port_tells(tmp_path: Path, vendor: str, device: str, config: bytes, expected: Ddio) -> None:
    assert ddio_of(gpu_behind(tmp_path, vendor, device, config)) is expected


def test_a_gpu_without_a_root_port_tells_nothing(tmp_path: Path) -> None:
    gpu = tmp_path / "pci0000:00" / "0000:00:06.0"
    gpu.mkdir(parents=True)
    assert ddio_of(gpu) is Ddio.UNKNOWN
    assert ddio_of(tmp_path / "not there") is Ddio.UNKNOWN


@pytest.mark.parametrize(
    ("found", "name", "needs"),
    [
        ("flush", "fence", True),  # forced: caches are lost, and the GPU stores directly
        ("flush", "flush", False),  # the host stores, and writes lines back
        ("fence", "fence", False),  # caches are in the domain
        ("process", "process", False),
        ("process", "fence", False),  # gone with the power in any case
        ("msync", "fence", False),  # the GPU does not store
    ],
)
def test_who_needs_it_off(found: str, name: str, needs: bool) -> None:
    assert Domain(DomainName(found), DomainName(name)).needs_ddio_off is needs
