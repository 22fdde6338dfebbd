// Makes a write set of the host's threads durable with a journal, in one call: a frame of new slot contents, and one flush.
//
//     room for the frame -> records written -> entries -> frame handed over -> slots stored to the image
//                                                           |
//                                               written, flushed: durable
//
// docs/design.md names the invariants W1 to W6. A GPU's transactions are committed in the same order from Python
// (gpkvs/engine/commit/journal_committer.py); a test compares the bytes of both.
#pragma once
#include "commit/frames.hpp"
#include "space/waiting_space.hpp"
#include "space/zeroed_space.hpp"

// `pages`: where records are made before they are written.
#define COMMIT_JOURNAL_OWN(F)                                                               \
    F(Frames*, frames) F(WaitingSpace*, waiting_space) F(ZeroedSpace*, zeroed_space) F(u8*, pages) F(u64*, live_units)

#define COMMIT_JOURNAL_FIELDS(F) COMMIT_FIELDS(F) COMMIT_JOURNAL_OWN(F)

struct CommitJournal : Commit {
    COMMIT_JOURNAL_OWN(GPKVS_FIELD)
};

static void write_records(CommitJournal& c) {
    for (u64 t = 0; t < c.table_count; t++) {
        TableWrites& w = *c.tables[t];
        if (!w.records) continue;
        write_blobs(w);
        w.file = c.zeroed_space->file;
        w.heap_offset = c.zeroed_space->offset;
        w.pages = c.pages;
        run_in_halves(*c.failpoint, "mid_record", w.records,
                      [&](u64 first, u64 last) { write_records_run(&w, first, last); });
    }
}

// Stores the entries to a frame; returns the digest of all of them.
static u64 store_redo_entries(CommitJournal& c, u64 epoch, u64* entries) {
    u64 digest = 0;
    for (u64 t = 0; t < c.table_count; t++) {
        TableWrites& w = *c.tables[t];
        w.epoch = epoch;
        w.log = entries;
        run_in_halves(*c.failpoint, "mid_log", w.slots, [&](u64 first, u64 last) {
            if (has_records_in(w)) store_redo_run<BytesSlot>(&w, first, last);
            else store_redo_run<U64Slot>(&w, first, last);
        });
        digest += w.log_digest;
        entries += run_words(w.slots, w.entry_bytes);
    }
    return digest;
}

static void store_images(CommitJournal& c) {
    for (u64 t = 0; t < c.table_count; t++) {
        TableWrites& w = *c.tables[t];
        run_in_halves(*c.failpoint, "mid_apply", w.slots, [&](u64 first, u64 last) {
            if (has_records_in(w)) store_image_run<BytesSlot>(&w, first, last);
            else store_image_run<U64Slot>(&w, first, last);
        });
    }
}

// Where the records of a transaction begin: a tail segment in which nothing is live begins again (`Heap.start`).
static HeapPlace heap_start(const CommitJournal& c) {
    const u64 segment = c.heap_state[HEAP_TAIL_SEGMENT];
    return {segment, c.live_units[segment] ? c.heap_state[HEAP_TAIL_UNITS] : 0};
}

// Has room for a transaction, in memory and in the journal, and waits until there is some; false where there is no memory:
// nothing has happened.
static bool reserve_frame(CommitJournal& c, u64 epoch, FrameMemory& frame) {
    u64 words = 0;
    for (u64 t = 0; t < c.table_count; t++) words += run_words(c.tables[t]->slots, c.tables[t]->entry_bytes);
    const u64 segment_bytes = c.zeroed_space->segment_bytes, heap_bytes = c.heap_state[HEAP_UNITS] * UNIT_BYTES;
    try {
        u64* freed_units = c.waiting_space->begin(epoch, (heap_bytes + segment_bytes - 1) / segment_bytes);
        for (u64 t = 0; t < c.table_count; t++) c.tables[t]->freed_units = freed_units;
        frame = c.frames->reserve(frame_pages(words));
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}

static void commit_journal(CommitJournal& c) {
    Frames& frames = *c.frames;
    Failpoint& failpoint = *c.failpoint;
    std::lock_guard<std::mutex> lock(frames.appending());
    const Descriptor before = frames.last().descriptor;
    const u64 epoch = before.epoch + 1;
    FrameMemory frame;
    c.gate = NO_GATE;
    if (!reserve_frame(c, epoch, frame)) return c.waiting_space->end();
    end_phase(c.meter, PHASE_PERSIST_LOG);  // waiting for room
    c.zeroed_space->prepare(heap_start(c), {c.tail_segment, c.tail_units}, c.heap_state[HEAP_UNITS] * UNIT_BYTES);
    failpoint.hit("before_record");
    write_records(c);
    end_phase(c.meter, PHASE_RECORD);
    for (u64 t = 0; t < c.table_count; t++)
        if (const Blobs* blobs = written_blobs(*c.tables[t])) frames.writer().flush_too(blobs->file());
    failpoint.hit("before_log");
    const u64 entries_digest = store_redo_entries(c, epoch, (u64*)(frame.data + sizeof(FrameHeader)));
    end_phase(c.meter, PHASE_LOG);
    Descriptor next = describe(c, before, epoch, entries_digest);
    describe_runs(c, RUN_REDO, next);
    seal(next);
    u64 records_digest = 0;
    for (u64 t = 0; t < c.table_count; t++) records_digest += c.tables[t]->records_digest;
    const u64 durable = frames.writer().durable();
    // Before the slots: a checkpoint that copies some of them waits for the frame (W2).
    frames.begin(epoch);
    failpoint.hit("before_frame");
    frames.append(next, records_digest, durable);
    failpoint.hit("before_apply");
    store_images(c);
    end_phase(c.meter, PHASE_APPLY);
    frames.end();
    count_transaction(c, sizeof(FrameHeader), 0);
    c.waiting_space->end();
    c.waiting_space->release(frames.covered_by(durable), c.live_units);
    free_blobs(c, epoch);
    for (u64 t = 0; t < c.table_count; t++)
        if (Blobs* blobs = c.tables[t]->blob_plan) blobs->release(frames.covered_by(durable));
    c.gate = epoch;
}

static void commit_journal_run(const void* args, u64, u64) { commit_journal(*(CommitJournal*)args); }

static Frames& frames_of(const Commit& c) { return *static_cast<const CommitJournal&>(c).frames; }

static u64 read_gate_of(const Commit& c, u64& stable_sequence) {
    Frames& frames = frames_of(c);
    const u64 newest = frames.begun(), durable = frames.writer().durable();
    stable_sequence = durable < newest ? frames.stable_sequence(durable) : ALL_STABLE;
    return newest;
}

// A journal that has no room for a frame grows by Python.
extern "C" const Committer gpkvs_journal_committer = {
    [](const Commit& c, u64 entry_words) { return entry_words <= c.log_words ? LEFT_NOT : LEFT_GROW_LOG; },
    [](Commit& c) { commit_journal(static_cast<CommitJournal&>(c)); },
    [](const Commit& c) { return frames_of(c).next_sequence(); },
    read_gate_of,
    [](const Commit& c) { return frames_of(c).writer().durable(); },
    [](const Commit& c, u64 gate) { frames_of(c).writer().wait(gate); },
    [](const Commit&) {},
};

GPKVS_STEP(commit_journal, CommitJournal, COMMIT_JOURNAL_FIELDS, commit_journal_run, 0);
