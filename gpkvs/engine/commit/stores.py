"""How the parts of a write set are stored for a journal, and what both committers need. Committers say when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from gpkvs.backends.base import Backend
from gpkvs.backends.cpu.backend import address_of
from gpkvs.batch import U64
from gpkvs.engine.commit.shared_slots import SlotsOfAll
from gpkvs.engine.seam.write_set import TableWrites
from gpkvs.engine.state.heap import Heap
from gpkvs.media.files import StoreFiles
from gpkvs.media.image import Image
from gpkvs.media.layout import LAYOUTS, LONGEST_RECORD_UNITS, PAGE_BYTES, UNIT_BYTES
from gpkvs.native import native_step
from gpkvs.pm.mapping import map_memory
from gpkvs.process import failpoint

_Step = Callable[[int, int, int], None]

# Native steps of a table's part (``kernels/space/write_set.hpp``), which let go of Python's lock: the new records
# `first` to `last - 1` go to the heap; what is live now, and what no longer, is counted in it.
STORE_RECORDS: Final = native_step("store_records", keeps_lock=False)
COUNT_LIVE: Final = native_step("count_live", keeps_lock=False)


class _Steps(NamedTuple):
    """The native steps of one layout."""

    log: _Step
    slots: _Step


_STEPS: Final = {
    layout: _Steps(
        native_step(f"store_redo_{layout}", keeps_lock=False), native_step(f"store_image_{layout}", keeps_lock=False)
    )
    for layout in LAYOUTS
}
_WRITE_RECORDS: Final = native_step("write_records", keeps_lock=False)


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

    def records(self, writes: TableWrites, first: int, last: int) -> None:
        """Write the new records `first` to `last - 1` to the file of the heap. A failure ends the process."""
        if first == 0:
            writes.keep(pages=self._pages)
            writes.set(file=self._file, heap_offset=self._heap_offset)
        _WRITE_RECORDS(writes.address, first, last)

    def entries(self, writes: TableWrites, epoch: int, address: int, first: int, last: int) -> None:
        """Store the entries `first` to `last - 1` of the run that begins at an address."""
        writes.begin_log(epoch, address)
        if writes.device:
            self._slots.each(writes, first, last, lambda gpu, slots: gpu.log_contents(writes, slots, epoch, address))
            return
        _STEPS[writes.index.layout.name].log(writes.address, first, last)

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
        _STEPS[layout].slots(writes.address, first, last)
        self._backend.host_stored(writes.index, writes.changed_slot[first:last])

    def count_live(self, writes: TableWrites, freed_units: U64) -> None:
        """Count in the heap what is live now; gather what is free later."""
        if writes.freed is not None:
            freed_units += writes.freed.live
            self._heap.discharge(writes.freed.charged)
        writes.keep(freed_units=freed_units)
        COUNT_LIVE(writes.address, 0, 1)


def run_in_halves(point: str, items: int, run: Callable[[int, int], None]) -> None:
    """Run over all items at once; in two halves if a test is going to die between them."""
    if failpoint.armed(point):
        run(0, items // 2)
        failpoint.hit(point)
        run(items // 2, items)
    else:
        failpoint.hit(point)
        run(0, items)
