"""Room in the heap for the records of a batch, by the one allocator (``kernels/allocate.hpp``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpkvs.backends.base import Backend
from gpkvs.batch import Batch
from gpkvs.engine.capacity import DoesNotFitError, heap_full, request_of_op, sets_of_chains
from gpkvs.engine.heap import Heap, Tail
from gpkvs.engine.phases import Phases
from gpkvs.engine.plan import Plan, Records
from gpkvs.media.layout import ChangeKind

_Writers = Sequence[tuple[Phases, Plan]]


@dataclass(frozen=True)
class Allocation:
    """Where a batch's records go, all tables together.

    Parameters
    ----------
    tail
        Of the heap, after them.
    segments
        Of the heap, that they go to.
    """

    tail: Tail
    segments: Sequence[int]


def allocate(place: Backend, heap: Heap, batch: Batch, plans: _Writers) -> Allocation:
    """Find room for the records that are kept; each plan gets its own. The heap does not change before the commit.

    Raises
    ------
    DoesNotFitError
        With the requests whose records find no room.
    """
    start = heap.start
    tail = np.array([start.segment, start.units, start.segment], np.uint64)  # `Tail` in kernels/allocate.hpp
    for phases, plan in plans:
        plan.put_op = phases.kept_records(plan)
        plan.records, placed = _allocate_table(place, heap, plan, tail)
        if placed < len(plan.records):
            owner = plan.numbers[request_of_op(plan.batch)[plan.records.op[placed]]]
            # If all bytes would fit, it is the end of a segment that a record cannot cross.
            refused = _refused(place, heap, batch, plans) or [int(owner)]
            raise DoesNotFitError(dict.fromkeys(refused, heap_full(heap)))
    segments = {segment: None for _, plan in plans for segment in plan.records.segments}
    return Allocation(Tail(int(tail[0]), int(tail[1])), tuple(segments))


def _allocate_table(place: Backend, heap: Heap, plan: Plan, tail: np.ndarray) -> tuple[Records, int]:
    """Allocate the records of one table behind the tail; return them, and how many of them have room."""
    op = place.download(plan.put_op)
    nothing = np.empty(0, np.uint64)
    if len(op) == 0:
        return Records(op, nothing, 0, nothing), 0
    reference = place.result_column(len(op), np.uint64)
    filled = np.empty(2 * min(len(op), len(heap.live_units) + 1), np.uint64)
    placed = np.zeros(3, np.uint64)
    place.launch(
        "allocate",
        1,
        segment_units=heap.segment_units,
        segments=len(heap.live_units),
        live_units=heap.live_units,
        heap_bytes=heap.bytes,
        records=len(op),
        put_op=op,
        key_lengths=plan.host_key_lengths,
        value_lengths=plan.host_value_lengths,
        tail=tail,
        reference=reference,
        filled=filled,
        placed=placed,
    )
    records, units, pairs = placed.tolist()
    return Records(op, reference, units, filled[: 2 * pairs]), records


def _refused(place: Backend, heap: Heap, batch: Batch, plans: _Writers) -> list[int]:
    """Return the requests whose records do not fit the heap, taken in arrival order."""
    download = place.download
    chain, request, key_bytes, value_bytes = [], [], [], []
    chains = 0
    for phases, plan in plans:
        if not phases.table.index.has_records:
            continue
        sets, set_chain = sets_of_chains(plan)
        stays = plan.folded.change[set_chain] == ChangeKind.PUT.value
        sets = download(sets[stays])
        chain.append(download(set_chain[stays]) + np.uint32(chains))
        request.append(plan.numbers[request_of_op(plan.batch)[sets]].astype(np.uint32))
        key_bytes.append(plan.host_key_lengths[sets])
        value_bytes.append(plan.host_value_lengths[sets])
        chains += len(plan.chains)
    arrival = np.argsort(np.concatenate(request), kind="stable")
    refused = np.zeros(len(batch.request_ops), np.uint8)
    place.launch(
        "admit_records",
        1,
        sets=len(arrival),
        set_chain=np.concatenate(chain)[arrival],
        set_request=np.concatenate(request)[arrival],
        set_key_bytes=np.concatenate(key_bytes)[arrival],
        set_value_bytes=np.concatenate(value_bytes)[arrival],
        budget=heap.free_units,
        held=np.zeros(chains, np.uint64),
        before=np.empty(len(arrival), np.uint64),
        refused=refused,
    )
    return list(np.flatnonzero(refused).tolist())
