// What the committers share: the transaction that they are given, its descriptor, and how it is counted.
#pragma once
#include "base/failpoint.hpp"
#include "base/meter.hpp"
#include "space/write_set.hpp"

// A write set of the host's threads, and what belongs to the store: the table that grows, as the next descriptor says it;
// where the log is, and the words that a batch has for entries. `gate` is what the result waits for, after the commit.
// `time_ms`: the latest time that a batch asked for, which its descriptor keeps; 0: no key may expire.
#define COMMIT_FIELDS(F)                                                                    \
    F(TableWrites**, tables) F(u64, table_count) F(u64, operations) F(u64, tail_segment) F(u64, tail_units) \
    F(u64, growth_table) F(u64, growth_blocks) F(u64, growth_unmoved) F(u8*, log) F(u64, log_words) \
    F(u64, gate) F(u64, time_ms) F(u64*, heap_state) F(u64*, meter) F(Failpoint*, failpoint)

struct Commit {
    COMMIT_FIELDS(GPKVS_FIELD)
};

static const u64 ALL_STABLE = ~0ull;
static const u64 NO_GATE = ~0ull;  // of what could not be committed: there was no memory for it, and nothing has happened

// What the native engine asks of a committer (native_engine.hpp).
struct Committer {
    // LEFT_NOT: it can take a transaction with so many words of entries; else Python has work to do before.
    EngineLeft (*lacks)(const Commit& c, u64 entry_words);
    void (*commit)(Commit& c);  // it leaves the gate, or NO_GATE
    u64 (*next_sequence)(const Commit& c);
    // The gate of what can be read now; records with lower versions than `stable_sequence` are durable, perhaps all.
    u64 (*read_gate)(const Commit& c, u64& stable_sequence);
    u64 (*durable)(const Commit& c);            // the newest durable gate, from any thread
    void (*wait)(const Commit& c, u64 gate);    // returns when a gate is durable, from any thread
    void (*land)(const Commit& c);              // returns when no transaction is being stored beside the batches
};

enum RunKind : u32 { RUN_UNDO = 1, RUN_REDO = 2, RUN_FILL = 3 };

struct LogRun {
    u32 kind, table_id, generation, entry_bytes;
    u64 first_word, count;
};

// D(e), in the undo log or in a frame of the journal (gpkvs/media/layout.py).
struct Descriptor {
    char magic[8];
    u64 epoch, tail_segment, tail_bytes, first_sequence, next_sequence, time_horizon_ms, applied_sequence, log_digest;
    u32 run_count, growth_table, growth_blocks, growth_unmoved;
    LogRun runs[13];
    u64 checksum;
};
static_assert(sizeof(Descriptor) == 512, "a descriptor is 512 bytes");
static const u64 DESCRIPTOR_WORDS = sizeof(Descriptor) / 8;

static inline bool has_records_in(const TableWrites& w) { return w.entry_bytes == sizeof(Entry<BytesSlot>); }

// Words that a run of so many entries takes: whole stripes.
static inline u64 run_words(u64 count, u64 entry_bytes) {
    return (count + STRIPE_ENTRIES - 1) / STRIPE_ENTRIES * STRIPE_ENTRIES * entry_bytes / 8;
}

// Gives each table its run of entries.
static void describe_runs(const Commit& c, RunKind kind, Descriptor& d) {
    u64 first_word = 0;
    for (u64 t = 0; t < c.table_count; t++) {
        const TableWrites& w = *c.tables[t];
        LogRun& run = d.runs[d.run_count++];
        run = {kind, (u32)w.table_id, (u32)w.generation, (u32)w.entry_bytes, first_word, w.slots};
        first_word += run_words(w.slots, w.entry_bytes);
    }
}

// The descriptor of a transaction, without runs and checksum.
static Descriptor describe(const Commit& c, const Descriptor& before, u64 epoch, u64 log_digest) {
    Descriptor d = before;
    d.epoch = epoch;
    d.tail_segment = c.tail_segment;
    d.tail_bytes = c.tail_units * UNIT_BYTES;
    d.first_sequence = before.next_sequence;
    d.next_sequence = before.next_sequence + c.operations;
    d.time_horizon_ms = c.time_ms;
    d.log_digest = log_digest;
    d.run_count = 0;
    d.growth_table = (u32)c.growth_table;
    d.growth_blocks = (u32)c.growth_blocks;
    d.growth_unmoved = (u32)c.growth_unmoved;
    memset(d.runs, 0, sizeof d.runs);
    return d;
}

static void seal(Descriptor& d) {
    u32 crc = ~0u;
    for (u64 w = 0; w < DESCRIPTOR_WORDS - 1; w++) crc = crc32c_word(crc, ((const u64*)&d)[w]);
    d.checksum = (u32)~crc;
}

// Runs over all items at once; in two halves if a test is going to die between them.
template <class Run>
static void run_in_halves(Failpoint& failpoint, const char* name, u64 items, Run run) {
    if (!failpoint.is_next(name)) {
        failpoint.hit(name);
        return run(0, items);
    }
    run(0, items / 2);
    failpoint.hit(name);
    run(items / 2, items);
}

// Takes a committed transaction into account, in the heap, its tables and the meter; cannot fail.
static void count_transaction(const Commit& c, u64 header_bytes, u64 flag_bytes) {
    c.heap_state[HEAP_TAIL_SEGMENT] = c.tail_segment;
    c.heap_state[HEAP_TAIL_UNITS] = c.tail_units;
    u64* meter = c.meter;
    meter[METER_COMMITS]++;
    meter[METER_LOG_BYTES] += header_bytes;
    meter[METER_ROOT_BYTES] += flag_bytes;
    for (u64 t = 0; t < c.table_count; t++) {
        const TableWrites& w = *c.tables[t];
        if (has_records_in(w)) count_live_run(&w, 0, 1);
        w.held->records += w.new_keys - w.removed_keys;
        w.held->expiring += w.new_expiring - w.old_expiring;
        meter[METER_USER_BYTES] += w.user_bytes;
        meter[METER_HEAP_BYTES] += w.heap_units * UNIT_BYTES;
        meter[METER_LOG_BYTES] += w.slots * w.entry_bytes;
        meter[METER_INDEX_BYTES] += w.slots * (w.entry_bytes - 8 * ENTRY_HEADER_WORDS);
    }
}

// After the commit: blobs that it freed, and those of a batch of a journal when its epoch is covered (W6).
static void free_blobs(const Commit& c, u64 epoch) {
    for (u64 t = 0; t < c.table_count; t++)
        if (Blobs* blobs = c.tables[t]->blob_plan) blobs->committed(epoch);
}
