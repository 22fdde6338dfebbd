"""Records a trace: events of the traced build of the kernels, and the calls by which Python changes files, in order.

The sources of kernels and store know nothing of it: the process loads another build of the kernels, and the recorder
replaces functions of `os` while it records.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from threading import Lock
from types import TracebackType
from typing import Any, Self
from unittest.mock import patch

import numpy as np

from gpkvs.media.directory import LOCK_FILE, RECOVERY_FILE
from gpkvs.native import IS_TRACED, TRACE_VARIABLE, library
from gpkvs.recovery.proof.powerfail.trace import (
    HOST_STORE,
    SECTOR_BYTES,
    WORD_BYTES,
    Event,
    Image,
    Kind,
    Trace,
    block_of,
    interleaved,
)

# Recovery does not read them: nothing depends on their contents after a crash.
IGNORED = frozenset({LOCK_FILE, RECOVERY_FILE, RECOVERY_FILE + ".tmp"})

# The numbers of `enum TraceKind` in kernels/base/trace.cuh.
_STORE, _WRITE_BACK, _FENCE, _LAUNCH, _NOTE, _SYNC, _BARRIER = range(7)
# The site of a persist is its caller, not one of the functions that all callers share.
_SHARED_FILES = ("powerfail/recorder.py", "pm/region.py", "unittest/mock.py", "pathlib.py")
_SHARED_FUNCTIONS = ("persist_stores", "store_flag", "sync_path")

if IS_TRACED:
    library.gpkvs_trace_begin.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
    library.gpkvs_trace_begin.restype = None
    library.gpkvs_trace_end.argtypes = [ctypes.POINTER(ctypes.c_uint64)]
    library.gpkvs_trace_end.restype = ctypes.POINTER(ctypes.c_uint64)
    library.gpkvs_trace_note.argtypes = [ctypes.c_uint64]
    library.gpkvs_trace_note.restype = None


class TraceRecorder:
    """Records the changes of this process to the files of one directory, inside of `with`.

    Parameters
    ----------
    directory
        The store's.
    before
        What the directory holds now; file numbers go on from there.
    random
        Permutes the threads of kernels.
    thread_items
        How many items of a kernel a logical thread takes.
    """

    def __init__(self, directory: Path, before: Image, random: Random, thread_items: int = 1) -> None:
        assert IS_TRACED, f"{TRACE_VARIABLE} must be set before gpkvs is imported"
        self._directory = directory
        self._before = before.copy()
        self._random = random
        self._thread_items = thread_items
        self._notes: list[list[Event]] = []
        self._noting = Lock()  # threads of the host write files side by side
        self._stack = ExitStack()
        self._numbers = {(directory / name).stat().st_ino: number for name, number in before.names.items()}
        self._highest = max(before.files, default=0)
        self._renamed_ignored = False
        self._mapped: list[tuple[int, int, int]] = []  # newest first

    def __enter__(self) -> Self:
        # The kernels write every line back that they store to, as in the domain `flush`; other models ignore that.
        library.gpkvs_write_back_on(library.gpkvs_write_back_best())
        wrapped: list[tuple[object, str, Callable[..., Any]]] = [
            (library, "gpkvs_pm_store", self._pm_store),
            (library, "gpkvs_persist_range", self._persist_range),
            (library, "gpkvs_mapped", self._name_mapping),
            (os, "fdatasync", self._sync(os.fdatasync, Kind.SYNC)),
            (os, "fsync", self._sync(os.fsync, Kind.FILE_SYNC)),
            (os, "open", self._open),
            (os, "rename", self._rename),
            (os, "link", self._link),
            (os, "unlink", self._unlink),
            (os, "write", self._write),
            (os, "pwrite", self._pwrite),
            (os, "posix_fallocate", self._fallocate),
            (os, "ftruncate", self._ftruncate),
        ]
        self._real = {name: getattr(owner, name) for owner, name, _ in wrapped}
        for owner, name, function in wrapped:
            self._stack.enter_context(patch.object(owner, name, function))
        self._mapped = _mapped_files(self._directory)
        library.gpkvs_trace_begin(self._random.getrandbits(64), self._thread_items)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        count = ctypes.c_uint64()
        events = library.gpkvs_trace_end(ctypes.byref(count))
        self._raw = np.ctypeslib.as_array(events, (count.value, 4)).tolist() if count.value else []
        self._mapped = list(dict.fromkeys([*_mapped_files(self._directory), *self._mapped]))
        self._stack.close()

    def mark(self) -> None:
        """Record that a batch is acknowledged."""
        self._note(Event(Kind.MARK, ""))

    def trace(self) -> Trace:
        """Return the trace."""
        events: list[Event] = []
        threads = _Threads(self._random)
        site = ""

        def end_group() -> None:
            if threads:
                events.extend(threads.merged())
                events.append(Event(Kind.RETURN, site))
                threads.clear()

        for kind, thread, at, word in self._raw:
            if kind == _LAUNCH:
                end_group()
                site = ctypes.string_at(at).decode()
            elif kind == _SYNC:
                end_group()
                events.append(Event(Kind.SYNC, ctypes.string_at(at).decode(), file=self._number(word)))
            elif kind == _NOTE:
                end_group()
                for event in self._notes[word]:
                    if event.kind is Kind.RETURN:
                        site = event.site
                    else:
                        events.append(event)
            elif kind == _BARRIER:
                threads.meet(at)
            else:
                threads.add(thread, self._of_memory(kind, thread, at, word, site))
        end_group()
        return Trace(self._before, tuple(events))

    def _of_memory(self, kind: int, thread: int, at: int, word: int, site: str) -> list[Event]:
        if kind == _FENCE:
            return [Event(Kind.FENCE, site, thread)]
        for first, last, inode in self._mapped:
            if first <= at < last:
                file, place = self._number(inode), (at - first) // WORD_BYTES
                if kind == _STORE:
                    return [Event(Kind.STORE, site, thread, file, place, (word,))]
                return [Event(Kind.WRITE_BACK, site, thread, file, place)]
        raise AssertionError(f"{site}: a store to memory outside the files of the store")

    def _note(self, *events: Event) -> None:
        with self._noting:
            self._notes.append(list(events))
            library.gpkvs_trace_note(len(self._notes) - 1)

    def _number(self, inode: int) -> int:
        if inode not in self._numbers:
            self._highest += 1
            self._numbers[inode] = self._highest
        return self._numbers[inode]

    def _pm_store(self, *arguments: Any) -> None:
        # A RETURN among the notes names the site of the host's stores that follow.
        self._note(Event(Kind.RETURN, f"{HOST_STORE} in {_site()}"))
        self._real["gpkvs_pm_store"](*arguments)

    def _persist_range(self, *arguments: Any) -> None:
        self._note(Event(Kind.RETURN, f"{HOST_STORE} in {_site()}"))
        self._real["gpkvs_persist_range"](*arguments)

    def _name_mapping(self, *arguments: Any) -> None:
        # A mapping that grows may go to another place.
        self._real["gpkvs_mapped"](*arguments)
        self._mapped = _mapped_files(self._directory) + self._mapped

    def _sync(self, real: Callable[[int], None], kind: Kind) -> Callable[[int], None]:
        def sync(file: int) -> None:
            real(file)
            found = os.fstat(file)
            if stat.S_ISDIR(found.st_mode):
                # The sync of an ignored file's name may fail unnoticed, so nothing may rely on it: it is not recorded.
                ignored, self._renamed_ignored = self._renamed_ignored, False
                if found.st_ino == self._directory.stat().st_ino and not ignored:
                    self._note(Event(Kind.NAMES_SYNC, f"sync in {_site()}"))
            elif found.st_ino in self._numbers:
                self._note(Event(kind, f"sync in {_site()}", file=self._number(found.st_ino)))

        return sync

    def _open(self, path: Any, flags: int, *arguments: Any, **named: Any) -> int:
        changes = self._is_ours(path) and flags & (os.O_CREAT | os.O_TRUNC)
        existed = changes and os.path.lexists(path)
        had = Path(path).stat().st_size if existed else 0
        file: int = self._real["open"](path, flags, *arguments, **named)
        if changes:
            number = self._number(os.fstat(file).st_ino)
            if not existed:
                self._note(Event(Kind.NAME, f"open in {_site()}", file=number, name=Path(path).name))
            elif had and flags & os.O_TRUNC:
                self._note(Event(Kind.SIZE, f"open in {_site()}", file=number))
        return file

    def _rename(self, old: Any, new: Any) -> None:
        ours = self._is_ours(old)
        self._real["rename"](old, new)
        self._renamed_ignored = not ours
        if ours:
            number = self._number(Path(new).stat().st_ino)
            site = f"rename in {_site()}"
            self._note(
                Event(Kind.NAME, site, file=number, name=Path(new).name), Event(Kind.NAME, site, name=Path(old).name)
            )

    def _link(self, old: Any, new: Any) -> None:
        self._real["link"](old, new)
        if self._is_ours(new):
            number = self._number(Path(new).stat().st_ino)
            self._note(Event(Kind.NAME, f"link in {_site()}", file=number, name=Path(new).name))

    def _unlink(self, path: Any) -> None:
        self._real["unlink"](path)
        if self._is_ours(path):
            self._note(Event(Kind.NAME, f"unlink in {_site()}", name=Path(path).name))

    def _write(self, file: int, data: Any) -> int:
        at = os.lseek(file, 0, os.SEEK_CUR)
        return self._written(file, at, self._real["write"], data)

    def _pwrite(self, file: int, data: bytes, at: int) -> int:
        return self._written(file, at, lambda *_: self._real["pwrite"](file, data, at), data)

    def _written(self, file: int, at: int, real: Callable[..., int], data: Any) -> int:
        before = os.fstat(file)
        count = real(file, data)
        if before.st_ino in self._numbers:
            number, site = self._number(before.st_ino), f"write in {_site()}"
            assert (at | count) % WORD_BYTES == 0, f"{site}: not whole words"
            if at + count > before.st_size:
                self._note(Event(Kind.SIZE, site, file=number, at=(at + count) // WORD_BYTES))
            words = np.frombuffer(data, np.uint64, count // WORD_BYTES).tolist()
            step, first = SECTOR_BYTES // WORD_BYTES, at // WORD_BYTES
            for start in range(0, len(words), step):
                part = tuple(words[start : start + step])
                self._note(Event(Kind.WRITE, site, file=number, at=first + start, words=part))
        return count

    def _fallocate(self, file: int, at: int, count: int) -> None:
        before = os.fstat(file)
        self._real["posix_fallocate"](file, at, count)
        if before.st_ino in self._numbers and at + count > before.st_size:
            size = (at + count) // WORD_BYTES
            self._note(Event(Kind.SIZE, f"fallocate in {_site()}", file=self._number(before.st_ino), at=size))

    def _ftruncate(self, file: int, size: int) -> None:
        before = os.fstat(file)
        self._real["ftruncate"](file, size)
        if before.st_ino in self._numbers and size != before.st_size:
            number = self._number(before.st_ino)
            self._note(Event(Kind.SIZE, f"ftruncate in {_site()}", file=number, at=size // WORD_BYTES))

    def _is_ours(self, path: Any) -> bool:
        path = Path(path)
        return path.parent == self._directory and path.name not in IGNORED


class _Threads:
    """The events of the threads of one launch. Those of a block wait for each other at its barriers, no others do."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._alone: dict[int, list[Event]] = {}
        self._blocks: dict[int, list[dict[int, list[Event]]]] = {}  # of each block, from barrier to barrier

    def __bool__(self) -> bool:
        return bool(self._alone or self._blocks)

    def add(self, thread: int, events: list[Event]) -> None:
        """Add events of a thread."""
        block = block_of(thread)
        threads = self._blocks.setdefault(block, [{}])[-1] if block != thread else self._alone
        threads.setdefault(thread, []).extend(events)

    def meet(self, block: int) -> None:
        """Take note that all threads of a block have come to a barrier."""
        self._blocks.setdefault(block, [{}]).append({})

    def merged(self) -> Iterator[Event]:
        """Merge all threads at random, as `interleaved` does."""
        blocks = [
            [event for threads in parts for event in interleaved(list(threads.values()), self._random)]
            for parts in self._blocks.values()
        ]
        return interleaved([*self._alone.values(), *blocks], self._random)

    def clear(self) -> None:
        """Begin with the next launch."""
        self._alone.clear()
        self._blocks.clear()


def _site() -> str:
    """Return where in the source a store or a call of the file system comes from."""
    frame = sys._getframe(2)
    while frame.f_back and (
        frame.f_code.co_filename.endswith(_SHARED_FILES) or frame.f_code.co_name in _SHARED_FUNCTIONS
    ):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}:{frame.f_lineno}"


def _mapped_files(directory: Path) -> list[tuple[int, int, int]]:
    """Return first address, end and inode of every mapped file of a directory."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and Path(fields[5].removesuffix(" (deleted)")).parent == directory:
            first, last = (int(address, 16) for address in fields[0].split("-"))
            assert int(fields[2], 16) == 0, "files are mapped from their beginning"
            found.append((first, last, int(fields[4])))
    return found
