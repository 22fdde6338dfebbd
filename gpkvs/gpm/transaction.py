"""The flag of a log: which entries count, and whether a transaction is under way.

It is one word of the file's state page (`gpkvs.gpm.state_word`: the epoch, and whether it is ACTIVE), so it changes
at once. Entries carry the epoch in their thread's tail: a new epoch makes all earlier entries worthless, and clears the
log without touching it.

    IDLE of epoch n -> ACTIVE of epoch n + 1 (durable) -> entries, each durable before what it undoes is stored
    -> all stored (durable) -> IDLE of epoch n + 1 (durable)

The order is that of gpKVS (GPM, ASPLOS '22, section 5.2, figure 6).

Invariants
----------
gpm-log-flag   its checksum is right, and the epoch fits 32 bits
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from gpkvs.errors import CorruptStoreError
from gpkvs.gpm.file import GpmFile
from gpkvs.gpm.state_word import StateWord, read_word, store_word

EPOCH_MAX: Final = (1 << 32) - 1
_WORD: Final = 0  # of the state page
_INVARIANT: Final = "gpm-log-flag"


class State(IntEnum):
    """Whether a transaction is under way."""

    IDLE = 0
    ACTIVE = 1


NEW_FLAG: Final = (StateWord(0, State.IDLE).pack(_WORD),)  # the state page of a new log


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
        self.epoch, bit = read_word(file, _WORD, _INVARIANT)
        if self.epoch > EPOCH_MAX:
            raise CorruptStoreError(
                _INVARIANT,
                f"the epoch {self.epoch:,} cannot be: restore the file from a backup",
                path=file.path,
                offset=file.state_at,
            )
        self.state = State(bit)

    def set(self, epoch: int, state: State) -> None:
        """Make another epoch and state durable; earlier stores of the host to the file are durable, too."""
        assert 0 <= epoch <= EPOCH_MAX
        with self._file.changing():
            store_word(self._file, _WORD, StateWord(epoch, state))
            self.epoch, self.state = epoch, state
