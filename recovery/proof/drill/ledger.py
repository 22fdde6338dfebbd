"""The record of all writes and acknowledgements, and the check that a restarted store still holds them.

The unit is the *cell*: one key, or several keys that one BatchRequest writes together. An *attempt* gives a cell a new
state: a value or absence for each of its keys. A cell may hold its newest state that was acknowledged or read, or the
state of an attempt whose outcome is unknown because the server died before the response.

Invariants; each has a test that breaks it:

    lost        a cell holds its newest acknowledged (or once read) state, or the later state of an attempt whose
                outcome is unknown
    half batch  all keys of a cell come from one attempt
    phantom     the store holds no value that nobody wrote, that was refused, or that a crash had already taken back
    version     a write's version is above all versions that were known when the request was sent; no version is given
                twice; a value is always read with the version that it was written with
    response    a response about a key agrees with what the key's only writer knows
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from gpkvs.text import quoted

State = tuple[bytes | None, ...]  # for each key of a cell its value, or None if the key is absent
Versions = tuple[int, ...]  # for each key of a cell the version of its value, 0 if the key is absent
AttemptOutcome = Literal["unknown", "acknowledged", "read", "refused", "taken back"]
Invariant = Literal["lost", "half batch", "phantom", "version", "response"]

VALUE_BYTES_MIN = 40  # every value begins with the attempt that wrote it
NUMBER_BYTES = 8  # a value of this size is a number, which says the same
_KEY_BITS = 16  # of such a number; the others are the attempt's


@dataclass(frozen=True)
class LedgerViolation:
    """One broken invariant: where, what was expected, what was found."""

    invariant: Invariant
    key: bytes
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.invariant}: key {quoted(self.key)}: expected {self.expected}, found {self.found}"


@dataclass
class Attempt:
    """One write of a cell; it is noted before it is sent."""

    number: int
    cell: int
    state: State
    floor: int  # the highest version known anywhere when it was sent
    outcome: AttemptOutcome = "unknown"
    versions: Versions | None = None

    @property
    def version(self) -> int:
        """The highest version of its keys; 0 if that is unknown, or if the attempt only deletes."""
        return max(self.versions, default=0) if self.versions else 0


@dataclass
class Cell:
    """Keys that are written together, and the attempts whose states they may have."""

    number: int
    keys: tuple[bytes, ...]
    newest: Attempt  # the newest attempt that is known to be durable
    open: dict[int, Attempt] = field(default_factory=dict)  # outcome unknown


class Ledger:
    """The record of one store's writes, however often its server is started again.

    An attempt that only deletes gets no version. Its order is known only if a single writer writes that cell, one write
    at a time. Attempts with a value may run concurrently with others. The same holds for all attempts on a cell of a
    table without versions: `None` stands for them everywhere.
    """

    def __init__(self) -> None:
        self.cells: list[Cell] = []
        self.attempts: dict[int, Attempt] = {}
        self.violations: list[LedgerViolation] = []
        self.version_highest = 0
        self.acknowledged = 0
        self._versions_used: set[int] = set()
        self._next_attempt = 1
        self._forgotten_below = 0

    def add_cell(self, keys: Sequence[bytes]) -> Cell:
        """Add a cell of keys that were never written; a cell that nobody writes is a check for phantoms."""
        nothing = Attempt(0, len(self.cells), (None,) * len(keys), 0, "acknowledged", (0,) * len(keys))
        self.cells.append(Cell(len(self.cells), tuple(keys), nothing))
        return self.cells[-1]

    def begin(self, cell: Cell, sizes: Sequence[int | None]) -> Attempt:
        """Note a write that is about to be sent.

        Parameters
        ----------
        cell
            The cell to write.
        sizes
            For each key the bytes of its value (`NUMBER_BYTES`, or at least `VALUE_BYTES_MIN`), or None to delete it.

        Returns
        -------
        Attempt
            Its `state` holds the values to send; each says which attempt wrote it, and for which key.
        """
        assert len(sizes) == len(cell.keys)
        number = self._next_attempt
        self._next_attempt += 1
        state = tuple(None if size is None else _value(number, i, size) for i, size in enumerate(sizes))
        assert any(state) or not cell.open, "a cell that is deleted whole has one writer"
        attempt = Attempt(number, cell.number, state, self.version_highest)
        self.attempts[number] = attempt
        cell.open[number] = attempt
        return attempt

    def acknowledge(self, attempt: Attempt, versions: Versions | None = None) -> None:
        """Note that the server acknowledged a write.

        Parameters
        ----------
        attempt
            The write.
        versions
            For each key the version that it was given, 0 if it was deleted; None if the response has no versions.
        """
        self.acknowledged += 1
        self._durable(attempt, versions, "acknowledged")

    def refuse(self, attempt: Attempt) -> None:
        """Note that the server refused a write: it wrote nothing."""
        attempt.outcome = "refused"
        self.cells[attempt.cell].open.pop(attempt.number, None)

    def read(self, cell: Cell, before: Attempt, state: State, versions: Versions | None) -> None:
        """Check the state that one request read of a whole cell, while others may write it.

        A state that was read is durable, because no read shows what a crash could take back. It counts as acknowledged.

        Parameters
        ----------
        cell
            The cell that was read.
        before
            The cell's `newest` when the request was sent: the request may not read anything older.
        state, versions
            The values and versions that were read.
        """
        found = before if before.state == state else self._attempt_of(cell, state)
        if found is None or found.outcome in ("refused", "taken back"):
            self._explain(cell, state)
        elif found.number < before.number if versions is None else max(versions) < before.version:
            self._violate("lost", cell, 0, _text(before), f"an older state, {_text(found)}")
        else:
            self._durable(found, versions, "read")

    def settle(self, cell: Cell, state: State, versions: Versions | None) -> None:
        """Check the state of a cell after a restart, and take it as the cell's state from now on.

        Parameters
        ----------
        cell
            The cell that was read, while nobody writes.
        state, versions
            The values and versions that were read.
        """
        found = next((a for a in (cell.newest, *cell.open.values()) if a.state == state), None)
        if found is None:
            self._explain(cell, state)
        else:
            if versions and found is not cell.newest and any(state) and max(versions) < cell.newest.version:
                expected = f"a version above {cell.newest.version}"
                self._violate("version", cell, 0, expected, f"version {max(versions)}")
            self._durable(found, versions, "read")
        for attempt in cell.open.values():
            attempt.outcome = "taken back"
        cell.open.clear()

    def forget_values(self) -> None:
        """Drop the values of all attempts but the newest of each cell; call it after settling all cells."""
        newest = {cell.newest.number for cell in self.cells}
        for attempt in self.attempts.values():
            if attempt.number not in newest:
                attempt.state = ()

    @property
    def attempts_begun(self) -> int:
        """How many writes were noted, which is the number of the newest."""
        return self._next_attempt - 1

    def forget_attempts(self, before: int) -> None:
        """Forget the attempts numbered below `before` whose state no cell may have any more; no read overlaps them."""
        needed = {cell.newest.number for cell in self.cells}
        needed.update(number for cell in self.cells for number in cell.open)
        old = [number for number in self.attempts if number < before and number not in needed]
        for number in old:
            del self.attempts[number]
        self._forgotten_below = max(self._forgotten_below, before)
        # A version at or below the floor of its attempt is a violation anyway.
        floors = (attempt.floor for cell in self.cells for attempt in cell.open.values())
        floor = min(floors, default=self.version_highest)
        self._versions_used = {version for version in self._versions_used if version > floor}

    @property
    def keys_present(self) -> int:
        """How many keys have a value in the newest states."""
        return sum(value is not None for cell in self.cells for value in cell.newest.state)

    def violate_response(self, key: bytes, expected: str, found: str) -> None:
        """Note a response that contradicts what its client alone knows."""
        self.violations.append(LedgerViolation("response", key, expected, found))

    def _durable(self, attempt: Attempt, versions: Versions | None, outcome: AttemptOutcome) -> None:
        """Take a state as durable, after checking its versions."""
        cell = self.cells[attempt.cell]
        if versions is not None:
            if attempt.versions is None:
                self._claim(cell, attempt, versions)
            elif attempt.versions != versions:
                i = next(i for i, (a, b) in enumerate(zip(attempt.versions, versions, strict=True)) if a != b)
                self._violate("version", cell, i, f"version {attempt.versions[i]}", f"version {versions[i]}")
        if attempt.outcome != "acknowledged":
            attempt.outcome = outcome
        cell.open.pop(attempt.number, None)
        newest = cell.newest
        # If one of the two only deletes, the cell has a single writer, and the attempts are in its order.
        in_order = attempt.version and newest.version
        if attempt.version > newest.version if in_order else attempt.number > newest.number:
            cell.newest = attempt

    def _claim(self, cell: Cell, attempt: Attempt, versions: Versions) -> None:
        """Check the versions of a write when they are first seen."""
        attempt.versions = versions
        for i, (version, value) in enumerate(zip(versions, attempt.state, strict=True)):
            if value is None:
                continue
            if version in self._versions_used:
                self._violate("version", cell, i, "a version never given before", f"version {version} again")
            elif version <= attempt.floor:
                self._violate("version", cell, i, f"a version above {attempt.floor}", f"version {version}")
            self._versions_used.add(version)
            self.version_highest = max(self.version_highest, version)

    def _attempt_of(self, cell: Cell, state: State) -> Attempt | None:
        """Return the attempt that wrote exactly this state of a cell."""
        numbers = [_writer(value) for value in state if value is not None]
        attempt = self.attempts.get(numbers[0]) if numbers else None
        return attempt if attempt and attempt.cell == cell.number and attempt.state == state else None

    def _explain(self, cell: Cell, state: State) -> None:
        """Find the invariant that a wrong state of a cell breaks."""
        candidates = [cell.newest, *cell.open.values()]
        expected = " or ".join(map(_text, candidates[:4]))
        strange = [i for i, value in enumerate(state) if all(a.state[i] != value for a in candidates)]
        i = strange[0] if strange else 0
        value = state[i]
        if not strange:
            writers = sorted({"nothing" if value is None else f"attempt {_writer(value)}" for value in state})
            self._violate("half batch", cell, i, expected, f"a mixture of {', '.join(writers)}")
        elif value is None:
            self._violate("lost", cell, i, expected, "nothing")
        else:
            number = _writer(value)
            writer = self.attempts.get(number)
            if writer is None and 0 < number < self._forgotten_below and _is_named(value, number, i):
                self._violate("lost", cell, i, expected, f"an older state, attempt {number} (long ago)")
            elif writer is None or writer.cell != cell.number or not _is_named(value, number, i):
                self._violate("phantom", cell, i, expected, f"{value[:VALUE_BYTES_MIN]!r}, written by nobody")
            elif writer.outcome in ("refused", "taken back"):
                self._violate("phantom", cell, i, expected, f"what must be gone, {_text(writer)}")
            else:
                self._violate("lost", cell, i, expected, f"an older state, {_text(writer)}")

    def _violate(self, invariant: Invariant, cell: Cell, key: int, expected: str, found: str) -> None:
        self.violations.append(LedgerViolation(invariant, cell.keys[key], expected, found))


def _head(attempt: int, key: int) -> bytes:
    """Return how the value of the cell's key number `key` begins."""
    return b"attempt %d key %d|" % (attempt, key)


