"""What Python does so that the native engine can run a batch which it has left: then the same batch runs again.

Nobody else has the engine meanwhile. Each reason comes at most once a batch, and growth as long as anything grows. One
that comes again, or for which nothing can be done here, is closed: the native engine refuses the requests that lack it,
in the words of this room.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from gpkvs.batch import Batch
from gpkvs.engine.host.native_engine import NativeEngine
from gpkvs.engine.host.native_planner import NativePlanner
from gpkvs.engine.seam.capacity import (
    IndexFullError,
    heap_full,
    heap_too_small,
    log_full,
    makes_too_much,
    not_of_layout,
    reads_too_much,
    record_bytes_max,
    table_gone,
)
from gpkvs.engine.seam.left import GROWS, Left
from gpkvs.engine.seam.meter import Meter
from gpkvs.engine.space.free_space import FreeSpace
from gpkvs.engine.space.heap_growth import HeapGrowth
from gpkvs.engine.state.heap import Heap
from gpkvs.engine.tables.expiry import Expiry
from gpkvs.engine.tables.growth import Growing
from gpkvs.errors import GpkvsError, NoMemoryError
from gpkvs.media.files import StoreFiles

# Of these the native engine refuses requests, when nothing can be done. What only looks expired is read as what it is.
_CLOSES = {
    *(Left.GROW_INDEX, Left.GROW_LOG, Left.GROW_HEAP, Left.FREE_HEAP, Left.GROW_BLOBS),
    *(Left.LARGE_READS, Left.LARGE_VALUES, Left.LAYOUT, Left.TABLE, Left.EXPIRED),
}
# Of DELETEs of expired keys: they would meet the keys that they remove, and what waits for them needs its columns.
CLOSED_WITHIN = frozenset({Left.EXPIRED, Left.COLUMNS})


class Crew:
    """Serves a native engine.

    Parameters
    ----------
    files
        The mapped store.
    native, planner, expiry, growth, free_space, heap, heap_growth, meter
        The engine, and what it uses.
    grow_log
        Has undo log or journal grow for a batch, in which each operation may take so many entries; says whether it did.
    on_device
        Around what may use a GPU.
    """

    def __init__(
        self,
        files: StoreFiles,
        native: NativeEngine,
        planner: NativePlanner,
        expiry: Expiry,
        growth: Growing,
        free_space: FreeSpace,
        heap: Heap,
        heap_growth: HeapGrowth,
        meter: Meter,
        grow_log: Callable[[Batch, int], bool],
        on_device: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._files = files
        self._native = native
        self._planner = planner
        self._expiry = expiry
        self._growth = growth
        self._free_space = free_space
        self._heap = heap
        self._heap_growth = heap_growth
        self._meter = meter
        self._grow_log = grow_log
        self._on_device = on_device

    def why_not(self) -> Exception:
        """Return why a batch that is left cannot run, and forget it."""
        left = self._meter.last_left
        self._meter.take_left()
        if left is Left.MEMORY:
            return NoMemoryError()
        return RuntimeError(f"a batch lacks what nobody can do: {left.name if left else None}")

    def run_again(
        self,
        batch: Batch,
        run: Callable[[], bool],
        refuse: Callable[[Left, GpkvsError], None],
        *,
        is_within: bool = False,
    ) -> bool:
        """Run a batch again that the native engine has just left.

        Parameters
        ----------
        batch
            Its columns.
        run
            Runs it natively; says whether it ran.
        refuse
            Is told, before a batch runs, what those of its requests hear that lack what is named by the reason.
        is_within
            Whether it is the DELETEs of expired keys (`OwnTurn.run_within`).

        Returns
        -------
        bool
            False: there is nothing that could be done (`why_not`).

        Raises
        ------
        MemoryError
            If there is no memory for what it lacks; nothing of it has run.
        """
        asked: set[Left] = set()
        closed = set(CLOSED_WITHIN) if is_within else set[Left]()
        now = self._expiry.time.now_ms()  # once: each look at the clock might find more that has expired
        has_run = is_over = False
        try:
            while not has_run and (left := self._meter.last_left) is not None:
                # What could be freed may not be enough.
                reason = Left.GROW_HEAP if left is Left.FREE_HEAP and left in asked else left
                is_done = False
                if reason not in asked or reason in GROWS:  # as long as anything grows
                    with self._on_device():
                        is_done = self._do(reason, batch, now, is_again=reason in asked)
                if is_done:
                    asked.add(reason)
                elif left in _CLOSES and left not in closed:
                    if left is not Left.EXPIRED:
                        refuse(left, self._refusal(left, batch))
                    closed.add(left)
                else:
                    break
                # It ends the one before, and tells native code of all that is new.
                self._native.begin_turn(now, closed, is_within=is_within)
                self._meter.helped(left)
                has_run = run()
            is_over = True
        finally:
            # The next batch may find more; and who is interrupted may have changed what the turn was told of tables.
            if closed or not is_over:
                self._native.end_turn()
        return has_run

    def _refusal(self, reason: Left, batch: Batch) -> GpkvsError:
        """Return what requests are told for which nothing can be done now."""
        refusal: GpkvsError
        match reason:
            case Left.GROW_INDEX:
                refusal = self._growth.refusal(IndexFullError(*self._planner.planned_last(batch)))
            case Left.GROW_LOG:
                refusal = log_full(self._files)
            case Left.GROW_HEAP:
                refusal = heap_full(self._heap)
            case Left.GROW_BLOBS:
                assert self._heap.blobs
                refusal = self._heap.blobs.refusal or heap_full(self._heap)
            case Left.TABLE:
                refusal = table_gone()
            case Left.LAYOUT:
                refusal = not_of_layout(self._planner.layout_of(batch))
            case Left.LARGE_READS:
                refusal = reads_too_much(self._planner.result_bytes_max)
            case Left.LARGE_VALUES:
                refusal = makes_too_much(self._native.made_bytes_max)
            case _:
                refusal = heap_too_small(self._heap)
        return refusal

    def _do(self, reason: Left, batch: Batch, now: int, *, is_again: bool) -> bool:
        """Do what a reason asks for; return whether it was done."""
        is_done = False
        match reason:
            case Left.TABLE:
                is_done = self._planner.knows_table(batch)
            case Left.COLUMNS:
                is_done = self._planner.have_columns(batch)
            case Left.EXPIRED:  # damaged records only look expired: then they are read as what they are
                is_done = self._expiry.remove_of(batch, now) > 0
            case Left.EXPIRY:
                self._expiry.expect(batch)
                is_done = True
            case Left.GROW_INDEX:
                table, new_keys = self._planner.planned_last(batch)
                is_done = self._growth.make_room({table.entry.id: IndexFullError(table, new_keys)})
            case Left.FREE_HEAP:
                self._free_space.make_room(self._planner.lacks_room(batch), record_bytes_max(self._heap, batch))
                is_done = True
            case Left.GROW_HEAP:
                is_done = self._heap_growth.make_room(record_bytes_max(self._heap, batch))
            case Left.GROW_BLOBS:
                assert self._heap.blobs
                is_done = self._heap.blobs.make_room(is_again=is_again)
            case Left.GROW_LOG:  # one entry for each operation; if it has room for that, keys are displaced: two each
                is_done = self._grow_log(batch, 1 if len(batch) > self._files.log_entries_max else 2)
            case Left.RENEW | Left.TURN:
                is_done = True  # the next turn begins it
        return is_done
