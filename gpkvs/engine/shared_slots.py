"""Slots whose contents are on a GPU, logged and stored by the GPU and by the host's threads at the same time.

A GPU reaches the host's memory over a link that takes so many stores a second; the host's threads are nearer. Together
they are faster than either. They need no order between them, but both are done before the transaction goes on, as with
NearPM's partitioned order (ASPLOS '23, sections 3.2 and 4): processors wait for each other at ACTIVE and at IDLE.

How much each does is chosen from what both were measured to do in earlier batches, as AGPM chooses the path of a log
from what it has observed (Adaptive Data Path Selection for Durable Transaction in GPU Persistent Memory, section IV).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from gpkvs.backends.base import Backend
from gpkvs.batch import U64
from gpkvs.engine.write_set import DeviceColumns, TableWrites

_MEASURED_MIN = 4096  # slots: with fewer, chance decides
_PART_MIN, _PART_MAX = 0.03, 0.97  # of the host: what nobody does is not measured


def _nothing() -> None:
    """Wait for nothing."""


class Balance:
    """Divides work so that both processors take the same time. Small batches and large ones are measured apart."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, int], float] = {}

    def part(self, work: str, slots: int) -> float:
        """Return how much of some work the host's threads do, of 1: half of it as long as nothing was measured."""
        size = slots.bit_length()
        known = [(abs(other - size), part) for (name, other), part in self._parts.items() if name == work]
        return min(known)[1] if known else 0.5

    def measured(self, work: str, host: tuple[int, float], gpu: tuple[int, float]) -> None:
        """Take note of the slots and the seconds of both; the next part is halfway to what they say."""
        if host[0] + gpu[0] < _MEASURED_MIN:
            return
        slots, (rate, gpu_rate) = host[0] + gpu[0], (count / max(seconds, 1e-7) for count, seconds in (host, gpu))
        part = (self.part(work, slots) + rate / (rate + gpu_rate)) / 2
        self._parts[work, slots.bit_length()] = min(max(part, _PART_MIN), _PART_MAX)


@dataclass
class _HostPart:
    """What the host's threads do, on its way to the host."""

    log_from: int  # they log the slots from here on,
    store_from: int  # and store those from here on
    slot: U64  # from the lower of the two
    slot_there: Callable[[], None]
    contents: U64 | None = None  # of what they store
    contents_there: Callable[[], None] = _nothing

    def slots_from(self, first: int) -> U64:
        """Return the slots from a number on."""
        return self.slot[first - min(self.log_from, self.store_from) :]


class SharedSlots:
    """Logs and stores the slots of write sets that a GPU planned.

    Parameters
    ----------
    backend
        Of the store.

    Attributes
    ----------
    balance
        Who does how much.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._coming: dict[tuple[int, int, int], _HostPart] = {}
        self._host_digest = 0
        self.balance = Balance()

    def bring(self, writes: TableWrites, first: int, last: int) -> None:
        """Begin to bring to the host what its threads store of the slots `first` to `last - 1`, and do not log."""
        part = self._divide(writes, first, last, logs=False)
        if part:
            self._bring_contents(part, writes, last)

    def _divide(self, writes: TableWrites, first: int, last: int, *, logs: bool) -> _HostPart | None:
        """Divide slots, and begin to bring the numbers of the host's part over; None if the GPU does all."""
        count = last - first
        if not self._backend.shares_slots(writes.index.region, count):
            return None
        layout, backend = writes.index.layout.name, self._backend
        log_from = last - int(count * self.balance.part(f"log {layout}", count)) if logs else last
        store_from = last - int(count * self.balance.part(f"apply {layout}", count))
        begin = min(log_from, store_from)
        slot = backend.result_column(last - begin, np.uint64)
        slot_there = backend.download_later(_device(writes).slot[begin:last], slot)
        part = self._coming[writes.address, first, last] = _HostPart(log_from, store_from, slot, slot_there)
        return part

    def _bring_contents(self, part: _HostPart, writes: TableWrites, last: int) -> None:
        backend, words = self._backend, writes.index.layout.slot_bytes // 8
        contents = backend.result_column((last - part.store_from) * words, np.uint64).reshape(-1, words)
        part.contents_there = backend.download_later(_device(writes).contents[part.store_from : last], contents)
        part.contents = contents

    def log(self, writes: TableWrites, epoch: int, address: int, first: int, last: int) -> None:
        """Store the undo entries `first` to `last - 1`; complete once `log_digest` has returned."""
        columns, layout = _device(writes), writes.index.layout.name
        part = self._divide(writes, first, last, logs=True)
        if part:
            part.slot_there()  # the stores of the log would hold it up: both go to the host
        middle = part.log_from if part else last
        logged = self._backend.launch_unawaited(
            f"log_undo_{layout}",
            middle - first,
            changed_slot=columns.slot[first:middle],
            index=writes.index,
            epoch=epoch,
            first=first,
            log=address,
            digest=columns.digest[first:middle],
        )
        if part is None:
            logged()
        else:
            begin = perf_counter()
            self._log_on_host(part, writes, epoch, address, last)
            took = perf_counter() - begin
            self._bring_contents(part, writes, last)
            self.balance.measured(f"log {layout}", (last - middle, took), (middle - first, logged()))

    def _log_on_host(self, part: _HostPart, writes: TableWrites, epoch: int, address: int, last: int) -> None:
        host, middle = self._backend.host, part.log_from
        _device(writes).digest[middle:last] = 0
        digest = host.scratch(last - middle, np.uint64)
        host.launch(
            f"log_undo_{writes.index.layout.name}",
            last - middle,
            changed_slot=part.slots_from(middle),
            index=writes.index,
            epoch=epoch,
            first=middle,
            log=address,
            digest=digest,
        )
        self._host_digest += host.total(digest)

    def log_digest(self, writes: TableWrites) -> int:
        """Return the sum of the digests of all entries."""
        digest, self._host_digest = self._host_digest, 0
        return digest + self._backend.total(_device(writes).digest)

    def store(self, writes: TableWrites, first: int, last: int) -> None:
        """Store the changed slots `first` to `last - 1` in place; the read image gets all of them."""
        columns, layout = _device(writes), writes.index.layout.name
        part = self._coming.pop((writes.address, first, last), None)
        middle = part.store_from if part else last
        begin = perf_counter()
        stored = self._backend.launch_unawaited(
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
        assert part.contents is not None
        self._backend.host.launch(
            f"apply_{layout}",
            last - middle,
            changed_slot=part.slots_from(middle),
            contents=part.contents,
            index=writes.index,
        )
        took = perf_counter() - begin
        self.balance.measured(f"apply {layout}", (last - middle, took), (middle - first, stored()))


def _device(writes: TableWrites) -> DeviceColumns:
    assert writes.device
    return writes.device
