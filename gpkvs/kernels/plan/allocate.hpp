// Where new records go: the one allocator, for both planners.
//
// Records are appended behind the tail, in arrival order. A record that is not long never crosses the end of a segment, nor
// that of the heap, which may end inside its last segment. The next segment is the first one in which nothing is live. A
// long record begins a segment, and takes it and its neighbours: the last ones that are free. So long records and others
// gather at two ends of the heap. The last free segments are left to compaction, among them a run of neighbours, with
// which it makes room for long records. What a batch frees is free for the next batch only (I7).
#pragma once
#include "space/heap_state.hpp"

// The tail of the heap while a batch is planned.
struct Tail {
    u64 segment, units;
    u64 begin;  // the segment in which the batch began
    u64 takes;  // free segments that the batch may still take; UNCOUNTED at first
    u64 low, high;  // the batch has taken what was free outside these: below for the tail, above for long records
    Run kept;   // what is left of the longest run of free segments: HEAP_RUN of them stay free
};
static const u64 UNCOUNTED = ~0ull;
static inline Tail tail_at(u64 segment, u64 units) { return {segment, units, segment, UNCOUNTED, 0, 0, {0, 0}}; }

// Appends the records of a batch. What they take of each segment goes to `filled` (FILLED_WORDS for each).
//
// A planner keeps it in a local variable: then a compiler keeps it in registers, whatever a loop stores.
template <class Args>
class Appender {
  public:
    Appender(const Args& args, Tail tail, u64* filled)
        : a(args), tail_(tail), from_(tail.units), end_(end_of(tail.segment)), filled_(filled) {}

    // Finds room for a record of so many units; returns its reference, or NO_RECORD if there is none.
    u64 append(u64 units) {
        if (units > a.segment_units) return append_long(units);
        while (tail_.units + units > end_)
            if (!next_segment()) return NO_RECORD;
        const u64 reference = make_reference(tail_.segment * a.segment_units + tail_.units, units);
        tail_.units += units;
        charge_ += record_charge(units, a.segment_units);
        return reference;
    }

    // Returns the tail behind all of them.
    Tail end() {
        fill();
        return tail_;
    }
    u64 segments_filled() const { return filled_count_; }
    u64 charged() const { return charged_; }

  private:
    bool is_free(u64 segment) const {
        return !a.live_units[segment] && segment != a.heap_state[HEAP_SURVIVORS] && segment != tail_.begin;
    }
    bool is_whole(u64 segment) const { return end_of(segment) == a.segment_units; }

    // Looks how many free segments the batch may take, and where the longest run of them is.
    void count_free() {
        u64 free = 0;
        Run run = {0, 0};
        for (u64 segment = 0; segment < a.segments; segment++) {
            if (!is_free(segment)) continue;
            free++;
            if (!is_whole(segment)) continue;
            if (run.end != segment) run.first = segment;
            run.end = segment + 1;
            if (run.count() > tail_.kept.count()) tail_.kept = run;
        }
        tail_.takes = free > a.heap_state[HEAP_RESERVE] ? free - a.heap_state[HEAP_RESERVE] : 0;
        tail_.high = a.segments;
    }

    // Whether so many segments of the run that is kept may be taken.
    bool may_shorten(u64 count) const { return tail_.kept.count() >= a.heap_state[HEAP_RUN] + count; }

    bool next_segment() {
        if (tail_.takes == UNCOUNTED) count_free();
        if (!tail_.takes) return false;
        Run& kept = tail_.kept;
        for (u64 segment = tail_.low; segment < tail_.high; segment++) {
            if (!is_free(segment)) continue;
            if (kept.first <= segment && segment < kept.end) {
                // Where no run is long enough, nothing is gained by keeping it.
                if (kept.count() >= a.heap_state[HEAP_RUN] && !may_shorten(1)) continue;
                kept.first = segment + 1;
            }
            fill();
            tail_.takes--;
            tail_.low = segment + 1;
            tail_.segment = segment;
            tail_.units = from_ = 0;
            end_ = end_of(segment);
            return true;
        }
        return false;
    }

    u64 append_long(u64 units) {
        if (tail_.takes == UNCOUNTED) count_free();
        const u64 count = segments_of(units, a.segment_units);
        const u64 first = count <= tail_.takes ? find_run(units, count) : NO_SEGMENT;
        if (first == NO_SEGMENT) return NO_RECORD;
        tail_.takes -= count;
        tail_.high = first;
        if (tail_.kept.end > first) tail_.kept.end = first > tail_.kept.first ? first : tail_.kept.first;
        const u64 reference = make_reference(first * a.segment_units, units);
        for (u64 number = 0; number < count; number++) {
            const RecordPart part = part_of(a, reference, number);
            add_filled(part.segment, part.units, part.charge, part.end);
        }
        return reference;
    }

    // Returns where the last run begins that a long record may take.
    u64 find_run(u64 units, u64 count) const {
        const Run& kept = tail_.kept;
        u64 free = 0;  // segments in a row
        for (u64 segment = tail_.high; segment-- > tail_.low;) {
            // Of the run that is kept, the last ones are taken.
            if (kept.count() && segment + 1 == kept.end && !may_shorten(count)) {
                segment = kept.first;
                free = 0;
                continue;
            }
            if (free == 0 && is_free(segment) && units - (count - 1) * a.segment_units <= end_of(segment)) free = 1;
            else free = free && is_free(segment) ? free + 1 : 0;
            if (free == count) return segment;
        }
        return NO_SEGMENT;
    }

    u64 end_of(u64 segment) const { return segment_end(segment, a.segment_units, a.heap_state[HEAP_UNITS]); }

    void add_filled(u64 segment, u64 units, u64 charge, u64 end) {
        u64* const filled = filled_ + FILLED_WORDS * filled_count_++;
        filled[0] = segment;
        filled[1] = units;
        filled[2] = charge;
        filled[3] = end;
        charged_ += charge;
    }

    void fill() {
        if (tail_.units == from_) return;
        add_filled(tail_.segment, tail_.units - from_, charge_, tail_.units);
        charge_ = 0;
    }

    const Args& a;
    Tail tail_;
    u64 from_;  // where its records begin in the segment
    u64 end_;   // of the segment
    u64* filled_;
    u64 filled_count_ = 0;
    u64 charge_ = 0, charged_ = 0;  // of this segment's records, and of those that are filled in
};

// allocate: room for the records of a batch. `placed` gets the number of records that have room, the units of all of
// them, the number of segments filled, and what is charged.
#define ALLOCATE_ARGS(F)                                                                    \
    SEGMENTS_ARGS(F) F(const u64*, heap_state) F(u64, records) F(const u32*, put_op)        \
    F(const u32*, key_lengths) F(const u32*, value_lengths) F(const u64*, expiries) F(u64, record_format) \
    F(u64*, tail) F(u64*, reference) F(u64*, filled) F(u64*, placed)

GPKVS_SERIAL_KERNEL(allocate, ALLOCATE_ARGS) {
    Tail& tail = ((Tail*)a.tail)[i];
    Appender<allocate_args> appender(a, tail, a.filled);
    u64 record = 0, units = 0;
    for (; record < a.records; record++) {
        const u32 op = a.put_op[record];
        const u64 length = units_of_op(a, op);
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
