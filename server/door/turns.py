"""The engine's turns behind the native door: what a turn leaves to Python, and maintenance when nothing comes."""

from __future__ import annotations

import logging

from gpkvs.engine.seam.left import Left
from gpkvs.errors import GpkvsError, StoreClosedError, memory_refused
from gpkvs.server.calls.running_call import new_request_id
from gpkvs.server.calls.status import ErrorStatus, note_refused, tell, told_of
from gpkvs.server.door.left_batch import results_of
from gpkvs.server.door.library import Library, Refusal, Turn
from gpkvs.server.signs.exporter import Metrics
from gpkvs.store import Store

_log = logging.getLogger("gpkvs")

# So long nothing is asked for before the store does what batches leave behind.
_IDLE_SECONDS = 0.1
# And then so long, if there is no more to do: keys expire, and what is not needed for a minute is given back.
_IDLE_AGAIN_SECONDS = 1.0


class Turns:
    """Runs turn after turn; used in the engine's thread.

    Parameters
    ----------
    library
        The door.
    store
        Whose turns they are.
    metrics
        Counts the requests that are refused.
    """

    def __init__(self, library: Library, store: Store, metrics: Metrics) -> None:
        self._library = library
        self._store = store
        store.begin_turns(library.interrupt)
        with store.turn() as engine:
            self._engine, self._native, self._crew = engine, engine.native, engine.crew()
            library.set_clock(engine.expiry.time.address)
        library.set_engine(self._native.address)
        self._metrics = metrics
        self._idle_seconds = _IDLE_SECONDS
        self.maintains = True

    def turn(self) -> bool:
        """Run one turn; return whether there may be another one."""
        try:
            with self._store.turn():
                ended = self._run()
        except StoreClosedError:
            return False
        self._idle_seconds = _IDLE_SECONDS
        match ended:
            case Turn.STOPPED:
                return False
            case Turn.IDLE:
                self._idle_seconds = 0.0 if self._maintain() else _IDLE_AGAIN_SECONDS
        return True

    def _run(self) -> Turn:
        """Let the door run batches, by the native engine."""
        try:
            self._engine.begin_turn()
        except Exception as error:  # noqa: BLE001 - whoever sends the next batch hears of it
            _log.warning("batches have to wait: what is due beside them failed: %r", error)
            self._native.leave_all()
        ended = self._library.turn(self._idle_seconds)
        if ended is Turn.LEFT:
            self._run_left()
        self._native.end_turn()
        return ended

    def _run_left(self) -> None:
        """Have the batch run that the turn left: on a GPU, or natively with what it lacked. Or refuse it."""
        is_for_device = self._engine.meter.last_left is Left.DEVICE
        try:
            with memory_refused():
                if not (is_for_device and self._run_on_device()) and not self._run_on_host(declined=is_for_device):
                    raise self._crew.why_not()
        except Exception as error:  # noqa: BLE001 - clients get a status, whatever happens
            self._engine.meter.take_left()
            self._fail(error)

    def _run_on_device(self) -> bool:
        """Run the batch on a GPU; return whether it ran."""
        try:
            ran = self._engine.run_left(self._library.left())
        except Exception as error:  # noqa: BLE001 - nothing of it has happened: the host runs it
            _log.warning("the host runs a batch that a GPU could not: %r", error)
            return False
        if not ran:
            return False
        self._engine.meter.take_left()
        result, gate = ran
        try:
            self._library.left_done(result.requests, results_of(result), gate)
        except Exception as error:  # noqa: BLE001 - the batch was executed, and must not run again
            self._fail(error)
        return True

    def _run_on_host(self, *, declined: bool) -> bool:
        """Have the native engine run the batch after all, perhaps one that a GPU declined; return whether it did."""
        run = self._library.run_left
        if declined and self._engine.run_left_on_host(run):
            return True
        told: dict[Left, GpkvsError] = {}

        def refuse(what: Left, error: GpkvsError) -> None:
            told[what] = error
            self._library.left_lacks(what, _packed(told_of(error)))

        try:
            return self._crew.run_again(self._library.left(), run, refuse)
        finally:
            for what, reason in told.items():
                if requests := self._library.left_without(what):
                    note_refused(reason, self._metrics, requests)

    def _maintain(self) -> bool:
        try:
            return self.maintains and self._store.maintain()
        except Exception as error:  # noqa: BLE001 - the next time it may work
            _log.warning("maintenance of the store failed: %r", error)
            return False

    def _fail(self, error: Exception) -> None:
        """Tell all requests of the batch why they were not done; the log names a failure by an id in its text."""
        if isinstance(error, GpkvsError) and (told := told_of(error)).is_refusal:
            if requests := self._library.left_failed(_packed(told)):
                note_refused(error, self._metrics, requests)
            return
        request_id = new_request_id()
        told = tell(error, "batch", self._metrics, request_id)
        text = told.text if told.is_refusal else f"{told.text} (request {request_id})"
        self._library.left_failed(_packed(told._replace(text=text)))


def _packed(told: ErrorStatus) -> Refusal:
    return Refusal(told.code.value[0], told.text, told.full, told.is_refusal, told.conflict)
