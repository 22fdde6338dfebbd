"""Persistence domains: what "durable" means for a store, found at open and always shown (docs/persistence.md)."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from gpkvs.config import DurabilityName
from gpkvs.errors import BackendError, InvalidArgumentError
from gpkvs.native import library


class DomainName(StrEnum):
    """How a phase is made durable."""

    FENCE = "fence"
    FLUSH = "flush"
    MSYNC = "msync"
    PROCESS = "process"
    NONE = "none"  # not at all: no undo log, for benchmarks


_HOW = {
    DomainName.FENCE: "survives power loss (store fences; the caches are in the persistence domain)",
    DomainName.FLUSH: "survives power loss (cache lines written back before each fence)",
    DomainName.MSYNC: "survives power loss (fdatasync)",
    DomainName.PROCESS: "survives a crash of the process, NOT power loss",
    DomainName.NONE: "UNSAFE: no undo log; a crash may lose or tear any batch since the store was opened",
}
# What each relies on, weakest first: nothing, a disk, PM behind the memory controller, PM whose caches are safe too.
_DEMANDS = (DomainName.NONE, DomainName.PROCESS, DomainName.MSYNC, DomainName.FLUSH, DomainName.FENCE)
_PLATFORM = {"memory_controller": DomainName.FLUSH, "cpu_cache": DomainName.FENCE}
_MEMORY_FILESYSTEMS = {0x01021994, 0x858458F6}  # tmpfs, ramfs (statfs(2))
_REGIONS = Path("/sys/bus/nd/devices")

# mmap(2); not in Python's mmap module. The kernel refuses them where a store could outrun the file's metadata.
MAP_SHARED_VALIDATE_SYNC = 0x03 | 0x80000


@dataclass(frozen=True)
class Domain:
    """The persistence domain of one store.

    Parameters
    ----------
    found
        What the platform and the file system give.
    name
        What is in force: `found`, unless forced.
    """

    found: DomainName
    name: DomainName

    @property
    def note(self) -> str:
        """What it survives, and whether it was forced."""
        if self.name is DomainName.NONE:
            return _HOW[self.name]
        if self.name is self.found:
            note = _HOW[self.found]
            return f"{note}; persistent memory is emulated in DRAM" if self.is_volatile else note
        if self.is_volatile:
            return f"forced, unverified: the files are in memory, which {_HOW[self.found]}"
        if _DEMANDS.index(self.name) > _DEMANDS.index(self.found):
            return (
                f"forced, unverified: found was {self.found}; nothing here shows that these files are persistent "
                f"memory for which {self.name} is enough, so do not count on more than a crash of the process"
            )
        return f"forced: {_HOW[self.name]}"

    @property
    def is_volatile(self) -> bool:
        """Whether the files are gone after a power loss, whatever is forced."""
        return self.found is DomainName.PROCESS

    @property
    def maps_synchronously(self) -> bool:
        """Whether the files are mapped with MAP_SYNC."""
        return self.found in (DomainName.FENCE, DomainName.FLUSH)

    @property
    def takes_gpu_stores(self) -> bool:
        """Whether what a GPU stored is as durable as the domain asks when the GPU's fence returns.

        Not on an ordinary disk, where the page cache would not know that a page changed, and not where caches must be
        written back, since a GPU's stores may land in them.
        """
        return self.name is not DomainName.FLUSH and (
            self.is_volatile or (self.maps_synchronously and self.name is DomainName.FENCE)
        )

    @property
    def needs_ddio_off(self) -> bool:
        """Whether what a GPU stored is durable only if it does not stay in a cache (`gpkvs.pm.ddio`)."""
        return self.takes_gpu_stores and self.found is DomainName.FLUSH

    @property
    def is_logged(self) -> bool:
        """Whether batches are transactions; without an undo log, a crash may tear them."""
        return self.name is not DomainName.NONE

    @property
    def survives_power_loss(self) -> bool:
        """Whether what is acknowledged is known to survive a power loss."""
        wanted = _DEMANDS.index(self.name)
        return _DEMANDS.index(DomainName.MSYNC) <= wanted <= _DEMANDS.index(self.found)


def find_domain(directory: Path, wanted: DurabilityName) -> Domain:
    """Find the persistence domain of a directory.

    Parameters
    ----------
    directory
        An existing directory.
    wanted
        ``auto`` takes what is found; another name forces it.

    Raises
    ------
    InvalidArgumentError
        If there is no such domain.
    BackendError
        If ``flush`` is asked for and the processor has no instruction for it.
    """
    found = _found(directory)
    name = found if wanted == "auto" else _named(wanted)
    if name is DomainName.FLUSH and not can_write_back():
        raise BackendError(
            "durability 'flush' needs clwb, clflushopt or clflush, which this processor has not (on other processors "
            "than x86-64 it is not supported): use auto, or msync"
        )
    return Domain(found, name)


def _named(wanted: str) -> DomainName:
    try:
        return DomainName(wanted)
    except ValueError:
        raise InvalidArgumentError(f"{wanted!r}: there are auto, {', '.join(DomainName)}", field="durability") from None


def can_write_back() -> bool:
    """Whether the processor has a known instruction that writes a cache line back."""
    return bool(library.gpkvs_write_back_best())


def _found(directory: Path) -> DomainName:
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if library.gpkvs_filesystem(file) in _MEMORY_FILESYSTEMS:
            return DomainName.PROCESS
    finally:
        os.close(file)
    if not maps_synchronously(directory):
        return DomainName.MSYNC
    found = platform_domain(_REGIONS.glob("region*"))
    return DomainName.MSYNC if found is DomainName.FLUSH and not can_write_back() else found


# Without a file to try, a directory is taken for one of an ordinary disk, where every store is synced: so also one that
# can be read only.
_NO_PROBE = (
    *(errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.ENOSPC, errno.EDQUOT),
    *(errno.EROFS, errno.EACCES, errno.EPERM),
)


def maps_synchronously(directory: Path) -> bool:
    """Whether files of a directory can be mapped so that a store needs no file system to be durable (MAP_SYNC)."""
    try:
        # Without a name: a probe that is killed leaves nothing in the store's directory.
        file = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in _NO_PROBE:
            return False
        raise
    try:
        os.ftruncate(file, mmap.PAGESIZE)
        with suppress(OSError):
            mmap.mmap(file, mmap.PAGESIZE, MAP_SHARED_VALIDATE_SYNC).close()
            return True
        return False
    finally:
        os.close(file)


def platform_domain(regions: Iterable[Path]) -> DomainName:
    """Return what the platform promises of stores to PM, by the weakest of its regions; `MSYNC` if it says nothing.

    Parameters
    ----------
    regions
        Directories of sysfs, each with a file ``persistence_domain``.
    """
    found = []
    for region in regions:
        try:
            said = (region / "persistence_domain").read_text().strip()
        except OSError:
            said = ""
        found.append(_PLATFORM.get(said, DomainName.MSYNC))
    return min(found, key=_DEMANDS.index, default=DomainName.MSYNC)
