"""Room in the heap for the records of a batch, by the one allocator (``kernels/allocate.hpp``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.base import Processor
from gpkvs.batch import U32, U64, Batch, Op
from gpkvs.engine.capacity import DoesNotFitError, NoRoomError, heap_full, request_of_op
from gpkvs.engine.heap import Heap, Tail, charge_of, record_units, segments_of
from gpkvs.engine.phases import Phases
from gpkvs.engine.plan import FILLED_WORDS, Plan, Records
from gpkvs.media.layout import (
    NO_SLOT,
    ChangeKind,
    reference_length,
)

_UNCOUNTED = (1 << 64) - 1  # `UNCOUNTED` in kernels/allocate.hpp

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


def allocate(place: Processor, heap: Heap, batch: Batch, plans: _Writers) -> Allocation:
    """Find room for the records that are kept; each plan gets its own. The heap does not change before the commit.

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
    charge, has_room = 0, True
    for phases, plan in plans:
        plan.put_op = phases.kept_records(plan)
        plan.records, placed, charged = _allocate_table(place, heap, plan, tail)
        has_room = has_room and placed == len(plan.records)
        charge += charged
    may_be_full = charge and heap.charged + charge > heap.charged_max
    if (may_be_full or not has_room) and (refused := _refused(place, heap, batch, plans)):
        raise DoesNotFitError(dict.fromkeys(refused, heap_full(heap)))
    if not has_room:
        raise _no_room(heap, batch, plans)
    segments = {segment: None for _, plan in plans for segment in plan.records.segments}
    return Allocation(Tail(int(tail[0]), int(tail[1])), tuple(segments))


def _allocate_table(place: Processor, heap: Heap, plan: Plan, tail: U64) -> tuple[Records, int, int]:
    """Allocate the records of a table behind the tail; return them, how many have room, and what these are charged."""
    op = place.download(plan.put_op)
    nothing = np.empty(0, np.uint64)
    if len(op) == 0:
        return Records(op, nothing, 0, nothing), 0, 0
    reference = place.result_column(len(op), np.uint64)
    parts = int(segments_of(_units_of(plan, op), heap.segment_units).sum(dtype=np.uint64))
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
        tail=tail,
        reference=reference,
        filled=filled,
        placed=placed,
    )
    records, units, segments, charged = placed.tolist()
    return Records(op, reference, units, filled[: FILLED_WORDS * segments]), records, charged


def _units_of(plan: Plan, op: U32) -> U64:
    """Return what the records of SETs take."""
    return record_units(plan.host_key_lengths[op], plan.host_value_lengths[op])


def _no_room(heap: Heap, batch: Batch, plans: _Writers) -> NoRoomError:
    """Return what a batch lacks whose records find no room."""
    request = [plan.numbers[request_of_op(plan.batch)[plan.records.op]] for _, plan in plans]
    units = [_units_of(plan, plan.records.op) for _, plan in plans]
    return NoRoomError.of(heap, len(batch.request_ops), np.concatenate(request), np.concatenate(units))


def _refused(place: Processor, heap: Heap, batch: Batch, plans: _Writers) -> list[int]:
    """Return the requests that would raise the charge above its limit, taken in arrival order."""
    chain, request, charge, held = [], [], [], []
    chains = 0
    for phases, plan in plans:
        if not phases.table.index.has_records:
            continue
        write, write_chain, change = _writes_of_chains(place, plan)
        stays = change == ChangeKind.PUT.value
        chain.append(write_chain + np.uint32(chains))
        request.append(plan.numbers[request_of_op(plan.batch)[write]].astype(np.uint32))
        charge.append(charge_of(_units_of(plan, write), heap.segment_units) * stays)
        held.append(_held_charges(place, heap, plan))
        chains += len(plan.chains)
    room = heap.charged_max - heap.charged
    left = np.zeros(chains, np.uint64)  # what each chain is charged in the end
    left[np.concatenate(chain)] = np.concatenate(charge)
    gained = int(left.sum()) - int(np.concatenate(held)[np.unique(np.concatenate(chain))].sum())
    if gained <= max(room, 0):
        return []  # all together, they need no more than there is
    arrival = np.argsort(np.concatenate(request), kind="stable")
    refused = np.zeros(len(batch.request_ops), np.uint8)
    place.launch(
        "admit_records",
        1,
        writes=len(arrival),
        write_chain=np.concatenate(chain)[arrival],
        write_request=np.concatenate(request)[arrival],
        write_charge=np.concatenate(charge)[arrival],
        room=room % (1 << 64),
        held=np.concatenate(held),
        before=np.empty(len(arrival), np.uint64),
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
