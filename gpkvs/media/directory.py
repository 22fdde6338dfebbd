"""A store's directory: its files, and their creation.

Files
-----
``LOCK``          the pid of the process that has the store open; the locks lie elsewhere (`gpkvs.media.store_lock`)
``CREATING``      only while a store is being created: what lies beside it is worthless
``COPYING``       the same while `gpkvs copy` makes a store; an opening refuses the directory
``UNFINISHED``    only while `gpkvs backup` fills a store: it is no state of its source yet; an opening refuses it
``root``          two root copies and the transaction flag
``log``           two descriptors and the undo log
``heap``          the records, in segments
``data``          in a store with a journal, in place of ``log`` and ``heap``: the journal's segments, then the heap
``blobs``         in a store of format 4: values that are too long for the heap
``index-T-G``     the index of table T, generation G
``catalog-N.json``  the tables
``recovery.json``   what the last start-up found (for people and scripts; never read back)
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from gpkvs.config import (
    DEFAULT_TABLE,
    HEAP_BYTES_MAX,
    HEAP_BYTES_USUAL,
    JOURNAL_BYTES_MAX,
    JOURNAL_BYTES_MIN,
    JOURNAL_BYTES_USUAL,
    KIB,
    MIB,
    SEGMENT_BYTES_MIN,
    SIZE_BOUNDS,
    Sizes,
)
from gpkvs.config_checks import heap_faults, raise_faults, size_faults
from gpkvs.errors import (
    GpkvsError,
    NoSpaceError,
    StoreAccessError,
    StoreError,
    StoreMissingError,
)
from gpkvs.media.catalog import Catalog, TableEntry, catalog_file_name
from gpkvs.media.layout import (
    BLOCK_BYTES,
    DESCRIPTOR_OFFSETS,
    FIRST_CHECKPOINT,
    FLAG_OFFSET,
    FORMAT_4,
    LOG_ENTRIES_OFFSET,
    LONGEST_RECORD_UNITS,
    PAGE_BYTES,
    ROOT_FILE_BYTES,
    ROOT_OFFSETS,
    UNIT_BYTES,
    CommitKind,
    Descriptor,
    Root,
    State,
    pack_flag,
)
from gpkvs.native import crc32c
from gpkvs.process import failpoint

LOCK_FILE = "LOCK"
CREATING_FILE = "CREATING"
COPYING_FILE = "COPYING"
UNFINISHED_FILE = "UNFINISHED"
ROOT_FILE = "root"
LOG_FILE = "log"
HEAP_FILE = "heap"
DATA_FILE = "data"
BLOBS_FILE = "blobs"
RECOVERY_FILE = "recovery.json"

# What `create_store` makes before the root; only this may be removed when a creation begins again.
_CREATED = re.compile(r"(log|heap|data|blobs|index-0-0|catalog-0\.json|root\.tmp|catalog-0\.json\.tmp)")

SEGMENT_BYTES_MAX = 4 * MIB  # of new stores; older ones have up to 32 MiB
# Where files are memory: some free segments are kept for compaction, and nobody else has that memory.
_SEGMENT_BYTES_MAX_IN_MEMORY = 1 * MIB
_SEGMENT_BYTES_MAX_BESIDE_BLOBS = MIB // 2  # there, too: no record is longer than 64 KiB
_SEGMENT_SHARE = 128
_RECORD_SHARE = 16
HEAP_SEGMENTS_MAX = 1 << 20  # 64 GiB in the smallest ones
HEAP_STEP_BYTES = 64 * KIB  # a heap that may grow has a multiple of it
JOURNAL_BYTES_GROWING = 20 * MIB  # beside a heap that may grow, at least
FIRST_BLOB_BYTES = PAGE_BYTES  # of a file of blobs: it is mapped from the first on
JOURNAL_SEGMENT_BYTES_MAX = 4 * MIB
EXTENDED_AT_ONCE = MIB  # of a file, while others write to it
_ZEROS = bytes(1 * MIB)

# The last one is what a file system says to a size beyond all it could ever hold.
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Progress = Callable[[str, float], None]


def disk_free_bytes(path: Path) -> int:
    """Return what the file system of a path says that this user may still write."""
    free = os.statvfs(path)
    return free.f_bavail * free.f_frsize


def disk_bytes(directory: Path) -> int:
    """Return what the files of a directory take of the disk."""
    return sum(512 * path.stat().st_blocks for path in directory.rglob("*"))


@contextmanager
def access_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals into errors that say what to do."""
    try:
        yield
    except OSError as error:
        if isinstance(error, GpkvsError):  # a deadline of a client, which is a TimeoutError too
            raise
        where = error.filename or path
        if error.errno in NO_SPACE:
            raise NoSpaceError("disk", f"{where}: {error.strerror}") from error
        if error.errno == errno.ENOMEM:
            raise NoSpaceError(
                "memory", f"{where}: {error.strerror}: raise the limit on it (ulimit -v, MemoryMax)"
            ) from error
        hint = {
            errno.EACCES: "give this user read and write permission",
            errno.EPERM: "give this user read and write permission",
            errno.EROFS: "the file system is read-only",
            errno.ESTALE: "close the store, and open it where it is now",
            errno.ENOTDIR: "a store is a directory",
            errno.EAGAIN: "raise the limit on threads (ulimit -u), or on memory",
            errno.EMFILE: "raise the limit on open files (ulimit -n); each table needs one",
            errno.ENFILE: "the system has no more open files to give",
        }.get(error.errno or 0, "check the file system")
        raise StoreAccessError(f"{where}: {error.strerror}: {hint}") from error


