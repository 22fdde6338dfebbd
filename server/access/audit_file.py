"""The audit log in a file: a JSON object a line, with its time, its event, and what the event says of itself.

A thread of its own writes: the event loop never waits for the disk, and data calls go on without it. A line is durable
after a second, one that a call waits for before the call goes on. What could not be written is counted, and a line
``lost`` says so as soon as there is room again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from gpkvs.config import ServerConfig
from gpkvs.errors import InvalidArgumentError
from gpkvs.server.access.audit import NO_AUDIT, AuditError, AuditLog
from gpkvs.server.access.fold import Fields, Fold
from gpkvs.server.access.rotated_file import RotatedFile
from gpkvs.server.signs.exporter import Metrics
from gpkvs.server.threads import begun_thread
from gpkvs.text import counted

_log = logging.getLogger("gpkvs.server")

FILES_MAX = 8
QUEUE_LINES_MAX = 4096
REQUIRED_MAX = 64  # lines that calls wait for
REQUIRED_SECONDS_MAX = 10.0
_TEXT_MAX = 200  # characters of what a client sent
_SYNC_SECONDS = 1.0
_RETRY_SECONDS = 1.0
_CLOSE_SECONDS_MAX = 5.0


def open_audit(config: ServerConfig, metrics: Metrics) -> AuditLog:
    """Open the audit log that the settings name; without one, nothing is noted.

    Raises
    ------
    InvalidArgumentError
        If its file cannot be written.
    """
    return AuditFile(config.audit_log, config.audit_bytes_max, metrics) if config.audit_log else NO_AUDIT


class _Line(NamedTuple):
    data: bytes
    durable: Future[None] | None = None  # if somebody waits for it


class AuditFile(AuditLog):
    """Writes into a file; notes are taken from any thread.

    Parameters
    ----------
    path
        The file; see `gpkvs.server.access.rotated_file`.
    bytes_max
        Size of a file.
    metrics
        Says whether lines can be written, and how many were lost.

    Raises
    ------
    InvalidArgumentError
        If the file cannot be written.
    """

    def __init__(self, path: Path, bytes_max: int, metrics: Metrics) -> None:
        self._path = path
        self._metrics = metrics
        try:
            self._file = RotatedFile(path, bytes_max, FILES_MAX)
        except OSError as error:
            raise InvalidArgumentError(f"cannot write {path}: {error.strerror}", field="audit_log") from error
        self._folds = {
            "refused": Fold(1.0, ("address", "user", "reason")),
            "admin": Fold(60.0, ("address", "user", "rpc")),
            "backup": Fold(1.0, ("address", "user", "state")),
            "archive": Fold(3600.0, ("address", "user")),
        }
        self._wake = threading.Condition()
        self._queue: list[_Line] = []
        self._required = 0
        self._lost = 0  # lines that the log does not tell of yet
        self._sync_at = math.inf
        self._is_renamed = self._is_closed = False
        self._thread = begun_thread("audit", self._run)

    def note(self, event: str, **fields: object) -> None:
        """Note what has happened; never waits. What happens over and over is counted (`gpkvs.server.access.fold`)."""
        fields = {name: _cut(value) for name, value in fields.items()}
        with self._wake:
            if event not in self._folds or self._folds[event].admits(fields, time.monotonic()):
                self._put(event, fields)
            self._wake.notify()

    async def require(self, event: str, **fields: object) -> None:
        """Note what is about to happen, durably; it must not happen after an error.

        Raises
        ------
        AuditError
            If that is not possible now.
        """
        durable: Future[None] = Future()
        line = _Line(_pack(event, {name: _cut(value) for name, value in fields.items()}), durable)
        with self._wake:
            if self._required >= REQUIRED_MAX:
                raise self._refusal(f"{self._required} calls wait for it")
            self._required += 1
            durable.add_done_callback(self._forget)
            self._queue.append(line)
            self._wake.notify()
        try:
            async with asyncio.timeout(REQUIRED_SECONDS_MAX):
                await asyncio.wrap_future(durable)
        except TimeoutError:
            raise self._refusal(f"its disk does not answer for {REQUIRED_SECONDS_MAX:.0f} s") from None
        except OSError as error:
            raise self._refusal(error.strerror) from error

    def reopen(self) -> None:
        """Open the path again: the file may have been renamed."""
        with self._wake:
            self._is_renamed = True
            self._wake.notify()

    def close(self) -> None:
        """Write what waits and that the server stops, and end; a disk that hangs is given up."""
        with self._wake:
            self._put_ended(math.inf)
            self._put("stop", {})
            self._is_closed = True
            self._wake.notify()
        self._thread.join(_CLOSE_SECONDS_MAX)

    def _refusal(self, reason: str | None) -> AuditError:
        return AuditError(
            f"the audit log {self._path} cannot be written ({reason}), so this was not done: "
            "see that its disk works and has room, and try again"
        )

    def _forget(self, _durable: Future[None]) -> None:
        with self._wake:
            self._required -= 1

    def _put(self, event: str, fields: Fields) -> None:
        if len(self._queue) < QUEUE_LINES_MAX:
            self._queue.append(_Line(_pack(event, fields)))
        else:
            self._count_lost(f"{QUEUE_LINES_MAX:,} lines wait for its disk")

    def _put_ended(self, now: float) -> None:
        for event, fold in self._folds.items():
            for fields in fold.ended(now):
                self._put(event, fields)

    def _run(self) -> None:
        """Write lines until the log is closed; in the thread."""
        goes_on = True
        while goes_on:
            try:
                goes_on = self._write_next()
            except MemoryError:
                # How many lines are lost nobody knows; those who wait for one hear that it takes too long.
                with self._wake:
                    self._count_lost("the process got no memory")
                    goes_on = not self._is_closed
        self._file.close()

    def _write_next(self) -> bool:
        """Write the lines that come next; return whether more may come."""
        with self._wake:
            self._wake.wait_for(lambda: self._queue or self._is_closed or self._is_renamed, self._idle_seconds())
            self._put_ended(time.monotonic())
            lines, self._queue = self._queue, []
            is_renamed, self._is_renamed = self._is_renamed, False
            is_last = self._is_closed
        if is_renamed:
            self._sync([])
            self._file.close()  # the next line opens it again
        required = self._write(lines)
        if required or is_last or time.monotonic() >= self._sync_at:
            self._sync(required)
        elif self._file.has_unsynced and self._sync_at == math.inf:
            self._sync_at = time.monotonic() + _SYNC_SECONDS
        return not is_last

    def _idle_seconds(self) -> float | None:
        """Return how long the thread may wait for lines."""
        ends = [self._sync_at, *(fold.next_end for fold in self._folds.values())]
        if self._lost:
            ends.append(time.monotonic() + _RETRY_SECONDS)
        return None if min(ends) == math.inf else max(0.0, min(ends) - time.monotonic())

    def _write(self, lines: list[_Line]) -> list[Future[None]]:
        """Write lines; return those for whom they have to be durable."""
        self._tell_lost()
        required: list[Future[None]] = []
        for data, durable in lines:
            # A call that is gone is not executed, and so it is not noted.
            if durable and not durable.set_running_or_notify_cancel():
                continue
            waiting = [durable] if durable else []
            try:
                self._file.append(data)
            except OSError as error:
                # A rotation may have failed to make durable what was written before.
                if self._lose_unsynced(error):
                    waiting += required
                    required.clear()
                self._lose(error)
                for one in waiting:
                    one.set_exception(error)
            else:
                required += waiting
        return required

    def _sync(self, required: list[Future[None]]) -> None:
        """Make all durable that was written, and tell those who wait for it."""
        self._sync_at = math.inf
        try:
            self._file.sync()
        except OSError as error:
            self._lose_unsynced(error)
            for durable in required:
                durable.set_exception(error)
        else:
            for durable in required:
                durable.set_result(None)

    def _lose_unsynced(self, error: OSError) -> bool:
        """Count the lines as lost that an error kept from being durable; return whether there are any."""
        lost = self._file.take_lost()
        for _ in range(lost):
            self._lose(error)
        return lost > 0

    def _lose(self, error: OSError) -> None:
        """Count a line as lost; in the thread."""
        with self._wake:
            self._count_lost(error.strerror)

    def _count_lost(self, reason: str | None) -> None:
        """Count a line as lost, with the lock."""
        if not self._lost:
            self._metrics.audit_log_good.set(0)
            _log.error("cannot write the audit log %s: %s", self._path, reason, extra={"event": "audit", "good": False})
        self._lost += 1
        self._metrics.audit_lost.inc()

    def _tell_lost(self) -> None:
        """Say in the log how many lines are missing, if it can be written again."""
        lost = self._lost
        if not lost:
            return
        try:
            self._file.append(_pack("lost", {"count": lost}))
        except OSError as error:
            self._lose_unsynced(error)
            return
        with self._wake:
            self._lost -= lost
        text = counted(lost, "line")
        _log.info("the audit log is written again; lost: %s", text, extra={"event": "audit", "good": True})
        self._metrics.audit_log_good.set(1)


def _pack(event: str, fields: Fields) -> bytes:
    """Return the line of an event; JSON escapes all that is no plain ASCII."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"time": now, "event": event, **fields}, default=str).encode() + b"\n"


def _cut(value: object) -> object:
    """Return a value whose texts are short: clients sent some of them."""
    if isinstance(value, str):
        return value if len(value) <= _TEXT_MAX else f"{value[:_TEXT_MAX]}... ({counted(len(value), 'character')})"
    if isinstance(value, Mapping):
        return {name: _cut(part) for name, part in value.items()}
    return value
