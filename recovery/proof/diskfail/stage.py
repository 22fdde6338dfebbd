"""Where a script plays: one life of a store whose flushes and threads the script holds up at named points."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from gpkvs.batch import Op
from gpkvs.config import DEFAULT_TABLE
from gpkvs.engine.commit import checkpoint
from gpkvs.engine.commit.journal_committer import JournalCommitter
from gpkvs.media.directory import BLOBS_FILE, DATA_FILE, ROOT_FILE
from gpkvs.media.journal import Journal
from gpkvs.media.layout import BYTES_LAYOUT, U64_LAYOUT
from gpkvs.process import failpoint
from gpkvs.recovery.proof.batch_runner import EngineName
from gpkvs.recovery.proof.diskfail.expected import Expected, TableName, difference
from gpkvs.recovery.proof.diskfail.life import (
    BLOB_BYTES,
    KEYS,
    LIFE_MS,
    Life,
    LifeError,
    Request,
    Sent,
    Shape,
    blob_value,
    contents_of,
    open_store,
)
from gpkvs.recovery.proof.diskfail.recorder import Mark, Recorder
from gpkvs.recovery.proof.model import Asked
from gpkvs.store import Store

DEFAULT = TableName(0, DEFAULT_TABLE, BYTES_LAYOUT.name)
LARGE_BYTES = 40_000  # a value of which a segment of a small heap holds one
_BLOCKED_SECONDS = 0.7  # what takes longer waits for the script
_LOST_SECONDS = 120  # what takes longer never comes


class Stage:
    """One life, whose steps a script names. No checkpoint and no empty frame comes by itself.

    Parameters
    ----------
    path
        The directory of the store.
    shape
        Its sizes.
    engine
        Runs its batches.
    expected
        The model; it knows what the life before may have left.
    recorder
        It runs.
    """

    def __init__(self, path: Path, shape: Shape, engine: EngineName, expected: Expected, recorder: Recorder) -> None:
        self._path = path
        self._shape = shape
        self._engine: EngineName = engine
        self._expected = expected
        self._recorder = recorder
        self._values = 0
        self._is_stopped, self._goes_on = threading.Event(), threading.Event()
        self._pool = ThreadPoolExecutor(4)
        self.store: Store | None = None

    def open(self) -> None:
        """Open the store. What it holds is read only where it is not known: to read is to wait."""
        self.store = open_store(self._path, self._shape)
        self._recorder.mark(Mark.OPENED)
        before = self._expected.before
        found = before[0] if len(before) == 1 else contents_of(self.store)
        if wrong := difference(found, before):
            raise LifeError(f"the opening that was recorded: {wrong}")
        self._expected.begin(found)
        self.life = Life(self.store, self._shape, self._engine, self._expected, self._recorder, Random(1))

    def close(self) -> None:
        """Let everything go on, and close the store."""
        self.go_on()
        self._recorder.hold(None)
        self._pool.shutdown()
        if self.store:
            self.store.close()

    @property
    def committer(self) -> JournalCommitter:
        """Of the store."""
        return self.life.committer

    @property
    def journal(self) -> Journal:
        """Of the store."""
        return self.committer.journal

    @property
    def tables(self) -> tuple[TableName, ...]:
        """Those that are there."""
        return self._expected.schemas[-1]

    # What a life does.

    def sets(self, *keys: int, value_bytes: int = 8, table: TableName = DEFAULT) -> Request:
        """Return a request that sets keys, by their numbers."""
        return table, [(Op.SET, KEYS[table.layout][key], self._value(table, value_bytes)) for key in keys]

    @staticmethod
    def deletes(*keys: int) -> Request:
        """Return a request that deletes keys, by their numbers."""
        return DEFAULT, [(Op.DELETE, KEYS[DEFAULT.layout][key]) for key in keys]

    def expires(self, *keys: int) -> Request:
        """Return a request that gives keys an expiry, by their numbers; it does not come while the script runs."""
        expiry = self.life.now + LIFE_MS
        return DEFAULT, [Asked(Op.EXPIRE, KEYS[DEFAULT.layout][key], expiry=expiry) for key in keys]

    def _value(self, table: TableName, count: int) -> bytes:
        self._values += 1
        if table.layout == U64_LAYOUT.name:
            return self._values.to_bytes(8, "little")
        if count >= min(BLOB_BYTES):
            return blob_value(self._values, count)
        return b"%d." % self._values + b"x" * count

    def execute(self, *requests: Request) -> Sent:
        """Run a batch, and wait for nothing."""
        return self.life.execute(*requests)

    def run(self, *requests: Request) -> None:
        """Run a batch; it is acknowledged."""
        self.life.wait(self.execute(*requests))

    def cover(self) -> None:
        """Append the frame that says that all before it are durable, and wait for it."""
        if not self.committer.cover():
            raise LifeError("there was no need for an empty frame")
        self.journal.wait(self.committer.begun)

    def checkpoint(self) -> None:
        """Write one."""
        self.committer.checkpointer.write(paced=False)

    # What a script does.

    def watch(self) -> None:
        """Judge the states of all places from here on, until `ignore`."""
        self._recorder.mark(Mark.WATCHED, 1)

    def ignore(self) -> None:
        """Judge no states from here on, until `watch`."""
        self._recorder.mark(Mark.WATCHED, 0)

    def look(self) -> None:
        """Judge the states of this place."""
        self._recorder.mark(Mark.WATCHED, 2)

    def crash(self) -> None:
        """Say that the next life begins with a state that a crash leaves here."""
        self._recorder.mark(Mark.CRASHED)

    def hold(self, file: str = DATA_FILE) -> None:
        """Let each flush of a file wait before it does anything."""
        assert file in (BLOBS_FILE, DATA_FILE, ROOT_FILE)
        self._recorder.hold(self._path / file)

    def let_through(self, count: int = 1) -> None:
        """Let held flushes end."""
        for _ in range(count):
            self._recorder.let_through()

    def release(self) -> None:
        """Hold no flush."""
        self._recorder.hold(None)

    def wait_held(self, count: int = 1) -> None:
        """Return when so many flushes have come since `hold`: what they are to flush is written."""
        self._wait_until(lambda: self._recorder.held >= count)

    def call_unheard(self, function: Any, *words: int) -> None:
        """Call a native function that is to wake up a thread, which sleeps on until it hears of something else."""
        self._recorder.call_unheard(function, *words)

    @staticmethod
    def _wait_until(is_so: Callable[[], bool]) -> None:
        tick = threading.Event()
        for _ in range(int(_LOST_SECONDS / 0.001)):
            if is_so():
                return
            tick.wait(0.001)
        raise LifeError("what a script waits for does not come")

    def start(self, work: Callable[[], object]) -> Future[object]:
        """Begin work in a thread of its own."""
        return self._pool.submit(work)

    def attempt(self, work: Callable[[], object]) -> Future[object]:
        """Begin work in a thread of its own; return when it is done, or waits for what the script holds."""
        future = self.start(work)
        wait_for([future], _BLOCKED_SECONDS)
        return future

    def stop_at(self, name: str) -> None:
        """Have the thread stop that comes to a failpoint first; in the middle of work that it splits in two."""
        self._is_stopped.clear()
        self._goes_on.clear()
        failpoint.arm(name)

    def wait_stopped(self, work: Future[object]) -> bool:
        """Return whether a thread stopped, once it did or its work is done."""
        self._wait_until(lambda: self._is_stopped.is_set() or work.done())
        return self._is_stopped.is_set()

    def go_on(self) -> None:
        """Let the thread that stopped go on."""
        failpoint.arm("")
        self._goes_on.set()

    def stop(self) -> None:
        """Stop the calling thread, which has come to the failpoint."""
        failpoint.arm("")
        self._is_stopped.set()
        self._goes_on.wait()


@contextmanager
def quiet(stage: Stage) -> Iterator[None]:
    """Let no checkpoint and no empty frame come by itself, and a stage's threads stop where it says."""
    looks = checkpoint._LOOK_SECONDS
    checkpoint._LOOK_SECONDS = 3600
    failpoint.stop_instead(stage.stop)
    try:
        yield
    finally:
        failpoint.stop_instead(None)
        checkpoint._LOOK_SECONDS = looks
