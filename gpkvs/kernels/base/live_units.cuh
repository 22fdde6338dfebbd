// How much of each segment of the heap is live, and what its records are charged.
#pragma once
#include "base/layout.cuh"

#define SEGMENTS_ARGS(F) F(u64, segment_units) F(u64, segments) F(u64*, live_units)
#define CHARGED_ARGS(F) SEGMENTS_ARGS(F) F(u64*, charged_units)

// What a record is charged: its units, if they are few; else its share of a segment that holds no more of its size. A long
// record, which is longer than a segment, has neighbouring segments of its own and is charged all of them.
static const u64 CHARGED_AS_IT_IS = 16;  // records that fit a segment so often

GPKVS_DEVICE u64 segments_of(u64 units, u64 segment_units) { return (units + segment_units - 1) / segment_units; }

GPKVS_DEVICE u64 record_charge(u64 units, u64 segment_units) {
    if (units * CHARGED_AS_IT_IS <= segment_units) return units;
    if (units > segment_units) return segments_of(units, segment_units) * segment_units;
    return segment_units / (segment_units / units);
}

// The part of a record that a segment has. A record that is not long has one part.
struct RecordPart {
    u64 segment, units, charge;
    u64 end;  // of the last record in the segment: `long_part_end` of a long one
};

// What is counted as the end of a segment that has the part `number` of a long record. It is behind the segment, so nobody
// finds room there, and compaction finds where the record begins.
GPKVS_DEVICE u64 long_part_end(u64 number, u64 segment_units) { return segment_units + 1 + number; }

// How many parts a reference has; 0 if it leaves the heap, or no long record can be there: a damaged one must not count,
// neither when it is found nor when it is freed.
template <class Args>
GPKVS_DEVICE u64 count_parts(const Args& a, u64 reference) {
    const u64 segment = reference_offset(reference) / a.segment_units, units = reference_length(reference);
    if (units <= a.segment_units) return segment < a.segments;
    if (!is_in_segments(reference_offset(reference) % a.segment_units, units, a.segment_units)) return 0;
    const u64 parts = segments_of(units, a.segment_units);
    return segment + parts <= a.segments ? parts : 0;
}

template <class Args>
GPKVS_DEVICE RecordPart part_of(const Args& a, u64 reference, u64 number) {
    const u64 first = reference_offset(reference) / a.segment_units, units = reference_length(reference);
    if (units <= a.segment_units) {
        const u64 end = reference_offset(reference) % a.segment_units + units;
        return {first, units, record_charge(units, a.segment_units), end < a.segment_units ? end : a.segment_units};
    }
    const u64 left = units - number * a.segment_units;
    return {first + number, left < a.segment_units ? left : a.segment_units, a.segment_units,
            long_part_end(number, a.segment_units)};
}

template <class Args>
GPKVS_DEVICE void count_reference(const Args& a, u64 reference) {
    const u64 parts = count_parts(a, reference);
    for (u64 number = 0; number < parts; number++) {
        const RecordPart part = part_of(a, reference, number);
        atomic_add(a.live_units + part.segment, part.units);
        atomic_add(a.charged_units + part.segment, part.charge);
    }
}
