"""Room in the heap for the records of a batch, by the one allocator (``kernels/allocate.hpp``)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.base import Processor
from gpkvs.batch import U32, U64, Op
from gpkvs.engine.capacity import DoesNotFitError, NoRoomError, heap_full, request_of_op
from gpkvs.engine.device.phases_bytes import BytesPhases
from gpkvs.engine.device.plan import Plan, Records
from gpkvs.engine.heap import Heap, Tail, charge_of, record_units, segments_of
from gpkvs.engine.write_set import FILLED_WORDS
from gpkvs.media.layout import (
    NO_SLOT,
    ChangeKind,
    reference_length,
)

_UNCOUNTED = (1 << 64) - 1  # `UNCOUNTED` in kernels/allocate.hpp


def allocate(place: Processor, heap: Heap, phases: BytesPhases, plan: Plan) -> Tail:
    """Find room for the records that are kept, and return the tail behind them; the heap changes with the commit.

    Raises
    ------
    DoesNotFitError
        With the requests that would raise the charge above its limit.
    NoRoomError
        If there is no room now for records that may be stored.
    """
    start = heap.start
    # `Tail` in kernels/allocate.hpp
    tail = np.array([start.segment, start.units, start.segment, _UNCOUNTED, 0, 0, 0, 0], np.uint64)
    plan.put_op = phases.kept_records(plan)
    plan.records, placed, charged = _allocate_records(place, heap, plan, tail)
    has_room = placed == len(plan.records)
    may_be_full = charged and heap.charged + charged > heap.charged_max
    if (may_be_full or not has_room) and (refused := _refused(place, heap, plan)):
        raise DoesNotFitError(dict.fromkeys(refused, heap_full(heap)))
    if not has_room:
        op, batch = plan.records.op, plan.batch
        raise NoRoomError.of(heap, len(batch.request_ops), request_of_op(batch)[op], _units_of(heap, plan, op))
    return Tail(int(tail[0]), int(tail[1]))


def _allocate_records(place: Processor, heap: Heap, plan: Plan, tail: U64) -> tuple[Records, int, int]:
    """Allocate records behind the tail; return them, how many have room, and what these are charged."""
    op = place.download(plan.put_op)
    nothing = np.empty(0, np.uint64)
    if len(op) == 0:
        return Records(op, nothing, 0, nothing), 0, 0
    reference = place.result_column(len(op), np.uint64)
    parts = int(segments_of(_units_of(heap, plan, op), heap.segment_units).sum(dtype=np.uint64))
    filled = np.empty(FILLED_WORDS * min(parts, heap.segments + 1), np.uint64)
    placed = np.zeros(4, np.uint64)
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
    return Records(op, reference, units, filled[: FILLED_WORDS * segments]), records, charged


def _units_of(heap: Heap, plan: Plan, op: U32) -> U64:
    """Return what the records of SETs take."""
    expiries = plan.batch.expiries
    given = None if expiries is None else expiries[op]
    return record_units(heap.record_format, plan.host_key_lengths[op], plan.host_value_lengths[op], given)


def _refused(place: Processor, heap: Heap, plan: Plan) -> list[int]:
    """Return the requests that would raise the charge above its limit, taken in arrival order."""
    write, chain, change = _writes_of_chains(place, plan)
    charge = charge_of(_units_of(heap, plan, write), heap.segment_units) * (change == ChangeKind.PUT.value)
    held = _held_charges(place, heap, plan)
    room = heap.charged_max - heap.charged
    left = np.zeros(len(plan.chains), np.uint64)  # what each chain is charged in the end
    left[chain] = charge
    gained = int(left.sum()) - int(held[np.unique(chain)].sum())
    if gained <= max(room, 0):
        return []  # all together, they need no more than there is
    refused = np.zeros(len(plan.batch.request_ops), np.uint8)
    place.launch(
        "admit_records",
        1,
        writes=len(write),
        write_chain=chain,
        write_request=request_of_op(plan.batch)[write].astype(np.uint32),
        write_charge=charge,
        room=room % (1 << 64),
        held=held,
        before=np.empty(len(write), np.uint64),
        refused=refused,
    )
    return list(np.flatnonzero(refused).tolist())


def _writes_of_chains(place: Processor, plan: Plan) -> tuple[U32, U32, NDArray[np.uint8]]:
    """Return the operations that a chain's charge depends on, the chain of each, and what becomes of it.

    Of a key that stays these are its SETs, of one that goes its DELETEs.
    """
    ops = place.download(plan.ops)
    # Of these alone: a GET that was not ordered has no chain, and of a table that is only read nothing may have one.
    write = np.flatnonzero((ops == Op.SET.value) | (ops == Op.DELETE.value)).astype(np.uint32)
    chain = place.download(plan.chain_of_op())[write]
    change = place.download(plan.folded.change)[chain]
    stays = (ops[write] == Op.SET.value) & (change == ChangeKind.PUT.value)
    goes = (ops[write] == Op.DELETE.value) & (change == ChangeKind.REMOVE.value)
    counts = stays | goes
    return write[counts], chain[counts], change[counts]


def _held_charges(place: Processor, heap: Heap, plan: Plan) -> U64:
    """Return what the record is charged that the table holds for the key of each chain."""
    slot, old = place.download(plan.chains.slot), place.download(plan.chains.old_word)
    held: U64 = charge_of(reference_length(old), heap.segment_units) * (slot != np.uint64(NO_SLOT))
    return held
