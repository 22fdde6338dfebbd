"""Lays states out as files, opens them, and judges what comes out."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from random import Random

import numpy as np

from gpkvs.batch import Batch, Op, Status
from gpkvs.errors import GpkvsError, NoSpaceError, StoreMissingError
from gpkvs.media.directory import ROOT_FILE
from gpkvs.media.layout import U64_LAYOUT
from gpkvs.recovery.proof.diskfail.disk import State
from gpkvs.recovery.proof.diskfail.expected import Contents, difference
from gpkvs.recovery.proof.diskfail.life import (
    BLOB_BYTES,
    KEYS,
    LifeError,
    PlainOperation,
    Shape,
    contents_of,
    open_store,
)
from gpkvs.recovery.proof.diskfail.recorder import IGNORED
from gpkvs.recovery.proof.expiring import AFTER_MS, as_stored, at_time
from gpkvs.recovery.proof.model import Kept
from gpkvs.recovery.startup.check import check
from gpkvs.store import Store

# What a crash between the two root copies leaves: an opening repairs it.
_CHECKED_SHARE = 0.3  # of the states: `check` replays the journal as an opening does, which takes as long
_EXPIRED_SHARE = 0.2  # of the states: all keys expire that have a time
_BLOB_SHARE = 0.05  # of the SETs of one more batch, in format 4
_REPAIRED = frozenset({"root-copy", "roots-equal"})


def lay(directory: Path, state: State) -> dict[str, int]:
    """Make a directory hold a state, and nothing else; return the inodes of the files."""
    directory.mkdir(parents=True, exist_ok=True)
    for entry in list(os.scandir(directory)):
        if entry.name not in state or entry.name in IGNORED:
            Path(entry.path).unlink()
    inodes = {}
    for name, data in state.items():
        file = os.open(directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(file).st_size != len(data):
                os.ftruncate(file, len(data))
            if len(data):
                with mmap.mmap(file, len(data)) as view:
                    target = np.frombuffer(view, np.uint8)
                    target[:] = data
                    del target
            inodes[name] = os.fstat(file).st_ino
        finally:
            os.close(file)
    return inodes


class Judge:
    """Opens states and judges them.

    Parameters
    ----------
    directory
        In memory, for this process alone.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def judge(self, state: State, allowed: list[Contents], shape: Shape, random: Random) -> str:
        """Recover a state; return what is wrong, empty if nothing."""
        lay(self.directory, state)
        try:
            return self._judge(state, allowed, shape, random)
        except (LifeError, GpkvsError, AssertionError) as error:
            return f"{type(error).__name__}: {error}".replace(str(self.directory), "STORE")

    def _judge(self, state: State, allowed: list[Contents], shape: Shape, random: Random) -> str:
        if ROOT_FILE in state:
            if random.random() < _CHECKED_SHARE:
                self._check("before it is opened", _REPAIRED)
        elif not any(not any(contents.tables.values()) for contents in allowed):
            raise StoreMissingError("the store is gone")
        with open_store(self.directory, shape) as store:
            found = contents_of(store)
            if wrong := difference(found, allowed):
                return f"after the opening: {wrong}"
            for _ in range(random.choice((1, 1, 3))):
                found = self._one_more(store, found, random)
            if wrong := difference(contents_of(store), [found]):
                return f"after more batches: {wrong}"
            if random.random() < _EXPIRED_SHARE:
                found = self._let_expire(store, found)
        if random.random() < _CHECKED_SHARE:
            self._check("after more batches")
        if random.random() < 0.15:
            with open_store(self.directory, shape) as store:
                if wrong := difference(contents_of(store), [found]):
                    return f"after a second opening: {wrong}"
        return ""

    def _check(self, when: str, repaired: frozenset[str] = frozenset()) -> None:
        report = check(self.directory)
        wrong = [violation for violation in report.violations if violation.invariant not in repaired]
        if wrong or report.needs_recovery:
            raise LifeError(f"gpkvs check, {when}: {wrong[:3] or 'needs recovery'}")

    def _let_expire(self, store: Store, before: Contents) -> Contents:
        """Let all keys expire that ever do; return what must be there then, also when the clock is put back."""
        left = {
            table: {key: kept for key, kept in records.items() if not kept.expiry}
            for table, records in before.tables.items()
        }
        at_time(store, lambda: AFTER_MS)
        for table, records in left.items():
            found = store.execute(Batch.of([(Op.EXISTS, key) for key in KEYS[table.layout]]), table=table.name)
            if (found.status == Status.OK).sum() != len(records):
                raise LifeError("keys that have expired are there")
        after = contents_of(store)
        if after.tables != left:
            raise LifeError("a key that was seen as gone is there again")
        return after

    def _one_more(self, store: Store, before: Contents, random: Random) -> Contents:
        """Change keys in each table; return what must be there then. No version may be given twice."""
        tables, next_version = {}, before.next_version
        has_blobs = store._engine.heap.blobs is not None
        for table, records in before.tables.items():
            held, operations = dict(records), []
            for key in random.sample(KEYS[table.layout], random.choice((1, 5, 30))):
                operation: PlainOperation = (Op.SET, key, random.randbytes(8))
                if has_blobs and table.layout != U64_LAYOUT.name and random.random() < _BLOB_SHARE:
                    operation = (Op.SET, key, random.randbytes(min(BLOB_BYTES)))
                if random.random() < 0.3:
                    operation = (Op.DELETE, key)
                operations.append(operation)
            try:
                with as_stored(store):  # what has expired is there, too
                    result = store.execute(Batch.of(operations), table=table.name)
            except NoSpaceError:  # what is live lies scattered: nothing compacts the heap yet
                tables[table] = records
                continue
            for operation, status, version in zip(
                operations, result.status.tolist(), result.versions.tolist(), strict=True
            ):
                key = operation[1]
                if len(operation) == 3:
                    if table.layout != U64_LAYOUT.name and version < next_version:
                        raise LifeError(f"version {version} is given again")
                    held[key] = Kept(operation[2], version)
                elif (status == Status.OK) != (held.pop(key, None) is not None):
                    raise LifeError(f"a DELETE of {key!r} says {status}")
            tables[table] = held
            next_version = store._engine.next_sequence
        return Contents(next_version, tables)
