"""What whoever makes backups and archives of a source says of them meanwhile."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

from gpkvs.changes import Position


class BackupState(Enum):
    """How far a backup is."""

    BEGUN = "begun"
    WHOLE = "whole"
    FAILED = "failed"


class BackupNote(NamedTuple):
    """What is said of a backup.

    Attributes
    ----------
    state
        How far it is.
    seconds
        That it has taken.
    time_ms
        Of one that is whole: when its source was what it is, in milliseconds since 1970, by the clock of this process.
    keys
        In it.
    size
        Bytes of the disk that it has.
    """

    state: BackupState
    seconds: float
    time_ms: int = 0
    keys: int = 0
    size: int = 0


class Notes(Protocol):
    """Hears of backups and archives. Nobody's backup depends on it: it raises nothing, and takes little time."""

    def backup(self, note: BackupNote) -> None:
        """Hear of a backup; from any thread."""

    def archive(self, position: Position, time_ms: int) -> None:
        """Hear how far an archive goes, durably and behind a base, and the time of the last entry there; 0: none."""


class NoNotes:
    """Nobody hears."""

    def backup(self, note: BackupNote) -> None:
        """Do nothing."""

    def archive(self, position: Position, time_ms: int) -> None:
        """Do nothing."""


NO_NOTES = NoNotes()
