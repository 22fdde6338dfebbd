"""Any file of gpkvs.gpm, checked by what it says that it is."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gpkvs.errors import FormatError
from gpkvs.gpm.array import PersistentArray
from gpkvs.gpm.checkpoint import Checkpoint
from gpkvs.gpm.coalesced_log import CoalescedLog
from gpkvs.gpm.file import open_file
from gpkvs.gpm.opened import Opened, over
from gpkvs.gpm.partitioned_log import PartitionedLog
from gpkvs.gpm.place import find_place
from gpkvs.gpm.versions import Versions

_KINDS: Final[dict[str, type[Opened]]] = {
    kind.KIND: kind for kind in (PersistentArray, Checkpoint, CoalescedLog, PartitionedLog, Versions)
}


def verify(path: Path | str) -> str:
    """Check all that a file has checksums for, without storing to it.

    Parameters
    ----------
    path
        The file; others may read it meanwhile.

    Returns
    -------
    str
        What it is, and how it stands.

    Raises
    ------
    StoreMissingError, StoreLockedError, StoreAccessError, FormatError
        If it cannot be read.
    CorruptStoreError
        If it is damaged.
    """
    file = open_file(path, None, "auto", readonly=True)
    try:
        kind = _KINDS[file.kind]
    except KeyError:
        file.close()
        raise FormatError(f"{path} holds {file.kind!r}, which this version of gpkvs does not know") from None
    with over(kind, find_place("cpu"), file) as found:
        found.verify()
        return repr(found)
