"""The system refuses space: a disk, a quota, or the memory where files are memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpkvs.config import MIB
from gpkvs.media.directory import NO_SPACE, disk_free_bytes
from gpkvs.process.machine import free_bytes

MEMORY_SPARE_BYTES = 32 * MIB  # that a file in memory leaves to others


class RefusedError(Exception):
    """Space cannot be had now; the text says why."""


@contextmanager
def refusals(who: str, path: Path, step: int, *, is_in_memory: bool) -> Iterator[None]:
    """Turn the system's refusals into those that say who asked for how much, and what there is.

    Raises
    ------
    RefusedError
        If the system refuses; also before it is asked, where too little memory would be left to others.
    """
    asked = f"{who} asked for {step:,} bytes more"
    if is_in_memory:
        free = free_bytes()
        if free is not None and free < step + MEMORY_SPARE_BYTES:
            raise RefusedError(f"{asked}, {path} is in memory, of which {free:,} bytes are free")
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise RefusedError(f"{asked}, the disk has {disk_free_bytes(path):,} bytes free") from error
        raise RefusedError(f"{asked}, the system refuses: {path}: {error.strerror}") from error
