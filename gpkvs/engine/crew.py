"""What Python does so that the native engine can run a batch which it has left: then the same batch runs again.

Nobody else has the engine meanwhile. Each reason comes at most once a batch; one that comes again, or for which nothing
can be done here, leaves the batch to Python's engine.
"""

from __future__ import annotations

from collections.abc import Callable

from gpkvs.batch import Batch
from gpkvs.engine.capacity import IndexFullError, record_bytes_max
from gpkvs.engine.committer import Committer
from gpkvs.engine.expiry import Expiry
from gpkvs.engine.free_space import FreeSpace
from gpkvs.engine.growth import Growing
from gpkvs.engine.heap_growth import HeapGrowth
from gpkvs.engine.left import Left
from gpkvs.engine.meter import Meter
from gpkvs.engine.native_engine import NativeEngine
from gpkvs.engine.native_planner import NativePlanner


class Crew:
    """Serves a native engine.

    Parameters
    ----------
    native, planner, committer, expiry, growth, free_space, heap_growth, meter
        The engine, and what it uses.
    grow_log
        Has undo log or journal grow for a batch, in which each operation may take so many entries; says whether it did.
    """

    def __init__(
        self,
        native: NativeEngine,
        planner: NativePlanner,
        committer: Committer,
        expiry: Expiry,
        growth: Growing,
        free_space: FreeSpace,
        heap_growth: HeapGrowth,
        meter: Meter,
        grow_log: Callable[[Batch, int], bool],
    ) -> None:
        self._native = native
        self._planner = planner
        self._committer = committer
        self._expiry = expiry
        self._growth = growth
        self._free_space = free_space
        self._heap_growth = heap_growth
        self._meter = meter
        self._grow_log = grow_log

    def run_again(self, batch: Batch, run: Callable[[], bool]) -> bool:
        """Run a batch again that the native engine has just left.

        Parameters
        ----------
        batch
            Its columns.
        run
            Runs it natively; says whether it ran.

        Returns
        -------
        bool
            False: it is left to Python's engine.

        Raises
        ------
        MemoryError
            If there is no memory for what it lacks; nothing of it has run.
        """
        asked: set[Left] = set()
        now = self._expiry.now()  # once: each look at the clock might find more that has expired
        while (left := self._meter.last_left) is not None:
            # What could be freed may not be enough.
            reason = Left.GROW_HEAP if left is Left.FREE_HEAP and left in asked else left
            if reason in asked or not self._do(reason, batch, now):
                break
            asked.add(reason)
            self._native.begin_turn(now)  # it ends the one before, and tells native code of all that is new
            self._meter.helped(left)
            if run():
                return True
        return False

    def _do(self, reason: Left, batch: Batch, now: int) -> bool:
        """Do what a reason asks for; return whether it was done."""
        is_done = False
        match reason:
            case Left.COLUMNS:
                is_done = self._planner.have_columns(batch)
            case Left.EXPIRED:  # damaged records only look expired: Python's engine reads them as what they are
                is_done = self._expiry.remove_of(batch, now) > 0
            case Left.EXPIRY:
                self._expiry.expect(batch)
                is_done = True
            case Left.GROW_INDEX:
                table, new_keys = self._planner.planned_last(batch)
                is_done = self._growth.make_room({table.entry.id: IndexFullError(table, new_keys)})
            case Left.FREE_HEAP:
                self._free_space.make_room(self._planner.lacks_room(batch), record_bytes_max(batch))
                is_done = True
            case Left.GROW_HEAP:
                is_done = self._heap_growth.make_room(record_bytes_max(batch))
            case Left.GROW_LOG:  # keys that are displaced take two entries each
                is_done = self._grow_log(batch, 2)
            case Left.RENEW:
                is_done = self._committer.begin_turn() is not None
        return is_done
