"""The process that judges damaged stores: it opens, reads, writes and checks one after the other.

It reads one `Damage` a line and prints one `DamageVerdict` a line. If it dies, its parent knows which damage killed it.

The promise (docs/design.md, section 4): the store checks roots, flag, descriptors, an active log, frames of the
journal, records and blobs, and refuses them when they are wrong. The last frame of a process that was killed may be
taken for the tail of a crash, with its whole batch. It does not detect a rotted u64 slot. A rotted slot of the layout
bytes may read as absent until `check` finds it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import cast

from gpkvs.batch import Batch, Op, RequestResult, Status
from gpkvs.config import CommitName
from gpkvs.errors import StoreError
from gpkvs.media.directory import HEAP_FILE
from gpkvs.recovery.proof.damage.damage_kinds import Damage
from gpkvs.recovery.proof.damage.parts import CHECKSUMS, LAST_BLOBS, LAST_FRAME, LAST_RECORDS, RECORDS, VALUES
from gpkvs.recovery.proof.damage.sample_store import (
    BYTES_INDEX,
    IMAGES,
    NUMBERS,
    NUMBERS_INDEX,
    Contents,
    absent,
    contents,
    make,
    open_sample,
    read,
    without_blobs,
)
from gpkvs.recovery.startup.check import CheckReport, check
from gpkvs.store import Store
from gpkvs.text import quoted

# What the last batch of an image wrote, of which nobody was told; what damages values, so that reads are refused.
_OF_LAST = {LAST_FRAME, LAST_RECORDS, LAST_BLOBS}
_OF_BLOBS = {VALUES, CHECKSUMS, LAST_BLOBS}
_OF_VALUES = {BYTES_INDEX, HEAP_FILE, RECORDS, LAST_RECORDS} | _OF_BLOBS

# Keys and values that are written to each table after the damage.
_NEW = ((b"a new key", b"a new value"), (b"new key.", b"a value."))


class DamageOutcome(StrEnum):
    """What a damage did to a store."""

    REFUSED = "detected and refused"
    REPORTED = "detected and served around"
    HARMLESS = "harmless"
    CUT = "taken for the tail of a crash"
    UNCHECKED = "a u64 slot, which nothing checks"
    MISSED = "missed"


@dataclass(frozen=True)
class DamageVerdict:
    """The outcome of one damage, where it was, and why."""

    damage: str
    place: str
    outcome: DamageOutcome
    detail: str


class _MissedError(Exception):
    """A damaged store broke a promise."""


class DamageJudge:
    """Damages its own copies of both images, again and again.

    Parameters
    ----------
    directory
        An empty directory for them.
    commit
        Of the images.
    made
        Where the images are if they were made already.
    """

    def __init__(self, directory: Path, commit: CommitName, made: Path | None = None) -> None:
        self._paths = {image: directory / image for image in IMAGES[commit]}
        if made:
            self.samples = {image: read(made / image, image) for image in IMAGES[commit]}
            for path in self._paths.values():
                path.mkdir()
        else:
            self.samples = make(directory, IMAGES[commit])
        self._readers = {image: _Reader(contents(image), absent(image)) for image in IMAGES[commit]}
        # Nobody was told of the last batch of these: the damage may look like a crash before it.
        before = {"killed": "active", "killed-blobs": "active-blobs"}
        self._before_last = {image: _Reader(contents(alike), absent(alike)) for image, alike in before.items()}

    def judge(self, damage: Damage) -> DamageVerdict:
        """Damage an image, use the store, and return the verdict."""
        path, sample = self._paths[damage.image], self.samples[damage.image]
        files = dict(sample.files)
        files[damage.file] = damage.apply(files[damage.file])
        places = sample.names(damage.file, damage.offset, damage.mask)
        _write(path, files)
        try:
            outcome, detail = self._outcome(damage, places, path, files)
        except _MissedError as missed:
            outcome, detail = DamageOutcome.MISSED, str(missed)
        except Exception as error:  # noqa: BLE001 - no caller should ever see another error
            outcome, detail = DamageOutcome.MISSED, f"{type(error).__name__}: {error}"
        return DamageVerdict(str(damage), places[0], outcome, detail)

    def _outcome(
        self, damage: Damage, places: list[str], path: Path, files: dict[str, bytes]
    ) -> tuple[DamageOutcome, str]:
        named = _violations(path)
        try:
            store = open_sample(path, damage.image)
        except StoreError as error:
            _require(named, f"open refused ({error}), check found nothing")
            _require(_unchanged(path, files), f"open refused ({error}), and wrote to the store")
            return DamageOutcome.REFUSED, str(error)
        with store:
            found = self._readers[damage.image].read(store)
            may_be_cut = without_blobs(damage.image) == "killed" and not _OF_LAST.isdisjoint(places)
            is_cut = may_be_cut and not all(one.is_whole for one in found)
            if is_cut:
                found = self._before_last[damage.image].read(store)
            repaired = store.recovery.root_copy_repaired
            _write_and_read(store)
        named = named or _violations(path)
        bytes_found, u64_found = found
        if damage.file == NUMBERS_INDEX and (u64_found.strange or u64_found.missing):
            return DamageOutcome.UNCHECKED, "; ".join(u64_found.strange) or f"absent: {u64_found.missing}"
        _require(not bytes_found.strange + u64_found.strange, "; ".join(bytes_found.strange + u64_found.strange))
        missing, corrupt = bytes_found.missing + u64_found.missing, bytes_found.corrupt + u64_found.corrupt
        _require(not missing or damage.file == BYTES_INDEX, f"keys lost: {missing}")
        _require(not corrupt or not _OF_VALUES.isdisjoint(places), f"{corrupt} reads refused")
        _require(corrupt or is_cut or _OF_BLOBS.isdisjoint(places), "no read found the damage of a blob")
        _require(named or not (missing or corrupt), f"{missing} lost, {corrupt} refused, and check found nothing")
        if is_cut:
            _require(not (missing or corrupt or named), f"the last batch was cut, and {named}")
            return DamageOutcome.CUT, "all keys as they were before the last batch"
        if not (named or repaired):
            return DamageOutcome.HARMLESS, "all keys as they were"
        lost = f"{len(missing)} keys read as absent, {corrupt} reads refused"
        return DamageOutcome.REPORTED, f"{lost}; {named or f'root copy {repaired} was written again'}"


@dataclass
class _Found:
    """The results of reading every key of a table."""

    strange: list[str]  # wrong values, and values of absent keys
    missing: list[bytes]
    corrupt: int

    @property
    def is_whole(self) -> bool:
        """Whether all is as it was."""
        return not (self.strange or self.missing or self.corrupt)


class _Reader:
    """Reads all keys of both tables, and some absent ones."""

    def __init__(self, there: Contents, absent_keys: Contents) -> None:
        tables = ((there.bytes_table, absent_keys.bytes_table), (there.u64_table, absent_keys.u64_table))
        self._keys = [[*present, *missing] for present, missing in tables]
        self._values = [[*present.values(), *[None] * len(missing)] for present, missing in tables]
        self._requests = [Batch.of([(Op.GET, key) for key in keys]) for keys in self._keys]

    def read(self, store: Store) -> list[_Found]:
        results = _execute(store, self._requests)
        return [self._compare(*columns) for columns in zip(self._keys, self._values, results, strict=True)]

    @staticmethod
    def _compare(keys: list[bytes], values: list[bytes | None], result: RequestResult) -> _Found:
        found = _Found([], [], 0)
        statuses: Sequence[int] = result.status.tolist()
        for key, expected, status, value in zip(keys, values, statuses, result.value_list(), strict=True):
            if status == Status.OK:
                if value != expected:
                    wanted = "nothing" if expected is None else quoted(expected)
                    found.strange.append(f"key {key!r}: expected {wanted}, read {quoted(value)}")
            elif status == Status.CORRUPT:
                found.corrupt += 1
            elif expected is not None:
                found.missing.append(key)
        return found


def _execute(store: Store, requests: list[Batch]) -> list[RequestResult]:
    """Run one request on each of the two tables."""
    results = []
    for name, request in zip(("", NUMBERS), requests, strict=True):
        done = store.execute_requests(request.on_table(store.table(name).id))
        _require(not done.rejected, f"a request was rejected: {done.rejected}")
        results.append(done.request(0))
    return results


def _write_and_read(store: Store) -> None:
    """Require that a damaged store that is served keeps new writes."""
    _execute(store, [Batch.of([(Op.SET, key, value)]) for key, value in _NEW])
    again = _execute(store, [Batch.of([(Op.GET, key), (Op.DELETE, key), (Op.GET, key)]) for key, _ in _NEW])
    for (key, value), result in zip(_NEW, again, strict=True):
        _require(result.status.tolist() == [Status.OK, Status.OK, Status.NOT_FOUND], f"{key!r}: {result.status}")
        _require(result.value_list() == [value, b""], f"{key!r}: written {value!r}, read {result.value_list()}")


def _violations(path: Path) -> str:
    """Return the findings of `gpkvs check`, "" if there are none."""
    try:
        report: CheckReport = check(path)
    except StoreError as error:
        return str(error)
    return "; ".join(f"{violation.invariant}: {violation.message}" for violation in report.violations)


def _require(condition: object, message: str) -> None:
    if not condition:
        raise _MissedError(message)


def _write(path: Path, files: dict[str, bytes]) -> None:
    """Replace files by those of an image, without truncating them first: that would take most of the time."""
    for file in path.iterdir():
        if file.name not in files:
            file.unlink()
    for name, data in files.items():
        with (path / name).open("r+b" if (path / name).exists() else "wb") as target:
            target.write(data)
            target.truncate()


def _unchanged(path: Path, files: dict[str, bytes]) -> bool:
    """Whether the files still have the damaged bytes; LOCK may change, because it names its last user."""
    return all((path / name).read_bytes() == data for name, data in files.items() if name != "LOCK")


def main() -> None:
    """Judge one damage after the other, until there are no more."""
    directory, commit, *made = sys.argv[1:]
    judge = DamageJudge(Path(directory), cast(CommitName, commit), *map(Path, made))
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(asdict(judge.judge(Damage.parse(line.strip())))), flush=True)


if __name__ == "__main__":
    main()
