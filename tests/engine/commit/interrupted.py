"""The process that a test interrupts: a KeyboardInterrupt at the n-th place of functions that append a frame.

Run as ``python interrupted.py DIRECTORY STEP NAME...``. STEP is `set`, `columns`, `batch`, which Python plans,
`set-in-steps`, as what a GPU plans is stored, or `close`, which appends an empty frame. Each life has a store of its
own, ``DIRECTORY/N``, in a forked process. After the interrupt it closes again, or goes on. One line for each: the exit
status, which says whether the place was reached. It ends after the first life that is not interrupted.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.engine.begun_batch import BegunBatch
from gpkvs.engine.commit.journal_committer import JournalCommitter

SIZES = {"index_bytes": 64 << 10, "heap_bytes": 256 << 10, "journal_bytes": 1 << 20}
HUNG_SECONDS = 60  # whatever else the machine does: a life takes milliseconds
FILES = (
    "/journal_committer.py",
    "/media/journal.py",
    "/own_turn.py",
    "/own_batch.py",
    "/native_engine.py",
    "/store.py",
)
INTERRUPTED, WHOLE = 3, 0  # exit statuses of a life that went on to its end


_DURING = Batch.of([(Op.SET, b"during", b"value")])


def plan_by_phases(store: gpkvs.Store) -> None:
    """Let the store's threads stand for a GPU (as tests/engine/twins.py does: this file runs as a script)."""
    store._backend.host_ops_max = 0
    store._is_on_host = False


def run_by_phases(store: gpkvs.Store) -> None:
    """Have the batch run phase by phase, as on a GPU."""
    plan_by_phases(store)
    with store._turn_over():
        BegunBatch(store._engine, *store._engine.execute(_DURING)).finish()


DO: dict[str, Callable[[gpkvs.Store], object]] = {
    "close": gpkvs.Store.close,
    "batch": run_by_phases,
    "columns": lambda store: store.execute(_DURING),
    "set": lambda store: store.set(b"during", b"value"),
    "set-in-steps": lambda store: store.set(b"during", b"value"),
}


class Interrupter:
    """Raises a KeyboardInterrupt where Python would: when a function begins, and when one that it called returned."""

    def __init__(self, names: list[str], nth: int) -> None:
        self._names = names
        self._left = nth
        self.has_hit = False

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event not in ("call", "return", "c_return") or self.has_hit:
            return
        code = frame.f_code
        if code.co_name in self._names and code.co_filename.endswith(FILES):
            self._left -= 1
            if self._left == 0:
                self.has_hit = True
                raise KeyboardInterrupt


def live(path: Path, step: str, names: list[str], nth: int) -> int:
    """Open a store and do the step; return the exit status."""
    signal.alarm(HUNG_SECONDS)
    store = gpkvs.open(path, backend="cpu", commit="journal", threads=1, **SIZES)
    committer = store._engine.committer
    assert isinstance(committer, JournalCommitter)
    committer.checkpointer.stop()  # this thread alone appends
    if step == "set-in-steps":
        committer.is_native = False
        plan_by_phases(store)
    # Past it frames wait for the one before, which gives its memory back.
    for _ in range(6):
        store.set(b"before", b"value")
    interrupter = Interrupter(names, nth)
    sys.setprofile(interrupter)
    try:
        DO[step](store)
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    if step != "close":
        store.set(b"after", b"value")
    store.close()
    return INTERRUPTED if interrupter.has_hit else WHOLE


def main() -> None:
    """Run one life after the other."""
    directory, step, *names = sys.argv[1:]
    nth, status = 0, INTERRUPTED
    while status != WHOLE:
        nth += 1
        child = os.fork()
        if child == 0:
            os._exit(live(Path(directory) / str(nth), step, names, nth))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(status, flush=True)


if __name__ == "__main__":
    main()
