"""CAP: the host makes durable what a place has computed (GPM, ASPLOS '22, section 3): mock-ups, for comparison.

CAP-fs   copies arrays to the host, writes them to a file and calls ``fsync``
CAP-mm   copies them to the host, and several threads store them to a mapping, write cache lines back and fence

Both go chunk by chunk: one chunk is copied while the one before is stored. On the CPU nothing needs to be copied.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from gpkvs import gpm
from gpkvs.config import DurabilityName
from gpkvs.errors import NoSpaceError
from gpkvs.media.directory import reserve
from gpkvs.native import library
from gpkvs.pm.domain import find_domain
from gpkvs.pm.region import Region

MODES: Final = ("CAP-fs", "CAP-mm")
VOLATILE: Final = "volatile"  # a mode in which nothing persists: what computing alone takes
_CHUNK_BYTES = 64 << 20


class Cap:
    """A file for what is computed, and who stores it.

    Parameters
    ----------
    folder
        Where the file is made.
    data_bytes
        Its size.
    place
        Where the arrays are.
    durability
        As `gpkvs.open` has it.

    Raises
    ------
    NoSpaceError
        If the file has no room.
    """

    def __init__(self, folder: Path, data_bytes: int, place: gpm.Place, durability: DurabilityName) -> None:
        self.place = place
        self.mode = MODES[0]
        self.stored_bytes = 0
        path = folder / "cap.bin"
        try:
            with path.open("wb") as file:
                reserve(file.fileno(), -(-data_bytes // 4096) * 4096)
        except OSError as error:
            path.unlink()
            raise NoSpaceError("disk", f"{path} needs {data_bytes:,} bytes for CAP: {error.strerror}") from error
        self._region = Region(path, find_domain(folder, durability))
        self._threads = len(os.sched_getaffinity(0))
        self._pool = ThreadPoolExecutor(self._threads)
        self._staging = [_pinned(place, min(_CHUNK_BYTES, -(-data_bytes // 8) * 8)) for _ in range(2 * place.is_gpu)]
        self._region.touch(0, self._region.bytes)  # a run does not pay for new pages

    @property
    def persists(self) -> bool:
        """Whether the mode makes anything durable."""
        return self.mode != VOLATILE

    def persist(self, *arrays: Any, at: int = 0) -> None:
        """Make arrays durable, one after the other from a place of the file on, and wait until they are.

        The place is a multiple of 8.
        """
        if not self.persists:
            return
        before = library.gpkvs_write_back()
        if self.mode == "CAP-mm":
            library.gpkvs_write_back_on(library.gpkvs_write_back_best())
        for array in arrays:
            at += self._copy(array, at)
        if self.mode == "CAP-mm":
            library.gpkvs_write_back_on(before)
        else:
            os.fsync(self._region.file)

    def _copy(self, array: Any, at: int) -> int:
        data = array.reshape(-1).view(self.place.xp.uint8)
        if not self.place.is_gpu:
            self._store(data, at)
        else:
            chunks = range(0, len(data), _CHUNK_BYTES)
            before: Sequence[Any] = ()
            for number, first in enumerate(chunks):
                staged = self._staging[number % 2][: min(_CHUNK_BYTES, len(data) - first)]
                data[first : first + len(staged)].get(out=staged)
                for part in before:
                    part.result()
                before = self._begin(staged, at + first)
            for part in before:
                part.result()
        self.stored_bytes += len(data)
        return len(data)

    def _store(self, data: NDArray[np.uint8], at: int) -> None:
        for part in self._begin(data, at):
            part.result()

    def _begin(self, data: NDArray[np.uint8], at: int) -> list[Any]:
        """Have threads store parts of it."""
        each = max(4096, -(-len(data) // self._threads // 64) * 64)
        if self.mode == "CAP-fs":
            each = len(data)  # as in the paper: one call of the system after the other
        return [
            self._pool.submit(self._store_part, data[first : first + each], at + first)
            for first in range(0, len(data), max(1, each))
        ]

    def _store_part(self, data: NDArray[np.uint8], at: int) -> None:
        if self.mode == "CAP-fs":
            written = 0
            while written < len(data):
                written += os.pwrite(self._region.file, data[written:].data, at + written)
        else:
            words = len(data) // 8
            library.gpkvs_pm_store(self._region.address + at, data.ctypes.data_as(ctypes.c_char_p), words)
            if len(data) % 8:
                rest = data[8 * words :].tobytes().ljust(8, b"\0")
                library.gpkvs_pm_store(self._region.address + at + 8 * words, rest, 1)

    def close(self) -> None:
        """Remove the file."""
        self._pool.shutdown()
        self._staging.clear()
        self._region.close()
        self._region.path.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class VolatileArray:
    """What stands in for a `PersistentArray` under CAP: an array in the memory of the place."""

    def __init__(self, shape: int | tuple[int, ...], dtype: str, place: gpm.Place) -> None:
        self.place = place
        self.device: Any = place.xp.zeros(shape, dtype)
        self.host: Any = np.zeros(shape, dtype) if place.is_gpu else self.device

    @property
    def kernel_type(self) -> np.dtype[Any]:
        """See `gpkvs.gpm.kernels.Handed`."""
        return self.host.dtype  # type: ignore[no-any-return]

    def kernel_address(self, place: gpm.Place, /) -> int:
        """See `gpkvs.gpm.kernels.Handed`."""
        return place.address(self.device)

    def persist(self, first: int = 0, last: int | None = None) -> None:
        """Do nothing: under CAP, the benchmark makes durable what is there."""

    def close(self) -> None:
        """Do nothing."""


def _pinned(place: gpm.Place, count: int) -> NDArray[np.uint8]:
    memory = place.xp.cuda.alloc_pinned_memory(count)
    return np.frombuffer(memory, np.uint8, count)
