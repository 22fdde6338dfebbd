"""Compaction of the heap: what is live of victim segments moves elsewhere, step by step, until they are free.

A step is a transaction like any other: this planner makes a write set, and the committer stores it. Records move as
they are, damaged ones too. Their slots keep fingerprint, kind and version, so a step gives no versions.
``kernels/plan/compact.hpp`` finds the records and their new places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.base import Backend
from gpkvs.batch import U32, U64
from gpkvs.engine.seam.committer import Committer
from gpkvs.engine.seam.write_set import FILLED_WORDS, TableWrites, WriteSet, log_runs
from gpkvs.engine.space.neighbours import Step, next_step
from gpkvs.engine.state.heap import Heap, Run, charge_of
from gpkvs.engine.state.table import Table
from gpkvs.media.files import StoreFiles
from gpkvs.media.layout import RUNS_MAX, UNIT_BYTES, reference_length, reference_offset
from gpkvs.native import number

VICTIM_SHARE_MAX: Final = 0.95  # of a segment: with more charged, a victim frees too little for what it moves
IDLE_SHARE_MAX: Final = 0.5  # two such segments become one

# What a step looks at: a smaller one costs more than it moves, and a larger one saves little more.
_STEP_UNITS_MIN, _STEP_UNITS_MAX = (128 << 10) // UNIT_BYTES, (16 << 20) // UNIT_BYTES
# It looks at so many units for each that it is to free: so it ends early enough for the batch that waits.
_LOOKED_AT: Final = 4
_IDLE_STEP_UNITS: Final = (1 << 20) // UNIT_BYTES  # that are looked at while nobody waits yet
_STEP_MOVES: Final = 4096
_STEP_RECORDS: Final = 8192  # that a step walks over
_SWEPT_SLOTS: Final = 1 << 18  # that a step looks at, where rot hides records
_NOTHING: Final = Run(0, 0)
_NOWHERE: Final[int | None] = None
_NO_SEGMENT: Final = (1 << 64) - 1
_COUNT, _LACK_ROOM, _VICTIM, _AT = range(4)  # `Moves` in kernels/plan/compact.hpp
_NO_OTHERS: Final[NDArray[np.int64]] = np.empty(0, np.int64)


class Compactor:
    """Plans steps of compaction and has them committed.

    Parameters
    ----------
    files, backend, tables, heap
        Of the store; the host's threads compact.
    committer
        Stores the steps.

    Attributes
    ----------
    freed_units
        What was emptied, less what was moved elsewhere; only grows.
    """

    def __init__(
        self, files: StoreFiles, backend: Backend, tables: dict[int, Table], heap: Heap, committer: Committer
    ) -> None:
        self._files = files
        self._backend = backend.host
        self._tables = tables
        self._heap = heap
        self._committer = committer
        self._victim: int | None = None
        self._damaged: set[int] = set()  # segments that cannot be emptied: a slot refers to what is no record
        self._too_large: set[int] = set()  # segments whose records found no room, until another one is empty
        self._barred, self._long_to = _NOTHING, _NOWHERE  # of the step that makes neighbours
        self._walked = np.empty((_STEP_RECORDS, number("WALKED_WORDS")), np.uint64)
        self.freed_units = 0

    @property
    def is_due(self) -> bool:
        """Whether users' records may soon find no free segment."""
        heap = self._heap
        return heap.is_compacted and heap.emptied_segments <= heap.reserve + 1

    def step(self, share_max: float = VICTIM_SHARE_MAX, wanted_units: int = 0) -> bool:
        """Move the live records of the next part of a victim, or of several; return whether there was one.

        Parameters
        ----------
        share_max
            Of a segment, that a new victim may be charged.
        wanted_units
            That it is to free: a step for few of them is short, and one for many empties several victims.

        Raises
        ------
        MemoryError
            If there is no memory for it; nothing was moved.
        """
        if not self._find_victim(share_max):
            return False
        units_max = min(max(_LOOKED_AT * wanted_units, _STEP_UNITS_MIN), _STEP_UNITS_MAX)
        self._step(units_max, wanted_units, self._other_victims(share_max, wanted_units))
        return True

    def empty(self, victim: int) -> None:
        """Move all that is live of a segment, whichever it is: a proof looks at the step."""
        self._begin_victim(victim)
        while self._victim is not None:
            self._step(_STEP_UNITS_MAX)

    def make_run(self, segments: int) -> bool:
        """Make so many free segments neighbours, beside those that are kept; return whether they are.

        Raises
        ------
        MemoryError
            If there is no memory for a step; what was moved stays.
        """
        heap = self._heap
        moved_max = heap.moved_units + heap.segments * heap.segment_units
        while not heap.has_run(segments):
            if self._committer.release_waiting():
                continue
            step = next_step(heap, segments, self._damaged)
            if step is None or heap.moved_units > moved_max or not self._clear(step):
                return False
        return True

    def _clear(self, step: Step) -> bool:
        """Empty a segment; return whether it is empty."""
        heap = self._heap
        if step.long_to is not None:  # the record must not be stored over itself, nor over another one
            assert heap.is_free[step.long_to : step.long_to + step.segments].all()
        if step.victim == heap.survivors:
            heap.survivors = None
        self._barred, self._long_to = step.barred, step.long_to
        try:
            self.empty(step.victim)
        finally:
            self._barred, self._long_to = _NOTHING, _NOWHERE
        return not heap.charged_units[step.victim]

    def _step(self, units_max: int, wanted_units: int = 0, others: NDArray[np.int64] = _NO_OTHERS) -> None:
        """Look at so many units of the victim; where it is emptied, and more are wanted, at `others` as well."""
        assert self._victim is not None
        self._committer.land()  # slots are read where they are stored
        victims = np.append(np.uint64(self._victim), others.astype(np.uint64))
        moves = _Moves(self._files, self._heap, self._tables, victims, units_max, self._barred, self._long_to)
        if self._swept is None:
            self._walk(moves, wanted_units)
        else:
            self._sweep(moves)
        if moves.count:
            self._commit(moves)
            self._long_to = _NOWHERE  # it is taken
            self._go_on_from(moves)
        elif not moves.lacks_room:
            self._go_on_from(moves)
        elif len(others):
            self._step(units_max)  # there may be room in the others
        elif not self._committer.release_waiting():
            self._too_large.add(self._give_up())

    def idle_step(self) -> bool:
        """Take a step while there is nothing else to do: only where two segments become one."""
        if self._victim is None:
            victims = self._candidates(IDLE_SHARE_MAX)
            survivors = self._heap.survivors
            if len(victims) < 2 and not (len(victims) and survivors is not None and self._fits(victims[0], survivors)):
                return False
        if not self._find_victim(IDLE_SHARE_MAX):
            return False
        self._step(_IDLE_STEP_UNITS)
        return True

    def _fits(self, victim: int, survivors: int) -> bool:
        heap = self._heap
        used = int(heap.ends[survivors]) if heap.live_units[survivors] else 0
        return used + int(heap.charged_units[victim]) <= heap.end_of(survivors)

    def _candidates(self, share_max: float) -> NDArray[np.int64]:
        """Return the segments that may be emptied, but for the victim."""
        heap = self._heap
        if not heap.is_compacted:
            return _NO_OTHERS
        charged = heap.charged_units
        may_be = (charged > 0) & (charged <= int(share_max * heap.segment_units))
        barred = {heap.tail.segment, heap.survivors, self._victim} | self._damaged | self._too_large
        may_be[[segment for segment in barred if segment is not None]] = False
        found: NDArray[np.int64] = np.flatnonzero(may_be)
        return found

    def _find_victim(self, share_max: float) -> bool:
        heap = self._heap
        if not heap.is_compacted:
            return False
        self._end_victim()
        if self._victim == heap.tail.segment:  # users emptied it and took it
            self._victim = None
        if self._victim is None:
            candidates = self._candidates(share_max)
            if not len(candidates):
                return False
            self._begin_victim(int(candidates[self._benefit_of(candidates).argmax()]))
        return True

    def _other_victims(self, share_max: float, wanted_units: int) -> NDArray[np.int64]:
        """Return which segments to empty after the victim, the best ones first, so that so many units become free."""
        heap = self._heap
        wanted = wanted_units - (heap.segment_units - int(heap.charged_units[self._victim]))  # about
        if wanted <= 0 or self._swept is not None:
            return _NO_OTHERS
        candidates = self._candidates(share_max)
        best = candidates[np.argsort(-self._benefit_of(candidates))]
        freed = np.cumsum(heap.segment_units - heap.charged_units[best])
        return best[: int(np.searchsorted(freed, wanted)) + 1]

    def _benefit_of(self, candidates: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the benefit of emptying each: (1 - u) * age / (1 + u); while there is little room, 1 - u."""
        heap = self._heap
        share: NDArray[np.float64] = heap.charged_units[candidates] / heap.segment_units
        if heap.emptied_segments < heap.reserve:
            return 1 - share
        age = (heap.clock - heap.stamps[candidates]).astype(np.float64) + 1
        return (1 - share) * age / (1 + share)

    def _begin_victim(self, victim: int) -> None:
        self._victim, self._at = victim, 0
        self._swept: int | None = None  # the table that is swept; None while the victim is walked
        self._counted_units = 0  # of the victim, in `freed_units`

    def _go_on_from(self, moves: _Moves) -> None:
        """Take note of where a step ended, whose moves are stored: the next one goes on there."""
        if self._swept is None:
            for victim in moves.victims[1 : moves.victim + 1].tolist():
                self._end_victim()  # those before the last one are emptied
                self._begin_victim(victim)
            is_over = moves.at >= int(self._heap.ends[moves.victims[moves.victim]])  # if some are left, rot hides them
            self._swept, self._at = (0, 0) if is_over else (None, moves.at)
        else:
            is_over = moves.at == moves.tables[self._swept].index.slots_mapped
            self._swept, self._at = (self._swept + 1, 0) if is_over else (self._swept, moves.at)
        self._end_victim()
        if self._victim is not None and self._swept == len(moves.tables):
            self._damaged.add(self._give_up())

    def _give_up(self) -> int:
        victim, self._victim = self._victim, None
        assert victim is not None
        return victim

    def _end_victim(self) -> None:
        """Count what is emptied; let go of a victim in which nothing is live any more."""
        if self._victim is None:
            return
        is_empty = not self._heap.charged_units[self._victim]
        emptied = (
            self._heap.end_of(self._victim) if is_empty else self._at if self._swept is None else self._counted_units
        )
        self.freed_units += emptied - self._counted_units
        self._counted_units = emptied
        if is_empty:
            self._victim = None
            self._too_large.clear()

    def _walk(self, moves: _Moves, wanted_units: int) -> None:
        """Walk the next records of the victims."""
        hash_key0, hash_key1 = self._files.root.hash_keys
        moves.launch(
            self._backend,
            "walk_victims",
            self._at,
            victim_count=len(moves.victims),
            wanted_units=wanted_units,
            hash_key0=hash_key0,
            hash_key1=hash_key1,
            pool=self._backend.host_threads,
            walked=int(self._walked.ctypes.data),
            walked_max=_STEP_RECORDS,
        )

    def _sweep(self, moves: _Moves) -> None:
        """Look at the next slots of a table."""
        assert self._swept is not None
        end = min(self._at + _SWEPT_SLOTS, moves.tables[self._swept].index.slots_mapped)
        moves.launch(self._backend, "sweep_index", self._at, end=end, swept=self._swept)

    def _commit(self, moves: _Moves) -> None:
        """Store a step, and count it."""
        heap = self._heap
        all_of_it = moves.filled(slice(None))
        parts = moves.parts
        tables = [
            self._writes(moves, number, part, all_of_it if len(parts) == 1 else moves.filled(part))
            for number, part in parts
        ]
        write_set = WriteSet(tables, 0, log_runs(tables, self._files.run_kind), heap.tail, ())
        lengths = reference_length(moves.moved_from)
        stamp = float(
            np.average(heap.stamps[reference_offset(moves.moved_from) // heap.segment_units], weights=lengths)
        )
        self._committer.commit(write_set)
        heap.survivors = moves.survivors
        units = int(reference_length(moves.moved_to).sum())
        heap.moved_units += units
        self.freed_units -= units
        for segment, new in zip(
            all_of_it.segment.tolist(), all_of_it.units.tolist(), strict=True
        ):  # records keep their age: the mean of those that move together
            live = max(int(heap.live_units[segment]), new)
            heap.stamps[segment] = int((float(heap.stamps[segment]) * (live - new) + stamp * new) / live)

    def _writes(self, moves: _Moves, number: int, part: _Part, filled: _Filled) -> TableWrites:
        """Return what a step stores of one table."""
        index = moves.tables[number].index
        slot, moved_from, moved_to = moves.slot[part], moves.moved_from[part], moves.moved_to[part]
        count = len(slot)
        contents = np.empty((count, 4), np.uint64)
        self._backend.launch("load_slots_bytes", count, slot=slot, index=index, contents=contents)
        contents[:, 2] = moved_to
        filled_segment = np.stack(filled, axis=1)
        assert filled_segment.shape[1] == FILLED_WORDS
        writes = TableWrites(self._files, self._backend, self._heap)
        writes.index, writes.operations, writes.changed_slot = index, 0, slot
        writes.set(
            slots=count,
            records=count,
            heap_units=int(filled.units.sum()),
            freed=count,
            filled=len(filled.segment),
            index=index.address,
            table_id=index.entry.id,
        )
        writes.keep(
            changed_slot=slot,
            contents=contents,
            digest=np.empty(count, np.uint64),
            freed_reference=moved_from,
            put_reference=moved_to,
            moved_from=moved_from,
            filled_segment=np.ascontiguousarray(filled_segment),
        )
        writes.read_counters()
        return writes


class _Filled(NamedTuple):
    """What a step fills: one item a segment, in the order of `filled_segment` (kernels/space/write_set.hpp)."""

    segment: U64
    units: U64
    charge: U64
    end: U64  # of the step's last record


_Part = slice | NDArray[np.int64]  # of the moves


class _Moves:
    """The moves of a step, as columns: one item a record.

    Parameters
    ----------
    files, heap, tables
        Of the store.
    victims
        Segments that records move from.
    units_max
        That the step looks at.
    barred
        Segments that no record goes to.
    long_to
        Where a long record goes; `None`: nowhere.
    """

    table: U32  # its number in `tables`
    slot: U64
    moved_from: U64  # references
    moved_to: U64

    def __init__(
        self,
        files: StoreFiles,
        heap: Heap,
        tables: dict[int, Table],
        victims: U64,
        units_max: int,
        barred: Run,
        long_to: int | None,
    ) -> None:
        self.victims = victims
        self._barred = barred
        self._long_to = long_to
        self._files = files
        self._heap = heap
        self.units_max = units_max
        self.tables: Sequence[Table] = [table for table in tables.values() if table.index.has_records]
        # Each table takes a run of its own.
        most = _STEP_MOVES if len(self.tables) <= RUNS_MAX else RUNS_MAX
        self._moves_max = min(most, files.log_entries_max)
        self._counts = np.zeros(number("MOVES_WORDS"), np.uint64)
        self._survivors = np.array([_NO_SEGMENT if heap.survivors is None else heap.survivors], np.uint64)
        self._set_moves(np.empty(0, np.uint32), *np.empty((3, 0), np.uint64))

    def _set_moves(self, table: U32, slot: U64, moved_from: U64, moved_to: U64) -> None:
        self.table, self.slot, self.moved_from, self.moved_to = table, slot, moved_from, moved_to

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.slot)

    @property
    def lacks_room(self) -> bool:
        """Whether the step ended because a record found no room."""
        return bool(self._counts[_LACK_ROOM])

    @property
    def victim(self) -> int:
        """The number of the last victim that was looked at; those before it are emptied."""
        return int(self._counts[_VICTIM])

    @property
    def at(self) -> int:
        """Where the step ended: a unit of that victim, or a slot."""
        return int(self._counts[_AT])

    @property
    def survivors(self) -> int | None:
        """The segment that the next records go to."""
        segment = int(self._survivors[0])
        return None if segment == _NO_SEGMENT else segment

    def launch(self, backend: Backend, kernel: str, at: int, **arguments: int) -> None:
        """Have a kernel find moves."""
        heap, victims, entries = self._heap, self.victims, [table.index for table in self.tables]
        ends = np.where(heap.live_units > 0, heap.ends, np.uint64(0))
        ends[victims] = heap.segment_units  # no room
        for run in (heap.kept_run, self._barred):
            ends[run.first : run.end] = heap.segment_units
        # What is emptied and waits for a journal will be free: one record behind its end would keep all of it.
        ends[(heap.charged_units == 0) & (heap.live_units > 0)] = heap.segment_units
        table, columns = np.empty(self._moves_max, np.uint32), np.empty((3, self._moves_max), np.uint64)
        self._counts[_AT], self._ends = at, ends
        backend.launch(
            kernel,
            1,
            heap=self._files.heap.address,
            heap_units=heap.bytes // UNIT_BYTES,
            record_format=heap.record_format,
            segment_units=heap.segment_units,
            segments=heap.segments,
            live_units=heap.live_units,
            ends=ends,
            survivors=self._survivors,
            victims=victims,
            victim_ends=heap.ends[victims],
            victim_charges=heap.charged_units[victims],
            user_tail=heap.tail.segment,
            long_to=_NO_SEGMENT if self._long_to is None else self._long_to,
            tables=len(entries),
            table_ids=np.array([index.entry.id for index in entries], np.uint64),
            table_index=np.array([index.image for index in entries], np.uint64),
            table_blocks=np.array([index.blocks for index in entries], np.uint64),
            table_unmoved=np.array([index.unmoved for index in entries], np.uint64),
            moves_max=self._moves_max,
            units_max=self.units_max,
            moves=self._counts,
            table=table,
            slot=columns[0],
            moved_from=columns[1],
            moved_to=columns[2],
            **arguments,
        )
        count = int(self._counts[_COUNT])
        self._set_moves(table[:count], *columns[:, :count])

    @property
    def parts(self) -> list[tuple[int, _Part]]:
        """The numbers of the tables, and which moves are of each."""
        numbers = np.flatnonzero(np.bincount(self.table)).tolist()
        if len(numbers) == 1:
            return [(numbers[0], slice(None))]
        return [(number, np.flatnonzero(self.table == number)) for number in numbers]

    def filled(self, part: _Part) -> _Filled:
        """Return what a part of the moves fills."""
        units = self._heap.segment_units
        if reference_length(int(self.moved_to[part][0])) > units:
            return _filled_by_long(self.moved_to[part], units)
        moved_to = self.moved_to[part]
        offsets, lengths = reference_offset(moved_to), reference_length(moved_to)
        segment_of = offsets // np.uint64(units)
        # They come in runs: one record after the other goes to the same segment.
        starts = np.flatnonzero(np.diff(segment_of, prepend=segment_of[:1] + np.uint64(1)))
        segments, inverse = np.unique(segment_of[starts], return_inverse=True)
        taken, charges = np.zeros((2, len(segments)), np.uint64)
        np.add.at(taken, inverse, np.add.reduceat(lengths, starts))
        np.add.at(charges, inverse, np.add.reduceat(charge_of(lengths, units), starts))
        return _Filled(segments, taken, charges, self._ends[segments])


def _filled_by_long(moved_to: U64, segment_units: int) -> _Filled:
    """Return the same of a step that moves one long record."""
    (reference,) = moved_to.tolist()
    segment, units = reference_offset(reference) // segment_units, reference_length(reference)
    number = np.arange(-(-units // segment_units), dtype=np.uint64)
    taken = np.minimum(np.uint64(units) - number * np.uint64(segment_units), np.uint64(segment_units))
    ends = np.uint64(segment_units + 1) + number
    return _Filled(np.uint64(segment) + number, taken, np.full(len(number), segment_units, np.uint64), ends)
