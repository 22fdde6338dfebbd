"""Memory of the host that a GPU reaches: registered mappings, and pinned columns."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from typing import Any

import cupyx
import numpy as np
from cupy.cuda import runtime
from cupy_backends.cuda.api.runtime import CUDARuntimeError

from gpkvs.config import MIB
from gpkvs.errors import BackendError
from gpkvs.pm.mapping import touch

_PIECE_BYTES = 32 * MIB  # so much is registered at once
_PIECES_AHEAD_MIN = 2  # a thread begins with so many
_TOUCHING_THREADS = 8
_REGISTER = 0x01 | 0x02  # cudaHostRegisterPortable, for all GPUs; cudaHostRegisterMapped


class HostMemory:
    """Memory of the host that kernels can reach, at the addresses that it has for the host.

    Parameters
    ----------
    address, size
        Of a mapping, in whole pages.

    Raises
    ------
    BackendError
        If CUDA refuses, as it does for a file of an ordinary disk.
    """

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self.bytes = size
        if size > _PIECE_BYTES:
            _touch(address, size)
        try:
            runtime.hostRegister(address, size, _REGISTER)
        except CUDARuntimeError as error:
            raise BackendError(f"CUDA, cudaHostRegister of {size:,} bytes: {error}") from error

    def close(self) -> None:
        """Let go of it; needed before it is unmapped."""
        runtime.hostUnregister(self.address)


def _touch(address: int, size: int) -> None:
    """Have pages mapped by several threads: CUDA would map them one by one."""
    pieces = [(address + at, min(_PIECE_BYTES, size - at)) for at in range(0, size, _PIECE_BYTES)]
    with suppress(RuntimeError), ThreadPoolExecutor(min(_TOUCHING_THREADS, len(pieces))) as pool:
        list(pool.map(touch, *zip(*pieces, strict=True)))


class GrowingHostMemory:
    """A mapping that kernels can reach, and that grows where it is. What is new is registered in pieces.

    The last piece comes first: an index grows from the end backwards. A piece is registered when a step of growth
    needs it, or by a thread before, so no batch waits for the whole.

    Parameters
    ----------
    address, size
        Of the mapping.

    Raises
    ------
    BackendError
        If CUDA refuses.
    """

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self.bytes = size
        self._pieces = [HostMemory(address, size)]
        self._planned = size
        self._starts = [0]  # of all pieces, registered or not
        # Pieces that are not registered, first and last + 1, in order.
        self._missing: list[tuple[int, int]] = []
        self._changing = threading.Condition()
        self._is_helped = False  # a thread is registering pieces
        self._is_ending = False
        self._helper: threading.Thread | None = None
        self._device = runtime.getDevice()  # whose context the helper's calls go to

    def prepare(self, size: int) -> None:
        """Begin to register what the mapping has, or will have, when its size is `size`; it is mapped already."""
        with self._changing:
            self._plan(size)
            if len(self._missing) < _PIECES_AHEAD_MIN or self._is_helped:
                return
            self._helper = threading.Thread(target=self._help, name="gpkvs-register", daemon=True)
            with suppress(RuntimeError):  # the system gives no thread: steps register what they need
                self._helper.start()
                self._is_helped = True

    def grow(self, size: int) -> None:
        """Take note that the mapping has grown; `reach` returns when what is new is registered."""
        self.bytes = size
        self.prepare(size)

    def _plan(self, size: int) -> None:
        cuts = [self._planned, *range(_rounded_up(self._planned + 1), size, _PIECE_BYTES), size]
        pieces = [piece for piece in pairwise(cuts) if piece[0] < piece[1]]
        self._missing += pieces
        self._starts += [first for first, _ in pieces]
        self._planned = max(size, self._planned)

    def reach(self, offset: int) -> None:
        """Return when everything from `offset` on is registered.

        Raises
        ------
        BackendError
            If CUDA refuses; what is registered stays so.
        """
        with self._changing:
            while self._missing and self._missing[-1][1] > offset:
                if self._is_helped:  # by several threads: faster than this one alone
                    self._changing.wait()
                else:
                    self._register_last()

    def _register_last(self) -> None:
        first, last = self._missing[-1]
        self._pieces.append(HostMemory(self.address + first, last - first))
        self._missing.pop()

    def _help(self) -> None:
        try:
            runtime.setDevice(self._device)
            self._register_ahead()
        except (BackendError, RuntimeError):
            pass  # a step tries again, and says it
        finally:
            with self._changing:
                self._is_helped = False
                self._changing.notify_all()

    def _register_ahead(self) -> None:
        """Register pieces; several threads touch their pages before, which takes seven times as long."""
        pieces = self._missing[::-1]
        with ThreadPoolExecutor(min(_TOUCHING_THREADS, len(pieces))) as pool:
            for _ in pool.map(self._touch_piece, pieces):
                with self._changing:
                    if self._is_ending:
                        return
                    self._register_last()
                    self._changing.notify_all()

    def _touch_piece(self, piece: tuple[int, int]) -> None:
        if not self._is_ending:
            touch(self.address + piece[0], piece[1] - piece[0])

    def parts(self, first: int, last: int) -> list[tuple[int, int]]:
        """Cut a range of bytes where pieces meet: CUDA refuses a copy of memory that was registered in several."""
        inner = self._starts[bisect_right(self._starts, first) : bisect_left(self._starts, last)]
        return list(pairwise([first, *inner, last]))

    def close(self) -> None:
        """Let go of it; needed before it is unmapped."""
        self._is_ending = True
        if self._helper and self._helper.ident is not None:
            self._helper.join()
        for piece in self._pieces:
            piece.close()
        self._pieces.clear()
        self._missing.clear()


def _rounded_up(size: int) -> int:
    return -(-size // _PIECE_BYTES) * _PIECE_BYTES


def pinned(count: int, dtype: type[np.generic]) -> Any:
    """Return an uninitialised column of the host that crosses the link at full speed, while other things run."""
    # CuPy keeps returned memory by its size. If all sizes differed, it would use none of it again.
    size = count * np.dtype(dtype).itemsize
    return cupyx.empty_pinned(1 << (size - 1).bit_length() if size else 0, np.uint8)[:size].view(dtype)
