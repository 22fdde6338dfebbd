"""Lays states out as files, recovers them and judges what comes out."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gpkvs.batch import Batch, Op, Status
from gpkvs.errors import GpkvsError
from gpkvs.media.directory import ROOT_FILE
from gpkvs.media.layout import BYTES_LAYOUT, U64_LAYOUT
from gpkvs.recovery.proof.expiring import AFTER_MS, as_stored, at_time, expiries_of
from gpkvs.recovery.proof.powerfail.base_store import Keys, open_tiny
from gpkvs.recovery.proof.powerfail.readable_state import canonical_digest
from gpkvs.recovery.proof.powerfail.recorder import IGNORED
from gpkvs.recovery.proof.powerfail.trace import WORD_BYTES, Event, Image, Kind, Words
from gpkvs.recovery.startup.check import check
from gpkvs.store import Store
from gpkvs.text import quoted

_BLOB_BYTES = 66_000  # of a value


@dataclass(frozen=True)
class Dump:
    """Everything that a client can see of a store: tables; keys, values, versions, expiries; and the next version.

    Attributes
    ----------
    kept_ms
        The time with which an opening begins at least.
    """

    next_version: int
    tables: tuple[tuple[str, str, tuple[tuple[bytes, bytes, int, int], ...]], ...]
    kept_ms: int = field(default=0, compare=False)


class StateError(Exception):
    """A recovered state breaks a promise."""


class Disk:
    """A directory in memory whose files hold an image."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._mapped: dict[str, tuple[int, mmap.mmap, Words]] = {}  # by name: inode

    def lay(self, durable: Image, changes: Iterable[Event] = ()) -> None:
        """Make the directory hold an image with some changes, and nothing else."""
        image, stores = durable, list(changes)
        if any(event.kind in (Kind.NAME, Kind.SIZE) for event in stores):
            image = durable.copy()
            for event in stores:
                image.apply(event)
            stores = []
        there = {
            entry.name: (entry.inode(), entry.stat().st_size)
            for entry in os.scandir(self.path)
            if entry.name not in IGNORED
        }
        for name in there.keys() - image.names.keys():
            (self.path / name).unlink()
        if ROOT_FILE not in image.names:  # a store is created here: nothing of an earlier state may be left
            for name in IGNORED:
                (self.path / name).unlink(missing_ok=True)
        for name, number in image.names.items():
            words = image.files[number]
            mapped = self._mapped.get(name)
            is_mapped = mapped is not None and there.get(name) == (mapped[0], len(mapped[2]) * WORD_BYTES)
            if mapped is None or not is_mapped or len(mapped[2]) != len(words):
                self._make(name, len(words))
            if len(words):
                self._mapped[name][2][:] = words
        for event in stores:
            end = event.at + len(event.words)
            for name, number in image.names.items():
                if number == event.file and end <= len(image.files[number]):  # as in `Image.apply`
                    self._mapped[name][2][event.at : end] = event.words

    def _make(self, name: str, size: int) -> None:
        self._mapped.pop(name, None)
        path = self.path / name
        path.unlink(missing_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            if size:
                os.ftruncate(file, size * WORD_BYTES)
                view = mmap.mmap(file, size * WORD_BYTES)
                self._mapped[name] = os.fstat(file).st_ino, view, np.frombuffer(view, np.uint64)
        finally:
            os.close(file)

    def image(self) -> Image:
        """Return what the directory holds; the words of mapped files are views, not copies."""
        image = Image()
        there = sorted((entry.name, entry.inode()) for entry in os.scandir(self.path) if entry.name not in IGNORED)
        for number, (name, inode) in enumerate(there, 1):
            mapped = self._mapped.get(name)
            image.names[name] = number
            size = (self.path / name).stat().st_size  # the file may have become longer
            image.files[number] = (
                mapped[2]
                if mapped is not None and (mapped[0], len(mapped[2]) * WORD_BYTES) == (inode, size)
                else np.frombuffer((self.path / name).read_bytes(), np.uint64)
            )
        return image


def dump(store: Store, keys: tuple[bytes, ...]) -> Dump:
    """Read everything that a store holds, what has expired and was not removed too.

    Raises
    ------
    StateError
        If the store holds other keys too, or a record is damaged.
    """
    with as_stored(store):
        return _dump(store, keys)


def _dump(store: Store, keys: tuple[bytes, ...]) -> Dump:
    info = store.info()
    tables = []
    batch = Batch.of([(Op.GET, key) for key in keys])
    for table in sorted(info.tables, key=lambda table: table.name):
        result = store.execute(batch, table=table.name)
        if (result.status == Status.CORRUPT).any():
            raise StateError(f"a record of table {table.name!r} is damaged")
        expiries = expiries_of(store, table.name, keys)
        columns = zip(
            keys, result.value_list(), result.versions.tolist(), expiries, result.status.tolist(), strict=True
        )
        there = tuple((*record, expiry) for *record, expiry, status in columns if status == Status.OK)
        if len(there) != table.records:
            raise StateError(f"table {table.name!r} has {table.records} records, {len(there)} of them known")
        tables.append((table.name, table.layout, there))
    return Dump(info.next_version, tuple(tables), store._engine.committer.kept_ms)


class StateJudge:
    """Recovers states and judges what comes out.

    Parameters
    ----------
    path
        A directory in memory, for this process alone.
    keys
        Every key that a state may hold.
    """

    def __init__(self, path: Path, keys: Keys) -> None:
        self.disk = Disk(path)
        self._keys = keys
        self._judged: dict[bytes, Dump | str] = {}
        self.judged = 0

    def require_clean(self, durable: Image, changes: Iterable[Event]) -> None:
        """Raise `StateError` unless a state passes `check` without recovery: the batch was acknowledged."""
        self.disk.lay(durable, changes)
        self._check("before recovery, after the acknowledgement")

    def outcome(self, durable: Image, changes: Iterable[Event]) -> Dump:
        """Recover a state, which is an image with some changes; check the result, and return what it holds.

        The checks are `check`, a second recovery with the same outcome, one more batch in each table, and `check`
        again. They depend only on the image that recovery leaves, so they run once for each such image.

        Raises
        ------
        StateError
            If it cannot be opened, or a check fails.
        """
        self.disk.lay(durable, changes)
        try:
            open_tiny(self.disk.path, create=True).close()
        except GpkvsError as error:
            raise StateError(f"it cannot be opened: {self._without_path(error)}") from error
        left = canonical_digest(self.disk.image())
        if left not in self._judged:
            self.judged += 1
            try:
                self._judged[left] = self._judge()
            except (StateError, GpkvsError) as error:
                self._judged[left] = self._without_path(error)
        judged = self._judged[left]
        if isinstance(judged, str):
            raise StateError(judged)
        return judged

    def _without_path(self, error: Exception) -> str:
        """Return an error's text without the path of the store."""
        return str(error).replace(f"{self.disk.path}", "STORE")

    def _judge(self) -> Dump:
        path = self.disk.path
        self._check("after recovery")
        with open_tiny(path) as store:
            first = dump(store, self._keys.all)
        with open_tiny(path) as store:
            if store.now_ms < first.kept_ms:
                raise StateError("the time goes back with a recovery")
            if dump(store, self._keys.all) != first:
                raise StateError("a second recovery has another outcome")
            self._one_more(store, first)
        self._check("after one more batch")
        if any(expiry for _, _, records in first.tables for *_, expiry in records):
            self._let_expire()
        return first

    def _let_expire(self) -> None:
        """Let all keys expire that ever do: they are gone, and stay so when the clock is put back."""
        with open_tiny(self.disk.path) as store:
            wanted = tuple(
                (name, layout, tuple(record for record in records if not record[3]))
                for name, layout, records in dump(store, self._keys.all).tables
            )
            at_time(store, lambda: AFTER_MS)
            for name, _, records in wanted:
                batch = Batch.of([(Op.EXISTS, key) for key in self._keys.all])
                found = store.execute(batch, table=name).status == Status.OK
                if found.sum() != len(records):
                    raise StateError("keys that have expired are there")
        with open_tiny(self.disk.path) as store:
            if dump(store, self._keys.all).tables != wanted:
                raise StateError("a key that was seen as gone is there again")
        self._check("after keys have expired")

    def _check(self, when: str) -> None:
        report = check(self.disk.path)
        if not report.is_clean:
            raise StateError(f"gpkvs check, {when}: {report.violations or 'needs recovery'}")

    def _one_more(self, store: Store, before: Dump) -> None:
        """Update, delete and insert in each table; everything must be there then, and no version may be given twice.

        Where values lie in blobs, the new ones do too: they take pages that recovery found free.
        """
        blobs = store._engine.heap.blobs
        has_blobs = blobs is not None and blobs.is_any
        expected = []
        next_version = before.next_version
        for name, layout, records in before.tables:
            there = {key: (value, version, expiry) for key, value, version, expiry in records}
            present, absent = list(there), [key for key in self._keys.all if key not in there]
            operations: list[tuple[Op, bytes] | tuple[Op, bytes, bytes]] = []
            value = b"one more" * (_BLOB_BYTES // 8 if has_blobs and layout == BYTES_LAYOUT.name else 1)
            for key in (*present[:1], *absent[:1]):
                version = 0 if layout == U64_LAYOUT.name else next_version + len(operations)
                there[key] = value, version, 0
                operations.append((Op.SET, key, value))
            for key in present[1:2]:
                del there[key]
                operations.append((Op.DELETE, key))
            with as_stored(store):  # what has expired is there, too
                store.execute(Batch.of(operations), table=name)
            next_version += len(operations)
            expected.append((name, layout, tuple((key, *there[key]) for key in self._keys.all if key in there)))
        if dump(store, self._keys.all) != Dump(next_version, tuple(expected)):
            raise StateError("one more batch was not stored as it was given")


def difference(outcome: Dump, allowed: tuple[Dump, ...]) -> str:
    """Return how an outcome differs from the nearest allowed one."""

    def facts(of: Dump) -> set[str]:
        found = {f"next version {of.next_version}"}
        for name, layout, records in of.tables:
            found.add(f"table {name} ({layout})")
            found |= {
                f"{name}: {key.hex()} = {quoted(value)}, version {version}, expires {expiry}"
                for key, value, version, expiry in records
            }
        return found

    nearest = min((facts(dump) for dump in allowed), key=lambda wanted: len(wanted ^ facts(outcome)))
    missing, extra = sorted(nearest - facts(outcome)), sorted(facts(outcome) - nearest)
    which = (
        "the store is neither as before the batch nor as after it"
        if len(allowed) > 1
        else "the store is not as it must be"
    )
    return f"{which}: missing {missing[:4]}, instead {extra[:4]}"
