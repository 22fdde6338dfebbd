"""What a store must hold after a crash: the model of a life, batch by batch and table by table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from gpkvs.recovery.proof.diskfail.recorder import Event, Kind, Mark
from gpkvs.recovery.proof.model import Held, Kept

Records = Held  # of one table


class TableName(NamedTuple):
    """A table."""

    id: int
    name: str
    layout: str


class Contents(NamedTuple):
    """Everything that a client can see of a store."""

    next_version: int
    tables: dict[TableName, Records]


@dataclass
class Progress:
    """How far a life had come at some point of its trace."""

    is_open: bool = False
    acknowledged: int = 0
    begun: int = 0
    schema_done: int = 0
    schema_begun: int = 0

    def apply(self, event: Event) -> None:
        """Take an event of the trace into account."""
        if event.kind is not Kind.MARK:
            return
        if event.at == Mark.OPENED:
            self.is_open = True
        elif event.at == Mark.BEGUN:
            self.begun = event.amount
        elif event.at in (Mark.ACKNOWLEDGED, Mark.TOLD):
            self.acknowledged = max(self.acknowledged, event.amount)
        elif event.at == Mark.SCHEMA_BEGUN:
            self.schema_begun = event.amount
        elif event.at in (Mark.SCHEMA_DONE, Mark.SCHEMA_TOLD):
            self.schema_done = max(self.schema_done, event.amount)

    def __str__(self) -> str:
        if not self.is_open:
            return "while it was opened"
        schema = f", schema {self.schema_done}..{self.schema_begun}" if self.schema_begun else ""
        return f"batches {self.acknowledged}..{self.begun}{schema}"


@dataclass
class Expected:
    """What a life may leave.

    Attributes
    ----------
    before
        What the store may hold until it is open.
    batches
        By the number of batches: the next version, and the records of each table by its id.
    schemas
        By the number of changes: the tables.
    """

    before: list[Contents]
    batches: list[tuple[int, dict[int, Records]]] = field(default_factory=list)
    schemas: list[tuple[TableName, ...]] = field(default_factory=list)

    def begin(self, found: Contents) -> None:
        """Note what the store held when it was open."""
        self.batches = [(found.next_version, {table.id: records for table, records in found.tables.items()})]
        self.schemas = [tuple(found.tables)]

    def allowed(self, progress: Progress) -> Iterator[Contents]:
        """Return what the store may hold after a crash."""
        if not progress.is_open:
            yield from self.before
            return
        for schema in range(progress.schema_done, progress.schema_begun + 1):
            for batch in range(progress.acknowledged, progress.begun + 1):
                # A change of tables, or a batch, that had begun may have got nowhere yet.
                if schema < len(self.schemas) and batch < len(self.batches):
                    next_version, records = self.batches[batch]
                    yield Contents(next_version, {table: records.get(table.id, {}) for table in self.schemas[schema]})


def difference(found: Contents, allowed: list[Contents]) -> str:
    """Return how a store differs from what it may hold; empty if it does not."""
    if found in allowed:
        return ""
    if not allowed:
        return "nothing was expected"
    nearest = min(allowed, key=lambda one: len(_facts(found) ^ _facts(one)))
    return f"the nearest of {len(allowed)} allowed states differs: {_one_difference(found, nearest)}"


def _facts(contents: Contents) -> set[tuple[object, ...]]:
    facts: set[tuple[object, ...]] = {(contents.next_version,)}
    for table, records in contents.tables.items():
        facts |= {(table, key, *held) for key, held in records.items()}
    return facts


def _one_difference(found: Contents, wanted: Contents) -> str:
    parts = []
    if found.next_version != wanted.next_version:
        parts.append(f"next version {found.next_version}, not {wanted.next_version}")
    if found.tables.keys() != wanted.tables.keys():
        parts.append(f"tables {[*found.tables]}, not {[*wanted.tables]}")
    for table in found.tables.keys() & wanted.tables.keys():
        left, right = found.tables[table], wanted.tables[table]
        keys = [key for key in left.keys() | right.keys() if left.get(key) != right.get(key)]
        for key in sorted(keys)[:3]:
            parts.append(f"{table.name} {key!r}: {_short(left.get(key))}, not {_short(right.get(key))}")
        if len(keys) > 3:
            parts.append(f"{len(keys)} keys of {table.name}")
    return ", ".join(parts)


def _short(kept: Kept | None) -> str:
    if kept is None:
        return "absent"
    return f"{kept.value[:12]!r} version {kept.version}" + f" expires {kept.expiry}" * bool(kept.expiry)
