// A write set: what a planner decided, as columns and counters. A planner fills it and stores nothing to PM; a committer
// stores it, in the order that durability asks for (commit_undo.hpp, gpkvs/engine/commit/journal_committer.py).
//
// The columns lie on the host. Where a GPU planned, its slots and contents stay there, and the GPU stores them.
#pragma once
#include <fcntl.h>
#include <type_traits>

#include "space/blobs.hpp"
#include "base/fatal_line.hpp"
#include "space/heap_state.hpp"
#include "base/pool.hpp"
#include "base/record.cuh"

// What a table holds: keys, units of their records in the heap, and keys that have an expiry (gpkvs/engine/state/table.py).
struct Held {
    u64 records, heap_units, expiring;
};

// One table's part. The counters come first: the host reads them (gpkvs/engine/seam/write_set.py). `new_expiring`: records with an
// expiry that it brings; `old_expiring`: slots with one that lose their record, to a new one or for good.
#define TABLE_WRITES_FIELDS(F)                                                              \
    F(u64, slots) F(u64, records) F(u64, new_keys) F(u64, removed_keys) F(u64, user_bytes) F(u64, heap_units) \
    F(u64, new_expiring) F(u64, old_expiring) F(u64, log_digest) F(u64, freed) F(u64, filled) \
    F(u64, epoch) F(u64*, log)                                                              \
    F(u64, table_id) F(void*, index) F(u64*, changed_slot) F(void*, contents) F(u64*, digest) \
    F(u32*, put_op) F(u64*, put_reference) F(const u8*, keys) F(const u64*, key_offsets) F(const u32*, key_lengths) \
    F(const u8*, values) F(const u64*, value_offsets) F(const u32*, value_lengths) F(const u64*, expiries) F(u64, first_sequence) F(const u64*, given_versions) \
    F(u64*, freed_reference) F(u64*, filled_segment)                                        \
    F(Pool*, pool) F(u8*, heap) F(u64, record_format) F(Blobs*, blob_plan) HEAP_ARGS(F)                          \
    F(u64*, marks) F(u64*, freed_units) F(u64, records_digest) F(u64*, moved_from)          \
    F(u64, file) F(u64, heap_offset) F(u8*, pages)                                          \
    F(Held*, held) F(u64, generation) F(u64, entry_bytes) F(u64, index_file)

struct TableWrites {
    TABLE_WRITES_FIELDS(GPKVS_FIELD)
};

template <class Slot>
static constexpr bool has_records = std::is_same<Slot, BytesSlot>::value;

// The records `first` to `last - 1`, to where the heap begins: new ones, or those that compaction moves.
static void make_records(const TableWrites& w, u64 first, u64 last, u8* heap) {
    const u64 keys_of_record = keys_of_bytes(w.heap_units * UNIT_BYTES, w.records);
    if (w.moved_from) {
        const move_record_args taken = {w.moved_from + first, w.put_reference + first, w.heap, heap};
        w.pool->run(&gpkvs_kernel_move_record, &taken, last - first, keys_of_record);
        return;
    }
    const record_args taken = {w.put_op + first, w.put_reference + first, w.keys,          w.key_offsets,
                               w.key_lengths,    w.values,                w.value_offsets, w.value_lengths,
                               w.expiries,       w.first_sequence,        w.given_versions, w.table_id,
                               w.record_format,
                               w.blob_plan ? w.blob_plan->words_from(first) : nullptr, heap};
    w.pool->run(&gpkvs_kernel_record, &taken, last - first, keys_of_record);
}

// Where the blobs are that a part's records bring; null: none brings one.
static const Blobs* written_blobs(const TableWrites& w) { return w.blob_plan && w.blob_plan->has_taken() ? w.blob_plan : nullptr; }

// The values of records that bring blobs, before the records.
static void write_blobs(const TableWrites& w) {
    if (!written_blobs(w)) return;
    w.blob_plan->write(*w.pool, w.records, [&](u64 record) { return w.values + w.value_offsets[w.put_op[record]]; });
}

