// The native planner: a batch on one table, by the host's threads, all phases in one call, with the same kernels.
//
// Python between a dozen launches takes fifty times what the kernels take for a few operations, and as much as they do
// for thousands (docs/decisions/engine.md). Where something does not fit (no way for a key, no room in the heap), it says so: it only
// reads PM, so nothing has happened by then.
#pragma once
#include <sys/mman.h>

#include <atomic>
#include <new>

#include "plan/allocate.hpp"
#include "space/blob_upload.hpp"
#include "engine_batch.h"
#include "plan/expiry.hpp"
#include "base/failpoint.hpp"
#include "plan/kinds.hpp"
#include "plan/native_admit.hpp"
#include "base/probe.cuh"
#include "space/write_set.hpp"

// The caller gives a batch, whose columns have a step (1, or 0 where one number stands for all), its table, and constants.
// `found_words`: where the words go that GETs of numbers find, or null: in a column.
// `ops_room`: the operations that there are columns for. `outside`: memory of columns that batches of more than `ops_kept` operations need.
// `given_versions`: of the operations; null: each gets a new one.
// `kept`: by operation, the record of the table whose blob the new record will name, too: that SET has no value in `values`. 0: none;
// null: no operation keeps a blob (resolve.hpp).
// `refused`: what does not fit is refused, and that column says which requests (native_admit.hpp); null: the batch is left.
#define PLANNER_GIVEN(F, Buckets)                                                           \
    F(u64, n) F(const u8*, given_ops) F(u64, op_step) F(const u8*, keys) F(const u8*, values) \
    F(const u32*, given_key_lengths) F(u64, key_length_step)                                \
    F(const u32*, given_value_lengths) F(u64, value_length_step)                            \
    F(u64, first_sequence) F(const u64*, given_versions) F(u64, table_id) F(Buckets*, index) GEOMETRY_ARGS(F) F(const u64*, expiries) F(const u64*, kept) F(u64, now) F(u64, is_located) F(u64*, found_words) F(u8*, out) \
    F(Pool*, pool) F(Failpoint*, failpoint) F(u64, hash_key0) F(u64, hash_key1) F(u8*, heap) F(u64, heap_bytes) F(u64, record_format) BLOB_FILE_ARGS(F) F(Blobs*, blob_plan) F(u64, lends_blobs) SEGMENTS_ARGS(F) \
    F(const u64*, heap_state) F(u64, result_bytes_max) F(TableWrites*, writes) F(const u64*, marks) F(u64, stable_sequence) \
    F(u64, requests) F(const u32*, request_ops) F(u8*, refused)                             \
    F(u64, ops_room) F(u64, ops_kept) F(u8*, outside) F(u64, outside_bytes)                                  \
    F(u64*, source_word) F(u32*, get_op) F(u32*, source_op) F(u64*, value_offsets) F(u64*, found)

// Memory for the columns that the phases hand on, under the names that the kernels have for them. A column that is `own_` here
// is not always written: the kernels get none, or another one, where what it says follows from that. What each batch needs comes
// first: those of a large one may lie in memory that is taken for it alone.
#define PLANNER_COLUMNS(F, Slot)                                                            \
    F(u8*, ops) F(u64*, fingerprint0) F(u64*, fingerprint1) F(u8*, status) F(u64*, own_source_word) F(u32*, length) \
    F(u32*, order) F(u32*, chain_start) F(u64*, chain_fingerprint0) F(u64*, chain_fingerprint1) F(u32*, block) \
    F(u64*, slot) F(u64*, old_word) F(u8*, change) F(u32*, final_op) F(u32*, changed_chain) \
    F(u64*, changed_slot) F(Slot*, contents) F(u64*, digest)                                \
    F(u64*, versions) F(u64*, old_meta) F(u64*, offset) F(u32*, chain_of) F(u32*, last_write) \
    F(u32*, key_lengths) F(u64*, key_offsets) F(u32*, value_lengths) F(u64*, own_value_offsets) \
    F(u32*, own_get_op) F(u32*, own_source_op) F(u64*, own_found) F(u32*, block_first) F(u64*, moved_to) \
    F(u64*, reference) F(u64*, freed_reference) F(u64*, filled_segment)                     \
    F(u32*, put_op) F(u64*, put_reference) F(u32*, chain) F(u64*, planned)

