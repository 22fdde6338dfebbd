"""A small file in the store's folder that shows what the file system does: how it reserves space, and how it flushes.

The file has a name, since some file systems (btrfs) do not flush one without. It is removed before the facts are told,
also when a signal ends the command. SIGKILL alone leaves it, 1 MiB long.
"""

from __future__ import annotations

import math
import os
import secrets
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from gpkvs.config import KIB, MIB
from gpkvs.doctor.fact import Fact, Verdict
from gpkvs.media.data_file import DataFile
from gpkvs.media.file_space import punch, reserves
from gpkvs.pm.domain import Domain, DomainName
from gpkvs.pm.mapping import map_memory

PREFIX: Final = ".gpkvs-doctor-"
_PROBE_BYTES: Final = MIB
_WRITE_BYTES: Final = 4 * KIB
_FIRST_FLUSHES, _FLUSHES_MIN, _FLUSHES_MAX = 3, 5, 100
_SECONDS_MAX: Final = 0.8
_SLOW_SECONDS: Final = 0.005
_TOO_FAST_SECONDS: Final = 5e-6  # no disk answers so soon, nor does the way to one

_DIRECT = "A journal is written past the page cache (O_DIRECT), which leaves the memory to records."
_RESERVE = "A store reserves its space, so that no acknowledged write meets a full disk."
_PUNCH = "What the heap no longer needs goes back to the file system."
_FLUSH = "On a disk, a client that waits for each write waits for one flush; clients that write at once share it."


def probe_facts(directory: Path, domain: Domain) -> Iterator[Fact]:
    """Try what a store does, in a file that is removed; a disk is flushed for 0.8 s, or 100 times."""
    try:
        facts = _probe(directory, domain)
    except OSError as error:
        yield from unseen(f"no probe file: {error.strerror}")
        return
    yield from facts


def unseen(reason: str) -> Iterator[Fact]:
    """Say why there was no probe."""
    for name, why in (("O_DIRECT", _DIRECT), ("fallocate", _RESERVE), ("holes", _PUNCH), ("flush", _FLUSH)):
        yield Fact(name, Verdict.UNSEEN, reason, why)


def _probe(directory: Path, domain: Domain) -> list[Fact]:
    path = directory / f"{PREFIX}{secrets.token_hex(8)}"
    try:
        made = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            return _try(path, made, domain)
        finally:
            os.close(made)
    finally:
        path.unlink(missing_ok=True)


def _try(path: Path, file: int, domain: Domain) -> list[Fact]:
    reserve = _reserve_fact(reserved=reserves(file, _PROBE_BYTES))
    os.pwrite(file, bytes(_PROBE_BYTES), 0)
    os.fsync(file)
    data = DataFile(path, write=True)
    try:
        flush = flush_fact(_flush_seconds(data) if _flushes(domain) else None)
        direct = _direct_fact(domain, is_direct=data.is_direct)
    finally:
        data.close()
    return [direct, reserve, _punch_fact(file), flush]


def _flushes(domain: Domain) -> bool:
    return domain.name is DomainName.MSYNC


def _flush_seconds(data: DataFile) -> list[float]:
    """Return what each flush of 4 KiB took, as the journal writes them: one after the other, over zeros."""
    page = map_memory(_WRITE_BYTES)
    page[:] = 0x5A
    taken: list[float] = []
    began = time.perf_counter()
    for number in range(_FLUSHES_MAX + _FIRST_FLUSHES):
        start = time.perf_counter()
        if number >= _FLUSHES_MIN and start - began > _SECONDS_MAX:
            break
        os.pwritev(data.direct, [page.data], number * _WRITE_BYTES % _PROBE_BYTES)
        os.fdatasync(data.file)
        taken.append(time.perf_counter() - start)
    return taken[_FIRST_FLUSHES:]


def _direct_fact(domain: Domain, *, is_direct: bool) -> Fact:
    figures = {"o_direct": is_direct}
    if is_direct or not _flushes(domain):
        return Fact(
            "O_DIRECT", Verdict.FINE, "works" if is_direct else "not there, not needed", _DIRECT, figures=figures
        )
    mend = "--data on ext4"
    return Fact("O_DIRECT", Verdict.BETTER, "refused: frames go through the page cache", _DIRECT, mend, figures)


def _reserve_fact(*, reserved: bool) -> Fact:
    figures = {"fallocate": reserved}
    if reserved:
        return Fact("fallocate", Verdict.FINE, "works", _RESERVE, figures=figures)
    value = "refused: space is reserved by writing to each block, which is slow"
    return Fact("fallocate", Verdict.BETTER, value, _RESERVE, "--data on ext4", figures)


def _punch_fact(file: int) -> Fact:
    try:
        punch(file, 0, _PROBE_BYTES)
    except OSError as error:
        mend = "--data on ext4; gpkvs copy OLD NEW makes a smaller store"
        return Fact("holes", Verdict.BETTER, f"refused: {error.strerror}", _PUNCH, mend, {"punch_hole": False})
    return Fact("holes", Verdict.FINE, "work", _PUNCH, figures={"punch_hole": True})


def flush_fact(taken: Sequence[float] | None) -> Fact:
    """Judge what flushes took; None: a store does not flush there."""
    if taken is None:
        return Fact("flush", Verdict.FINE, "not needed: a store flushes nothing in this domain", _FLUSH)
    ordered = sorted(taken)
    median, p99 = statistics.median(ordered), ordered[math.ceil(0.99 * len(ordered)) - 1]
    batches = 1 / median
    figures = {"flushes": len(taken), "median_seconds": median, "p99_seconds": p99, "batches_per_second": batches}
    value = (
        f"{_readable(median)} median, {_readable(p99)} p99 of {len(taken)} flushes of 4 KiB: one client that waits for "
        f"each batch sees at most about {_rounded(batches):,} a second"
    )
    if median > _SLOW_SECONDS:
        mend = "a faster disk (an SSD that keeps its cache at a power loss), or more writes in a batch"
        return Fact("flush", Verdict.BETTER, value, _FLUSH, mend, figures)
    if median < _TOO_FAST_SECONDS:
        why = "No disk answers so soon: something on the way may take flushes without doing them."
        mend = "ask who runs the machine whether the virtual disk's cache obeys flushes (QEMU: not cache=unsafe)"
        return Fact("flush", Verdict.BETTER, value, why, mend, figures)
    return Fact("flush", Verdict.FINE, value, _FLUSH, figures=figures)


def _readable(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.0f} us"


def _rounded(number: float) -> int:
    """Return a number to two digits: a flush is not measured better than that."""
    digits = max(len(str(int(number))) - 2, 0)
    return int(round(number, -digits))
