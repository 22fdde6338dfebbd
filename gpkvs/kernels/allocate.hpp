// Where new records go: the one allocator, for both planners.
//
// Records are appended behind the tail, in arrival order. A record never crosses the end of a segment, nor that of the
// heap, which may end inside its last segment. The next segment is the next one in which nothing is live, but the last
// ones that are free are left to compaction. What a batch frees is free for the next batch only (I7).
#pragma once
#include "heap_state.hpp"

// The tail of the heap while a batch is planned, which several tables of one batch pass on.
struct Tail {
    u64 segment, units;
    u64 begin;  // the segment in which the batch began
    u64 takes;  // free segments that the batch may still take; UNCOUNTED at first
};
static const u64 UNCOUNTED = ~0ull;

// Appends the records of one table. What they take of each segment goes to `filled` (FILLED_WORDS for each).
//
// A planner keeps it in a local variable: then a compiler keeps it in registers, whatever a loop stores.
template <class Args>
class Appender {
  public:
    Appender(const Args& args, Tail tail, u64* filled)
        : a(args), tail_(tail), from_(tail.units), end_(end_of(tail.segment)), filled_(filled) {}

    // Finds room for a record of so many units; returns its reference, or NO_RECORD if there is none.
    u64 append(u64 units) {
        while (tail_.units + units > end_)
            if (!next_segment()) return NO_RECORD;
        const u64 reference = make_reference(tail_.segment * a.segment_units + tail_.units, units);
        tail_.units += units;
        charge_ += record_charge(units, a.segment_units);
        return reference;
    }

    // Ends a table: returns the tail after it.
    Tail end() {
        fill();
        return tail_;
    }
    u64 segments_filled() const { return filled_count_; }
    u64 charged() const { return charged_; }

  private:
    bool is_free(u64 segment) const { return !a.live_units[segment] && segment != a.heap_state[HEAP_SURVIVORS]; }

    // How many free segments the batch may take.
    u64 count_takes() const {
        u64 free = 0;
        for (u64 segment = 0; segment < a.segments; segment++) free += segment != tail_.begin && is_free(segment);
        return free > a.heap_state[HEAP_RESERVE] ? free - a.heap_state[HEAP_RESERVE] : 0;
    }

    bool next_segment() {
        if (tail_.takes == UNCOUNTED) tail_.takes = count_takes();
        if (!tail_.takes) return false;
        u64 segment = tail_.segment;
        do segment = (segment + 1) % a.segments;
        while (segment == tail_.begin || !is_free(segment));
        fill();
        tail_.takes--;
        tail_.segment = segment;
        tail_.units = from_ = 0;
        end_ = end_of(segment);
        return true;
    }

    u64 end_of(u64 segment) const { return segment_end(segment, a.segment_units, a.heap_state[HEAP_UNITS]); }

    void fill() {
        if (tail_.units == from_) return;
        u64* const filled = filled_ + FILLED_WORDS * filled_count_++;
        filled[0] = tail_.segment;
        filled[1] = tail_.units - from_;
        filled[2] = charge_;
        filled[3] = tail_.units;
        charged_ += charge_;
        charge_ = 0;
    }

    const Args& a;
    Tail tail_;
    u64 from_;  // where this table's records begin in the segment
    u64 end_;   // of the segment
    u64* filled_;
    u64 filled_count_ = 0;
    u64 charge_ = 0, charged_ = 0;  // of this segment's records, and of those before
};

// allocate: room for the records of one table. `placed` gets the number of records that have room, the units of all of
// them, the number of segments filled, and what is charged.
#define ALLOCATE_ARGS(F)                                                                    \
    SEGMENTS_ARGS(F) F(const u64*, heap_state) F(u64, records) F(const u32*, put_op)        \
    F(const u32*, key_lengths) F(const u32*, value_lengths)                                 \
    F(u64*, tail) F(u64*, reference) F(u64*, filled) F(u64*, placed)

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
    a.placed[2] = appender.segments_filled();
    a.placed[3] = appender.charged();
}
