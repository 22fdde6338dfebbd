"""The sort that native code launches (kernels/plan/radix.hpp): here its passes on the host's threads."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from random import Random

import numpy as np
import pytest

from gpkvs.backends.cpu.backend import CpuBackend
from gpkvs.batch import U64
from gpkvs.native import launch_sort, launched_kernels, library

TILE = 2048  # kernels/base/tile.cuh
DIGITS = 256


@pytest.fixture
def rng() -> np.random.Generator:
    seed = int(os.environ.get("GPKVS_SEED", Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    return np.random.default_rng(seed)


@pytest.fixture
def launcher() -> Iterator[int]:
    backend = CpuBackend(1)
    yield backend.launcher
    backend.close()


def check_sort(launcher: int, words: U64, first: int) -> None:
    """Sort words by their bits from `first` on, as NumPy does."""
    found, spare = words.copy(), np.empty(len(words), np.uint64)
    digits = np.empty(library.gpkvs_digit_counts(len(words)), np.uint32)
    columns = [column.ctypes.data for column in (found, spare, digits)]
    assert launch_sort(launcher, 0, *columns, len(words), first) == 0
    assert np.array_equal(found, words[np.argsort(words >> np.uint64(first), kind="stable")])


@pytest.mark.parametrize("first", range(64))
def test_all_bits_from_one_on_are_sorted_and_those_below_are_not(
    launcher: int, rng: np.random.Generator, first: int
) -> None:
    words = rng.integers(0, 1 << 64, 300, np.uint64)
    check_sort(launcher, words, first)
    check_sort(launcher, words[rng.integers(0, 5, 300)] ^ rng.integers(0, 8, 300).astype(np.uint64), first)


@pytest.mark.parametrize("n", [0, 1, 2, DIGITS, TILE - 1, TILE, TILE + 1, 3 * TILE + 7])
@pytest.mark.parametrize("first", [0, 21, 60])
def test_words_of_any_number_and_order_are_sorted(launcher: int, rng: np.random.Generator, n: int, first: int) -> None:
    numbers = np.arange(n, dtype=np.uint64)
    for words in (
        rng.integers(0, 1 << 64, n, np.uint64),
        rng.integers(0, 3, n).astype(np.uint64) << np.uint64(first) | numbers,  # few that differ
        np.full(n, (1 << 64) - 1, np.uint64),
        numbers,
        ~numbers,
        numbers << np.uint64(first),
        ~(numbers << np.uint64(first)),
    ):
        check_sort(launcher, words, first)


def test_each_pass_has_three_kernels_on_a_gpu() -> None:
    launched: list[tuple[str, int]] = []
    names = launched_kernels()

    def launch(function: int, blocks: int, *_: object) -> int:
        launched.append((names[function - 1], blocks))
        return 0

    driver = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t, ctypes.c_uint, *[ctypes.c_void_p] * 9)(launch)
    functions = (ctypes.c_void_p * len(names))(*range(1, len(names) + 1))
    launcher = library.gpkvs_gpu_launcher_new((ctypes.c_void_p * 9)(ctypes.cast(driver, ctypes.c_void_p)), functions, 0)
    try:
        assert launch_sort(launcher, 0, 0, 0, 0, 2 * TILE + 1, 21) == 0
        one_pass = [("count_digits", 3), ("sum_digits", DIGITS), ("move_digits", 3)]
        assert launched == 6 * one_pass  # 43 bits
        assert launch_sort(launcher, 0, 0, 0, 0, 0, 21) == 0  # of nothing
        assert len(launched) == 6 * 3
    finally:
        library.gpkvs_launcher_delete(launcher)
