// Where new records go: the one allocator, for both planners.
//
// Records are appended behind the tail, in arrival order. A record never crosses the end of a segment, nor that of the
// heap, which may end inside its last segment. The next segment is the next one in which nothing is live. When the search
// comes back to where it began, the heap is full. What a batch frees is free for the next batch only (I7).
#pragma once
#include "live_units.cuh"

// The tail of the heap while a batch is planned: three words, which several tables of one batch pass on.
struct Tail {
    u64 segment, units;
    u64 begin;  // the segment in which the batch began
};

// Appends the records of one table. What they take of each segment goes to `filled`: pairs of a segment and units.
//
// A planner keeps it in a local variable: then a compiler keeps it in registers, whatever a loop stores.
template <class Args>
class Appender {
  public:
    Appender(const Args& args, Tail tail, u64* filled)
        : a(args), tail_(tail), from_(tail.units), end_(end_of(tail.segment)), filled_(filled) {}

    // Finds room for a record of so many units; returns its reference, or NO_RECORD if the heap is full.
    u64 append(u64 units) {
        while (tail_.units + units > end_)
            if (!next_segment()) return NO_RECORD;
        const u64 reference = make_reference(tail_.segment * a.segment_units + tail_.units, units);
        tail_.units += units;
        return reference;
    }

    // Ends a table: returns the tail after it.
    Tail end() {
        fill();
        return tail_;
    }
    u64 pairs() const { return pairs_; }

  private:
    bool next_segment() {
        u64 segment = tail_.segment;
        do segment = (segment + 1) % a.segments;
        while (segment != tail_.begin && a.live_units[segment]);
        if (segment == tail_.begin) return false;
        fill();
        tail_.segment = segment;
        tail_.units = from_ = 0;
        end_ = end_of(segment);
        return true;
    }

    // Units of a segment that there are.
    u64 end_of(u64 segment) const {
        const u64 rest = a.heap_bytes / UNIT_BYTES - segment * a.segment_units;
        return rest < a.segment_units ? rest : a.segment_units;
    }

    void fill() {
        if (tail_.units == from_) return;
        filled_[2 * pairs_] = tail_.segment;
        filled_[2 * pairs_ + 1] = tail_.units - from_;
        pairs_++;
    }

    const Args& a;
    Tail tail_;
    u64 from_;  // where this table's records begin in the segment
    u64 end_;   // of the segment
    u64* filled_;
    u64 pairs_ = 0;
};

// allocate: room for the records of one table. `placed` gets the number of records that have room, the units of all of
// them, and the number of pairs.
#define ALLOCATE_ARGS(F)                                                                    \
    SEGMENTS_ARGS(F) F(u64, heap_bytes) F(u64, records) F(const u32*, put_op) F(const u32*, key_lengths)               \
    F(const u32*, value_lengths) F(u64*, tail) F(u64*, reference) F(u64*, filled) F(u64*, placed)

GPKVS_SERIAL_KERNEL(allocate, ALLOCATE_ARGS) {
    Tail& tail = ((Tail*)a.tail)[i];
    Appender<allocate_args> appender(a, tail, a.filled);
    u64 record = 0, units = 0;
    for (; record < a.records; record++) {
        const u32 op = a.put_op[record];
        const u64 length = record_units(a.key_lengths[op], a.value_lengths[op]);
        const u64 reference = appender.append(length);
        if (reference == NO_RECORD) break;
        a.reference[record] = reference;
        units += length;
    }
    tail = appender.end();
    a.placed[0] = record;
    a.placed[1] = units;
    a.placed[2] = appender.pairs();
}
