"""One follower of the store tells all sessions what they have subscribed to; it is there while there are any.

    store's log -> entries (thread) -> the door: which keys of them for which connection -> messages that wait -> sent

The follower is behind whoever has subscribed: it begins before the answer to the first SUBSCRIBE. Nobody waits for a
connection that does not read: the door cuts it off. If the follower itself falls behind, all are cut off.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from gpkvs.changes import Changes
from gpkvs.errors import ChangesLostError, GpkvsError, StoreClosedError
from gpkvs.following import Following
from gpkvs.server.gate import Serving
from gpkvs.server.redis.sessions.session import Session, number_of_table
from gpkvs.server.threads import PausingThread
from gpkvs.text import counted
from gpkvs.watch import READ_BYTES

Tell = Callable[[int, Changes], None]
"""Tells all who have subscribed of keys of a database that changed; raises MemoryError if it cannot."""

_WAIT_SECONDS: Final = 0.2
_LOOK_SECONDS: Final = 0.5
_PAUSE: Final = 1.0  # of what a read took, while requests wait

_log = logging.getLogger("gpkvs.server")


class KeyEvents:
    """The follower, and the sessions for which it is there.

    Parameters
    ----------
    tell
        Called in a thread of its own.
    note_lost
        Is told how many connections were cut off because the follower fell behind.
    """

    def __init__(self, tell: Tell, note_lost: Callable[[int], None]) -> None:
        self._tell = tell
        self._note_lost = note_lost
        self._thread = PausingThread("redis-events", _PAUSE)
        self._sessions: set[Session] = set()
        self._task: asyncio.Task[None] | None = None
        self._begun: asyncio.Future[None]

    async def join(self, session: Session, serving: Serving) -> None:
        """Return when whatever becomes durable from now on is told to a session.

        Raises
        ------
        GpkvsError
            If nobody can follow the store now.
        """
        self._sessions.add(session)
        if self._task is None:
            self._begun = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._run(serving, self._begun))
        try:
            await asyncio.shield(self._begun)
        except (GpkvsError, MemoryError):
            self.leave(session)
            raise

    def leave(self, session: Session) -> None:
        """Tell a session no more; the last one ends the follower."""
        self._sessions.discard(session)
        if not self._sessions and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self, serving: Serving, begun: asyncio.Future[None]) -> None:
        beginning = self._thread.submit(serving.store.follow)
        try:
            following = await asyncio.wrap_future(beginning)
            begun.set_result(None)
            await self._follow(following, serving)
        except (GpkvsError, MemoryError) as error:
            self._task = None
            if begun.done():
                self._fail(error)
            else:
                begun.set_exception(error)
        finally:
            # Behind the step that may be under way.
            self._thread.submit(lambda: None if beginning.exception() else beginning.result().close())

    async def _follow(self, following: Following, serving: Serving) -> None:
        looks_at = 0.0
        step = partial(self._step, following)

        def is_in_use() -> bool:
            return serving.queue.requests > 0

        while True:
            dropped = await asyncio.wrap_future(self._thread.submit_step(is_in_use, partial(step, 0.0)))
            if dropped is None:
                dropped = await asyncio.wrap_future(self._thread.submit(partial(step, _WAIT_SECONDS)))
            for database in dropped or ():
                self._end_of(database)
            if time.monotonic() >= looks_at:
                looks_at = time.monotonic() + _LOOK_SECONDS
                self._look_at_rights()

    def _step(self, following: Following, seconds: float) -> list[int] | None:
        """Tell what there is to read; return which databases were dropped, None if there was nothing."""
        entries = following.read(READ_BYTES, seconds)
        dropped = []
        for entry in entries:
            database = number_of_table(entry.name)
            if database is None:
                continue
            if entry.is_dropped:
                dropped.append(database)
            elif len(entry.versions):  # else it is a table of numbers, and no database
                self._tell(database, entry)
        return dropped if entries else None

    def _end_of(self, database: int) -> None:
        """End the connections that were told of a database: nobody is told that its keys are gone."""
        told = [one for one in self._sessions if one.subscriptions.databases & {database, None}]
        if told:
            _log.info(
                "database %d was dropped: %s that had subscribed to its keys end",
                database,
                counted(len(told), "connection"),
                extra={"event": "subscribers_end", "database": database, "connections": len(told)},
            )
        for session in told:
            session.end()

    def _look_at_rights(self) -> None:
        for session in list(self._sessions):
            if not session.may_be_told():
                session.end()

    def _fail(self, error: GpkvsError | MemoryError) -> None:
        """End all: what comes next they would not be told."""
        ended = list(self._sessions)
        if not isinstance(error, StoreClosedError):
            self._note_lost(len(ended))
            why = error if isinstance(error, ChangesLostError) else f"there is no memory: {error}"
            _log.error(
                "%s had subscribed to keys that change, and cannot be told of all of them: they end (%s)",
                counted(len(ended), "connection"),
                why,
                extra={"event": "subscribers_lost", "connections": len(ended)},
            )
        for session in ended:
            session.end()
