// Where new records go: the one allocator, for both planners.
//
// Records are appended behind the tail, in arrival order. A record never crosses the end of a segment. The next segment
// is the next one in which nothing is live. When the search comes back to where it began, the heap is full. What a batch
// frees is free for the next batch only (I7).
#pragma once
#include "live_units.cuh"

// The tail of the heap while a batch is planned: three words, which several tables of one batch pass on.
struct Tail {
    u64 segment, units;
    u64 begin;  // the segment in which the batch began
};

// What the records of one table take of each segment: pairs of a segment and units.
struct Filled {
    u64* pairs;
    u64 count;

    void add(u64 segment, u64 units) {
        if (!count || pairs[2 * count - 2] != segment) {
            pairs[2 * count] = segment;
            pairs[2 * count + 1] = 0;
            count++;
        }
        pairs[2 * count - 1] += units;
    }
};

// Finds room for a record of so many units; returns its reference, or NO_RECORD if the heap is full.
template <class Args>
static u64 append_record(const Args& a, Tail& tail, Filled& filled, u64 units) {
    if (tail.units + units > a.segment_units) {
        u64 segment = tail.segment;
        do segment = (segment + 1) % a.segments;
        while (segment != tail.begin && a.live_units[segment]);
        if (segment == tail.begin) return NO_RECORD;
        tail.segment = segment;
        tail.units = 0;
    }
    const u64 reference = make_reference(tail.segment * a.segment_units + tail.units, units);
    filled.add(tail.segment, units);
    tail.units += units;
    return reference;
}

// allocate: room for the records of one table. `placed` gets the number of records that have room, the units of all of
// them, and the number of pairs.
#define ALLOCATE_ARGS(F)                                                                    \
    SEGMENTS_ARGS(F) F(u64, records) F(const u32*, put_op) F(const u32*, key_lengths) F(const u32*, value_lengths) \
    F(u64*, tail) F(u64*, reference) F(u64*, filled) F(u64*, placed)

GPKVS_SERIAL_KERNEL(allocate, ALLOCATE_ARGS) {
    Tail& tail = ((Tail*)a.tail)[i];
    Filled filled = {a.filled, 0};
    u64 record = 0, units = 0;
    for (; record < a.records; record++) {
        const u32 op = a.put_op[record];
        const u64 length = record_units(a.key_lengths[op], a.value_lengths[op]);
        a.reference[record] = append_record(a, tail, filled, length);
        if (a.reference[record] == NO_RECORD) break;
        units += length;
    }
    a.placed[0] = record;
    a.placed[1] = units;
    a.placed[2] = filled.count;
}
