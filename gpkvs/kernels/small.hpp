// A small batch on one table, by the host's threads: all phases before the commit in one call, and each step of the
// commit in one more, with the same kernels.
//
// For a few operations Python between a dozen launches costs fifty times what their work does, for thousands as much
// (docs/decisions.md). What is not plain sailing (no way for a key, no room in the tail's segment) is left to the phases
// one by one: nothing was stored to PM by then.
#pragma once
#include <new>
#include <type_traits>

#include "pool.hpp"
#include "probe.cuh"

// What the caller gives: a batch, whose columns have a step (1, or 0 where one number stands for all), its table, then
// what stays the same.
#define SMALL_GIVEN(F, Buckets)                                                             \
    F(u64, n) F(const u8*, given_ops) F(u64, op_step) F(const u8*, keys) F(const u8*, values) \
    F(const u32*, given_key_lengths) F(u64, key_length_step)                                \
    F(const u32*, given_value_lengths) F(u64, value_length_step)                            \
    F(u64, first_sequence) F(u64*, live_units) F(u64, tail_segment) F(u64, tail_units)      \
    F(u64, table_id) F(const Buckets*, index) F(u64, buckets) F(u64, epoch) F(u64*, log) F(u8*, out) \
    F(Pool*, pool) F(u64, hash_key0) F(u64, hash_key1)                                      \
    F(u8*, heap) F(u64, heap_bytes) F(u64, segment_units) F(u64, segments) F(u64, result_bytes_max)

// Memory for the columns that the phases hand on, under the names that the kernels have for them.
#define SMALL_COLUMNS(F, Slot)                                                              \
    F(u8*, ops) F(u32*, key_lengths) F(u64*, key_offsets) F(u32*, value_lengths) F(u64*, value_offsets) \
    F(u64*, fingerprint0) F(u64*, fingerprint1)                                             \
    F(u32*, order) F(u32*, chain_of) F(u32*, chain_start) F(u32*, last_write)               \
    F(u64*, chain_fingerprint0) F(u64*, chain_fingerprint1) F(u32*, block) F(u64*, slot) F(u64*, old_word) \
    F(u64*, old_meta) F(u64*, source_word) F(u32*, source_op) F(u8*, change) F(u32*, final_op) \
    F(u64*, found) F(u32*, changed_chain) F(u32*, block_first) F(u64*, moved_to) F(u64*, vacated) F(u64*, target) \
    F(u64*, reference) F(u64*, freed) F(u64*, changed_slot) F(Slot*, contents) F(u64*, digest) \
    F(u8*, status) F(u64*, versions) F(u32*, get_op) F(u32*, length) F(u64*, offset)        \
    F(u32*, put_op) F(u64*, put_reference) F(u64*, counts)

#define SMALL_BYTES_ARGS(F) SMALL_GIVEN(F, BytesBucket) SMALL_COLUMNS(F, BytesSlot)
#define SMALL_U64_ARGS(F) SMALL_GIVEN(F, U64Bucket) SMALL_COLUMNS(F, U64Slot)
struct SmallBytes {
    SMALL_BYTES_ARGS(GPKVS_FIELD)
};
struct SmallU64 {
    SMALL_U64_ARGS(GPKVS_FIELD)
};

// `counts`: what the host reads of a plan.
enum SmallCount {
    SMALL_LEFT,  // 1: left to the phases one by one
    SMALL_SETS,
    SMALL_GETS,
    SMALL_REPLY_BYTES,
    SMALL_WRITE_BYTES,  // keys and values of SETs, keys of DELETEs
    SMALL_CHANGES,      // slots
    SMALL_NEW_KEYS,
    SMALL_REMOVED_KEYS,
    SMALL_PUTS,  // records
    SMALL_PUT_UNITS,
    SMALL_TAIL_SEGMENT,
    SMALL_TAIL_UNITS,
    SMALL_FREED,   // records
    SMALL_DIGEST,  // of the log
    SMALL_COUNTS
};

