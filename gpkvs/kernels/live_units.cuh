// How much of each segment of the heap is live, and what its records are charged.
#pragma once
#include "layout.cuh"

#define SEGMENTS_ARGS(F) F(u64, segment_units) F(u64, segments) F(u64*, live_units)
#define CHARGED_ARGS(F) SEGMENTS_ARGS(F) F(u64*, charged_units)

// What a record is charged: its units, if they are few; else its share of a segment that holds no more of its size.
static const u64 CHARGED_AS_IT_IS = 16;  // records that fit a segment so often

GPKVS_DEVICE u64 record_charge(u64 units, u64 segment_units) {
    if (units * CHARGED_AS_IT_IS <= segment_units || units > segment_units) return units;
    return segment_units / (segment_units / units);
}

// Where the units of a reference count. Returns nullptr if the reference leaves the heap: a damaged one must not count,
// neither when it is found nor when it is freed.
template <class Args>
GPKVS_DEVICE u64* live_units_of(const Args& a, u64 reference) {
    const u64 segment = reference_offset(reference) / a.segment_units;
    return segment < a.segments ? a.live_units + segment : nullptr;
}

template <class Args>
GPKVS_DEVICE void count_reference(const Args& a, u64 reference) {
    u64* const live_units = live_units_of(a, reference);
    if (!live_units) return;
    const u64 units = reference_length(reference);
    atomic_add(live_units, units);
    atomic_add(a.charged_units + (live_units - a.live_units), record_charge(units, a.segment_units));
}
