"""How the parts of a write set are stored: by the host's threads, by a GPU, or for a journal. Committers say when."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from gpkvs.backends.base import Backend
from gpkvs.backends.cpu.backend import address_of
from gpkvs.batch import U64
from gpkvs.engine.heap import Heap
from gpkvs.engine.shared_slots import SlotsOfAll
from gpkvs.engine.write_set import TableWrites
from gpkvs.media.files import StoreFiles
from gpkvs.media.image import Image
from gpkvs.media.layout import LAYOUTS, LONGEST_RECORD_UNITS, PAGE_BYTES, UNIT_BYTES
from gpkvs.native import native_step
from gpkvs.pm.mapping import map_memory

_Step = Callable[[int, int, int], None]


class Stores(Protocol):
    """Stores one table's part of a write set; everything that could fail for want of room was found at planning."""

    def records(self, writes: TableWrites, first: int, last: int, /) -> None:
        """Store the new records `first` to `last - 1` to the heap."""

    def log(self, writes: TableWrites, epoch: int, address: int, first: int, last: int, /) -> None:
        """Store the undo entries `first` to `last - 1` of the run that begins at an address."""

    def log_digest(self, writes: TableWrites, /) -> int:
        """Return the sum of the digests of all entries, after they were stored and before those of another table."""

    def slots(self, writes: TableWrites, first: int, last: int, /) -> None:
        """Store the changed slots `first` to `last - 1` in place."""

    def count_live(self, writes: TableWrites, /) -> None:
        """Count in the heap what is live now and what is no longer; cannot fail."""


class _Steps(NamedTuple):
    """The native steps of one layout."""

    records: _Step
    log: _Step
    slots: _Step
    count_live: _Step


class HostStores:
    """By the host's threads: each step is one native call (``kernels/write_set.hpp``)."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._steps = _steps_by_layout("store_records", "store_log", "store_slots")

    def records(self, writes: TableWrites, first: int, last: int) -> None:
        """See `Stores.records`."""
        self._steps[writes.index.layout.name].records(writes.address, first, last)

    def log(self, writes: TableWrites, epoch: int, address: int, first: int, last: int) -> None:
        """See `Stores.log`."""
        writes.begin_log(epoch, address)
        self._steps[writes.index.layout.name].log(writes.address, first, last)

    def log_digest(self, writes: TableWrites) -> int:
        """See `Stores.log_digest`."""
        return writes.log_digest

    def slots(self, writes: TableWrites, first: int, last: int) -> None:
        """See `Stores.slots`; a GPU's read image hears of it."""
        self._steps[writes.index.layout.name].slots(writes.address, first, last)
        self._backend.host_stored(writes.index, writes.changed_slot[first:last])

    def count_live(self, writes: TableWrites) -> None:
        """See `Stores.count_live`."""
        self._steps[writes.index.layout.name].count_live(writes.address, 0, 1)


class DeviceStores:
    """By GPUs and the host's threads together: log and slots. The threads alone store records, which the host has."""

    def __init__(self, backend: Backend, host: HostStores, heap: Heap) -> None:
        self._host = host
        self._heap = heap
        self._slots = SlotsOfAll(backend)

    def records(self, writes: TableWrites, first: int, last: int) -> None:
        """See `Stores.records`."""
        self._host.records(writes, first, last)

    def log(self, writes: TableWrites, epoch: int, address: int, first: int, last: int) -> None:
        """See `Stores.log`."""
        self._slots.each(writes, first, last, lambda gpu, slots: gpu.log(writes, slots, epoch, address))

    def log_digest(self, writes: TableWrites) -> int:
        """See `Stores.log_digest`."""
        del writes
        return self._slots.take_digest()

    def slots(self, writes: TableWrites, first: int, last: int) -> None:
        """See `Stores.slots`."""
        self._slots.each(writes, first, last, lambda gpu, slots: gpu.store(writes, slots))

    def count_live(self, writes: TableWrites) -> None:
        """See `Stores.count_live`."""
        self._host.count_live(writes)
        assert writes.freed is not None
        self._heap.release(writes.freed)


class ImageStores:
    """For a journal: records to the file of the heap, entries to memory, slots to the image.

    Attributes
    ----------
    pages_address
        Where records are made before they are written.
    """

    def __init__(self, backend: Backend, files: StoreFiles, heap: Heap) -> None:
        assert files.data
        self._backend = backend
        self._heap = heap
        self._file = files.data.file
        self._heap_offset = files.root.journal_bytes
        # The largest record, and the page that it begins in.
        self._pages = map_memory(LONGEST_RECORD_UNITS * UNIT_BYTES + 2 * PAGE_BYTES)
        self.pages_address = address_of(self._pages)
        self._slots = SlotsOfAll(backend)
        self._steps = _steps_by_layout("write_records", "store_redo", "store_image")

    def records(self, writes: TableWrites, first: int, last: int) -> None:
        """Write the new records `first` to `last - 1` to the file of the heap. A failure ends the process."""
        if first == 0:
            writes.keep(pages=self._pages)
            writes.set(file=self._file, heap_offset=self._heap_offset)
        self._steps[writes.index.layout.name].records(writes.address, first, last)

    def entries(self, writes: TableWrites, epoch: int, address: int, first: int, last: int) -> None:
        """Store the entries `first` to `last - 1` of the run that begins at an address."""
        writes.begin_log(epoch, address)
        if writes.device:
            self._slots.each(writes, first, last, lambda gpu, slots: gpu.log_contents(writes, slots, epoch, address))
            return
        self._steps[writes.index.layout.name].log(writes.address, first, last)

    def entries_digest(self, writes: TableWrites) -> int:
        """Return the sum of the digests of all entries; those that GPUs stored count for the first table asked of."""
        if not writes.device:
            return writes.log_digest
        return self._slots.take_digest()

    def slots(self, writes: TableWrites, first: int, last: int) -> None:
        """Store the changed slots `first` to `last - 1` to the image, and mark their pages after."""
        image, layout = writes.index.region, writes.index.layout.name
        assert isinstance(image, Image)
        if writes.device:
            self._slots.each(writes, first, last, lambda gpu, slots: gpu.store(writes, slots))
            for changed_slot in self._slots.each(writes, first, last, lambda gpu, slots: gpu.numbers(slots)):
                self._backend.host.launch(
                    f"mark_pages_{layout}",
                    len(changed_slot),
                    changed_slot=changed_slot,
                    epoch=writes.epoch,
                    marks=image.marks,
                )
            return
        writes.keep(marks=image.marks)
        self._steps[layout].slots(writes.address, first, last)
        self._backend.host_stored(writes.index, writes.changed_slot[first:last])

    def count_live(self, writes: TableWrites, freed_units: U64) -> None:
        """Count in the heap what is live now; gather what is free later."""
        if writes.freed is not None:
            freed_units += writes.freed.live
            self._heap.discharge(writes.freed.charged)
        writes.keep(freed_units=freed_units)
        self._steps[writes.index.layout.name].count_live(writes.address, 0, 1)


def _steps_by_layout(records: str, log: str, slots: str) -> dict[str, _Steps]:
    """Return native steps, which let go of Python's lock."""
    return {
        layout: _Steps(
            native_step(records, keeps_lock=False),
            native_step(f"{log}_{layout}", keeps_lock=False),
            native_step(f"{slots}_{layout}", keeps_lock=False),
            native_step("count_live", keeps_lock=False),
        )
        for layout in LAYOUTS
    }
