"""The native call that saves on a GPU (`gpkvs/kernels/gpm/gpm_save.hpp`), with a driver whose GPU is this host.

It runs the same kernel, compiled for the CPU. So what is launched, copied and waited for, and in which order, is tested
where there is no GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gpkvs.gpm import find_place
from gpkvs.gpm.blocks import BLOCK_BYTES, Blocks, Digests, Held
from gpkvs.gpm.header import PAGE_BYTES, whole_pages
from gpkvs.gpm.place import HostPlace
from gpkvs.native import kernel_symbol, library

_REFUSED = 700  # an error of the driver
_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    *[ctypes.c_uint32] * 7,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
)
_COPY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p)
_SETTLE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class _Driver(HostPlace):
    """A place that saves as a GPU does.

    Parameters
    ----------
    copies
        Whether its copy engine stores.
    refuses
        Which call of the driver it refuses, counted from 0.
    """

    def __init__(self, copies: bool, refuses: int | None = None) -> None:
        super().__init__(1)
        self.did: list[str] = []
        self._copies, self._refuses = copies, refuses
        self._on_their_way: list[tuple[int, int, int]] = []
        self._functions = _LAUNCH(self._launch), _COPY(self._copy), _SETTLE(self._settle)

    def save(self, call: int, count: int, /) -> int:
        self.did = []
        calls = [ctypes.cast(function, ctypes.c_void_p).value for function in self._functions]
        queue, bytes_ = (ctypes.c_uint64 * 7)(*calls, 11, 1024, 22, self._copies), ctypes.c_uint64()  # type: ignore[misc]
        if library.gpkvs_gpm_save_on_gpu(queue, call, ctypes.byref(bytes_)):
            raise ConnectionError
        return bytes_.value

    def _refused(self, what: str) -> int:
        self.did.append(what)
        return _REFUSED if len(self.did) - 1 == self._refuses else 0

    def _launch(self, function: int, *sizes: Any) -> int:
        blocks, _, _, threads, _, _, shared, queue, parameters, _ = sizes
        assert (function, threads, shared, queue) == (11, 1024, 0, 22)
        if error := self._refused("launch"):
            return error
        assert ctypes.cast(parameters[1], ctypes.POINTER(ctypes.c_uint64))[0] == blocks
        library.gpkvs_run(self.pool, ctypes.byref(kernel_symbol("gpm_save")), parameters[0], blocks, 1)
        return 0

    def _copy(self, to: int, source: int, count: int, queue: int) -> int:
        assert queue == 22
        self._on_their_way.append((to, source, count))
        return self._refused("copy")

    def _settle(self, queue: int) -> int:
        assert queue == 22
        for to, source, count in self._on_their_way:
            ctypes.memmove(to, source, count)
        self._on_their_way.clear()
        return self._refused("settle")


def _saved(place: _Driver, sizes: Sequence[int], seed: int) -> tuple[Any, ...]:
    random = np.random.default_rng(seed)
    begins = np.cumsum([PAGE_BYTES, *map(whole_pages, sizes)]).tolist()
    blocks = Blocks(sizes, begins[:-1])
    memory: NDArray[np.uint8] = np.empty(begins[-1] + 16, np.uint8)
    copy = memory[-memory.ctypes.data % 16 :][: begins[-1]]
    arrays = [random.integers(0, 9, size, np.uint8) for size in sizes]
    return blocks, copy, arrays, begins, Held(blocks.count, place)


def _save(place: _Driver, blocks: Blocks, copy: NDArray[np.uint8], arrays: list[NDArray[np.uint8]], held: Held) -> int:
    addresses = tuple(map(place.address, arrays))
    return Digests(7, place).save(blocks, addresses, held, copy.ctypes.data)


@pytest.mark.parametrize("copies", [False, True])
def test_what_differs_arrives_before_it_returns(copies: bool) -> None:
    seed = int(np.random.default_rng().integers(1 << 32))
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    place = _Driver(copies)
    sizes = [0, 5 * BLOCK_BYTES + 7, 3, 2 * BLOCK_BYTES]
    blocks, copy, arrays, begins, held = _saved(place, sizes, seed)
    known = False
    for _ in range(12):
        changed: list[set[int]] = [set() for _ in sizes]
        for number in (1, 2, 3):
            for at in random.integers(0, sizes[number], random.integers(3)):
                arrays[number][at] += 1
                changed[number].add(int(at) // BLOCK_BYTES)
        if not known:
            changed = [set(range(-(-size // BLOCK_BYTES))) for size in sizes]
        held.are_known = known
        copy[PAGE_BYTES:] = 255  # what does not differ is not touched
        wanted = copy.copy()
        for array, begin, marks in zip(arrays, begins, changed, strict=False):
            for block in marks:
                part = array[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES]
                wanted[begin + block * BLOCK_BYTES :][: len(part)] = part
        differing = sum(
            min(BLOCK_BYTES, size - block * BLOCK_BYTES)
            for size, marks in zip(sizes, changed, strict=True)
            for block in marks
        )
        assert _save(place, blocks, copy, arrays, held) == differing
        assert not place._on_their_way
        assert not held.are_known
        np.testing.assert_array_equal(copy[PAGE_BYTES:], wanted[PAGE_BYTES:])
        digests = Digests(7, find_place("cpu")).of(blocks, tuple(array.ctypes.data for array in arrays))
        np.testing.assert_array_equal(copy[: digests.nbytes].view(np.uint64).reshape(-1, 2), digests)
        runs = sum(1 for marks in changed for block in marks if block - 1 not in marks)
        assert place.did == ["launch", "settle", *(["copy"] * (1 + runs) + ["settle"]) * copies]
        known = True


@pytest.mark.parametrize(("copies", "calls"), [(False, 2), (True, 6)])
def test_an_error_of_the_driver_is_told_when_nothing_is_under_way(copies: bool, calls: int) -> None:
    for refused in range(calls + 1):
        place = _Driver(copies, refused)
        blocks, copy, arrays, _, held = _saved(place, [2 * BLOCK_BYTES, 9], 3)
        if refused == calls:  # there is no such call
            _save(place, blocks, copy, arrays, held)
            assert len(place.did) == calls
            continue
        with pytest.raises(ConnectionError):
            _save(place, blocks, copy, arrays, held)
        assert not held.are_known
        assert not place._on_their_way
        assert "copy" not in place.did[refused + 1 :]
