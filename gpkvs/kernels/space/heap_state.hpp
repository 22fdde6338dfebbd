// What the allocator and the committers must know of the heap beside its segments: one array of words, which the host
// makes and native code changes in place (gpkvs/engine/state/heap.py).
#pragma once
#include "base/live_units.cuh"

static const u64 NO_SEGMENT = ~0ull;

enum HeapState {
    HEAP_RESERVE,        // free segments that only compaction takes
    HEAP_SURVIVORS,      // the segment that compaction appends to, or NO_SEGMENT
    HEAP_CHARGED,        // units that all records are charged
    HEAP_CHARGED_MAX,    // with more, only writes are accepted that do not raise it
    HEAP_CLOCK,          // units that users' records have taken so far
    HEAP_UNITS,          // of the heap, which may end inside its last segment
    HEAP_RUN,            // so many free segments must stay neighbours; 0: none must
    HEAP_TAIL_SEGMENT,   // where the next record goes
    HEAP_TAIL_UNITS,
    HEAP_STATE_WORDS
};

#define HEAP_ARGS(F) CHARGED_ARGS(F) F(u64*, ends) F(u64*, stamps) F(u64*, heap_state)

// What a table's records take of a segment: the segment, units, what is charged, and the end of the last one.
static const u64 FILLED_WORDS = 4;

// Free segments that are neighbours: `first` to `end - 1`.
struct Run {
    u64 first, end;
    u64 count() const { return end - first; }
};

// Units of a segment that there are.
static inline u64 segment_end(u64 segment, u64 segment_units, u64 heap_units) {
    const u64 rest = heap_units - segment * segment_units;
    return rest < segment_units ? rest : segment_units;
}

static inline bool is_charge_accepted(const u64* heap_state, u64 gained, u64 lost) {
    return gained <= lost || heap_state[HEAP_CHARGED] + (gained - lost) <= heap_state[HEAP_CHARGED_MAX];
}
