"""Whether what a PCIe device stores may stay in the processor's last-level cache (Intel's DDIO).

Where caches are lost with the power, such a store is not durable when the device's fence returns (GPM, ASPLOS '22,
section 3.1). A root port tells by the bit Use_Allocating_Flow_Wr of its register ``perfctrlsts_0``, of which the
numbers are known for the Xeon Scalable processors of the first two generations (datasheet, volume 2). Public tools
disagree about further bits (NoSnoopOpWrEn, TPHDIS), so they are not judged. Nothing here changes a register.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path

_INTEL = 0x8086
_ROOT_PORTS = range(0x2030, 0x2034)  # A to D, of Skylake-SP and Cascade Lake-SP
_PERFCTRLSTS_0 = 0x180
_USE_ALLOCATING_FLOW_WR = 1 << 7


class Ddio(Enum):
    """What is known of it; the value is what people are told."""

    ON = "DDIO is on"
    OFF = "DDIO is off"
    UNKNOWN = "whether DDIO is on cannot be told here"


def ddio_of(device: Path) -> Ddio:
    """Return whether stores of a device may stay in a cache.

    Parameters
    ----------
    device
        Its directory in sysfs (``/sys/bus/pci/devices/0000:17:00.0``). Only root may read the register; a virtual
        machine mostly has no root port.
    """
    port = _root_port(device.resolve())
    if port is None:
        return Ddio.UNKNOWN
    try:
        vendor, kind = (int((port / name).read_text(), 16) for name in ("vendor", "device"))
        config = (port / "config").read_bytes()
    except (OSError, ValueError):
        return Ddio.UNKNOWN
    if vendor != _INTEL or kind not in _ROOT_PORTS or len(config) <= _PERFCTRLSTS_0:
        return Ddio.UNKNOWN
    return Ddio.ON if config[_PERFCTRLSTS_0] & _USE_ALLOCATING_FLOW_WR else Ddio.OFF


def _root_port(device: Path) -> Path | None:
    """Return the device through which another one hangs on its host bridge (a directory ``pci0000:16``)."""
    above = [device, *device.parents]
    bridges = [number for number, directory in enumerate(above) if directory.name.startswith("pci")]
    return above[bridges[0] - 1] if bridges and bridges[0] > 1 else None
