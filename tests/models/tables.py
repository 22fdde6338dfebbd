"""The tables of a modelled store: where keys live, what a batch changes, and what the store must hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple, TypeAlias

from tests.models.memory import Memory, RefusedError, WrongError

WAYS, HASHES = 4, 8  # slots of a block; a key is its own hash
BLOCKS_MAX, TABLES_MAX = 4, 3

Slot: TypeAlias = tuple[Any, Any]  # a key, and its number or the cell of its row
Operation: TypeAlias = tuple[int, int, bool]  # table, key, whether it goes
EMPTY: Slot = (None, None)


class Growth(NamedTuple):
    """Of a table of so many blocks, of which the first ones have not moved."""

    table: int
    blocks: int
    unmoved: int


class Entry(NamedTuple):
    """A table of the catalogue. Its slots have numbers, or the cells of rows."""

    table: int
    generation: int
    has_rows: bool
    blocks: int


Catalogue: TypeAlias = tuple[Entry, ...]


def adopt(tables: Catalogue, next_table: int, growth: Growth | None) -> Growth | None:
    """Return the growth that goes on: what the catalogue says and what the last batch says must agree."""
    if growth is None:
        return None
    entry = next((entry for entry in tables if entry.table == growth.table), None)
    if entry is None:
        if growth.table >= next_table:
            raise RefusedError("there was never such a table")
        return None  # it was dropped
    if entry.blocks == growth.blocks:
        return growth
    if entry.blocks != 2 * growth.blocks or growth.unmoved:
        raise RefusedError("growth cannot be")
    return None


@dataclass
class Plan:
    """What a batch changes: nothing else has happened yet."""

    slots: dict[int, list[Slot]]
    free: list[int]
    state: dict[int, dict[int, Any]]
    rows: dict[int, tuple[int, int]] = field(default_factory=dict)
    freed: list[int] = field(default_factory=list)
    displaced: set[tuple[int, int]] = field(default_factory=set)
    deleted: set[tuple[int, int]] = field(default_factory=set)
    before: dict[tuple[int, int], Slot] = field(default_factory=dict)
    after: dict[tuple[int, int], Slot] = field(default_factory=dict)

    def note_changes(self, source: dict[int, list[Slot]]) -> None:
        """Take note of the slots that changed, as they were and as they are to be."""
        for table, slots in self.slots.items():
            for number, (old, new) in enumerate(zip(source[table], slots, strict=True)):
                if old != new:
                    self.before[table, number], self.after[table, number] = old, new


class Tables(ABC):
    """What both kinds of stores have: plans on a mirror that is ahead, and the states that were promised.

    Parameters
    ----------
    seed
        Of everything.
    wrong
        Which rule is broken; none by default.
    reached
        Counts what the runs have met.
    """

    tables: Catalogue
    mirror: dict[int, list[Slot]]
    free: list[int]

    def __init__(self, seed: int, wrong: str, reached: Counter[str]) -> None:
        self.random = Random(seed)
        self.wrong = wrong
        self.reached = reached
        self.memory = Memory(self.random)
        self.growth: Growth | None = None
        self.tables = (Entry(1, 0, True, self.random.choice((1, 2))),)
        if self.random.random() < 0.7:
            self.tables += (Entry(2, 0, False, self.random.choice((1, 2))),)
        self.states: list[dict[int, dict[int, Any]]] = [{}]  # by sequence number
        self.acked = self.revealed = 0
        self.named = self.named_next = {entry.table for entry in self.tables}  # what is promised; what comes
        self._numbers = 100
        self.busy = ""

    @property
    @abstractmethod
    def sequence(self) -> int:
        """The number of the state that recovery left."""

    @abstractmethod
    def slot(self, table: int, number: int) -> Slot:
        """Return a slot as programs see it."""

    @abstractmethod
    def live(self, actions: int) -> None:
        """Run batches, and what goes on between them."""

    @abstractmethod
    def crash(self) -> None:
        """Lose what is not durable, and note what that left."""

    @abstractmethod
    def rot(self) -> None:
        """Damage a word, or the page in which it lies."""

    @abstractmethod
    def recover(self) -> None:
        """Bring the store into a state of its history. It may be cut short, and runs again."""

    def entry(self, table: int) -> Entry | None:
        """Return a table's entry."""
        return next((entry for entry in self.tables if entry.table == table), None)

    def grows(self, entry: Entry) -> bool:
        """Whether a table grows."""
        return self.growth is not None and self.growth[:2] == (entry.table, entry.blocks)

    def slots_of(self, entry: Entry) -> int:
        """Return how many slots a table's index has, with those that it grows to."""
        return entry.blocks * WAYS * (2 if self.grows(entry) else 1)

    def home(self, entry: Entry, key: int) -> int:
        """Return the block in which a key lives."""
        block = key * entry.blocks // HASHES
        if self.growth and self.grows(entry) and block >= self.growth.unmoved:
            return key * 2 * entry.blocks // HASHES
        return block

    def live_slots(self, entry: Entry) -> Iterator[tuple[int, Any, Any]]:
        """Return the slots of a table's live blocks that hold a key: number, key, and number or cell."""
        blocks = [*range(entry.blocks)]
        if self.growth and self.grows(entry):
            blocks = [*range(self.growth.unmoved), *range(2 * self.growth.unmoved, 2 * entry.blocks)]
        for block in blocks:
            for number in range(block * WAYS, (block + 1) * WAYS):
                key, value = self.slot(entry.table, number)
                if key is not None:
                    yield number, key, value

    def row(self, cell: int) -> tuple[Any, ...]:
        """Return a row as programs see it."""
        return tuple(self.memory.load(("row", cell, word)) for word in (0, 1))

    def contents(self) -> dict[int, dict[int, Any]]:
        """Return what a reader finds in all tables."""
        found: dict[int, dict[int, Any]] = {}
        for entry in self.tables:
            keys = found[entry.table] = {}
            for number, key, value in self.live_slots(entry):
                if key in keys:
                    raise WrongError("torn: a key is there twice")
                if self.home(entry, key) != number // WAYS:
                    raise WrongError("torn: a key lies where it cannot")
                keys[key] = self.row(value) if entry.has_rows else value
        return found

    def read_slots(self) -> dict[int, list[Slot]]:
        """Return all slots as programs see them."""
        return {
            entry.table: [self.slot(entry.table, number) for number in range(self.slots_of(entry))]
            for entry in self.tables
        }

    def count_free(self, cells: int) -> list[int]:
        """Return the cells that no slot refers to, in any order."""
        used = {cell for entry in self.tables if entry.has_rows for _, _, cell in self.live_slots(entry)}
        free = [cell for cell in range(cells) if cell not in used]
        self.random.shuffle(free)
        return free

    # Plans.

    def choose(self) -> list[Operation]:
        """Return the operations of a batch; those of compaction are on several tables."""
        random = self.random
        several = random.random() < 0.4
        table, key = random.choice(self.tables).table, random.randrange(HASHES)
        chosen = []
        for _ in range(random.randint(1, 6)):
            if several:
                table = random.choice(self.tables).table
            if not several or random.random() < 0.5:
                key = random.randrange(HASHES)
            chosen.append((table, key, random.random() < 0.3))
        return chosen

    def plan(self, source: dict[int, list[Slot]], operations: list[Operation]) -> Plan:
        """Plan a batch. A way that it frees may be used in it: the engine's plans are stricter."""
        base = {table: dict(keys) for table, keys in self.states[-1].items()}
        plan = Plan({table: list(slots) for table, slots in source.items()}, list(self.free), base)
        for table, key, goes in operations:
            entry = self.entry(table)
            if entry and table in plan.slots:
                (self._delete if goes else self._set)(plan, entry, key)
        plan.note_changes(source)
        return plan

    def _find(self, plan: Plan, entry: Entry, key: int) -> tuple[range, int | None]:
        block = self.home(entry, key)
        ways = range(block * WAYS, (block + 1) * WAYS)
        return ways, next((way for way in ways if plan.slots[entry.table][way][0] == key), None)

    def _delete(self, plan: Plan, entry: Entry, key: int) -> None:
        _, way = self._find(plan, entry, key)
        if way is None:
            return
        self._drop_value(plan, entry, way)
        plan.slots[entry.table][way] = EMPTY
        plan.deleted.add((entry.table, way))
        plan.state.setdefault(entry.table, {}).pop(key, None)

    def _drop_value(self, plan: Plan, entry: Entry, way: int) -> None:
        cell = plan.slots[entry.table][way][1]
        if not entry.has_rows or cell is None:
            return
        if plan.rows.pop(cell, None):
            plan.free.append(cell)
        else:
            plan.freed.append(cell)

    def _set(self, plan: Plan, entry: Entry, key: int) -> None:
        slots = plan.slots[entry.table]
        ways, way = self._find(plan, entry, key)
        empty = [way for way in ways if slots[way][0] is None]
        if entry.has_rows and not plan.free:
            return
        if way is not None:
            self._drop_value(plan, entry, way)
        elif empty:
            way = self.random.choice(empty)
            if self.random.random() < 0.4:  # another key gives its place
                taken = self.random.choice(ways)
                slots[way] = slots[taken]
                plan.displaced.add((entry.table, taken))
                way = taken
        else:
            return
        self._numbers += 1
        value: Any = self.random.choice((1, self._numbers))  # some are equal
        if entry.has_rows:
            cell = plan.free.pop()
            value = plan.rows[cell] = (value, self._numbers)
            slots[way] = key, cell
        else:
            slots[way] = key, value
        plan.state.setdefault(entry.table, {})[key] = value

    # Growth.

    def doubled(self) -> Catalogue:
        """Return the catalogue in which the table that grows has twice the blocks."""
        assert self.growth
        return tuple(entry._replace(blocks=2 * entry.blocks) if self.grows(entry) else entry for entry in self.tables)

    def moved(self, slots: list[Slot], first: int) -> list[Slot]:
        """Return a table's slots with the blocks from `first` on moved: each becomes two."""
        assert self.growth
        _, blocks, unmoved = self.growth
        moved = list(slots)
        for target in range(2 * first, 2 * unmoved):
            for way in range(WAYS):
                slot = slots[target // 2 * WAYS + way]
                is_there = slot[0] is not None and slot[0] * 2 * blocks // HASHES == target
                moved[target * WAYS + way] = slot if is_there else EMPTY
        return moved

    def first_to_move(self) -> int:
        """Return with which block a step begins: no block moves to the place of one that moves with it."""
        assert self.growth
        unmoved = self.growth.unmoved
        return self.random.randint((unmoved + 1) // 2, unmoved - 1) if unmoved > 1 else 0

    # What was promised.

    def check(self) -> None:
        """Compare what recovery left with what was promised."""
        sequence = self.sequence
        if sequence < self.acked:
            raise WrongError(f"lost: {self.acked} was acknowledged, {sequence} is there")
        if sequence < self.revealed:
            raise WrongError(f"revealed: somebody saw {self.revealed}, {sequence} is there")
        named = {entry.table for entry in self.tables}
        if named not in (self.named, self.named_next):
            raise WrongError("lost: a table")
        state = self.states[sequence]
        if any(keys != state.get(table, {}) for table, keys in self.contents().items()):
            raise WrongError("torn: no state of the history")
        self.named = self.named_next = named
        self.acked = self.revealed = sequence
        del self.states[sequence + 1 :]
