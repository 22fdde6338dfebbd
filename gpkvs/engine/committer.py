"""What a committer must offer: `UndoCommitter` is one."""

from __future__ import annotations

from typing import Protocol

from gpkvs.engine.write_set import WriteSet


class Committer(Protocol):
    """Makes write sets durable; nothing else stores to durable space."""

    def commit(self, write_set: WriteSet, /) -> None:
        """Return when a write set is durable, and counted. A failure ends the process: only recovery may go on."""