def _value(attempt: int, key: int, size: int) -> bytes:
    """Return a value that repeats who wrote it: a piece of another value in it would show."""
    if size == NUMBER_BYTES:
        return _number(attempt, key)
    assert size >= VALUE_BYTES_MIN
    head = _head(attempt, key)
    return (head * (size // len(head) + 1))[:size]


def _number(attempt: int, key: int) -> bytes:
    """Return the value of 8 bytes that names an attempt and the cell's key number `key`."""
    assert key < 1 << _KEY_BITS
    return (attempt << _KEY_BITS | key).to_bytes(NUMBER_BYTES, "little")


def _writer(value: bytes) -> int:
    """Return the number of the attempt that a value names as its writer, 0 if it names none."""
    if len(value) == NUMBER_BYTES:
        return int.from_bytes(value, "little") >> _KEY_BITS
    match = re.match(rb"attempt (\d+) key ", value)
    return int(match[1]) if match else 0


def _is_named(value: bytes, attempt: int, key: int) -> bool:
    """Whether a value begins as this attempt writes it to the cell's key number `key`."""
    return value == _number(attempt, key) if len(value) == NUMBER_BYTES else value.startswith(_head(attempt, key))


def _text(attempt: Attempt) -> str:
    """Describe an attempt to a reader of a violation."""
    if attempt.number == 0:
        return "nothing (never written)"
    what = "" if not attempt.state or any(attempt.state) else "absence, "
    version = f", version {attempt.version}" if attempt.version else ""
    return f"{what}attempt {attempt.number} ({attempt.outcome}{version})"
