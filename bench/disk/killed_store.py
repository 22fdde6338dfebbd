"""A process that makes a store, fills it and its journal, and is killed.

    python -m gpkvs.bench.disk.killed_store DIRECTORY SHAPE RECORDS BATCH JOURNAL_BYTES

It prints what is in use of the journal. Then it kills itself: nothing is closed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from gpkvs.bench.engine.workload import SHAPES, Workload
from gpkvs.bench.peers.embedded_gpkvs import EmbeddedGpkvs
from gpkvs.engine.commit.journal_committer import JournalCommitter
from gpkvs.info import JournalInfo
from gpkvs.store import Store

_CHECKPOINTS_MIN = 2  # then the whole index is in its file
_USED_SHARE = 0.5  # a checkpoint begins there


def main(directory: str, shape: str, *sizes: str) -> None:
    """Leave a store as a kill under load does."""
    records, batch, journal_bytes = map(int, sizes)
    workload = Workload(SHAPES[shape], records, batch)
    contender = EmbeddedGpkvs(Path(directory), workload, "msync", 14 * records, journal=journal_bytes)
    contender.load(workload)
    sets = (contender.prepare_set(columns) for columns in workload.batches("random", 16))
    while _journal(contender).checkpoints < _CHECKPOINTS_MIN:
        contender.set(next(sets))
    _stop_checkpoints(contender.store)
    while _journal(contender).used_bytes < _USED_SHARE * _journal(contender).capacity_bytes:
        contender.set(next(sets))
    print(json.dumps({"journal_bytes": _journal(contender).used_bytes}), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def _journal(contender: EmbeddedGpkvs) -> JournalInfo:
    journal = contender.journal()
    assert journal
    return journal


def _stop_checkpoints(store: Store) -> None:
    """Have the journal fill up as far as it is under a load that lasts, and stay so."""
    committer = store._engine.committer
    assert isinstance(committer, JournalCommitter)
    committer.checkpointer.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
