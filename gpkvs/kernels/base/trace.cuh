// The traced build: what every thread stores to PM, writes back and fences, in one sequence, for `gpkvs crash`.
//
// A kernel runs as on a GPU: its items are dealt to logical threads by a grid's stride, each thread ends with its own
// fence, and the seed permutes the threads. Kernels run in one real thread: the CPU backend must have one. But threads of
// the host may write and sync files beside it, so events are added one at a time.
#pragma once
#include <sys/stat.h>
#include <mutex>
#include <vector>

static const u64 TRACE_BLOCK_BITS = 20;

enum TraceKind : u64 { TRACE_STORE, TRACE_WRITE_BACK, TRACE_FENCE, TRACE_LAUNCH, TRACE_NOTE, TRACE_SYNC, TRACE_BARRIER };

struct TraceEvent {
    u64 kind, thread;  // thread 0 is the host; a kernel's threads have numbers of their own, those of a block one above the
                       // other from (number of the block << TRACE_BLOCK_BITS) on
    u64 at, word;      // an address and what was stored there; a launch: the kernel's name, or that of a store of the host;
                       // a note: its number; a sync of a mapped file: where in the source, and the file's inode
};

struct TraceState {
    std::mutex adds;
    std::vector<TraceEvent> events;
    bool on = false;
    u64 seed = 0, thread_items = 1, thread = 0, threads = 0;
};
static TraceState trace_own;
// Kernels of a user (gpm.cuh) are another library: they add to the trace of this one.
static TraceState* trace = &trace_own;

static inline void trace_add(u64 kind, u64 at, u64 word) {
    if (!trace->on) return;
    std::lock_guard<std::mutex> lock(trace->adds);
    if (trace->on) trace->events.push_back({kind, trace->thread, at, word});
}
#define GPKVS_TRACED(kind, at, word) trace_add(kind, at, word)

static inline void trace_sync(const char* site, u64 file) {
    struct stat found;
    if (fstat((int)file, &found) == 0) trace_add(TRACE_SYNC, (u64)site, found.st_ino);
}
#define GPKVS_TRACED_SYNC(site, file) trace_sync(site, file)

static inline u64 trace_random() {  // SplitMix64
    u64 z = trace->seed += 0x9E3779B97F4A7C15ull;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

// The order in which the threads of a launch run.
static inline std::vector<u64> trace_order(u64 threads) {
    std::vector<u64> order(threads);
    for (u64 t = 0; t < threads; t++) order[t] = t;
    for (u64 t = threads; t > 1; t--) std::swap(order[t - 1], order[trace_random() % t]);
    return order;
}

// How many threads share a kernel's items.
static inline u64 trace_threads_for(u64 items) {
    return trace->on ? (items + trace->thread_items - 1) / trace->thread_items : 1;
}

#define GPKVS_ITEMS(name, soon, AT_END)                                                       \
    const u64 threads = trace_threads_for(last - first);                                \
    trace_add(TRACE_LAUNCH, (u64)#name, 0);                                             \
    for (u64 t : trace_order(threads)) {                                                \
        trace->thread = ++trace->threads;                                                 \
        for (u64 i = first + t; i < last; i += threads) name##_lane(a, i);              \
        AT_END;                                                                         \
    }                                                                                   \
    trace->thread = 0;

extern "C" {

// Starts a new trace; every logical thread of a kernel takes `thread_items` items.
inline __attribute__((used)) void gpkvs_trace_begin(u64 seed, u64 thread_items) {
    std::lock_guard<std::mutex> lock(trace->adds);
    trace->events.clear();
    trace->seed = seed;
    trace->thread_items = thread_items;
    trace->threads = 0;
    trace->on = true;
}

// Ends it and returns the events, which stay until the next one begins.
inline __attribute__((used)) const TraceEvent* gpkvs_trace_end(u64* count) {
    std::lock_guard<std::mutex> lock(trace->adds);
    trace->on = false;
    *count = trace->events.size();
    return trace->events.data();
}

// What the host did itself, in the same sequence.
inline __attribute__((used)) void gpkvs_trace_note(u64 number) { trace_add(TRACE_NOTE, 0, number); }

}  // extern "C"
