"""Slots that are logged and stored in chunks: on a driver that only takes notes, and on the host's threads."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from gpkvs.backends.chunks import Chunks, Steps
from gpkvs.backends.cpu.backend import CpuBackend, address_of
from gpkvs.errors import BackendError
from gpkvs.media.layout import CHUNK_MARKER_BYTES, KEY_CHANGES, STRIPE_ENTRIES, ChunkMarker
from tests.backends.noted_driver import NotedDriver

QUEUE, LOG, SLOTS, HOST = range(1, 5)
PLANNED, BEFORE, STORED = range(11, 14)
MARKED, LEFT = (21, 22, 23), (31, 32, 33)
ALL = Steps.LEAVE | Steps.LOG | Steps.STORE | Steps.STORE_ON_HOST | Steps.WAIT
KEPT: list[Any] = []


def handles(numbers: tuple[int, ...]) -> int:
    KEPT.append((ctypes.c_void_p * len(numbers))(*numbers))
    return ctypes.addressof(KEPT[-1])


class NotedPlace:
    """As much of a processor as chunks need, on a driver that only takes notes."""

    def __init__(self, driver: NotedDriver) -> None:
        self._launcher = driver.launcher

    def chunk_queues(self, turn: int, /) -> dict[str, int]:
        queues = {"queue": QUEUE, "log_queue": LOG, "slot_queue": SLOTS, "host_queue": HOST}
        events = {"planned": PLANNED, "before": BEFORE, "stored": STORED}
        lists = {"marked": handles(MARKED), "left": handles(LEFT)}
        return {"launcher": self._launcher, "waiter": self._launcher, **queues, **events, **lists}

    def run_native(self, launch: Any, /) -> None:
        if status := launch():
            raise BackendError(str(status))


def chunks_on(driver: NotedDriver, in_place_of_a_gpu: CpuBackend, host_part: int = 1 << 15) -> tuple[Chunks, Any]:
    """Return three chunks of 64, 64 and 22 slots, and the index that the host's threads store to."""
    index, slot, contents = np.zeros(300, np.uint64), np.arange(150, dtype=np.uint64), np.ones(300, np.uint64)
    KEPT.extend([slot, contents])
    chunks = Chunks(
        NotedPlace(driver),  # type: ignore[arg-type]
        0,
        pool=in_place_of_a_gpu.host_threads,
        slots=150,
        chunk_slots=64,
        host_part=host_part,
        mirror=8,
        index=address_of(index),
        host_slot=address_of(slot),
        host_contents=address_of(contents),
        chunks_max=8,
    )
    return chunks, index


def test_no_slot_is_stored_before_its_chunk_is_marked(driver: NotedDriver, in_place_of_a_gpu: CpuBackend) -> None:
    chunks, index = chunks_on(driver, in_place_of_a_gpu)
    chunks.run(ALL, 0, 3)
    leaving = [
        *(("record", PLANNED, QUEUE), ("launch", "load_slots_u64", QUEUE), ("wait", PLANNED, HOST)),
        *(("bring", 32 * 8, HOST), ("bring", 32 * 16, HOST), ("record", LEFT[0], HOST)),
        *(("bring", 32 * 8, HOST), ("bring", 32 * 16, HOST), ("record", LEFT[1], HOST)),
        *(("bring", 11 * 8, HOST), ("bring", 11 * 16, HOST), ("record", LEFT[2], HOST)),
    ]
    assert driver.calls[: len(leaving)] == leaving
    launched = [("wait", PLANNED, queue) for queue in (LOG, SLOTS)]
    for marked in MARKED:
        launched += [
            *(("launch", "log_chunk_u64", LOG), ("launch", "sum_tiles", LOG), ("launch", "add_tiles", LOG)),
            *(("launch", "mark_chunk", LOG), ("record", marked, LOG)),
        ]
    launched += [
        ("launch", "apply_u64", QUEUE),  # the mirror, behind the copy of what it was: the next plan reads it
        *(("wait", MARKED[2], SLOTS), ("wait", LEFT[2], SLOTS), ("record", BEFORE, SLOTS)),
        *[("launch", "apply_u64", SLOTS)] * 3,
        ("record", STORED, SLOTS),
    ]
    rest = driver.calls[len(leaving) :]
    assert rest[: len(launched)] == launched
    settled = [("settle", event, 0) for pair in zip(MARKED, LEFT, strict=True) for event in pair]
    ends = [("settle", event, 0) for event in (MARKED[2], STORED)]
    ends += [("elapsed", BEFORE, STORED), ("elapsed", PLANNED, BEFORE)]
    assert rest[len(launched) :] == [*settled, *ends]
    assert index.any()
    assert chunks.times.gpu == chunks.times.gpu_waited == pytest.approx(1.5e-3)
    assert 0 < chunks.times.host < 1


