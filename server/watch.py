"""Watches: what changes is read by one thread for all of them, and sent as fast as each client takes it.

    read (thread) -> wanted entries -> messages -> sent, one after the other; then the next read

A watch that has read all there is waits. Of those that wait, the one furthest behind does so in a second thread, in the
store. What any watch reads wakes those that have not read as far.

    somebody waits  =>  one of them waits in the store, or is about to
    it has read further than another one  =>  that one looks again soon: what lies between is not durable yet

The store holds what changed, once for all (`StoreConfig.changes_bytes`). A client that does not read falls behind that
and is told so; nobody waits for it. One thread reads, so of what a watch may hold one entry at most is not counted yet.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from gpkvs.changes import Changes, Position
from gpkvs.errors import ChangesLostError, InvalidArgumentError, NoSpaceError
from gpkvs.proto.v1 import kv_pb2
from gpkvs.server.access.caller import Caller
from gpkvs.server.access.rights import require_watch
from gpkvs.server.exporter import Metrics
from gpkvs.server.gate import Gate, NotServingError, Serving
from gpkvs.server.memory import Account
from gpkvs.server.threads import PausingThread, begun_threads
from gpkvs.watch import READ_BYTES, Selected, Selection

# After the last watch ended, changes are kept so long: who lost a connection goes on.
KEEP_SECONDS: Final = 600.0
# A message takes so little of what one may have that a long key more fits.
_MESSAGE_SHARE = 4
# What a key takes beside itself and its value: kind, two lengths, version, expiry. And an entry beside its columns.
_BYTES_PER_KEY, _BYTES_PER_ENTRY = 25, 128
# So long a client hears nothing; then it gets the position.
_SILENT_SECONDS = 1.0
_PREFIX_COPIES: Final = 3  # in the message, its bytes and what is chosen by it
# So many more may watch all tables: a backup is not refused because others watch tables of theirs.
_MORE_OF_ALL_TABLES: Final = 16
_SOON_SECONDS = 0.005
_LOOK_SECONDS = 0.2  # who waits in the store looks so often whether the server stops
_PAUSE = 1.0  # of what a read took, while requests wait
# Changes that follow each other so closely are told together: a message takes longer than the transaction it tells of.
_TOGETHER_SECONDS = 0.005


class Watches:
    """What all calls of `Watch` share.

    Parameters
    ----------
    gate
        Says whether the server still serves.
    metrics
        Counts watches and entries.
    """

    def __init__(self, gate: Gate, metrics: Metrics) -> None:
        self._gate = gate
        self._metrics = metrics
        self._reads = PausingThread("watch", _PAUSE)
        self._waits = begun_threads("watch-wait")
        self._open = 0
        self._waiting: dict[_Watch, asyncio.Future[None]] = {}
        self._in_store: _Watch | None = None  # that one which waits there
        gate.call_at_end(self._wake_all)

    async def watch(
        self, message: kv_pb2.WatchRequest, caller: Caller, account: Account
    ) -> AsyncGenerator[kv_pb2.WatchResponse, None]:
        """Return the responses of a watch, as long as the caller may read what it is about.

        Raises
        ------
        InvalidArgumentError
            If the request is wrong.
        UnknownTableError
            If there is no such table, or behind the entry that says that it was dropped.
        ChangesLostError
            If what comes next is not held any more.
        NoSpaceError
            If there are too many watches, or there is no memory for an entry; not if only the position is asked for.
        NotServingError
            If the server stops; everything was told before.
        LoginError, RightsError
            If the caller may no longer read that.
        """
        serving = self._gate.serving()
        selection = _selection(message, serving)
        since = Position.parse(message.since) if message.since else None
        if message.only_position:
            yield kv_pb2.WatchResponse(position=str(serving.store.newest_change))
            return
        bytes_max = min(READ_BYTES, serving.message_bytes_max // _MESSAGE_SHARE)
        if self._open >= serving.watches_max + (_MORE_OF_ALL_TABLES if message.all_tables else 0):
            raise NoSpaceError(
                "watches",
                f"{self._open:,} are open, and there may be no more (--watches-max): end one, or ask elsewhere",
            )
        held = bytes_max + _PREFIX_COPIES * len(message.prefix)
        account.admit(held)
        self._open += 1
        beginning = self._reads.submit(partial(_begin, serving, since, selection))
        watch: _Watch | None = None
        try:
            watch = _Watch(await asyncio.wrap_future(beginning), bytes_max, beginning)
            self._metrics.watches.inc()
            told = watch.following.position
            yield kv_pb2.WatchResponse(position=str(told))
            while True:
                entries = await self._next(watch, serving, told)
                behind = watch.following.position
                more = max(sum(map(bytes_of, entries)) - bytes_max, 0)  # one entry may be longer
                _admit(account, more)
                self._metrics.watch_told(len(entries))
                responses = responses_of(entries, told, behind, bytes_max)
                del entries
                for response in responses:
                    require_watch(caller, message)
                    yield response
                account.change_responses(-more)
                told = behind
        except ChangesLostError:
            self._metrics.watch_lost()
            raise
        finally:
            self._open -= 1
            if watch:
                self._metrics.watches.dec()
            account.change_responses(-held)
            (watch.job if watch else beginning).add_done_callback(lambda _: _close(beginning))

    async def _next(self, watch: _Watch, serving: Serving, told: Position) -> list[Changes]:
        """Return the next entries that a watch wants; none after a second without any, or if the server stops.

        Raises
        ------
        NotServingError
            If the server stops, and everything was read and `told`.
        """
        silent_at = time.monotonic() + _SILENT_SECONDS
        while True:
            await asyncio.sleep(watch.next_at - time.monotonic())  # at once, if that is past
            is_over = self._gate.is_over  # before the look at what there is: nothing comes behind that
            step = partial(watch.following.step, watch.bytes_max)
            watch.job = self._reads.submit_step(lambda: serving.queue.requests > 0, step)
            found = await asyncio.wrap_future(watch.job)
            if found is None and is_over:
                if watch.following.position != told:
                    return []  # the client must know how far it is, though nothing that it wants has come
                raise NotServingError(self._gate.refusal)
            if found is None:
                found = await self._wait(watch, silent_at)
            if found is not None:
                self._has_read(watch)
                watch.next_at = time.monotonic() + (_TOGETHER_SECONDS if watch.following.has_caught_up else 0.0)
            left = silent_at - time.monotonic()
            if found or left <= 0:
                return found or []

    async def _wait(self, watch: _Watch, silent_at: float) -> list[Changes] | None:
        """Wait until a watch that has read all may have something to read; return what it has read, if it has."""
        before = watch.job
        watch.silent_at = silent_at
        waiting = self._waiting[watch] = asyncio.get_running_loop().create_future()
        self._have_one_wait()
        seconds = max(silent_at - time.monotonic(), 0.0)
        if self._in_store is not None and self._in_store.number > watch.number:
            seconds = min(seconds, _SOON_SECONDS)
        try:
            await asyncio.wait((waiting,), timeout=seconds)
            if watch is self._in_store:  # the store says when its time is over
                await waiting
        finally:
            del self._waiting[watch]
        return None if watch.job is before else await asyncio.wrap_future(watch.job)

    def _have_one_wait(self) -> None:
        """Have one of those that wait do so in the store."""
        others = [watch for watch, waiting in self._waiting.items() if not waiting.done()]
        if self._in_store is None and others:
            watch = min(others, key=lambda watch: watch.number)
            self._in_store = watch
            loop = asyncio.get_running_loop()
            watch.job = self._waits.submit(self._step_in_store, watch)
            watch.job.add_done_callback(lambda _: _in_loop(loop, self._left_store, watch))

    def _step_in_store(self, watch: _Watch) -> list[Changes] | None:
        """Wait in the store until a watch has something to read, its time is over, or the server stops."""
        found = None
        while found is None and not self._gate.is_over and (left := watch.silent_at - time.monotonic()) > 0:
            found = watch.following.step(watch.bytes_max, min(left, _LOOK_SECONDS))
        return found

    def _left_store(self, watch: _Watch) -> None:
        """Go on behind the wait of a watch in the store, which its call may not have outlived."""
        self._in_store = None
        self._has_read(watch)
        if (waiting := self._waiting.get(watch)) is not None and not waiting.done():
            waiting.set_result(None)
        self._have_one_wait()

    def _has_read(self, watch: _Watch) -> None:
        """Wake those that wait and have not read as far as a watch."""
        for other, waiting in self._waiting.items():
            if other.number < watch.number and not waiting.done():
                waiting.set_result(None)

    def _wake_all(self) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(None)


class _Watch:
    """An open watch, used by one job of a thread at a time.

    Parameters
    ----------
    following
        What it is about.
    bytes_max
        About how much it may read at once.
    job
        The last one that used it.
    """

    def __init__(self, following: Selected, bytes_max: int, job: Future[Any]) -> None:
        self.following = following
        self.bytes_max = bytes_max
        self.job = job
        self.silent_at = 0.0  # when its client must hear something
        self.next_at = 0.0  # when it reads again

    @property
    def number(self) -> int:
        """Of its position: it has read all up to there."""
        return self.following.position.number


def _selection(message: kv_pb2.WatchRequest, serving: Serving) -> Selection:
    """Return what a request asks for.

    Raises
    ------
    InvalidArgumentError
        If it asks for what cannot be.
    UnknownTableError
        If there is no such table.
    """
    if message.only_position and message.since:
        raise InvalidArgumentError("a watch that only asks for the position begins now", field="since")
    if message.all_tables:
        if message.table or message.prefix:
            raise InvalidArgumentError(
                "a watch of all tables has neither a table nor a prefix", field="prefix" if message.prefix else "table"
            )
        return Selection(None)
    return serving.store.selection(message.table, message.prefix)


def _begin(serving: Serving, since: Position | None, selection: Selection) -> Selected:
    return Selected(serving.store.follow(since, keep_seconds=KEEP_SECONDS), selection)


def _close(beginning: Future[Selected]) -> None:
    """Follow no more what was begun, if it was."""
    if not beginning.cancelled() and beginning.exception() is None:
        beginning.result().close()


def _in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[_Watch], None], watch: _Watch) -> None:
    with suppress(RuntimeError):  # the loop has ended, and nobody waits any more
        loop.call_soon_threadsafe(call, watch)


def _admit(account: Account, more: int) -> None:
    """Count what an entry takes more than was planned.

    Raises
    ------
    NoSpaceError
        If the connection may not hold it.
    """
    try:
        account.admit(more)
    except NoSpaceError:
        raise NoSpaceError(
            "memory",
            f"the next transaction takes {more:,} bytes more than a watch usually does, and this connection may not "
            "hold them (--memory-max): watch on another connection, or try again",
        ) from None


def bytes_of(entry: Changes) -> int:
    """Return what an entry takes in a message, about."""
    return _BYTES_PER_ENTRY + len(entry.keys) + len(entry.values) + _BYTES_PER_KEY * len(entry)


def responses_of(
    entries: list[Changes], told: Position, behind: Position, bytes_max: int
) -> Iterator[kv_pb2.WatchResponse]:
    """Return the messages of entries: one without any, if there are none.

    Parameters
    ----------
    entries
        In their order.
    told, behind
        The positions before them, and behind all that was read for them.
    bytes_max
        Of a message, about; longer entries are cut.
    """
    response, size = kv_pb2.WatchResponse(), 0
    for entry in entries:
        for part in _parts(entry, bytes_max):
            more = bytes_of(part)
            # A part begins a response: the position of one is behind all that is whole in it, and nothing else is.
            if size and (size + more > bytes_max or not part.is_whole):
                response.position = str(told)
                yield response
                response, size = kv_pb2.WatchResponse(), 0
            _encode(part, response.entries.add())
            size += more
            if part.is_whole:
                told = Position(told.timeline, part.number)
    response.position = str(behind)
    yield response


def _parts(entry: Changes, bytes_max: int) -> Iterator[Changes]:
    """Cut an entry that is too long between its keys."""
    if bytes_of(entry) <= bytes_max or len(entry) < 2:
        yield entry
        return
    key_ends = np.cumsum(entry.key_lengths, dtype=np.int64)
    value_ends = np.cumsum(entry.value_lengths, dtype=np.int64)
    ends = key_ends + value_ends + _BYTES_PER_KEY * np.arange(1, len(entry) + 1)
    row = key = value = held = 0
    while row < len(entry):
        end = max(int(np.searchsorted(ends, held + bytes_max - _BYTES_PER_ENTRY, side="right")), row + 1)
        key_end, value_end = int(key_ends[end - 1]), int(value_ends[end - 1])
        yield replace(
            entry,
            kinds=entry.kinds[row:end],
            keys=entry.keys[key:key_end],
            key_lengths=entry.key_lengths[row:end],
            values=entry.values[value:value_end],
            value_lengths=entry.value_lengths[row:end],
            versions=entry.versions[row:end],
            expiries=entry.expiries[row:end],
            is_whole=entry.is_whole and end == len(entry),
        )
        row, key, value, held = end, key_end, value_end, int(ends[end - 1])


def _encode(entry: Changes, message: kv_pb2.WatchEntry) -> None:
    """Put an entry into a message."""
    message.number = entry.number
    message.time_ms = entry.time_ms
    message.table_id = entry.table
    message.table = entry.name
    message.kinds = entry.kinds.tobytes()
    message.keys = entry.keys.tobytes()
    message.key_lengths = entry.key_lengths.astype("<u4", copy=False).tobytes()
    message.values = entry.values.tobytes()
    message.value_lengths = entry.value_lengths.astype("<u4", copy=False).tobytes()
    message.versions = entry.versions.astype("<u8", copy=False).tobytes()
    message.expiries = entry.expiries.astype("<u8", copy=False).tobytes()
    if entry.made is not None:
        message.made.layout = entry.made.layout
        message.made.index_bytes = entry.made.index_bytes
        message.made.index_bytes_max = entry.made.index_bytes_max
    message.dropped = entry.is_dropped
    message.more = not entry.is_whole