static void store_records_run(const void* args, u64 first, u64 last) {
    const TableWrites& w = *(const TableWrites*)args;
    make_records(w, first, last, w.heap);
}

// How much is written at once, if no record is larger: it stays in a cache until it is copied.
static const u64 WRITE_BYTES = 1 << 20;

// The records `first` to `last - 1`, to the file of the heap, in whole pages and not through its mapping: a store to a page
// that is not in memory would read it first. The heap is mapped too, and shows at once what was written. `records_digest`
// gathers the sum of their digests.
static void write_records_run(const void* args, u64 first, u64 last) {
    TableWrites& w = *(TableWrites*)args;
    while (first < last) {
        const u64 at = reference_offset(w.put_reference[first]) * UNIT_BYTES;
        const u64 page = at / PAGE_BYTES * PAGE_BYTES, segment_bytes = w.segment_units * UNIT_BYTES;
        u64 end = at, until = first;
        while (until < last) {
            const u64 reference = w.put_reference[until];
            const u64 record = reference_offset(reference) * UNIT_BYTES, after = record + reference_length(reference) * UNIT_BYTES;
            if (record != end || record / segment_bytes != at / segment_bytes) break;
            if (until > first && after - page > WRITE_BYTES) break;
            end = after;
            until++;
        }
        u8* base = w.pages - page;  // where the heap would begin
        memcpy(w.pages, w.heap + page, at - page);
        make_records(w, first, until, base);
        for (; first < until; first++) {
            const u64 reference = w.put_reference[first];
            const u64* words = (const u64*)(base + reference_offset(reference) * UNIT_BYTES);
            if (w.given_versions) continue;  // replay takes records with low versions for older ones
            w.records_digest += w.moved_from ? moved_digest(reference, words) : record_digest(reference, *words);
        }
        const u64 whole = (end - page + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
        // Of records that move, those of another table may lie behind these, written already: the step has them interleaved.
        if (w.moved_from) memcpy(w.pages + (end - page), w.heap + end, whole - (end - page));
        else memset(w.pages + (end - page), 0, whole - (end - page));
        write_whole((int)w.file, w.pages, whole, w.heap_offset + page);
        // The disk begins at once, so the flush has less to wait for. Where it cannot begin early, the flush writes it all.
        sync_file_range((int)w.file, w.heap_offset + page, whole, SYNC_FILE_RANGE_WRITE);
    }
}

// Entries of changed slots, to a log; `log_digest` gathers the sum of their digests.
template <class Args, class Slot>
static void store_entries(TableWrites& w, const Kernel& kernel, const Slot* slots, u64 first, u64 last) {
    const Args taken = {w.changed_slot + first, slots, w.epoch, first, w.log, w.digest + first};
    w.pool->run(&kernel, &taken, last - first);
    for (u64 i = first; i < last; i++) w.log_digest += w.digest[i];
}

// The entries `first` to `last - 1` with the new contents of slots, to a frame of the journal.
template <class Slot>
static void store_redo_run(const void* args, u64 first, u64 last) {
    TableWrites& w = *(TableWrites*)args;
    const Slot* contents = (const Slot*)w.contents + first;
    if constexpr (has_records<Slot>) store_entries<log_redo_bytes_args>(w, gpkvs_kernel_log_redo_bytes, contents, first, last);
    else store_entries<log_redo_u64_args>(w, gpkvs_kernel_log_redo_u64, contents, first, last);
}

// The entries `first` to `last - 1` with the contents that slots have, to the undo log.
template <class Slot>
static void store_log_run(const void* args, u64 first, u64 last) {
    TableWrites& w = *(TableWrites*)args;
    const Slot* index = (const Slot*)w.index;
    if constexpr (has_records<Slot>) store_entries<log_undo_bytes_args>(w, gpkvs_kernel_log_undo_bytes, index, first, last);
    else store_entries<log_undo_u64_args>(w, gpkvs_kernel_log_undo_u64, index, first, last);
}

// The slots `first` to `last - 1`, in place.
template <class Slot>
static void store_slots_run(const void* args, u64 first, u64 last) {
    const TableWrites& w = *(const TableWrites*)args;
    const Slot* contents = (const Slot*)w.contents + first;
    if constexpr (has_records<Slot>) {
        const apply_bytes_args taken = {w.changed_slot + first, contents, (Slot*)w.index};
        w.pool->run(&gpkvs_kernel_apply_bytes, &taken, last - first);
    } else {
        const apply_u64_args taken = {w.changed_slot + first, contents, (Slot*)w.index};
        w.pool->run(&gpkvs_kernel_apply_u64, &taken, last - first);
    }
}

// The same, and the pages of the image are marked after.
template <class Slot>
static void store_image_run(const void* args, u64 first, u64 last) {
    const TableWrites& w = *(const TableWrites*)args;
    store_slots_run<Slot>(args, first, last);
    for (u64 i = first; i < last; i++) mark_page<Slot>(w, w.changed_slot[i]);
}

// After the commit: what each segment's live units gained and lost, with them the table's, and what is charged. A journal may
// not use again what was freed before it is covered (W6): then the units freed are gathered aside; the table has lost them at
// once. Records that moved keep their age, which the host knows.
static void count_live_run(const void* args, u64, u64) {
    const TableWrites& w = *(const TableWrites*)args;
    for (u64 i = 0; i < w.filled; i++) {
        const u64* filled = w.filled_segment + FILLED_WORDS * i;
        const u64 segment = filled[0];
        w.live_units[segment] += filled[1];
        w.held->heap_units += filled[1];
        w.charged_units[segment] += filled[2];
        w.heap_state[HEAP_CHARGED] += filled[2];
        w.ends[segment] = filled[3];
        if (w.moved_from) continue;
        w.heap_state[HEAP_CLOCK] += filled[1];
        w.stamps[segment] = w.heap_state[HEAP_CLOCK];
    }
    for (u64 i = 0; i < w.freed; i++) {
        const u64 parts = count_parts(w, w.freed_reference[i]);
        for (u64 number = 0; number < parts; number++) {
            const RecordPart part = part_of(w, w.freed_reference[i], number);
            w.held->heap_units -= part.units;
            w.charged_units[part.segment] -= part.charge;
            w.heap_state[HEAP_CHARGED] -= part.charge;
            if (w.freed_units) w.freed_units[part.segment] += part.units;
            else w.live_units[part.segment] -= part.units;
        }
    }
}

// A step of the host: it shares its work among the pool's threads itself.
#define GPKVS_STEP(name, Args, LIST, run, STORES_TO_PM) \
    extern "C" const Kernel gpkvs_kernel_##name = {sizeof(Args), LIST(GPKVS_NAME), run, 1, STORES_TO_PM, 0}
GPKVS_STEP(store_records, TableWrites, TABLE_WRITES_FIELDS, store_records_run, 1);
GPKVS_STEP(write_records, TableWrites, TABLE_WRITES_FIELDS, write_records_run, 0);
GPKVS_STEP(store_redo_bytes, TableWrites, TABLE_WRITES_FIELDS, store_redo_run<BytesSlot>, 0);
GPKVS_STEP(store_redo_u64, TableWrites, TABLE_WRITES_FIELDS, store_redo_run<U64Slot>, 0);
GPKVS_STEP(store_image_bytes, TableWrites, TABLE_WRITES_FIELDS, store_image_run<BytesSlot>, 0);
GPKVS_STEP(store_image_u64, TableWrites, TABLE_WRITES_FIELDS, store_image_run<U64Slot>, 0);
GPKVS_STEP(count_live, TableWrites, TABLE_WRITES_FIELDS, count_live_run, 0);
