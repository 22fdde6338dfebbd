"""The store that a backup fills: first with what a scan returns, then with what has changed since the scan began.

A change is absolute: it says what a key holds behind it. So a key may be there already as it was later, and what the
scan brought of a table does not matter once an entry says that the table was dropped or made. While entries are
applied, the store is no state that its source ever had; it is one behind the last of them.

Tables go by their names, since no two have the same at a time, and entries come in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from gpkvs.batch import U64, Batch, BatchResult, Op, Status, constant
from gpkvs.changes import ChangeKind, Changes
from gpkvs.columns.row_layout import KEY_BYTES, row_layout_of
from gpkvs.config import VALUE_BYTES_MOST, Limits
from gpkvs.errors import NoSpaceError, StoreError
from gpkvs.info import TableInfo
from gpkvs.media.directory import disk_free_bytes
from gpkvs.media.layout import U64_LAYOUT
from gpkvs.scan import ScanPiece
from gpkvs.text import quoted

_BATCH_OPS, _BATCH_BYTES = 16_384, 1 << 20  # of entries that are applied together; one alone may be larger
_BEGUN_MAX = 16
_OPS_MOST = (1 << 32) - 1
_NUMBERS = Limits(8, 8, 8, 8, _OPS_MOST)
_BYTES = Limits(value_bytes_max=VALUE_BYTES_MOST, request_ops_max=_OPS_MOST)


class Begun(Protocol):
    """A request that was run."""

    def finish(self) -> BatchResult:
        """Wait until it is durable; return its result."""


class NewStore(Protocol):
    """What is asked of the store that is filled."""

    def begin_requests(self, batch: Batch) -> Begun:
        """Run one request that is valid; the next may run before it is durable."""

    def open_table(self, name: str) -> Any:
        """Return the number of a table, as `id`."""

    def create_table(self, name: str, *, layout: str, index_bytes: int, index_bytes_max: int) -> Any:
        """Make a table."""

    def drop_table(self, name: str) -> None:
        """Remove a table."""

    def list_tables(self) -> list[TableInfo]:
        """Describe its tables."""

    def info(self) -> Any:
        """Say what it is like, with `next_version`."""

    def end_making(self, time_ms: int) -> None:
        """Let the time go on from that of its source."""

    def close(self) -> None:
        """Let go of it; everything is durable then."""


@dataclass
class _Table:
    """A table of the new store, and the entries that wait for it."""

    layout: str
    waiting: list[Changes] = field(default_factory=list)
    waiting_ops: int = 0
    waiting_bytes: int = 0

    @property
    def is_of_numbers(self) -> bool:
        return self.layout == U64_LAYOUT.name

    def takes_piece(self, piece: ScanPiece) -> bool:
        """Whether a piece that is not empty is of a table of this layout; an older source does not say it."""
        if piece.layout:
            return piece.layout == self.layout
        return self.is_of_numbers != bool(len(piece.versions))

    def takes(self, entry: Changes) -> bool:
        """Whether an entry may be of this table; of another one of the name it may be, which had another layout."""
        if self.is_of_numbers == bool(len(entry.versions)):
            return False
        if (rows := row_layout_of(self.layout)) is None:
            return True
        of_values = entry.value_lengths[np.asarray(entry.kinds) == ChangeKind.SET.value]
        return bool((entry.key_lengths == KEY_BYTES).all() and (of_values == rows.row_bytes).all())

    def add(self, entry: Changes) -> bool:
        """Take an entry; return whether there is enough for a request."""
        self.waiting.append(entry)
        self.waiting_ops += len(entry)
        self.waiting_bytes += len(entry.keys) + len(entry.values)
        return self.waiting_ops >= _BATCH_OPS or self.waiting_bytes >= _BATCH_BYTES

    def take(self) -> list[Changes]:
        """Give away what waits."""
        taken, self.waiting, self.waiting_ops, self.waiting_bytes = self.waiting, [], 0, 0
        return taken


@contextmanager
def room_in(path: Path) -> Iterator[None]:
    """Say of a new store what a full disk means to who makes a backup, where a store says what it means to who writes.

    Parameters
    ----------
    path
        Of its directory, or of one above.
    """
    try:
        yield
    except NoSpaceError as error:
        if error.resource not in ("disk", "heap"):
            raise
        raise NoSpaceError(
            "disk",
            f"the backup takes more than {path} has: {disk_free_bytes(path):,} bytes are free beside what was made of "
            "it; make room, or take another disk",
        ) from error


class Filled:
    """A store on its way; raises `NoSpaceError` where it does not fit.

    Parameters
    ----------
    store
        A new one, with its default table alone; or one that is to be brought to a later state.
    place
        The directory in which it lies.
    key_bytes_max
        That its format has a place for.

    Attributes
    ----------
    next_version
        That the store gives next; known when it is closed.
    """

    def __init__(self, store: NewStore, place: Path, key_bytes_max: int) -> None:
        self._store = store
        self._place = place
        self._limits = replace(_BYTES, key_bytes_max=key_bytes_max)
        self._tables = {table.name: _Table(table.layout) for table in store.list_tables()}
        self._incomplete: set[str] = set()  # tables that an entry must still drop
        self._begun: deque[Begun] = deque()
        self.next_version = 0
        self._time_ms = 0  # of the last entry, by the source's clock

    def add_table(self, name: str, layout: str, index_bytes: int, index_bytes_max: int) -> None:
        """Make an empty table, in the place of one that is there."""
        self._drop(name)
        with room_in(self._place):
            self._store.create_table(name, layout=layout, index_bytes=index_bytes, index_bytes_max=index_bytes_max)
        self._tables[name] = _Table(layout)

    def add_piece(self, name: str, piece: ScanPiece) -> bool:
        """Store what a scan has returned; return whether it was of this table.

        It may be of a table that was made anew under the name, of another layout.
        """
        if not len(piece):
            return True
        if not self._tables[name].takes_piece(piece):
            self.expect_drop(name)
            return False
        self._run(
            name,
            Batch(
                ops=constant(np.uint8(Op.SET), len(piece)),
                keys=piece.keys,
                key_lengths=piece.key_lengths,
                values=piece.values,
                value_lengths=piece.value_lengths,
                expiries=piece.expiries if len(piece.expiries) else None,
                versions=piece.versions if len(piece.versions) else None,
            ),
        )
        return True

    def expect_drop(self, name: str) -> None:
        """Take note that a table was dropped while it was scanned: an entry must say so, too."""
        self._incomplete.add(name)

    def apply(self, entry: Changes) -> None:
        """Do what an entry says, behind those before it."""
        self._time_ms = entry.time_ms
        if entry.made:
            self._incomplete.discard(entry.name)
            self.add_table(entry.name, entry.made.layout, entry.made.index_bytes, entry.made.index_bytes_max)
        elif entry.is_dropped:
            self._incomplete.discard(entry.name)
            self._drop(entry.name)
        elif not len(entry):
            pass  # a transaction that left all as it was: such an entry does not even tell the layout of its table
        elif (table := self._tables.get(entry.name)) is None or not table.takes(entry):
            self._incomplete.add(entry.name)  # it was dropped before the tables were listed, and perhaps made anew
        elif table.add(entry):
            self._apply_waiting(entry.name)

    def end(self) -> list[TableInfo]:
        """Apply what waits; return what the tables hold. The store is as it was at the last entry, and may be closed.

        Raises
        ------
        StoreError
            If something is missing.
        """
        for name, table in self._tables.items():
            if table.waiting:
                self._apply_waiting(name)
        while self._begun:
            self._finish_first()
        if self._incomplete:
            raise StoreError(
                f"table {quoted(min(self._incomplete))} was dropped meanwhile, and no change says so: take the backup "
                "again, and report this"
            )
        self._store.end_making(self._time_ms)
        return self._store.list_tables()

    def _drop(self, name: str) -> None:
        if self._tables.pop(name, None):
            self._store.drop_table(name)

    def _apply_waiting(self, name: str) -> None:
        """Apply the entries of a table as one request, in their order."""
        table = self._tables[name]
        entries = table.take()
        is_set = _joined(entries, lambda entry: entry.kinds) == ChangeKind.SET.value
        has_expiries = any(len(entry.expiries) for entry in entries)
        self._run(
            name,
            Batch(
                ops=np.where(is_set, np.uint8(Op.SET), np.uint8(Op.DELETE)),
                keys=_joined(entries, lambda entry: entry.keys),
                key_lengths=_joined(entries, lambda entry: entry.key_lengths),
                values=_joined(entries, lambda entry: entry.values),
                value_lengths=_joined(entries, lambda entry: entry.value_lengths)[is_set],
                expiries=_joined(entries, _expiries_of) if has_expiries else None,
                versions=None if table.is_of_numbers else _joined(entries, lambda entry: entry.versions),
            ),
        )

    def _run(self, name: str, batch: Batch) -> None:
        # The limits of the new store itself would leave out what its source took under other ones.
        batch.validate(_NUMBERS if self._tables[name].is_of_numbers else self._limits)
        with room_in(self._place):
            self._begun.append(self._store.begin_requests(batch.on_table(self._store.open_table(name).id)))
        if len(self._begun) > _BEGUN_MAX:
            self._finish_first()

    def _finish_first(self) -> None:
        with room_in(self._place):
            status = self._begun.popleft().finish().request(0).status
        assert int(status.max()) <= Status.NOT_FOUND.value  # of a DELETE; else OK


def _expiries_of(entry: Changes) -> U64:
    return entry.expiries if len(entry.expiries) else np.zeros(len(entry), np.uint64)


def _joined(entries: list[Changes], column: Callable[[Changes], Any]) -> Any:
    return np.concatenate([column(entry) for entry in entries])
