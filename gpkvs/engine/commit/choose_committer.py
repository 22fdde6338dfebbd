"""The committer of a store, by how its batches become durable."""

from __future__ import annotations

from gpkvs.backends.base import Backend
from gpkvs.engine.commit.journal_committer import JournalCommitter
from gpkvs.engine.commit.undo_committer import UndoCommitter
from gpkvs.engine.seam.committer import Committer
from gpkvs.engine.seam.meter import Meter
from gpkvs.engine.state.heap import Heap
from gpkvs.engine.state.table import Table
from gpkvs.media.files import StoreFiles
from gpkvs.media.journal import Journal
from gpkvs.media.transaction import Transaction


def choose_committer(
    backend: Backend,
    files: StoreFiles,
    tables: dict[int, Table],
    heap: Heap,
    recovered: Transaction | Journal,
    meter: Meter,
    *,
    logged: bool,
) -> Committer:
    """Return the committer of a store that was recovered; batches may begin.

    Parameters
    ----------
    backend, files, tables, heap
        Of the store.
    recovered
        Its transaction flag, or its journal.
    meter
        Told what each phase took, and what was written.
    logged
        Whether batches are transactions. Without an undo log they are not: a crash may tear them.
    """
    if isinstance(recovered, Transaction):
        return UndoCommitter(backend, files, tables, heap, recovered, meter, logged=logged)
    committer = JournalCommitter(backend, files, tables, heap, recovered, meter)
    try:
        committer.begin()
    except BaseException:
        committer.close()
        raise
    return committer