// Runs a kernel on the columns of its arguments' names; an item may stand for several keys (`group`).
#define SMALL_TAKE(type, name) a.name,
#define SMALL_RUN_GROUPS(kernel, LIST, items, group)                       \
    do {                                                                   \
        const kernel##_args taken = {LIST(SMALL_TAKE)};                    \
        a.pool->run(&gpkvs_kernel_##kernel, &taken, items, group);         \
    } while (0)
#define SMALL_RUN(kernel, LIST, items) SMALL_RUN_GROUPS(kernel, LIST, items, 1)

template <class Args>
static constexpr bool has_records = std::is_same<Args, SmallBytes>::value;

// Every column written out, and how many operations of each kind there are.
template <class Args>
static void small_columns(const Args& a) {
    u64 sets = 0, gets = 0, key_at = 0, value_at = 0, read_bytes = 0;
    for (u64 i = 0; i < a.n; i++) {
        const u8 op = a.given_ops[i * a.op_step];
        a.ops[i] = op;
        a.key_offsets[i] = key_at;
        a.key_lengths[i] = a.given_key_lengths[i * a.key_length_step];
        key_at += a.key_lengths[i];
        a.value_offsets[i] = value_at;
        a.value_lengths[i] = op == OP_SET ? a.given_value_lengths[sets++ * a.value_length_step] : 0;
        value_at += a.value_lengths[i];
        if (op != OP_GET) continue;
        a.get_op[gets++] = (u32)i;
        read_bytes += a.key_lengths[i];
    }
    a.counts[SMALL_SETS] = sets;
    a.counts[SMALL_GETS] = gets;
    a.counts[SMALL_WRITE_BYTES] = key_at + value_at - read_bytes;
}

// Finds every key, and what each operation sees; returns the number of chains, 0 in a batch that only reads.
template <class Args>
static u64 small_read(const Args& a) {
    const bool reads_only = a.counts[SMALL_GETS] == a.n;
    if constexpr (has_records<Args>) {
        SMALL_RUN(route_bytes, ROUTE_BYTES_ARGS, a.n);
        if (reads_only) SMALL_RUN(look_bytes, LOOK_BYTES_ARGS, a.n);
    } else {
        SMALL_RUN(route_u64, ROUTE_U64_ARGS, a.n);
        if (reads_only) SMALL_RUN(look_u64, LOOK_U64_ARGS, a.n);
    }
    if (reads_only) {
        for (u64 i = 0; i < a.n; i++) a.source_op[i] = NO_OP;
        return 0;
    }
    const u64 chains = a.pool->order(a.fingerprint0, a.fingerprint1, a.ops, a.n, a.order, a.chain_of, a.chain_start,
                                     a.last_write);
    if constexpr (has_records<Args>) {
        SMALL_RUN(find_bytes, FIND_BYTES_ARGS, chains);
        SMALL_RUN(fold_bytes, FOLD_BYTES_ARGS, a.n);
    } else {
        SMALL_RUN(find_u64, FIND_U64_ARGS, chains);
        SMALL_RUN(fold_u64, FOLD_ARGS, a.n);
    }
    return chains;
}

// Whether the records that the GETs see are few enough to read them. Of an operation that sees none, the word is 0; in a
// table without records, there are none to read.
template <class Args>
static bool small_may_measure(const Args& a) {
    if constexpr (has_records<Args>) {
        if (!a.counts[SMALL_GETS]) return true;
        u64 units = 0;
        for (u64 i = 0; i < a.n; i++) units += reference_length(a.source_word[i]);
        return units * UNIT_BYTES <= a.result_bytes_max;
    }
    return true;
}

// How long the values of the GETs are, and where each begins in the reply.
template <class Args>
static void small_measure(const Args& a) {
    const u64 gets = a.counts[SMALL_GETS];
    if constexpr (has_records<Args>) SMALL_RUN(measure, MEASURE_ARGS, gets);
    else
        for (u64 i = 0; i < gets; i++) a.length[i] = a.status[a.get_op[i]] == STATUS_OK ? 8 : 0;
    for (u64 i = 0; i < gets; i++) {
        a.offset[i] = a.counts[SMALL_REPLY_BYTES];
        a.counts[SMALL_REPLY_BYTES] += a.length[i];
    }
}

// Finds a way for every new key; returns how many chains change their slot, or NO_SLOT if some key finds none.
template <class Args>
static u64 small_place(const Args& a, u64 chains) {
    u64 changes = 0, blocks = 0;
    for (u64 chain = 0; chain < chains; chain++) {
        a.found[chain] = a.slot[chain];
        if (a.change[chain] == CHANGE_NONE) continue;
        if (!changes || a.block[chain] != a.block[a.changed_chain[changes - 1]]) a.block_first[blocks++] = (u32)changes;
        a.moved_to[changes] = NO_SLOT;
        a.changed_chain[changes++] = (u32)chain;
        a.counts[SMALL_NEW_KEYS] += a.found[chain] == NO_SLOT;
        a.counts[SMALL_REMOVED_KEYS] += a.change[chain] == CHANGE_REMOVE;
    }
    a.block_first[blocks] = (u32)changes;
    if (!a.counts[SMALL_NEW_KEYS]) return changes;
    if constexpr (has_records<Args>) SMALL_RUN_GROUPS(place_bytes, PLACE_BYTES_ARGS, blocks, changes / blocks);
    else SMALL_RUN_GROUPS(place_u64, PLACE_U64_ARGS, blocks, changes / blocks);
    for (u64 i = 0; i < changes; i++)
        if (a.slot[a.changed_chain[i]] == NO_SLOT) return NO_SLOT;
    return changes;
}

// The next segment with nothing live in it, or the tail's if there is none: all between the two are taken or in use.
static u64 small_free_segment(const SmallBytes& a, u64 segment) {
    do segment = (segment + 1) % a.segments;
    while (segment != a.tail_segment && a.live_units[segment]);
    return segment;
}

// Gives each record that is kept its place behind the tail, in arrival order; false if the heap is full.
static bool small_allocate(const SmallBytes& a, u64 changes) {
    for (u64 op = 0; op < a.n; op++) a.reference[op] = NO_RECORD;
    u64 freed = 0;
    for (u64 i = 0; i < changes; i++) {
        const u32 chain = a.changed_chain[i];
        if (a.change[chain] == CHANGE_PUT) a.reference[a.final_op[chain]] = ~0ull;  // kept
        if (a.found[chain] != NO_SLOT) a.freed[freed++] = a.old_word[chain];
    }
    u64 segment = a.tail_segment, used = a.live_units[segment] ? a.tail_units : 0;  // with nothing live, it begins again
    u64 puts = 0, units = 0;
    for (u64 op = 0; op < a.n; op++) {
        if (a.reference[op] == NO_RECORD) continue;
        const u64 length = record_units(a.key_lengths[op], a.value_lengths[op]);
        if (used + length > a.segment_units) {
            segment = small_free_segment(a, segment);
            used = 0;
            if (segment == a.tail_segment) return false;
        }
        a.reference[op] = (segment * a.segment_units + used) << 24 | length;
        a.put_reference[puts] = a.reference[op];
        a.put_op[puts++] = (u32)op;
        used += length;
        units += length;
    }
    a.counts[SMALL_PUTS] = puts;
    a.counts[SMALL_PUT_UNITS] = units;
    a.counts[SMALL_FREED] = freed;
    a.counts[SMALL_TAIL_SEGMENT] = segment;
    a.counts[SMALL_TAIL_UNITS] = used;
    return true;
}

// The new contents of every slot that changes, displaced occupants last.
template <class Args>
static void small_stage(const Args& a, u64 changes) {
    u64 moved = 0;
    if constexpr (has_records<Args>) SMALL_RUN(stage_bytes, STAGE_BYTES_ARGS, changes);
    else SMALL_RUN(stage_u64, STAGE_U64_ARGS, changes);
    for (u64 i = 0; i < changes; i++) {
        if (a.moved_to[i] == NO_SLOT) continue;
        a.vacated[moved] = a.changed_slot[i];
        a.target[moved++] = a.moved_to[i];
    }
    if constexpr (has_records<Args>) {
        const stage_moved_bytes_args taken = {a.vacated, a.target, a.index->ways, a.changed_slot + changes,
                                              a.contents + changes};
        stage_moved_bytes_run(&taken, 0, moved);
    } else {
        const stage_moved_u64_args taken = {a.vacated, a.target, a.index->ways, a.changed_slot + changes,
                                            a.contents + changes};
        stage_moved_u64_run(&taken, 0, moved);
    }
    a.counts[SMALL_CHANGES] = changes + moved;
}

template <class Args>
static void small_plan(const Args& a) {
    for (u32 count = 0; count < SMALL_COUNTS; count++) a.counts[count] = 0;
    small_columns(a);
    const u64 chains = small_read(a);
    a.counts[SMALL_LEFT] = !small_may_measure(a);
    if (a.counts[SMALL_LEFT]) return;
    small_measure(a);
    if (!chains) return;
    const u64 changes = small_place(a, chains);
    a.counts[SMALL_LEFT] = changes == NO_SLOT;
    if constexpr (has_records<Args>) {
        if (!a.counts[SMALL_LEFT]) a.counts[SMALL_LEFT] = !small_allocate(a, changes);
    } else {
        a.counts[SMALL_TAIL_SEGMENT] = a.tail_segment;
        a.counts[SMALL_TAIL_UNITS] = a.tail_units;
    }
    if (!a.counts[SMALL_LEFT]) small_stage(a, changes);
}

template <class Args>
static void small_plan_run(const void* args, u64, u64) {
    const Args& a = *(const Args*)args;
    try {
        small_plan(a);
    } catch (const std::bad_alloc&) {
        a.counts[SMALL_LEFT] = 1;  // the phases one by one say it
    }
}

// The values of the GETs, to `out`.
template <class Args>
static void small_result_run(const void* args, u64, u64) {
    const Args& a = *(const Args*)args;
    if constexpr (has_records<Args>) SMALL_RUN(gather_bytes, GATHER_BYTES_ARGS, a.counts[SMALL_GETS]);
    else SMALL_RUN(gather_u64, GATHER_U64_ARGS, a.counts[SMALL_GETS]);
}

// The records `first` to `last - 1`, to the heap.
static void small_record_run(const void* args, u64 first, u64 last) {
    const SmallBytes& a = *(const SmallBytes*)args;
    record_args taken = {RECORD_ARGS(SMALL_TAKE)};
    taken.put_op = a.put_op + first;
    taken.reference = a.put_reference + first;
    a.pool->run(&gpkvs_kernel_record, &taken, last - first);
}

// The undo entries `first` to `last - 1`, to the log.
template <class Args>
static void small_log_run(const void* args, u64 first, u64 last) {
    const Args& a = *(const Args*)args;
    if constexpr (has_records<Args>) {
        const log_undo_bytes_args taken = {a.changed_slot + first, a.index->ways, a.epoch, first, a.log, a.digest + first};
        a.pool->run(&gpkvs_kernel_log_undo_bytes, &taken, last - first);
    } else {
        const log_undo_u64_args taken = {a.changed_slot + first, a.index->ways, a.epoch, first, a.log, a.digest + first};
        a.pool->run(&gpkvs_kernel_log_undo_u64, &taken, last - first);
    }
    for (u64 i = first; i < last; i++) a.counts[SMALL_DIGEST] += a.digest[i];
}

// The slots `first` to `last - 1`, in place.
template <class Args>
static void small_apply_run(const void* args, u64 first, u64 last) {
    const Args& a = *(const Args*)args;
    if constexpr (has_records<Args>) {
        const apply_bytes_args taken = {a.changed_slot + first, a.contents + first, (BytesSlot*)a.index};
        a.pool->run(&gpkvs_kernel_apply_bytes, &taken, last - first);
    } else {
        const apply_u64_args taken = {a.changed_slot + first, a.contents + first, (U64Slot*)a.index};
        a.pool->run(&gpkvs_kernel_apply_u64, &taken, last - first);
    }
}

// After the commit: what each segment's live units gained and lost. As the recount does, a damaged reference that leaves
// the heap counts nowhere.
static void small_count_live_run(const void* args, u64, u64) {
    const SmallBytes& a = *(const SmallBytes*)args;
    for (u64 i = 0; i < a.counts[SMALL_PUTS]; i++)
        a.live_units[reference_offset(a.put_reference[i]) / a.segment_units] += reference_length(a.put_reference[i]);
    for (u64 i = 0; i < a.counts[SMALL_FREED]; i++) {
        const u64 segment = reference_offset(a.freed[i]) / a.segment_units;
        if (segment < a.segments) a.live_units[segment] -= reference_length(a.freed[i]);
    }
}

#define SMALL_EXPORT(name, Args, LIST, run) \
    extern "C" const Kernel gpkvs_kernel_##name = {sizeof(Args), LIST(GPKVS_NAME), run}
SMALL_EXPORT(small_plan_bytes, SmallBytes, SMALL_BYTES_ARGS, small_plan_run<SmallBytes>);
SMALL_EXPORT(small_plan_u64, SmallU64, SMALL_U64_ARGS, small_plan_run<SmallU64>);
SMALL_EXPORT(small_result_bytes, SmallBytes, SMALL_BYTES_ARGS, small_result_run<SmallBytes>);
SMALL_EXPORT(small_result_u64, SmallU64, SMALL_U64_ARGS, small_result_run<SmallU64>);
SMALL_EXPORT(small_record_bytes, SmallBytes, SMALL_BYTES_ARGS, small_record_run);
SMALL_EXPORT(small_log_bytes, SmallBytes, SMALL_BYTES_ARGS, small_log_run<SmallBytes>);
SMALL_EXPORT(small_log_u64, SmallU64, SMALL_U64_ARGS, small_log_run<SmallU64>);
SMALL_EXPORT(small_apply_bytes, SmallBytes, SMALL_BYTES_ARGS, small_apply_run<SmallBytes>);
SMALL_EXPORT(small_apply_u64, SmallU64, SMALL_U64_ARGS, small_apply_run<SmallU64>);
SMALL_EXPORT(small_count_live_bytes, SmallBytes, SMALL_BYTES_ARGS, small_count_live_run);
