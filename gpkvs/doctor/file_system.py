"""The file system of a store's folder: its type, how it is mounted, and how much room it has."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpkvs.config import GIB, HEAP_BYTES_USUAL, KIB, MIB, Sizes
from gpkvs.doctor.fact import Fact, Verdict
from gpkvs.doctor.folder import Folder
from gpkvs.media.directory import JOURNAL_BYTES_GROWING, disk_free_bytes
from gpkvs.process.mounts import Mount, mount_of
from gpkvs.text import readable_bytes

_FREE_BYTES_FEW: Final = GIB
# Under a store that is there, a disk is nearly full with less than this left, and less than this share of it. The first
# is the largest step of a heap that grows (`ON_DISK` in gpkvs/engine/space/heap_growth.py).
_NEARLY_FULL_BYTES: Final = 256 * MIB
_NEARLY_FULL_SHARE: Final = 0.05
_SMALL_FILES_BYTES: Final = 100 * KIB  # root, catalogs and all else (docs/sizing.md)
_FILES_OF_A_STORE: Final = 7  # while it is made; tried on a tmpfs with fewer
_FILES_FEW: Final = 1_000  # as many as tables by default

_FAR: Final = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "lustre", "afs")
# Of ext4, f2fs and overlay; newer kernels show the last one's as fsync=volatile.
_UNFLUSHED: Final = ("nobarrier", "barrier=0", "fsync_mode=nobarrier", "volatile", "fsync=volatile")
_SLOW: Final = ("strictatime", "sync")
_HUGE: Final = ("huge=always", "huge=within_size")  # of a tmpfs

_KIND = "gpkvs was tested on ext4 and tmpfs; a file system that is far away, or lives with a container, promises less."
_OPTIONS = "Some options take back what a flush promises, or make each access write."
_PAGES = "Indexes of GiBs open and grow faster on pages of 2 MiB; each file then takes 2 MiB at least."
_SPACE = "A new store reserves its files, and its heap grows until the disk is full."
_NO_SPACE = "On a full disk heap and tables cannot grow: writes are refused, and a start may lack what it must reserve."
_INODES = "A store has about ten files, and one more for each table."


def file_system_facts(folder: Folder, root: Path) -> Iterator[Fact]:
    """Look at the file system of a folder."""
    directory = folder.found
    mount = mount_of(directory, root)
    if mount:
        yield kind_fact(mount)
        yield options_fact(mount)
        if mount.kind == "tmpfs":
            yield pages_fact(mount)
    else:
        for name, why in (("file system", _KIND), ("mount options", _OPTIONS)):
            yield Fact(name, Verdict.UNSEEN, "/proc/self/mountinfo cannot be read", why)
    try:
        found = os.statvfs(directory)
        free_bytes = disk_free_bytes(directory)
    except OSError as error:
        for name, why in (("free space", _SPACE), ("free inodes", _INODES)):
            yield Fact(name, Verdict.UNSEEN, error.strerror or str(error), why)
        return
    all_bytes = found.f_blocks * found.f_frsize
    if folder.has_store:
        yield space_under_store_fact(free_bytes, all_bytes, mount.point if mount else directory)
    else:
        yield space_fact(free_bytes, all_bytes, _new_bytes(folder.commit))
    yield inodes_fact(found.f_favail, found.f_files, 0 if folder.has_store else _FILES_OF_A_STORE)


def _new_bytes(commit: str) -> int:
    """Return what a new store reserves."""
    log_bytes = Sizes.log_bytes if commit == "undo" else JOURNAL_BYTES_GROWING
    return Sizes.index_bytes + HEAP_BYTES_USUAL + log_bytes + _SMALL_FILES_BYTES


def kind_fact(mount: Mount) -> Fact:
    """Judge the type of a file system."""
    value = f"{mount.kind} at {mount.point}"
    figures = {"type": mount.kind, "mount_point": str(mount.point)}
    if mount.kind == "overlay":
        value += ", which is removed with its container"
        return Fact(
            "file system", Verdict.BETTER, value, _KIND, "--data in a volume: docker run -v NAME:/data", figures
        )
    if mount.kind in _FAR or mount.kind.startswith("fuse"):
        value += ", behind a network or another process"
        return Fact("file system", Verdict.BETTER, value, _KIND, "--data on a disk of this machine", figures)
    return Fact("file system", Verdict.FINE, value, _KIND, figures=figures)


def options_fact(mount: Mount) -> Fact:
    """Judge how a file system is mounted."""
    value, figures = ",".join(mount.options), {"options": list(mount.options)}
    point = shlex.quote(str(mount.point))
    if "ro" in mount.options:
        mend = f"mount -o remount,rw {point}"
        return Fact("mount options", Verdict.WRONG, value, "A server must write there.", mend, figures)
    for option in _UNFLUSHED:
        if option in mount.options:
            why = f"With {option} a flush does not reach the disk, so a power loss takes acknowledged writes."
            mend = f"mount {point} without {option} (/etc/fstab)"
            return Fact("mount options", Verdict.WRONG, value, why, mend, figures)
    for option in _SLOW:
        if option in mount.options:
            why = f"With {option} the file system writes more than gpkvs asks for, which takes time."
            better = "noatime" if option == "strictatime" else "async"
            return Fact("mount options", Verdict.BETTER, value, why, f"mount -o remount,{better} {point}", figures)
    return Fact("mount options", Verdict.FINE, value, _OPTIONS, figures=figures)


def pages_fact(mount: Mount) -> Fact:
    """Say how large the pages of a tmpfs are. Small ones are no fault: small tables gain nothing from large ones."""
    has_huge = any(option in mount.options for option in _HUGE)
    value = "2 MiB where a file is so long" if has_huge else "4 KiB"
    figures = {"has_huge_pages": has_huge}
    if has_huge:
        return Fact("pages", Verdict.FINE, value, _PAGES, figures=figures)
    return Fact(
        "pages", Verdict.FINE, f"{value}; huge=always, of a mount of its own, gives 2 MiB", _PAGES, figures=figures
    )


def space_fact(free_bytes: int, all_bytes: int, needed: int) -> Fact:
    """Judge the room that is left for a new store, which has to reserve so much before it can be served."""
    value = f"{readable_bytes(free_bytes)} of {readable_bytes(all_bytes)}"
    figures = {"free_bytes": free_bytes, "bytes": all_bytes}
    if free_bytes < needed:
        mend = f"make room, or another --data: a new store takes {readable_bytes(needed)}"
        return Fact("free space", Verdict.WRONG, value, _SPACE, mend, figures)
    if free_bytes < _FREE_BYTES_FEW:
        mend = "make room, or another --data; gpkvs serve --heap-bytes-max SIZE bounds the heap"
        return Fact("free space", Verdict.BETTER, value, _SPACE, mend, figures)
    return Fact("free space", Verdict.FINE, value, _SPACE, figures=figures)


def space_under_store_fact(free_bytes: int, all_bytes: int, point: Path) -> Fact:
    """Judge the room that is left for a store that is there, on a disk that is mounted at a point."""
    value = f"{readable_bytes(free_bytes)} of {readable_bytes(all_bytes)}"
    figures = {"free_bytes": free_bytes, "bytes": all_bytes}
    if free_bytes >= _FREE_BYTES_FEW:
        return Fact("free space", Verdict.FINE, value, _SPACE, figures=figures)
    is_nearly_full = free_bytes < min(_NEARLY_FULL_BYTES, _NEARLY_FULL_SHARE * all_bytes)
    verdict = Verdict.WRONG if is_nearly_full else Verdict.BETTER
    mend = f"du -xhd2 {shlex.quote(str(point))} | sort -h | tail shows what to remove; or enlarge it, or delete keys"
    return Fact("free space", verdict, value, _NO_SPACE, mend, figures)


def inodes_fact(free: int, count: int, needed: int) -> Fact:
    """Judge how many files may still be made; `needed` is what a store has to make before it can be served."""
    if not count:
        return Fact("free inodes", Verdict.FINE, "the file system does not count them", _INODES)
    value, figures = f"{free:,} of {count:,}", {"free_inodes": free, "inodes": count}
    if free < _FILES_FEW:
        verdict = Verdict.WRONG if free < needed else Verdict.BETTER
        return Fact("free inodes", verdict, value, _INODES, "remove files, or another --data", figures)
    return Fact("free inodes", Verdict.FINE, value, _INODES, figures=figures)
