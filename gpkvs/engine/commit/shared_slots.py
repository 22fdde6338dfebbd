"""Slots whose contents are on a GPU, stored to an image by the GPU and by the host's threads at the same time.

A GPU reaches the host's memory over a link that takes so many stores a second; the host's threads are nearer. Together
they are faster than either. They need no order between them, but both are done before the transaction goes on, as with
NearPM's partitioned order (ASPLOS '23, sections 3.2 and 4). A journal's entries are the GPU's.

How much each does is chosen from what both were measured to do in earlier batches, as AGPM chooses the path of a log
from what it has observed (Adaptive Data Path Selection for Durable Transaction in GPU Persistent Memory, section IV).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import NamedTuple

import numpy as np

from gpkvs.backends.base import Backend, Processor, Result
from gpkvs.batch import U64
from gpkvs.engine.seam.write_set import DeviceColumns, TableWrites

_MEASURED_MIN = 4096  # slots: with fewer, chance decides
_PART_MIN, _PART_MAX = 0.03, 0.97  # of the host: what nobody does is not measured


class Balance:
    """Divides slots so that both processors take the same time. Small batches and large ones are measured apart."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, int], float] = {}

    def part(self, layout: str, slots: int) -> float:
        """Return how many of so many slots the host's threads store, of 1: half of them until something is measured."""
        size = slots.bit_length()
        known = [(abs(other - size), part) for (name, other), part in self._parts.items() if name == layout]
        return min(known)[1] if known else 0.5

    def measured(self, layout: str, host: tuple[int, float], gpu: tuple[int, float], late: float = 0.0) -> None:
        """Take note of the slots and the seconds of both; the next part is halfway to what they say.

        Parameters
        ----------
        layout
            Of the slots.
        host, gpu
            How many slots each stored, and the seconds for that.
        late
            Seconds that the GPU waited, or did other things, more than the threads.
        """
        if host[0] + gpu[0] < _MEASURED_MIN:
            return
        slots = host[0] + gpu[0]
        all_by_host, all_by_gpu = (max(seconds, 1e-7) * slots / max(count, 1) for count, seconds in (host, gpu))
        part = (self.part(layout, slots) + (late + all_by_gpu) / (all_by_host + all_by_gpu)) / 2
        self._parts[layout, slots.bit_length()] = min(max(part, _PART_MIN), _PART_MAX)


class Range(NamedTuple):
    """Some of the slots that one GPU has.

    Attributes
    ----------
    columns
        All that it has of a table's part of a write set.
    at
        How many slots of the write set come before the first of them.
    first, last
        The first one, and the one after the last, of those in `columns`.
    """

    columns: DeviceColumns
    at: int
    first: int
    last: int


@dataclass
class _HostPart:
    """What the host's threads store, on its way to the host."""

    store_from: int  # they store the slots from here on
    slot: U64
    slot_there: Callable[[], None]
    contents: U64
    contents_there: Callable[[], None]


class SharedSlots:
    """Stores the slots of write sets that one GPU planned to images, and their entries to a journal.

    Parameters
    ----------
    processor
        The GPU.
    is_alone
        Whether no other GPU stores beside it: several take what the host's memory can take, without its threads.

    Attributes
    ----------
    balance
        Who does how much.
    """

    def __init__(self, processor: Processor, *, is_alone: bool) -> None:
        self._gpu = processor
        self._is_alone = is_alone
        self._coming: dict[tuple[int, int, int], _HostPart] = {}
        self._digest = 0  # of the entries logged since it was asked for
        self.balance = Balance()

    def _divide(self, writes: TableWrites, slots: Range) -> None:
        """Begin to bring over what the host's threads store, if they store a part."""
        columns, _, first, last = slots
        count = last - first
        if not (self._is_alone and self._gpu.shares_slots(writes.index.region, count)):
            return
        gpu, words = self._gpu, columns.contents.shape[1]
        store_from = last - int(count * self.balance.part(writes.index.layout.name, count))
        slot = gpu.result_column(last - store_from, np.uint64)
        contents = gpu.result_column((last - store_from) * words, np.uint64).reshape(-1, words)
        slot_there = gpu.download_later(columns.slot[store_from:last], slot)
        contents_there = gpu.download_later(columns.contents[store_from:last], contents)
        self._coming[writes.address, first, last] = _HostPart(store_from, slot, slot_there, contents, contents_there)

    def log_contents(self, writes: TableWrites, slots: Range, epoch: int, address: int) -> None:
        """Store the entries of slots to a frame of a journal, with their new contents.

        Parameters
        ----------
        writes, slots
            The table's part of a write set, and which slots of it.
        epoch, address
            Of the entries, and where their run begins.
        """
        columns, at, first, last = slots
        digest = columns.digest[first:last]
        logged = self._gpu.launch_unawaited(
            f"log_redo_{writes.index.layout.name}",
            last - first,
            changed_slot=columns.slot[first:last],
            contents=columns.contents[first:last],
            epoch=epoch,
            first=at + first,
            log=address,
            digest=digest,
            summed=digest,
        )
        self._divide(writes, slots)
        self._gpu.start_delivery()
        self._digest += logged().total

    def take_digest(self) -> int:
        """Return the sum of the digests of all entries that were logged since it was asked for."""
        digest, self._digest = self._digest, 0
        return digest

    def store(self, writes: TableWrites, slots: Range) -> None:
        """Store changed slots in place; the read image gets all of them."""
        columns, _, first, last = slots
        layout = writes.index.layout.name
        part = self._coming.pop((writes.address, first, last), None)
        middle = part.store_from if part else last
        begin = perf_counter()
        stored = self._gpu.launch_unawaited(
            f"apply_{layout}",
            middle - first,
            mirrored=last - first,
            changed_slot=columns.slot[first:last],
            contents=columns.contents[first:last],
            index=writes.index,
        )
        if part is None:
            stored()
            return
        part.slot_there()
        part.contents_there()
        self._gpu.host.launch(
            f"apply_{layout}", last - middle, changed_slot=part.slot, contents=part.contents, index=writes.index
        )
        took = perf_counter() - begin
        self.balance.measured(layout, (last - middle, took), (middle - first, stored().seconds))

    def numbers(self, slots: Range) -> U64:
        """Return the numbers of slots, on the host."""
        return self._gpu.download(slots.columns.slot[slots.first : slots.last])


class SlotsOfAll:
    """Slots that GPUs planned, each GPU its own: they log and store at the same time.

    Parameters
    ----------
    backend
        Of the store.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._alone = SharedSlots(backend.processors[0], is_alone=True)
        self._together = [SharedSlots(processor, is_alone=False) for processor in backend.processors]

    def take_digest(self) -> int:
        """Return the sum of the digests of all entries that were logged since it was asked for."""
        return sum(shared.take_digest() for shared in (self._alone, *self._together))

    def each(
        self, writes: TableWrites, first: int, last: int, run: Callable[[SharedSlots, Range], Result]
    ) -> list[Result]:
        """Do something with the slots `first` to `last - 1`: each GPU with its own, at the same time."""
        if len(writes.device) == 1:
            return [run(self._alone, Range(writes.device[0], 0, first, last))]
        calls, at = [], 0
        for shared, columns in zip(self._together, writes.device, strict=True):
            end = at + len(columns)
            slots = Range(columns, at, min(max(first, at), end) - at, min(max(last, at), end) - at)
            calls.append(partial(run, shared, slots))
            at = end
        return self._backend.each(calls)
