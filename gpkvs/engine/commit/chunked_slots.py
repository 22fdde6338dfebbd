"""Slots that GPUs planned, logged and stored in chunks under the transaction flag.

The GPU stores all entries. Of the slots, the host's threads store a part of each chunk while the entries of the next
one cross the link, and the GPU the rest. The part is as large as what both were measured to do in earlier batches says
(AGPM, section IV, chooses the path of a log so). Several GPUs have chunks of their own, and need no order between them
(NearPM, ASPLOS '23, sections 3.2 and 4): all are done before the transaction goes on.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from gpkvs.backends.base import Backend, Processor
from gpkvs.backends.chunks import Chunks, Steps
from gpkvs.backends.cpu.backend import address_of
from gpkvs.batch import U64
from gpkvs.engine.commit.shared_slots import Balance
from gpkvs.engine.seam.write_set import DeviceColumns, TableWrites
from gpkvs.media.files import StoreFiles
from gpkvs.media.layout import CHUNK_MARKERS, CHUNK_MARKERS_OFFSET, DESCRIPTOR_OFFSETS, STRIPE_ENTRIES, LogRun
from gpkvs.native import library
from gpkvs.process import failpoint

_CHUNKS_MAX = 8  # of one processor: with more, the moments between chunks count
_WHOLE = 1 << 16  # of a part of the host
# Where a test may die between two halves of the chunks.
_BETWEEN = ("mid_log", "before_apply", "mid_apply", "mid_chunks")


class Part(NamedTuple):
    """The slots of one processor, with all the memory that it takes to log and store them.

    Attributes
    ----------
    place
        The processor.
    chunks, chunk_count
        Its chunks, and how many there are.
    host_slots
        How many of the slots the host's threads store.
    columns
        What native code reads, kept as long as it may.
    """

    place: Processor
    chunks: Chunks
    chunk_count: int
    host_slots: int
    columns: tuple[object, ...]


class ChunkedSlots:
    """Logs and stores the slots of write sets that GPUs planned.

    Parameters
    ----------
    backend, files
        Of the store.
    """

    def __init__(self, backend: Backend, files: StoreFiles) -> None:
        self._backend = backend
        self._files = files
        self._turn = 0  # the other one is that of the write set before, which may still be being stored
        # Of each turn, memory for slots and contents that leave for the host, kept between batches.
        self._of_host: list[U64 | None] = [None, None]
        self.balance = Balance()

    def prepare(self, writes: TableWrites) -> list[Part]:
        """Take the memory for the slots of a write set that GPUs planned, before anything of it is stored.

        The write set before may still be being stored.

        Raises
        ------
        MemoryError, BackendError
            If there is none.
        """
        calls, at = [], 0
        for number, columns in enumerate(writes.device):
            calls.append(partial(self._part, number, columns, at, writes))
            at += len(columns)
        return self._backend.each(calls) if len(calls) > 1 else [calls[0]()]

    def leave(self, parts: list[Part]) -> None:
        """Copy what the slots are; have those that the host's threads store leave for it, and the results behind them.

        Raises
        ------
        BackendError
            If a driver refuses; nothing is stored.
        """
        self._run(parts, Steps.LEAVE, None)
        self._backend.start_delivery()

    def launch(self, parts: list[Part], run: LogRun | None, epoch: int) -> Steps:
        """Log and store all slots of a write set, as far as GPUs do; return the steps that are left to do with chunks.

        Parameters
        ----------
        parts
            What was prepared, and is leaving.
        run
            Of the log; None: nothing is logged.
        epoch
            Of the transaction, whose flag says ACTIVE, durably.

        Raises
        ------
        BackendError
            If a driver refuses: some slots may be stored, and the log has what they were.
        """
        self._turn = 1 - self._turn
        log, store = Steps(0), Steps.STORE | Steps.STORE_ON_HOST
        if run:
            log = Steps.LOG
            for part in parts:
                part.chunks.set(epoch=epoch, first_word=run.first_word, log=self._files.run_address(run))
        failpoint.hit("before_log")
        stops_at = next((name for name in _BETWEEN if failpoint.armed(name)), "")
        if not stops_at:
            self._run(parts, log | Steps.STORE, None)
            for name in _BETWEEN:
                failpoint.hit(name)
            return Steps.STORE_ON_HOST | Steps.WAIT
        if stops_at == "mid_chunks":
            self._run(parts, log | store | Steps.WAIT, 0)
            failpoint.hit(stops_at)
            self._run(parts, log | store | Steps.WAIT, 1)
        else:
            self._run_in_turn(parts, log, store)
        return Steps(0)

    def _run_in_turn(self, parts: list[Part], log: Steps, store: Steps) -> None:
        """Store no slot before all entries are there, and die between two halves of either."""
        for steps, between, after in ((log, "mid_log", "before_apply"), (store, "mid_apply", "mid_chunks")):
            self._run(parts, steps | Steps.WAIT, 0)
            failpoint.hit(between)
            self._run(parts, steps | Steps.WAIT, 1)
            failpoint.hit(after)

    def _run(self, parts: list[Part], steps: Steps, half: int | None) -> None:
        """Do some steps with all chunks, or with one half of each processor's."""

        def of(part: Part) -> None:
            first, last = 0, part.chunk_count
            if half is not None:
                first, last = (0, last // 2) if half == 0 else (last // 2, last)
            if first < last:
                part.chunks.run(steps, first, last)

        self._backend.each([partial(of, part) for part in parts])

    def landed(self, writes: TableWrites, parts: list[Part]) -> None:
        """Take note of how long it took, once all slots are stored."""
        (part, *others) = parts
        times = part.chunks.times
        if not others and times.host and times.gpu:
            host, gpu = (part.host_slots, times.host), (writes.slots - part.host_slots, times.gpu)
            self.balance.measured(writes.index.layout.name, host, gpu, times.gpu_waited - times.host_waited)

    def _part(self, number: int, columns: DeviceColumns, at: int, writes: TableWrites) -> Part:
        place, index, slots = self._backend.processors[number], writes.index, len(columns)
        chunks_max = min(_CHUNKS_MAX, CHUNK_MARKERS // len(self._backend.processors))
        size = _chunk_slots(slots, chunks_max, place.chunk_slots_min)
        count, words = -(-slots // size), index.layout.slot_bytes // 8
        of_host = 0
        if len(writes.device) == 1 and place.shares_slots(index.region, slots):
            of_host = int(_WHOLE * self.balance.part(index.layout.name, slots))
        host_slot, host_contents = self._room_on_host(place, count * (size * of_host // _WHOLE), words)
        totals = place.scratch(count, np.uint64)
        tiles = place.scratch(library.gpkvs_tiles(size), np.uint64)
        old = place.scratch(slots * words, np.uint64)
        image, log = place.address(index), self._files.log.address
        markers0, markers1 = (log + page + CHUNK_MARKERS_OFFSET for page in DESCRIPTOR_OFFSETS)
        chunks = Chunks(
            place,
            self._turn,
            pool=place.host.host_threads,
            has_records=index.has_records,
            slots=slots,
            chunk_slots=size,
            host_part=of_host,
            first=at,
            processor=number,
            table=index.entry.generation << 32 | index.entry.id,
            markers0=markers0,
            markers1=markers1,
            changed_slot=place.address(columns.slot),
            contents=place.address(columns.contents),
            image=image,
            index=index.address,
            mirror=0 if image == index.address else image,
            old=place.address(old),
            digest=place.address(columns.digest),
            totals=place.address(totals),
            tiles=place.address(tiles),
            host_slot=address_of(host_slot),
            host_contents=address_of(host_contents),
            chunks_max=chunks_max,
        )
        shared = sum(min(size, slots - first) * of_host // _WHOLE for first in range(0, slots, size))
        return Part(place, chunks, count, shared, (columns, host_slot, host_contents, old, totals, tiles))

    def _room_on_host(self, place: Processor, slots: int, words: int) -> tuple[U64, U64]:
        """Return columns for slots and their contents; one processor alone asks for any."""
        needed = slots * (1 + words)
        room = self._of_host[self._turn]
        if room is None or len(room) < needed:
            room = self._of_host[self._turn] = None  # before there is twice as much
            room = self._of_host[self._turn] = place.result_column(needed, np.uint64)
        return room[:slots], room[slots:needed]


def _chunk_slots(slots: int, chunks_max: int, slots_min: int) -> int:
    """Return how many slots a chunk has: whole stripes."""
    if any(failpoint.armed(name) for name in _BETWEEN):
        slots_min = 1
    size = max(slots_min, -(-slots // chunks_max), 1)
    return -(-size // STRIPE_ENTRIES) * STRIPE_ENTRIES
