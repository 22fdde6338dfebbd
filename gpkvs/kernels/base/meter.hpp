// What the engine counts about itself: an array of words, which the host makes and native code adds to
// (gpkvs/engine/seam/meter.py).
#pragma once
#include <time.h>

#include "engine_batch.h"
#include "base/platform.cuh"

enum MeterWord {
    METER_TRANSACTIONS,
    METER_COMMITS,
    METER_USER_BYTES,
    METER_HEAP_BYTES,
    METER_LOG_BYTES,
    METER_INDEX_BYTES,
    METER_ROOT_BYTES,
    METER_LAST,  // when the last phase ended, in nanoseconds
    METER_LAST_LEFT,  // why the native engine left a batch, until Python takes note; or 0
    METER_PLANNED,    // when the last batch was planned, in nanoseconds
    METER_LEFT,       // batches that were left, and those of a GPU, by EngineLeft
    METER_PHASES = METER_LEFT + LEFT_COUNT
};

// Behind them, the nanoseconds of each phase.
enum Phase {
    PHASE_RESOLVE,
    PHASE_PLAN,
    PHASE_ROUTE,
    PHASE_ORDER,
    PHASE_FIND,
    PHASE_FOLD,
    PHASE_MEASURE,
    PHASE_PLACE,
    PHASE_STAGE,
    PHASE_RECORD,
    PHASE_LOG,
    PHASE_PERSIST_HEAP,
    PHASE_PERSIST_LOG,
    PHASE_ACTIVE,
    PHASE_APPLY,
    PHASE_PERSIST_INDEX,
    PHASE_IDLE,
    PHASE_REPLY
};

static inline u64 monotonic_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (u64)now.tv_sec * 1000000000 + (u64)now.tv_nsec;
}

// Counts a batch that is left, at the one place that knows why.
static inline EngineRan leave(u64* meter, EngineLeft why) {
    meter[METER_LAST_LEFT] = why;
    meter[METER_LEFT + why]++;
    return ENGINE_LEFT;
}

// Books the time since the last phase ended on a phase.
static inline void end_phase(u64* meter, Phase phase) {
    const u64 now = monotonic_ns();
    meter[METER_PHASES + phase] += now - meter[METER_LAST];
    meter[METER_LAST] = now;
}
