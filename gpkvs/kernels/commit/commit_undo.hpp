// Makes a write set of the host's threads durable, with an undo log and a transaction flag, in one call:
//
//     records, undo log -> (records durable) -> descriptor -> (log and descriptor durable) -> ACTIVE -> (durable)
//     -> slots -> (durable) -> IDLE -> (durable)
//
// docs/design.md names the invariants I1 to I7. A GPU's transactions begin in Python (gpkvs/engine/commit/undo_committer.py), and end
// beside the next plan (flight.hpp).
#pragma once
#include <algorithm>

#include "commit/commit.hpp"

// The flag, epochs and descriptors of a store (gpkvs/media/transaction.py).
struct Transaction {
    u64 incarnation, counter;
    u64 copy;  // of the two places of descriptors, the one of `current`
    Descriptor current;
};

class Flight;

#define COMMIT_UNDO_OWN(F)                                                                  \
    F(Transaction*, transaction) F(u64*, flag) F(u64, is_logged) F(u64, syncs) F(u64, reads_ahead) \
    F(u64, heap_file) F(u64, log_file) F(u64, root_file) F(Flight*, flight)

#define COMMIT_UNDO_FIELDS(F) COMMIT_FIELDS(F) COMMIT_UNDO_OWN(F)

struct CommitUndo : Commit {
    COMMIT_UNDO_OWN(GPKVS_FIELD)
};

enum FlagState : u64 { FLAG_IDLE = 1, FLAG_ACTIVE = 2 };

static const u64 EPOCH_BITS = 46, COUNTER_BITS = 24;
static const u64 DESCRIPTOR_OFFSETS[2] = {0, PAGE_BYTES};
static const u64 LOG_ENTRIES_OFFSET = 2 * PAGE_BYTES;
static const u64 FLAG_BYTES = 2 * 8;  // ACTIVE and IDLE

// One aligned word: a checksum (CRC16 of the CCITT, from all ones), state and epoch.
static u64 pack_flag(FlagState state, u64 epoch) {
    const u64 body = (u64)state << EPOCH_BITS | epoch;
    u32 crc = 0xFFFF;
    for (u32 byte = 0; byte < 6; byte++) {
        crc ^= (u32)(body >> (8 * byte) & 0xFF) << 8;
        for (u32 bit = 0; bit < 8; bit++) crc = (crc << 1 ^ (crc & 0x8000 ? 0x1021 : 0)) & 0xFFFF;
    }
    return body << 16 | crc;
}

// A store of the host, then a fence.
static void store_words(const char* site, u64* to, const u64* from, u64 words) {
    GPKVS_TRACED(TRACE_LAUNCH, (u64)site, 0);
    for (u64 w = 0; w < words; w++) pm_store(to + w, from[w]);
    pm_persist();
    (void)site;
}

// Makes all earlier stores to a file durable. In other domains, the fence that ends each kernel and store already has.
static void persist_file(const CommitUndo& c, const char* site, u64 file) {
    if (!c.syncs) return;
    while (fdatasync((int)file))
        if (errno != EINTR) end_after_failed_write("a transaction could not be completed: a flush of the store", errno);
    GPKVS_TRACED_SYNC(site, file);
    (void)site;
}

static const u64 READ_AHEAD_BYTES = 128 << 10;  // of one call: the system takes no more than a device's usual read-ahead

// Begins to read the segments of a disk's heap that get their first records now: others were there before. A store would
// wait for each page. The tail's segment was read when it became that.
static void read_ahead(const CommitUndo& c) {
    if (!c.reads_ahead) return;
    for (u64 t = 0; t < c.table_count; t++) {
        const TableWrites& w = *c.tables[t];
        const u64 segment_bytes = w.segment_units * UNIT_BYTES;
        for (u64 i = 0; i < w.filled; i++) {
            const u64 segment = w.filled_segment[FILLED_WORDS * i];
            if (segment == c.heap_state[HEAP_TAIL_SEGMENT]) continue;
            for (u64 at = 0; at < segment_bytes; at += READ_AHEAD_BYTES)
                posix_fadvise((int)c.heap_file, segment * segment_bytes + at, std::min(READ_AHEAD_BYTES, segment_bytes - at),
                              POSIX_FADV_WILLNEED);
        }
    }
}

