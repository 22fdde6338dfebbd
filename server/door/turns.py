"""The engine's turns behind the native door: what a turn leaves to Python, and maintenance when nothing comes."""

from __future__ import annotations

import logging
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from gpkvs.engine.begun_batch import BegunBatch
from gpkvs.server.door.left_batch import results_of
from gpkvs.server.door.library import Library, Refusal, Turn
from gpkvs.server.exporter import Metrics
from gpkvs.server.status import tell
from gpkvs.store import Store

_log = logging.getLogger("gpkvs")

# As in `gpkvs.server.batcher`.
_IDLE_SECONDS, _IDLE_AGAIN_SECONDS = 0.1, 1.0
_IN_FLIGHT_MAX = 4
_EARLY_OPERATIONS_MIN = 4096


class Turns:
    """Runs turn after turn; used in the engine's thread.

    Parameters
    ----------
    library
        The door.
    store
        Runs what a turn leaves.
    flush_thread
        Waits until batches are durable, one after the other.
    metrics
        Is told of every batch.
    """

    def __init__(self, library: Library, store: Store, flush_thread: ThreadPoolExecutor, metrics: Metrics) -> None:
        self._library = library
        self._store = store
        self._flush_thread = flush_thread
        self._metrics = metrics
        self._idle_seconds = _IDLE_SECONDS
        self._flushes: deque[Future[None]] = deque()  # of batches that are stored and not durable, the oldest first
        self._is_large = False  # the last batch
        self.maintains = True

    def turn(self) -> bool:
        """Run one turn; return whether there may be another one."""
        self._wait_for_flush()
        ended = self._library.turn(self._idle_seconds)
        self._idle_seconds = _IDLE_SECONDS
        match ended:
            case Turn.STOPPED:
                return False
            case Turn.IDLE:
                self._idle_seconds = 0.0 if self._maintain() else _IDLE_AGAIN_SECONDS
            case Turn.LEFT:
                self._run_left()
        return True

    def _wait_for_flush(self) -> None:
        """Let requests gather while a flush is under way, unless they come in large batches."""
        while self._flushes and (not self._is_large or len(self._flushes) >= _IN_FLIGHT_MAX):
            self._flushes.popleft().result()

    def _maintain(self) -> bool:
        try:
            return self.maintains and self._store.maintain()
        except Exception as error:  # noqa: BLE001 - the next time it may work
            _log.warning("maintenance of the store failed: %r", error)
            return False

    def _run_left(self) -> None:
        """Run the batch that the turn left, and tell the door its results."""
        began = time.perf_counter()
        try:
            batch = self._library.left()
            begun = self._store.begin_requests(batch)
        except Exception as error:  # noqa: BLE001 - clients get a status, whatever happens
            self._library.left_failed(self._refusal(error))
            return
        self._is_large = len(batch) >= _EARLY_OPERATIONS_MIN
        for number, error in begun.result.rejected.items():
            self._library.left_refused(number, self._refusal(error))
        if begun.is_durable:
            begun.finish()
            self._library.left_done(begun.result.requests, results_of(begun.result), 0)
            self._metrics.batch_done(begun.result, time.perf_counter() - began)
        else:
            self._library.left_done(begun.result.requests, results_of(begun.result), begun.gate)
            self._flushes.append(self._flush_thread.submit(self._finish, begun, began))

    def _finish(self, begun: BegunBatch, began: float) -> None:
        """Wait until a batch is durable; in the second thread."""
        begun.finish()
        self._library.durable(begun.gate)
        self._metrics.batch_done(begun.result, time.perf_counter() - began)

    def _refusal(self, error: Exception) -> Refusal:
        told = tell(error, "batch", self._metrics)
        return Refusal(told.code.value[0], told.text, told.full, told.is_refusal)