@pytest.mark.parametrize("fails_at", range(1, 47))
def test_the_hosts_threads_store_nothing_after_an_error(
    driver: NotedDriver, in_place_of_a_gpu: CpuBackend, fails_at: int
) -> None:
    """What the driver refused may have been the log."""
    driver.fails_at = fails_at
    chunks, index = chunks_on(driver, in_place_of_a_gpu)
    try:
        chunks.run(ALL, 0, 3)
    except BackendError:
        pass
    else:
        assert len(driver.calls) < fails_at
        return
    assert len(driver.calls) == fails_at
    settled = sum(call == "settle" and event in LEFT for call, event, _ in driver.calls[:-1])
    assert np.count_nonzero(index.reshape(-1, 2)[:, 1]) <= 32 * settled
    if settled == 0:
        assert not index.any()


@pytest.mark.parametrize("layout", ["u64", "bytes"])
def test_entries_hold_what_slots_were_and_markers_say_where(in_place_of_a_gpu: CpuBackend, layout: str) -> None:
    words, key_words, slots = {"u64": (2, 1, 200), "bytes": (4, 2, 200)}[layout]
    random = np.random.default_rng(1)
    index = random.integers(0, 1 << 62, (512, words), np.uint64)
    before, slot = index.copy(), random.permutation(512)[:slots].astype(np.uint64)
    contents = index[slot].copy()
    contents[:, key_words:] += np.uint64(1)
    other_key = random.random(slots) < 0.5
    contents[other_key, 0] ^= np.uint64(5)
    entry_words, size = 1 + words, 64
    log = np.full(-(-slots // STRIPE_ENTRIES) * STRIPE_ENTRIES * entry_words, 7, np.uint64)
    markers = np.zeros((2, 48 * CHUNK_MARKER_BYTES), np.uint8)
    old = np.zeros((slots, words), np.uint64)
    digest, totals = np.zeros(slots, np.uint64), np.zeros(4, np.uint64)
    host_slot, host_contents = np.zeros(4 * size, np.uint64), np.zeros(4 * size * words, np.uint64)
    chunks = Chunks(
        in_place_of_a_gpu,
        0,
        pool=in_place_of_a_gpu.host_threads,
        has_records=layout == "bytes",
        slots=slots,
        chunk_slots=size,
        host_part=1 << 14,
        first=0,
        processor=2,
        epoch=9,
        table=3 << 32 | 1,
        first_word=40,
        log=address_of(log),
        markers0=address_of(markers[0]),
        markers1=address_of(markers[1]),
        changed_slot=address_of(slot),
        contents=address_of(contents),
        image=address_of(index),
        index=address_of(index),
        old=address_of(old),
        digest=address_of(digest),
        totals=address_of(totals),
        host_slot=address_of(host_slot),
        host_contents=address_of(host_contents),
        chunks_max=8,
    )
    chunks.run(ALL, 0, 4)
    after = before.copy()
    after[slot] = contents
    assert (index == after).all()
    entries = log.reshape(-1, entry_words, STRIPE_ENTRIES).transpose(0, 2, 1).reshape(-1, entry_words)[:slots]
    assert (entries[:, 0] == (slot | np.where(other_key, np.uint64(KEY_CHANGES), np.uint64(0)))).all()
    assert (old == before[slot]).all()
    rolled = np.roll(before[slot], -key_words, axis=1)
    assert (entries[:, 1 : 1 + words - key_words] == rolled[:, : words - key_words]).all()
    assert (entries[other_key, 1:] == rolled[other_key]).all()
    assert (entries[~other_key, 1 + words - key_words :] == 7).all(), "nobody needs the key where it stays"
    assert (markers[0] == markers[1]).all()
    for number in range(4):
        at = (2 * 8 + number) * CHUNK_MARKER_BYTES
        count = min(size, slots - number * size)
        summed = int(digest[number * size :][:count].sum(dtype=np.uint64))
        expected = ChunkMarker(9, number, 2, number * size, count, summed, 40, 1, 3)
        assert ChunkMarker.unpack(markers[0, at : at + CHUNK_MARKER_BYTES].tobytes()) == expected
    assert not markers[0, : 16 * CHUNK_MARKER_BYTES].any()
