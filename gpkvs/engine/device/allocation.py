"""Room in the heap for the records of a batch, by the one allocator (``kernels/plan/allocate.hpp``)."""

from __future__ import annotations

import numpy as np

from gpkvs.backends.base import Processor
from gpkvs.engine.device.phases_bytes import BytesPhases
from gpkvs.engine.device.plan import Plan, Records
from gpkvs.engine.device.planned import ForHostError
from gpkvs.engine.seam.write_set import FILLED_WORDS
from gpkvs.engine.state.heap import Heap, Tail, charge_of
from gpkvs.media.layout import reference_length
from gpkvs.native import number

_UNCOUNTED = number("UNCOUNTED")


def allocate(place: Processor, heap: Heap, phases: BytesPhases, plan: Plan) -> Tail:
    """Find room for the records that are kept, and return the tail behind them; the heap changes with the commit.

    Raises
    ------
    ForHostError
        If there is no room now, or if the heap would be charged more than it may.
    """
    start = heap.start
    # `Tail` in kernels/plan/allocate.hpp
    tail = np.array([start.segment, start.units, start.segment, _UNCOUNTED, 0, 0, 0, 0], np.uint64)
    plan.put_op = phases.kept_records(plan)
    op = place.download(plan.put_op)
    reference = place.result_column(len(op), np.uint64)
    filled = np.empty(FILLED_WORDS * (heap.segments + 1), np.uint64)  # what nobody touches takes no memory
    placed = np.zeros(4, np.uint64)
    if len(op):
        place.launch(
            "allocate",
            1,
            segment_units=heap.segment_units,
            segments=heap.segments,
            live_units=heap.live_units,
            heap_state=heap.state,
            records=len(op),
            put_op=op,
            key_lengths=plan.host_key_lengths,
            value_lengths=plan.host_value_lengths,
            expiries=0 if plan.batch.expiries is None else plan.batch.expiries,
            record_format=heap.record_format,
            tail=tail,
            reference=reference,
            filled=filled,
            placed=placed,
        )
    records, units, segments, charged = placed.tolist()
    if records < len(op) or (
        charged and heap.charged + charged > heap.charged_max + _freed_charge(place, heap, phases, plan)
    ):
        raise ForHostError
    plan.records = Records(op, reference, units, filled[: FILLED_WORDS * segments])
    return Tail(int(tail[0]), int(tail[1]))


def _freed_charge(place: Processor, heap: Heap, phases: BytesPhases, plan: Plan) -> int:
    """Return what the records are charged that the batch frees."""
    units = reference_length(place.download(phases.freed(plan)))
    return int(charge_of(units, heap.segment_units).sum())
