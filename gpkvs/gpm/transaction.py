"""The flag of a log: which entries count, and whether a transaction is under way.

It is one word of the file's state page, (epoch << 8 | state), so it changes at once. Entries carry the epoch in their
thread's tail: a new epoch makes all earlier entries worthless, and clears the log without touching it.

    IDLE of epoch n -> ACTIVE of epoch n + 1 (durable) -> entries, each durable before what it undoes is stored
    -> all stored (durable) -> IDLE of epoch n + 1 (durable)

The order is that of gpKVS (GPM, ASPLOS '22, section 5.2, figure 6).

Invariants
----------
gpm-log-flag   the state is IDLE or ACTIVE, and the epoch fits 32 bits
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from gpkvs.errors import CorruptStoreError
from gpkvs.gpm.file import GpmFile

EPOCH_MAX: Final = (1 << 32) - 1
_WORD: Final = 0  # of the state page


class State(IntEnum):
    """Whether a transaction is under way."""

    IDLE = 0
    ACTIVE = 1


class Flag:
    """The flag of an open log.

    Parameters
    ----------
    file
        The log's.

    Attributes
    ----------
    epoch
        Of the entries that count.
    state
        Whether a transaction is under way; if so when a log is opened, a crash has interrupted it.

    Raises
    ------
    CorruptStoreError
        If the flag is none.
    """

    def __init__(self, file: GpmFile) -> None:
        self._file = file
        word = file.state(_WORD)
        self.epoch, state = word >> 8, word & 0xFF
        if self.epoch > EPOCH_MAX or state > State.ACTIVE:
            raise CorruptStoreError(
                "gpm-log-flag",
                f"{word:#x} is no flag: restore the file from a backup",
                path=file.path,
                offset=file.state_at,
            )
        self.state = State(state)

    def set(self, epoch: int, state: State) -> None:
        """Make another epoch and state durable; earlier stores of the host to the file are durable, too."""
        assert 0 <= epoch <= EPOCH_MAX
        self._file.set_state(_WORD, epoch << 8 | state)
        self.epoch, self.state = epoch, state
