"""Named places where a test can kill the process, or stop a thread, one at each durability boundary.

``GPKVS_FAILPOINT=name[:n]`` kills the process (SIGKILL, nothing is cleaned up) when it gets to the place `name` for
the n-th time. Without the variable a failpoint is one comparison.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

VARIABLE = "GPKVS_FAILPOINT"

# In the order a batch passes them.
ENGINE = (
    "before_route",
    "before_order",
    "before_find",
    "before_fold",
    "before_place",
    "before_record",
    "mid_record",
    "before_log",
    "mid_log",
    "before_descriptor",
    "before_log_persist",
    "before_active_flag",
    "before_active_persist",
    "before_apply",
    "mid_apply",
    "before_apply_persist",
    "before_idle_flag",
    "before_idle_persist",
    "before_reply",
)
# Of a batch that a GPU commits with an undo log, whose log comes after `before_active_persist`: between two chunks.
CHUNKS = ("mid_chunks",)
# In the order start-up passes them.
RECOVERY = (
    "before_settle",
    "before_undo",
    "mid_undo",
    "before_undo_persist",
    "before_undo_idle_flag",
    "before_incarnation",
    "between_roots",
    "before_recount",
)
# When all incarnations are used up and their numbers begin again, after `before_incarnation`.
RENEWAL = ("before_renewal_flag", "after_renewal_flag")
# Of a store with a journal: in a batch, in a checkpoint, and when it is opened.
JOURNAL = (
    "before_frame",
    "mid_checkpoint",
    "before_checkpoint_sync",
    "before_checkpoint_root",
    "mid_replay",
    "before_first_frame",
)
# When the index of a table grows: in a step, in a step of a store with a journal, and at the end, before those of
# `SCHEMA`. The step of block 0 has a batch of its own.
GROWTH = ("before_growth_targets", "mid_growth_targets", "before_growth_persist", "before_growth_descriptor")
GROWTH_JOURNAL = ("before_growth_frame", "before_growth_apply", "mid_growth_apply")
GROWTH_END = ("before_growth_end",)
# When a table is made or dropped; `between_roots` then too.
SCHEMA = ("before_catalog", "before_catalog_root", "after_catalog_root")
# When the heap grows, or the undo log; `between_roots` then too.
HEAP_GROWTH = ("before_heap_sync", "before_heap_root", "before_heap_use")
# When space of the heap is given back, and taken again; `before_heap_sync` then too.
GIVEN_SPACE = ("before_heap_punch", "after_heap_punch", "before_heap_back")
# When blobs are made durable, and when space of their file is given back.
BLOBS = ("before_blob_sync", "before_blob_punch", "after_blob_punch")
LOG_GROWTH = ("before_log_sync", "before_log_root")
# When the journal grows, after those of `HEAP_GROWTH`; `between_roots` then too.
JOURNAL_GROWTH = ("mid_extent_zeros", "before_extent_sync", "before_extent_root", "before_extent_use")
# When a store is created.
CREATION = ("before_creation_ends",)
# When a store is copied, in the order in which a copy passes them; `mid_copy` once for each part of an index.
COPY = (
    "before_copy_files",
    "mid_copy",
    "before_copy_durable",
    "before_copy_root",
    "before_copy_publish",
    "after_copy_publish",
)
# When a store is backed up, in the order in which a backup passes them; `mid_backup_scan` once for each piece of a
# scan, `mid_backup_apply` once for each change that came meanwhile, `mid_backup_removal` when an old backup goes.
BACKUP = (
    "before_backup_store",
    "mid_backup_scan",
    "before_backup_apply",
    "mid_backup_apply",
    "before_backup_check",
    "before_backup_manifest",
    "before_backup_rename",
    "after_backup_rename",
    "mid_backup_removal",
)
# When a server is archived: behind an entry that was written, between two segments, and when what is too old goes;
# `BACKUP` too.
ARCHIVE = ("mid_archive", "between_segments", "mid_archive_removal")
# When a store is restored of an archive, after those of `COPY`; `mid_restore_apply` once for each entry.
RESTORE = ("after_restore_copy", "mid_restore_apply", "before_restore_publish")
# Those that a server passes whatever its clients ask for, by the store's commit: a drill visits each. Of a batch or a
# checkpoint, and of a start after a kill.
SERVING_BY_COMMIT = {
    "undo": (ENGINE, RECOVERY),
    "journal": (
        (
            *ENGINE[: ENGINE.index("before_descriptor")],
            *("before_frame", "before_apply", "mid_apply", "before_reply"),
            *("mid_checkpoint", "before_checkpoint_sync", "before_checkpoint_root"),
        ),
        ("before_settle", "mid_replay", "before_incarnation", "between_roots", "before_first_frame", "before_recount"),
    ),
}
ALL = (
    *(*ENGINE, *CHUNKS, *JOURNAL, *RECOVERY, *RENEWAL, *GROWTH, *GROWTH_JOURNAL, *GROWTH_END),
    *(*SCHEMA, *HEAP_GROWTH, *GIVEN_SPACE, *BLOBS, *LOG_GROWTH, *JOURNAL_GROWTH, *CREATION, *COPY, *BACKUP),
    *(*ARCHIVE, *RESTORE),
)


_Stop = ctypes.CFUNCTYPE(None)


class _State(ctypes.Structure):
    """What native code has as `Failpoint` (``kernels/base/failpoint.hpp``), and counts too."""

    _fields_ = [("armed", ctypes.c_char_p), ("remaining", ctypes.c_uint64), ("stop", _Stop)]


_armed = ""
_state = _State()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


_reached: Callable[[], None] = _die


def arm(specification: str) -> None:
    """Arm ``name[:n]``; an empty string disarms.

    Raises
    ------
    ValueError
        If there is no failpoint of that name, or `n` is no number above 0.
    """
    global _armed  # noqa: PLW0603 - there is one for the process
    name, _, count = specification.partition(":")
    if name and name not in ALL:
        raise ValueError(f"{VARIABLE}: no failpoint named {name!r}; there are {', '.join(ALL)}")
    if count and not (count.isascii() and count.isdigit() and 0 < len(count) < 10 and int(count)):
        raise ValueError(f"{VARIABLE}: {count!r} after {name}: is no number above 0")
    _armed = name
    _state.armed, _state.remaining = name.encode() or None, int(count or 1)


def stop_instead(stop: Callable[[], None] | None) -> None:
    """Have the thread that gets to the armed place call a function, and the process live on; None: it dies again."""
    global _reached  # noqa: PLW0603 - as above
    _reached = stop or _die
    _state.stop = _Stop(stop) if stop else _Stop()


def address() -> int:
    """Return where native code finds what is armed."""
    return ctypes.addressof(_state)


def armed(name: str) -> bool:
    """Whether the next `hit` of this failpoint counts; the engine then splits the work in two for a ``mid_`` one."""
    return _armed == name and _state.remaining == 1


def hit(name: str) -> None:
    """Die or stop here, if armed."""
    if _armed == name:
        _state.remaining -= 1
        if _state.remaining == 0:
            _reached()


try:
    arm(os.environ.get(VARIABLE, ""))
except ValueError as error:
    sys.exit(f"gpkvs: {error}")  # only tests set it: no caller could do anything else