#define PLANNER_BYTES_FIELDS(F) PLANNER_GIVEN(F, BytesBucket) PLANNER_COLUMNS(F, BytesSlot)
#define PLANNER_U64_FIELDS(F) PLANNER_GIVEN(F, U64Bucket) PLANNER_COLUMNS(F, U64Slot)
struct PlannerBytes {
    typedef BytesSlot Slot;
    PLANNER_BYTES_FIELDS(GPKVS_FIELD)
};
struct PlannerU64 {
    typedef U64Slot Slot;
    PLANNER_U64_FIELDS(GPKVS_FIELD)
};

// `planned`: what the host reads of a plan, beside the counters of its writes.
enum Planned {
    PLANNED_LEFT,  // why not all of it fits (EngineLeft), or 0
    PLANNED_SETS,
    PLANNED_GETS,
    PLANNED_RESULT_BYTES,
    PLANNED_READ_BYTES,  // of the records that the GETs see
    PLANNED_TAIL_SEGMENT,
    PLANNED_TAIL_UNITS,
    PLANNED_GATE,     // after `gate_run`
    PLANNED_CHAINS,   // after `locate_run`; the plan that follows keeps it
    PLANNED_COUNT
};

// Runs a kernel on the columns of its arguments' names.
#define PLANNER_TAKE(type, name) a.name,
#define PLANNER_RUN_BLOCKS(kernel, LIST, items, keys_per_item)               \
    do {                                                                     \
        const kernel##_args taken = {LIST(PLANNER_TAKE)};                    \
        a.pool->run(&gpkvs_kernel_##kernel, &taken, items, keys_per_item);   \
    } while (0)
#define PLANNER_RUN(kernel, LIST, items) PLANNER_RUN_BLOCKS(kernel, LIST, items, 1)

// Whether a SET keeps the blob that the table has for its key, and the record that names it there.
template <class Args>
static bool is_kept(const Args& a, u64 op) {
    return a.kept && a.kept[op];
}
static Record kept_record(const PlannerBytes& a, u64 op) {
    return read_record(a.heap + reference_offset(a.kept[op]) * UNIT_BYTES, a.record_format);
}

// Writes every column out, and counts the operations of each kind; returns whether all of them only read.
template <class Args>
static bool write_columns(Args& a) {
    a.value_offsets = a.own_value_offsets;
    a.get_op = a.own_get_op;
    a.source_word = a.own_source_word;
    u64 sets = 0, gets = 0, reads = 0, key_at = 0, value_at = 0, read_bytes = 0;
    for (u64 i = 0; i < a.n; i++) {
        const u8 op = a.given_ops[i * a.op_step];
        a.ops[i] = op;
        a.key_offsets[i] = key_at;
        a.key_lengths[i] = a.given_key_lengths[i * a.key_length_step];
        key_at += a.key_lengths[i];
        a.value_offsets[i] = value_at;
        a.value_lengths[i] = has_value(op) ? a.given_value_lengths[sets++ * a.value_length_step] : 0;
        if (!is_kept(a, i)) value_at += a.value_lengths[i];
        reads += !is_write(op);
        if (!is_write(op)) read_bytes += a.key_lengths[i];
        if (op == OP_GET) a.get_op[gets++] = (u32)i;
    }
    a.planned[PLANNED_SETS] = sets;
    a.planned[PLANNED_GETS] = gets;
    a.writes->user_bytes = key_at + value_at - read_bytes;
    return reads == a.n;
}

// The same for a plan of GETs alone, whose number says which they are; of values they have none.
static bool write_columns_of_gets(PlannerBytes& a) {
    a.get_op = nullptr;
    a.source_word = a.own_source_word;
    memset(a.ops, OP_GET, a.n);
    u64 key_at = 0;
    for (u64 i = 0; i < a.n; i++) {
        a.key_offsets[i] = key_at;
        key_at += a.key_lengths[i] = a.given_key_lengths[i * a.key_length_step];
    }
    a.planned[PLANNED_GETS] = a.n;
    a.writes->user_bytes = 0;
    return true;
}

// The same for a plan of numbers, whose lengths are known. Where all operations are GETs, or SETs, their number says which they
// are, and where their values are.
static bool write_columns_of_numbers(PlannerU64& a) {
    if (a.op_step == 1) memcpy(a.ops, a.given_ops, a.n);
    else
        for (u64 i = 0; i < a.n; i++) a.ops[i] = a.given_ops[i * a.op_step];
    const Kinds kinds = count_kinds(a.ops, a.n);
    a.planned[PLANNED_SETS] = kinds.sets;
    a.planned[PLANNED_GETS] = kinds.gets;
    a.get_op = kinds.gets == a.n ? nullptr : a.own_get_op;
    a.value_offsets = kinds.sets == a.n ? nullptr : a.own_value_offsets;
    a.source_word = a.found_words ? a.found_words : a.own_source_word;
    a.writes->user_bytes = 2 * sizeof(u64) * kinds.sets;
    if (!a.get_op) return true;
    if (!a.value_offsets) return false;
    u64 gets = 0, value_at = 0, writes = 0;
    for (u64 i = 0; i < a.n; i++) {
        a.value_offsets[i] = value_at;
        value_at += has_value(a.ops[i]) * sizeof(u64);
        a.get_op[gets] = (u32)i;
        gets += a.ops[i] == OP_GET;
        writes += is_write(a.ops[i]);
    }
    a.writes->user_bytes = (writes + kinds.sets) * sizeof(u64);
    return !writes;
}

// The fingerprints of all keys.
template <class Args>
static void route_keys(const Args& a) {
    a.failpoint->hit("before_route");
    if constexpr (has_records<typename Args::Slot>) PLANNER_RUN(route_bytes, ROUTE_BYTES_ARGS, a.n);
    else PLANNER_RUN(route_u64, ROUTE_U64_ARGS, a.n);
}

// Sorts the operations by their keys, and finds every key.
template <class Args>
static void find_keys(const Args& a, bool only_sets = false) {
    a.failpoint->hit("before_order");
    const u64 chains = a.planned[PLANNED_CHAINS] =
        a.pool->order(a.fingerprint0, a.fingerprint1, a.ops, a.n, a.order, only_sets ? nullptr : a.chain_of, a.chain_start, a.last_write);
    a.failpoint->hit("before_find");
    if constexpr (has_records<typename Args::Slot>) PLANNER_RUN(find_bytes, FIND_BYTES_ARGS, chains);
    else PLANNER_RUN(find_u64, FIND_U64_ARGS, chains);
}

// Notes the writes again: the operations are others than those that were sorted, on the same keys.
template <class Args>
static void find_last_writes(const Args& a) {
    u32 written = 0;
    for (u64 position = 0; position < a.n; position++) {
        if (is_write(a.ops[a.order[position]])) written = (u32)position + 1;
        a.last_write[position] = written;
    }
}

// Finds every key, and what each operation sees; returns the number of chains, 0 in a batch that only reads.
template <class Args>
static u64 read_index(Args& a, bool only_reads) {
    if (!a.is_located) route_keys(a);
    a.source_op = nullptr;
    if (only_reads) {
        if constexpr (has_records<typename Args::Slot>) PLANNER_RUN(look_bytes, LOOK_BYTES_ARGS, a.n);
        else PLANNER_RUN(look_u64, LOOK_U64_ARGS, a.n);
        return 0;
    }
    const bool only_sets = !has_records<typename Args::Slot> && !a.is_located && a.planned[PLANNED_SETS] == a.n;
    if (a.is_located) find_last_writes(a);
    else find_keys(a, only_sets);
    a.failpoint->hit("before_fold");
    if (only_sets) {
        memset(a.status, STATUS_OK, a.n);
        PLANNER_RUN(last_set, LAST_SET_ARGS, a.planned[PLANNED_CHAINS]);
        return a.planned[PLANNED_CHAINS];
    }
    a.source_op = a.own_source_op;
    if constexpr (has_records<typename Args::Slot>) PLANNER_RUN(fold_bytes, FOLD_BYTES_ARGS, a.n);
    else PLANNER_RUN(fold_u64, FOLD_ARGS, a.n);
    return a.planned[PLANNED_CHAINS];
}

// Whether any key looks expired; asked only where `now` says that some key of the table may.
template <class Args>
static bool meets_expired(const Args& a, u64 chains) {
    if constexpr (has_records<typename Args::Slot>) {
        u64 met = 0;
        // In a batch that only reads, words are of operations, and GETs read the records anyway.
        const meet_expired_args taken = {chains ? a.old_word : a.source_word, chains ? a.old_meta : nullptr,
                                         a.heap, a.heap_bytes, a.record_format, a.now, &met};
        a.pool->run(&gpkvs_kernel_meet_expired, &taken, chains ? chains : a.n, 1);
        return met;
    }
    return false;
}

// Whether the values that the GETs see are few enough to read their records; if not, lengths are what each takes at most. The
// word of an operation that sees no record is 0; a table without records has none to read.
template <class Args>
static bool may_measure(const Args& a) {
    if constexpr (has_records<typename Args::Slot>) {
        const u64 gets = a.planned[PLANNED_GETS];
        u64 bytes = 0;
        for (u64 i = 0; i < gets; i++) bytes += reference_length(a.source_word[op_of(a, i)]) * UNIT_BYTES;
        const bool is_any_in_blob = a.blobs && !a.lends_blobs && a.blob_plan->is_any();
        for (u64 i = 0; is_any_in_blob && i < gets; i++) {
            if (i + SOON < gets) record_soon(a, i + SOON);
            if (writer_of(a, op_of(a, i)) == NO_OP) bytes += blob_bytes(a, a.source_word[op_of(a, i)]);
        }
        a.planned[PLANNED_READ_BYTES] = bytes;
        if (bytes <= a.result_bytes_max) return true;
        PLANNER_RUN(result_bound, RESULT_BOUND_ARGS, gets);
        bytes = 0;
        for (u64 i = 0; i < gets; i++) bytes += a.length[i];
        // A lone request is only refused for what it surely reads: a record is up to so much longer than it must be.
        const u64 unsure = a.requests == 1 ? (UNIT_BYTES - 1) * gets : 0;
        if (bytes <= a.result_bytes_max + unsure) return true;
        a.planned[PLANNED_RESULT_BYTES] = bytes;
        return false;
    }
    return true;
}

// Whether a batch of numbers is GETs that all find a value in the table: then their source words are the result.
static bool finds_all_numbers(const PlannerU64& a) {
    return !a.get_op && !a.source_op && !memchr(a.status, STATUS_NOT_FOUND, a.n);
}

// How long the value of a GET is.
static u32 length_of(const PlannerBytes& a, u64 get) { return a.length[get]; }
static u32 length_of(const PlannerU64& a, u64 get) { return a.status[a.get_op ? a.get_op[get] : get] == STATUS_OK ? sizeof(u64) : 0; }

static const u64 LOOKED_AT_ONCE = 1 << 20;  // of a blob: whole pieces, for a thread

// Where a GET's value is the table's: the record that has it; none where it is another one. That of a SET which keeps a blob is.
static Record source_record(const PlannerBytes& a, u32 op) {
    const u32 writer = writer_of(a, op);
    if (writer == NO_OP) return read_record(a.heap + reference_offset(a.source_word[op]) * UNIT_BYTES, a.record_format);
    return is_kept(a, writer) ? kept_record(a, writer) : no_record();
}

// Whether a blob is as it was written; all threads look at it.
static bool is_blob_sound(const PlannerBytes& a, const Record& record) {
    const u64 bytes = value_bytes_of(record);
    const u8* const value = record_value(record, blob_file_of(a));
    std::atomic<bool> is_sound{are_checksums_sound(value, bytes, record.blob[BLOB_CRC])};
    a.pool->run_parts((bytes + LOOKED_AT_ONCE - 1) / LOOKED_AT_ONCE, [&](u64 part) {
        const u64 from = part * LOOKED_AT_ONCE;
        if (is_sound && !are_pieces_sound(value, bytes, from, std::min(from + LOOKED_AT_ONCE, bytes))) is_sound = false;
    });
    return is_sound;
}

// Values in blobs that the GETs found are lent, and no part of the result; or they are looked at. std::bad_alloc.
static void lend_or_look(const PlannerBytes& a, u64 gets) {
    for (u64 get = 0; get < gets; get++) {
        const u32 op = op_of(a, get);
        if (!is_in_blob(a.record_format, a.key_lengths[op], a.length[get])) continue;
        const Record record = source_record(a, op);
        if (!record.words) continue;
        if (a.lends_blobs) {
            a.blob_plan->lend(get, record.blob);
        } else if (is_blob_sound(a, record)) {
            continue;
        } else {
            a.status[op] = STATUS_CORRUPT;
            a.versions[op] = 0;
        }
        a.length[get] = 0;
    }
}

// How long the values of the GETs are, and where each begins in the result. std::bad_alloc.
template <class Args>
static void measure_values(const Args& a) {
    const u64 gets = a.planned[PLANNED_GETS];
    if constexpr (has_records<typename Args::Slot>) {
        PLANNER_RUN_BLOCKS(measure, MEASURE_ARGS, gets, keys_of_bytes(a.planned[PLANNED_READ_BYTES], gets));
        if (a.blobs && a.blob_plan->is_any()) lend_or_look(a, gets);
    } else if (finds_all_numbers(a)) {
        if (!a.found_words) std::fill_n(a.length, gets, sizeof(u64));
        a.planned[PLANNED_RESULT_BYTES] = gets * sizeof(u64);
        return;
    } else
        for (u64 i = 0; i < gets; i++) a.length[i] = length_of(a, i);
    for (u64 i = 0; i < gets; i++) {
        a.offset[i] = a.planned[PLANNED_RESULT_BYTES];
        a.planned[PLANNED_RESULT_BYTES] += a.length[i];
    }
}

// Finds a way for every new key; returns how many chains change their slot, or NO_SLOT if some key finds none.
template <class Args>
static u64 place_keys(Args& a, u64 chains) {
    a.failpoint->hit("before_place");
    u64 changes = 0, new_keys = 0, removed_keys = 0;
    for (u64 chain = 0; chain < chains; chain++) {
        const u8 change = a.change[chain];
        a.changed_chain[changes] = (u32)chain;
        changes += change != CHANGE_NONE;
        new_keys += change != CHANGE_NONE && a.slot[chain] == NO_SLOT;
        removed_keys += change == CHANGE_REMOVE;
    }
    a.writes->new_keys = new_keys;
    a.writes->removed_keys = removed_keys;
    a.found = a.slot;
    if (!new_keys) return changes;
    a.found = a.own_found;
    memcpy(a.found, a.slot, chains * sizeof *a.found);
    u64 blocks = 0;
    for (u64 i = 0; i < changes; i++) {
        a.moved_to[i] = NO_SLOT;
        if (!i || a.block[a.changed_chain[i]] != a.block[a.changed_chain[i - 1]]) a.block_first[blocks++] = (u32)i;
    }
    a.block_first[blocks] = (u32)changes;
    if constexpr (has_records<typename Args::Slot>)
        PLANNER_RUN_BLOCKS(place_bytes, PLACE_BYTES_ARGS, blocks, changes / blocks);
    else PLANNER_RUN_BLOCKS(place_u64, PLACE_U64_ARGS, blocks, changes / blocks);
    for (u64 i = 0; i < changes; i++)
        if (a.slot[a.changed_chain[i]] == NO_SLOT) return a.refused && !admit_keys(a, chains, changes) ? changes : NO_SLOT;
    return changes;
}

// What the records that are kept are charged, also where some of them find no room.
static u64 kept_charge(const PlannerBytes& a) {
    u64 charge = 0;
    for (u64 op = 0; op < a.n; op++)
        if (a.reference[op] != NO_RECORD) charge += record_charge(units_of_op(a, op), a.segment_units);
    return charge;
}

// Records would be charged more than the heap may hold.
static EngineLeft over_charge(const PlannerBytes& a, u64 chains, u64 changes) {
    if (a.refused) admit_charges(a, chains, changes);
    return LEFT_GROW_HEAP;
}

// The blob of a key's old record is not needed any more, if that is surely the key's: of a damaged one it stays where it is
// until the next opening.
static void drop_blob(const PlannerBytes& a, u32 chain) {
    const Record record = checked_record(a.heap, a.heap_bytes, a.record_format, a.old_word[chain]);
    const u32 op = a.order[a.chain_start[chain]];
    if (!record.blob || record.table_id != a.table_id || record.version != slot_version(a.old_meta[chain])) return;
    if (record.key_bytes != a.key_lengths[op] || !same_bytes(record.key, a.keys + a.key_offsets[op], record.key_bytes)) return;
    a.blob_plan->drop(record.blob[BLOB_REFERENCE]);
}

// Gives each record that is kept its place behind the tail, in arrival order; returns what there is no room for.
static EngineLeft allocate_records(const PlannerBytes& a, u64 chains, u64 changes, Tail& tail) {
    TableWrites& w = *a.writes;
    const u64 kept = ~0ull;  // until it has a reference
    u64 lost_charge = 0;
    for (u64 op = 0; op < a.n; op++) a.reference[op] = NO_RECORD;
    for (u64 i = 0; i < changes; i++) {
        const u32 chain = a.changed_chain[i];
        if (a.change[chain] == CHANGE_PUT) {
            a.reference[a.final_op[chain]] = kept;
            w.new_expiring += a.expiries && a.expiries[a.final_op[chain]];
        }
        if (a.found[chain] == NO_SLOT) continue;
        a.freed_reference[w.freed++] = a.old_word[chain];
        w.old_expiring += has_expiry(a.old_meta[chain]);
        if (has_blob(a.old_meta[chain]) && !is_kept(a, a.final_op[chain])) drop_blob(a, chain);
        lost_charge += record_charge(reference_length(a.old_word[chain]), a.segment_units);
    }
    Appender<PlannerBytes> appender(a, tail, a.filled_segment);
    u64 records = 0, heap_units = 0;
    for (u64 op = 0; op < a.n; op++) {
        if (a.reference[op] == NO_RECORD) continue;
        const u64 units = units_of_op(a, op);
        const u64 reference = appender.append(units);
        if (reference == NO_RECORD)
            return is_charge_accepted(a.heap_state, kept_charge(a), lost_charge) ? LEFT_FREE_HEAP : over_charge(a, chains, changes);
        if (is_kept(a, op))
            a.blob_plan->keep(records, kept_record(a, op).blob);
        else if (is_in_blob(a.record_format, a.key_lengths[op], a.value_lengths[op]) && !a.blob_plan->take(records, a.value_lengths[op]))
            return LEFT_GROW_BLOBS;
        a.reference[op] = a.put_reference[records] = reference;
        a.put_op[records++] = (u32)op;
        heap_units += units;
    }
    tail = appender.end();
    if (a.blob_plan) a.blob_plan->end_plan(records);
    w.records = records;
    w.heap_units = heap_units;
    w.filled = appender.segments_filled();
    return is_charge_accepted(a.heap_state, appender.charged(), lost_charge) ? LEFT_NOT : over_charge(a, chains, changes);
}

// Where the next record goes: a tail segment in which nothing is live begins again (`Heap.start`).
template <class Args>
static Tail start_of(const Args& a) {
    const u64 segment = a.heap_state[HEAP_TAIL_SEGMENT];
    return tail_at(segment, a.live_units[segment] ? a.heap_state[HEAP_TAIL_UNITS] : 0);
}

// The new contents of every slot that changes; displaced occupants come last.
template <class Args>
static void stage_slots(const Args& a, u64 changes) {
    typedef typename Args::Slot Slot;
    if constexpr (has_records<Slot>) PLANNER_RUN(stage_bytes, STAGE_BYTES_ARGS, changes);
    else PLANNER_RUN(stage_u64, STAGE_U64_ARGS, changes);
    const Slot* slots = a.index->ways;
    u64 slot = changes;
    for (u64 i = 0; a.writes->new_keys && i < changes; i++) {
        if (a.moved_to[i] == NO_SLOT) continue;
        a.changed_slot[slot] = a.moved_to[i];
        a.contents[slot++] = slots[a.changed_slot[i]];
    }
    a.writes->slots = slot;
}

// Tells the committer what belongs to this batch alone.
template <class Args>
static void describe_writes(const Args& a) {
    TableWrites& w = *a.writes;
    w.table_id = a.table_id;
    w.index = a.index;
    w.keys = a.keys;
    w.values = a.values;
    w.expiries = a.expiries;
    w.first_sequence = a.first_sequence;
    w.given_versions = a.given_versions;
}

template <class Args>
static EngineLeft plan_writes(Args& a, u64 chains) {
    const u64 changes = place_keys(a, chains);
    if (changes == NO_SLOT) return LEFT_GROW_INDEX;
    Tail tail = start_of(a);
    if constexpr (has_records<typename Args::Slot>)
        if (const EngineLeft left = allocate_records(a, chains, changes, tail)) return left;
    a.planned[PLANNED_TAIL_SEGMENT] = tail.segment;
    a.planned[PLANNED_TAIL_UNITS] = tail.units;
    stage_slots(a, changes);
    describe_writes(a);
    return LEFT_NOT;
}

// Plans a batch; returns why not all of it fits.
template <class Args>
static EngineLeft plan_batch(Args& a) {
    TableWrites& w = *a.writes;
    w.slots = w.records = w.new_keys = w.removed_keys = w.heap_units = w.new_expiring = w.old_expiring = w.freed = w.filled = 0;
    w.log_digest = w.records_digest = 0;
    if (a.blob_plan) a.blob_plan->begin_plan();
    for (u32 number = 0; number < PLANNED_CHAINS; number++) a.planned[number] = 0;
    bool only_reads;
    if constexpr (has_records<typename Args::Slot>)
        only_reads = a.op_step == 1 && count_kinds(a.given_ops, a.n).gets == a.n ? write_columns_of_gets(a) : write_columns(a);
    else only_reads = write_columns_of_numbers(a);
    const u64 chains = read_index(a, only_reads);
    if (a.now && meets_expired(a, chains)) return LEFT_EXPIRED;
    if (!may_measure(a)) return LEFT_LARGE_READS;
    measure_values(a);
    return chains ? plan_writes(a, chains) : LEFT_NOT;
}

template <class Args>
static void plan_run(const void* args, u64, u64) {
    Args& a = *(Args*)args;
    try {
        a.planned[PLANNED_LEFT] = plan_batch(a);
    } catch (const std::bad_alloc&) {
        a.planned[PLANNED_LEFT] = LEFT_MEMORY;
    }
}

// Finds the keys of a batch that looks first (resolve.hpp), before it is planned: `is_located` says so to the plan.
template <class Args>
static void locate_run(const void* args, u64, u64) {
    Args& a = *(Args*)args;
    a.planned[PLANNED_SETS] = a.planned[PLANNED_GETS] = 0;
    write_columns(a);
    route_keys(a);
    try {
        find_keys(a);
    } catch (const std::bad_alloc&) {
        a.planned[PLANNED_LEFT] = LEFT_MEMORY;
        return;
    }
    a.planned[PLANNED_LEFT] = LEFT_NOT;
    for (u64 position = 0; position < a.n; position++) a.chain[a.order[position]] = a.chain_of[position];
}

// Long values are copied by all threads, and those of SETs that keep blobs; then nobody needs their lengths any more.
static void copy_blobs(const PlannerBytes& a) {
    for (u64 get = 0; get < a.planned[PLANNED_GETS]; get++) {
        const u32 op = op_of(a, get), writer = writer_of(a, op);
        if (!a.length[get] || (a.length[get] < LOOKED_AT_ONCE && writer == NO_OP)) continue;
        const Record record = source_record(a, op);
        if (!record.words) continue;
        a.pool->copy(a.out + a.offset[get], record_value(record, blob_file_of(a)), a.length[get]);
        a.length[get] = 0;
    }
}

// The values of the GETs, to `out`.
template <class Args>
static void values_run(const void* args, u64, u64) {
    const Args& a = *(const Args*)args;
    if constexpr (has_records<typename Args::Slot>) {
        if (a.blobs && a.blob_plan->is_any()) copy_blobs(a);
        const u64 gets = a.planned[PLANNED_GETS];
        PLANNER_RUN_BLOCKS(gather_bytes, GATHER_BYTES_ARGS, gets, keys_of_bytes(a.planned[PLANNED_READ_BYTES], gets));
    } else if (finds_all_numbers(a)) {
        if (a.out != (u8*)a.source_word) a.pool->copy(a.out, (const u8*)a.source_word, a.n * sizeof(u64));
    } else PLANNER_RUN(gather_u64, GATHER_U64_ARGS, a.planned[PLANNED_GETS]);
}

// The gate of a planned batch that only reads: the newest epoch that may have supplied anything it saw. A found record tells
// by its version: those below `stable_sequence` are durable. Whatever else was seen, or was not there, is in two pages.
template <class Args>
static void gate_run(const void* args, u64, u64) {
    typedef typename Args::Slot Slot;
    const Args& a = *(const Args*)args;
    u64& gate = a.planned[PLANNED_GATE];
    gate = 0;
    for (u64 i = 0; i < a.n; i++) {
        if (has_records<Slot> && a.status[i] == STATUS_OK) {
            if (a.versions[i] >= a.stable_sequence) gate = ~0ull;
            continue;
        }
        const Candidates at = candidate_buckets<Slot>({a.fingerprint0[i], a.fingerprint1[i]}, geometry_of(a));
        gate = std::max({gate, a.marks[page_of<Slot>(at.bucket0 * WAYS)], a.marks[page_of<Slot>(at.bucket1 * WAYS)]});
    }
}

// The system may have what only a large batch uses: until it does, the next one need not wait for pages.
template <class Args>
static void lend_outside(const Args& a) {
    if (a.outside_bytes) madvise(a.outside, a.outside_bytes, MADV_FREE);
}

extern "C" {

const char* gpkvs_planner_bytes_fields() { return PLANNER_BYTES_FIELDS(GPKVS_NAME); }
const char* gpkvs_planner_u64_fields() { return PLANNER_U64_FIELDS(GPKVS_NAME); }

}  // extern "C"
