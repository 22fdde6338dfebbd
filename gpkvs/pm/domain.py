"""Persistence domains: what "durable" means for a store, found at open and always shown (docs/design.md, section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from gpkvs.config import DurabilityName
from gpkvs.errors import BackendError
from gpkvs.native import library


class DomainName(StrEnum):
    """How a phase is made durable."""

    MSYNC = "msync"
    PROCESS = "process"


_SURVIVES = {
    DomainName.MSYNC: "survives power loss (fdatasync after each phase)",
    DomainName.PROCESS: "survives a crash of the process, NOT power loss",
}
_MEMORY_FILESYSTEMS = {0x01021994, 0x858458F6}  # tmpfs, ramfs (statfs(2))


@dataclass(frozen=True)
class Domain:
    """The persistence domain of one store.

    Parameters
    ----------
    found
        What the file system gives.
    name
        What is in force: `found`, unless forced.
    """

    found: DomainName
    name: DomainName

    @property
    def note(self) -> str:
        """What it survives, and whether it was forced."""
        note = _SURVIVES[self.found]
        if self.name is self.found:
            return f"{note}; persistent memory is emulated in DRAM" if self.is_volatile else note
        if self.is_volatile:
            return f"forced, unverified: the files are in memory, which {note}"
        return f"forced: {_SURVIVES[self.name]}"

    @property
    def is_weak(self) -> bool:
        """Whether what was acknowledged may be gone after a power loss."""
        return self.is_volatile or self.name is DomainName.PROCESS

    @property
    def is_volatile(self) -> bool:
        """Whether the files are gone after a power loss, whatever is forced."""
        return self.found is DomainName.PROCESS


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
    BackendError
        If this version does not have the domain asked for.
    """
    with (directory / "LOCK").open("rb") as file:
        memory = library.gpkvs_filesystem(file.fileno()) in _MEMORY_FILESYSTEMS
    found = DomainName.PROCESS if memory else DomainName.MSYNC
    if wanted == "auto":
        return Domain(found, found)
    try:
        return Domain(found, DomainName(wanted))
    except ValueError:
        raise BackendError(
            f"durability {wanted!r} is not available in this version: use auto, msync or process"
        ) from None