// Stores the undo log; returns the digest of all its entries.
static u64 store_undo_log(const CommitUndo& c, u64 epoch) {
    u64* log = (u64*)(c.log + LOG_ENTRIES_OFFSET);
    u64 digest = 0;
    for (u64 t = 0; t < c.table_count; t++) {
        TableWrites& w = *c.tables[t];
        w.epoch = epoch;
        w.log = log;
        run_in_halves(*c.failpoint, "mid_log", w.slots, [&](u64 first, u64 last) {
            if (has_records_in(w)) store_log_run<BytesSlot>(&w, first, last);
            else store_log_run<U64Slot>(&w, first, last);
        });
        digest += w.log_digest;
        log += run_words(w.slots, w.entry_bytes);
    }
    return digest;
}

static void commit_undo(CommitUndo& c) {
    Failpoint& failpoint = *c.failpoint;
    Transaction& transaction = *c.transaction;
    const u64 epoch = transaction.incarnation << COUNTER_BITS | ++transaction.counter;
    read_ahead(c);
    failpoint.hit("before_record");
    for (u64 t = 0; t < c.table_count; t++) {
        TableWrites& w = *c.tables[t];
        if (!w.records) continue;
        write_blobs(w);
        run_in_halves(failpoint, "mid_record", w.records,
                      [&](u64 first, u64 last) { store_records_run(&w, first, last); });
    }
    end_phase(c.meter, PHASE_RECORD);
    failpoint.hit("before_log");
    Descriptor next = describe(c, transaction.current, epoch, c.is_logged ? store_undo_log(c, epoch) : 0);
    if (c.is_logged) describe_runs(c, RUN_UNDO, next);
    seal(next);
    end_phase(c.meter, PHASE_LOG);
    failpoint.hit("before_descriptor");
    persist_file(c, "sync of heap in commit_undo", c.heap_file);
    for (u64 t = 0; t < c.table_count; t++)
        if (const Blobs* blobs = written_blobs(*c.tables[t])) persist_file(c, "sync of blobs in commit_undo", (u64)blobs->file());
    end_phase(c.meter, PHASE_PERSIST_HEAP);
    store_words("host store of descriptor in commit_undo", (u64*)(c.log + DESCRIPTOR_OFFSETS[1 - transaction.copy]),
                (const u64*)&next, DESCRIPTOR_WORDS);
    failpoint.hit("before_log_persist");
    persist_file(c, "sync of log in commit_undo", c.log_file);
    end_phase(c.meter, PHASE_PERSIST_LOG);
    if (c.is_logged) {
        failpoint.hit("before_active_flag");
        const u64 active = pack_flag(FLAG_ACTIVE, epoch);
        store_words("host store of ACTIVE in commit_undo", c.flag, &active, 1);
        failpoint.hit("before_active_persist");
        persist_file(c, "sync of ACTIVE in commit_undo", c.root_file);
    }
    end_phase(c.meter, PHASE_ACTIVE);
    failpoint.hit("before_apply");
    for (u64 t = 0; t < c.table_count; t++) {
        TableWrites& w = *c.tables[t];
        run_in_halves(failpoint, "mid_apply", w.slots, [&](u64 first, u64 last) {
            if (has_records_in(w)) store_slots_run<BytesSlot>(&w, first, last);
            else store_slots_run<U64Slot>(&w, first, last);
        });
    }
    end_phase(c.meter, PHASE_APPLY);
    failpoint.hit("before_apply_persist");
    for (u64 t = 0; t < c.table_count; t++) persist_file(c, "sync of index in commit_undo", c.tables[t]->index_file);
    end_phase(c.meter, PHASE_PERSIST_INDEX);
    failpoint.hit("before_idle_flag");
    const u64 idle = pack_flag(FLAG_IDLE, epoch);
    store_words("host store of IDLE in commit_undo", c.flag, &idle, 1);
    failpoint.hit("before_idle_persist");
    persist_file(c, "sync of IDLE in commit_undo", c.root_file);
    transaction.current = next;
    transaction.copy = 1 - transaction.copy;
    end_phase(c.meter, PHASE_IDLE);
    free_blobs(c, 0);
    c.gate = 0;  // all that can be read is durable
    count_transaction(c, sizeof next, FLAG_BYTES);
}

static const CommitUndo& undo(const Commit& c) { return static_cast<const CommitUndo&>(c); }

static void commit_undo_run(const void* args, u64, u64) { commit_undo(*(CommitUndo*)args); }

GPKVS_STEP(commit_undo, CommitUndo, COMMIT_UNDO_FIELDS, commit_undo_run, 1);