def store_exists(path: Path) -> bool:
    """Whether there is a store in a directory that exists.

    Raises
    ------
    StoreError
        If there is something else: an empty store is never started beside data.
    """
    names = {entry.name for entry in path.iterdir()} - {LOCK_FILE}
    if UNFINISHED_FILE in names:
        raise StoreError(
            f"{path} holds a backup that was not finished: take another one, of the same name, which removes this"
        )
    if ROOT_FILE in names:
        return True
    if COPYING_FILE in names:
        raise StoreError(
            f"{path} holds a copy that was not finished: run the same `gpkvs copy` again, which begins anew, or remove "
            "the directory"
        )
    created = all(_CREATED.fullmatch(name) for name in names - {CREATING_FILE})
    if names and not (CREATING_FILE in names and created):
        raise StoreError(
            f"{path} is not empty and holds no store (there is no file {ROOT_FILE!r}, but {min(names)!r}): "
            "use an empty directory, or put the missing file back"
        )
    return False


def require_store(path: Path) -> None:
    """Raise `StoreMissingError` unless there is a store at `path`."""
    if not path.is_dir() or not store_exists(path):
        raise StoreMissingError(f"there is no store at {path}")


def short_segment_bytes(store_format: int) -> int:
    """Return how long segments of a heap in memory are, while all of them can be counted."""
    return _SEGMENT_BYTES_MAX_BESIDE_BLOBS if store_format == FORMAT_4 else _SEGMENT_BYTES_MAX_IN_MEMORY


