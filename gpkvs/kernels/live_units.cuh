// How much of each segment of the heap is live.
#pragma once
#include "layout.cuh"

#define SEGMENTS_ARGS(F) F(u64, segment_units) F(u64, segments) F(u64*, live_units)

// Where the units of a reference count. Returns nullptr if the reference leaves the heap: a damaged one must not count,
// neither when it is found nor when it is freed.
template <class Args>
GPKVS_DEVICE u64* live_units_of(const Args& a, u64 reference) {
    const u64 segment = reference_offset(reference) / a.segment_units;
    return segment < a.segments ? a.live_units + segment : nullptr;
}

template <class Args>
GPKVS_DEVICE void count_reference(const Args& a, u64 reference) {
    if (u64* live_units = live_units_of(a, reference)) atomic_add(live_units, reference_length(reference));
}
