"""A kernel that stores to PM, launched by native code: on a driver that only takes notes, and on the host's threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gpkvs.backends.cpu.backend import CpuBackend, address_of
from gpkvs.backends.stores import launch_stores
from gpkvs.native import library
from tests.backends.noted_driver import NotedDriver

QUEUE, BESIDE, BEFORE, AFTER, FOLLOWED = 11, 12, 21, 22, 23


@pytest.fixture
def driver() -> Iterator[NotedDriver]:
    noted = NotedDriver()
    yield noted
    library.gpkvs_launcher_delete(noted.launcher)


def launch(driver: NotedDriver, kernel: str, mirror_args: tuple[int, ...] = (), **given: int) -> int:
    """Launch a kernel on a driver, with arguments that nobody reads."""
    handles = {"queue": QUEUE, "beside": BESIDE, "before": BEFORE, "after": AFTER, "followed": FOLLOWED}
    return launch_stores(kernel, (0,) * 6, mirror_args, launcher=driver.launcher, items=5000, **handles, **given)


def test_the_host_is_told_of_a_log_after_its_stores_and_the_sum(driver: NotedDriver) -> None:
    assert launch(driver, "log_redo_u64", summed=1, tiles=1, total=1) == 0
    assert driver.calls == [
        ("record", BEFORE, QUEUE),
        ("launch", "log_redo_u64", QUEUE),
        ("launch", "sum_tiles", QUEUE),
        ("launch", "add_tiles", QUEUE),
        ("record", AFTER, QUEUE),
    ]


def test_a_mirror_follows_beside_the_stores_to_pm(driver: NotedDriver) -> None:
    assert launch(driver, "apply_u64", (0,) * 3, mirrored=9000) == 0
    assert driver.calls == [
        ("record", BEFORE, QUEUE),
        ("launch", "apply_u64", QUEUE),
        ("record", AFTER, QUEUE),
        ("wait", BEFORE, BESIDE),  # what came before may read the mirror
        ("launch", "apply_u64", BESIDE),
        ("record", FOLLOWED, BESIDE),
        ("wait", FOLLOWED, QUEUE),  # what comes later reads it
    ]


@pytest.mark.parametrize("fails_at", range(1, 8))
def test_nothing_is_done_after_an_error(driver: NotedDriver, fails_at: int) -> None:
    driver.fails_at = fails_at
    assert launch(driver, "apply_bytes", (0,) * 3, mirrored=9000) == 700
    assert len(driver.calls) == fails_at
    assert launch(driver, "apply_bytes") == 0  # it is told once


@pytest.fixture
def backend() -> Iterator[CpuBackend]:
    threads = CpuBackend(2)
    yield threads
    threads.close()


@pytest.mark.parametrize("layout", ["u64", "bytes"])
def test_a_log_tells_the_sum_of_its_digests(backend: CpuBackend, layout: str) -> None:
    slots, words = 5000, {"u64": 2, "bytes": 4}[layout]
    contents = np.random.default_rng(1).integers(0, 1 << 64, slots * words, np.uint64)
    digest, log = np.zeros(slots, np.uint64), np.zeros(2 * slots * (words + 2), np.uint64)
    arguments: dict[str, Any] = {
        "changed_slot": np.arange(slots, dtype=np.uint64)[::-1].copy(),
        "contents": contents,
        "epoch": 7,
        "first": 0,
        "log": address_of(log),
        "digest": digest,
    }
    stored = backend.launch_unawaited(f"log_redo_{layout}", slots, summed=digest, **arguments)()
    assert stored.total == int(digest.sum(dtype=np.uint64)) != 0
    assert backend.launch_unawaited(f"log_redo_{layout}", slots, **arguments)().total == 0  # nobody asked


def test_a_mirror_gets_all_slots_where_others_store_some(backend: CpuBackend) -> None:
    slot, contents = np.arange(16, dtype=np.uint64), np.arange(1, 33, dtype=np.uint64)
    stored, mirror = np.zeros(32, np.uint64), np.zeros(32, np.uint64)
    args, mirror_args = ((address_of(slot), address_of(contents), address_of(to)) for to in (stored, mirror))
    launch_stores("apply_u64", args, mirror_args, launcher=backend.launcher, items=6, mirrored=16)
    assert stored.tolist() == [*range(1, 13), *[0] * 20]
    assert mirror.tolist() == list(range(1, 33))