def segment_bytes_for(heap_bytes: int, *, is_in_memory: bool = False, store_format: int = FORMAT_4) -> int:
    """Return the segment size of a heap: a power of two, if possible at most a share of it."""
    wanted = max(SEGMENT_BYTES_MIN, heap_bytes // _SEGMENT_SHARE)
    short = short_segment_bytes(store_format)
    most = short if is_in_memory and heap_bytes <= HEAP_SEGMENTS_MAX * short else SEGMENT_BYTES_MAX
    return min(most, 1 << (wanted.bit_length() - 1))


class StoreKind(NamedTuple):
    """What is fixed with a new store, beside its sizes.

    Attributes
    ----------
    commit
        How its batches become durable.
    store_format
        Of its files.
    is_in_memory
        Whether its files are memory.
    """

    commit: CommitKind
    store_format: int = FORMAT_4
    is_in_memory: bool = False


def record_bytes_max(segment_bytes: int, heap_bytes_max: int) -> int:
    """Return how long a record of a heap may be: a sixteenth of it, down to a power of two, or a segment."""
    share = 1 << (heap_bytes_max // _RECORD_SHARE).bit_length() - 1
    return max(segment_bytes, min(share, LONGEST_RECORD_UNITS * UNIT_BYTES))


def round_up(value: int, step: int) -> int:
    """Return the smallest multiple of `step` that is at least `value`."""
    return -(-value // step) * step


def checked_sizes(sizes: Sizes) -> Sizes:
    """Round sizes up to whole blocks, segments and pages.

    Raises
    ------
    InvalidArgumentError
        If one is out of range.
    """
    sizes = _with_heap(sizes)
    sizes = replace(sizes, journal_bytes=sizes.journal_bytes or _journal_bytes_for(sizes))
    for name, bounds in SIZE_BOUNDS.items():
        raise_faults(size_faults(name, getattr(sizes, name), *bounds))
    raise_faults(heap_faults(sizes))
    heap_bytes_max = round_up(sizes.heap_bytes_max, segment_bytes_for(sizes.heap_bytes_max))
    return Sizes(
        index_bytes=round_up(sizes.index_bytes, BLOCK_BYTES),
        heap_bytes=heap_bytes_max if is_fixed(sizes) else round_up(sizes.heap_bytes, HEAP_STEP_BYTES),
        heap_bytes_max=heap_bytes_max,
        log_bytes=round_up(sizes.log_bytes, PAGE_BYTES),
        journal_bytes=round_up(sizes.journal_bytes, journal_segment_bytes_for(sizes.journal_bytes)),
    )


def _with_heap(sizes: Sizes) -> Sizes:
    """Return sizes with both of the heap's: one alone, if it is the first, is the largest too."""
    most = sizes.heap_bytes_max or sizes.heap_bytes or HEAP_BYTES_MAX
    return replace(sizes, heap_bytes=sizes.heap_bytes or min(HEAP_BYTES_USUAL, most), heap_bytes_max=most)


def is_fixed(sizes: Sizes) -> bool:
    """Whether a heap is as large as it may be."""
    return sizes.heap_bytes == sizes.heap_bytes_max


def _journal_bytes_for(sizes: Sizes) -> int:
    """Return the size of a journal: with less than half of the index, checkpoints would write more than they save."""
    of_heap = min(sizes.heap_bytes // 4, JOURNAL_BYTES_USUAL) if is_fixed(sizes) else JOURNAL_BYTES_GROWING
    wanted = max(sizes.index_bytes // 2, of_heap, JOURNAL_BYTES_MIN)
    return min(wanted, JOURNAL_BYTES_MAX)


def journal_segment_bytes_for(journal_bytes: int) -> int:
    """Return the segment size of a journal: at most a sixteenth of it, a power of two."""
    return min(JOURNAL_SEGMENT_BYTES_MAX, 1 << ((journal_bytes // 16).bit_length() - 1))


def create_store(path: Path, sizes: Sizes, kind: StoreKind, on_progress: Progress, first_version: int = 1) -> None:
    """Create a store in a directory that is empty or holds an interrupted creation.

    All space is reserved here, so that a later write cannot fail for want of it. The root comes last, by a rename: a
    creation that is cut short leaves no store, and the next start begins again.

    Raises
    ------
    NoSpaceError
        If the file system is too small; what was made is removed.
    OSError
        If the operating system refuses otherwise.
    """
    sizes = checked_sizes(sizes)
    table = TableEntry(0, DEFAULT_TABLE, "bytes", 0, sizes.index_bytes // BLOCK_BYTES)
    catalog = Catalog((table,), next_table_id=1)
    root = first_root(sizes, catalog, kind, secrets.token_bytes(16))
    root = replace(root, checkpoint=root.checkpoint._replace(next_sequence=first_version))
    first = FIRST_DESCRIPTOR._replace(first_sequence=first_version, next_sequence=first_version)
    marker = path / CREATING_FILE
    _remove_leftovers(path)
    marker.touch(mode=0o600)
    sync_path(path)
    try:
        on_progress("reserving the index", 0.1)
        reserve_file(path / table.file_name, sizes.index_bytes, b"")
        on_progress("reserving the heap", 0.2)
        if root.has_journal:
            reserve_file(path / DATA_FILE, root.journal_bytes + root.heap_bytes, b"", zeroed=root.journal_bytes)
        else:
            reserve_file(path / LOG_FILE, root.log_bytes, first_log(first))
            reserve_file(path / HEAP_FILE, root.heap_bytes, b"")
        if root.has_blobs:
            reserve_file(path / BLOBS_FILE, FIRST_BLOB_BYTES, b"")
        write_file(path / catalog_file_name(0), catalog.pack())
        write_file(path / ROOT_FILE, root_file(root))
    except OSError as error:
        # The root goes first: it may be there already, and beside it nothing may be missing.
        (path / ROOT_FILE).unlink(missing_ok=True)
        _remove_leftovers(path)
        marker.unlink(missing_ok=True)
        if error.errno in NO_SPACE:
            needed = sizes.index_bytes + root.heap_bytes + root.log_bytes + root.journal_bytes
            log = f"journal {root.journal_bytes:,}" if root.has_journal else f"log {root.log_bytes:,}"
            raise NoSpaceError(
                "disk",
                f"a store of {needed:,} bytes (index {sizes.index_bytes:,}, heap {sizes.heap_bytes:,}, {log}) was "
                f"asked for in {path}, {disk_free_bytes(path):,} are free: choose smaller --index-bytes, "
                f"--heap-bytes, {'--journal-bytes' if root.has_journal else '--log-bytes'}, or another disk",
            ) from error
        raise
    failpoint.hit("before_creation_ends")
    finish_creation(path)
    on_progress("created", 1.0)


def first_root(sizes: Sizes, catalog: Catalog, kind: StoreKind, hash_key: bytes) -> Root:
    """Return the root of a new store, with an id of its own."""
    packed = catalog.pack()
    journal_bytes = sizes.journal_bytes if kind.commit is CommitKind.JOURNAL else 0
    return Root(
        sequence=0,
        incarnation=0,
        store_id=secrets.token_bytes(16),
        hash_key=hash_key,
        flags=0,
        catalog_generation=0,
        catalog_bytes=len(packed),
        catalog_crc=crc32c(packed),
        segment_bytes=segment_bytes_for(
            sizes.heap_bytes_max, is_in_memory=kind.is_in_memory, store_format=kind.store_format
        ),
        heap_bytes=sizes.heap_bytes,
        log_bytes=0 if journal_bytes else sizes.log_bytes,
        created_ms=time.time_ns() // 1_000_000,
        commit=kind.commit,
        journal_segment_bytes=journal_segment_bytes_for(journal_bytes) if journal_bytes else 0,
        journal_bytes=journal_bytes,
        checkpoint=FIRST_CHECKPOINT,
        heap_bytes_max=sizes.heap_bytes_max,
        store_format=kind.store_format,
    )


def root_file(root: Root) -> bytes:
    """Return the bytes of the root's file: both copies, and a flag that is IDLE with epoch 0."""
    data = bytearray(ROOT_FILE_BYTES)
    for offset in ROOT_OFFSETS:
        data[offset : offset + len(root.pack())] = root.pack()
    data[FLAG_OFFSET : FLAG_OFFSET + 8] = pack_flag(State.IDLE, 0)
    return bytes(data)


# Of the empty store: epoch 0 is current, and versions begin at 1.
FIRST_DESCRIPTOR = Descriptor(0, (), 0, 0, 1, 1, 0, 0, 0)


def first_log(descriptor: Descriptor) -> bytes:
    """Return the beginning of a new store's log: the current descriptor, whose epoch is 0, and room for the other."""
    packed = descriptor.pack()
    data = bytearray(LOG_ENTRIES_OFFSET)
    data[DESCRIPTOR_OFFSETS[0] : DESCRIPTOR_OFFSETS[0] + len(packed)] = packed
    return bytes(data)


def _remove_leftovers(path: Path) -> None:
    """Remove what a creation that was cut short left behind; called only where there is no root."""
    for entry in path.iterdir():
        if _CREATED.fullmatch(entry.name):
            entry.unlink()


def finish_creation(path: Path) -> None:
    """Remove the marker of a creation that got as far as the root, which is its end.

    A process killed before may have left the root's name in memory only: it is durable before the marker goes. If a
    crash brings the marker back, the next opening removes it again: beside a root it means nothing.
    """
    markers = [path / name for name in (CREATING_FILE, COPYING_FILE) if (path / name).exists()]
    if markers:
        sync_path(path)
        # Who made the directory may not have made its name durable: a kill came between, or it was an operator.
        sync_above(path)
        for marker in markers:
            marker.unlink()


def make_directory(path: Path, mode: int = 0o700) -> None:
    """Make a directory for its owner only, and those above it as usual, durably."""
    if path.exists():
        return
    make_directory(path.parent, 0o777)
    path.mkdir(mode=mode, exist_ok=True)
    sync_path(path.parent)


def reserve_file(path: Path, size: int, start: bytes, zeroed: int = 0) -> None:
    """Make a file of `size` bytes, all of them reserved on the disk, that begins with `start`.

    The first `zeroed` bytes are written: to write where nothing was written before takes a disk several times as long.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        reserve(file, size)
        _write_all(file, start)
        for at in range(0, zeroed, len(_ZEROS)):
            _write_all(file, _ZEROS[: zeroed - at])
        os.fsync(file)
    finally:
        os.close(file)


def reserve(file: int, size: int, has: int = 0) -> None:
    """Reserve the space of a file on its disk, of which it has some already; raises `OSError`."""
    free = os.fstatvfs(file)
    if size - has > free.f_bfree * free.f_frsize:  # it would take all there is before it fails: others would have none
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.posix_fallocate(file, 0, size)


def extend_file(
    path: Path, size: int, longer: int, pause: Callable[[float, int], bool] | None = None, piece: int = EXTENDED_AT_ONCE
) -> int:
    """Reserve more space at the end of a file; not durable before a sync.

    Parameters
    ----------
    pause
        Whoever writes to the file meanwhile waits for it. So it is done in pieces, and this is called after each of
        them, with the seconds that it took and the end that is reached; it returns whether that is enough.
    piece
        Bytes of such a piece.

    Returns
    -------
    int
        The size that the file has.

    Raises
    ------
    OSError
        If the operating system refuses; the file is as it was.
    """
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        end, piece = size, piece if pause else longer
        while end < longer:
            began, step = time.perf_counter(), min(piece, longer - end)
            os.posix_fallocate(file, end, step)
            end += step
            if pause and end < longer and pause(time.perf_counter() - began, end):
                break
    except OSError:
        with suppress(OSError):  # what was reserved by then goes back
            os.ftruncate(file, size)
        raise
    finally:
        os.close(file)
    return end


def write_file(path: Path, data: bytes) -> None:
    """Write a small file so that it is there whole or not at all, durably; in the room of `reserve_next`, if any."""
    write_unnamed(path, data).rename(path)
    sync_path(path.parent)


def write_unnamed(path: Path, data: bytes) -> Path:
    """Write a small file durably under the name that it has until it is whole; return that name."""
    temporary = _temporary(path)
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _write_all(file, data)
        os.ftruncate(file, len(data))
        os.fsync(file)
    finally:
        os.close(file)
    return temporary


def reserve_next(path: Path, size: int) -> None:
    """Reserve room for a small file that `write_file` will write, so that a full disk cannot refuse it.

    On a disk that is full already there is none: then `write_file` must find its own.
    """
    with suppress(OSError):
        reserve_file(_temporary(path), size, b"")


def _temporary(path: Path) -> Path:
    """Return the name that a small file has until it is whole."""
    return path.with_name(path.name + ".tmp")


def _write_all(file: int, data: bytes) -> None:
    """Write on in a new file; the operating system may take less than it is given."""
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[os.write(file, remaining) :]


def sync_above(path: Path) -> None:
    """Make a directory's own name durable, where that can be done.

    Who may use the store may not be allowed to open the directory above, which may also be of a file system that has
    nothing to sync.
    """
    try:
        sync_path(path.parent)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EINVAL):
            raise


def sync_path(path: Path) -> None:
    """Make what a file holds, or the names in a directory, durable."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
