// A plan for a large batch on a GPU: native code launches all kernels of a phase at once.
//
// Python gives it columns (gpkvs/engine/device/phases.py). Between two kernels, Python takes longer than a kernel, and to ask a GPU
// how many items the next kernel has takes longer still. Here the kernels ask each other (`limit`). The host looks at `told`.
//
//     numbers: locate -> select -> (tell) -> order -> stage -> values -> tell
//     records: locate -> select -> (tell) -> order -> keep -> tell -> stage
//
// A call launches several steps. There is more than one where the caller has something to do between two of them: kinds and values
// that it copies while the kernels look keys up and order them, a look at how many operations are to be ordered, or room in the heap
// for the records that are kept. What is launched before a step need not wait for what that needs: `locate` has the keys, `select`
// and `order` kinds, `stage` values, or where the new records are.
//
// It looks keys up first, and orders operations by the slots that it found: so many bits tell all keys apart that are there, and
// only the others need a fingerprint. Of SETs on one GPU nothing is selected.
//
// Where something does not fit, or is not sorted, the host's planner runs the batch: a plan only reads PM.
#pragma once
#include "base/probe.cuh"
#include "plan/radix.hpp"

#define BATCH_PLAN_GIVEN(F)                                                                 \
    F(Launcher*, launcher) F(void*, queue) F(u64*, told) F(u8*, room)                       \
    F(u64, count) F(u64, ordered) F(u64, has_only_sets) F(u64, looks) F(u64, selects) F(u64, has_records) \
    F(const u8*, keys) F(const u8*, ops) F(const u8*, values) F(const void*, index)         \
    GEOMETRY_ARGS(F) SHARD_ARGS(F) F(u64, hash_key0) F(u64, hash_key1)                      \
    F(u8*, status) F(u64*, source_word) F(u32*, source_op) F(u64*, found_values)            \
    F(u64, changes) F(u64*, changed_slot) F(void*, contents)                                \
    F(const u64*, key_offsets) F(const u32*, key_lengths) F(const u32*, value_lengths) F(const u64*, expiries) \
    F(u64*, versions) F(u64, first_sequence) F(u64, record_format) F(u64, records) F(const u64*, references)

#define BATCH_PLAN_COLUMNS(F)                                                               \
    F(u64*, sorted) F(u64*, spare) F(u32*, digits) F(u64*, counts) F(u64*, marks) F(u64*, sums) F(u64*, tiles) \
    F(u64*, packed) F(u64*, taken)                                                          \
    F(u64*, value_offsets) F(u64, places) F(u8*, written) F(u32*, op_numbers) F(u8*, taken_ops) \
    F(u8*, descents) F(u32*, order) F(u32*, chain_of) F(u32*, chain_start) F(u32*, write_end) \
    F(u32*, last_write) F(u64*, chain_fingerprint0) F(u64*, chain_fingerprint1) F(u32*, block) F(u64*, slot) \
    F(u64*, old_word) F(u8*, change) F(u32*, final_op) F(u32*, changed_chain) F(u32*, block_first) F(u64*, moved_to) \
    F(u64*, fingerprint0) F(u64*, fingerprint1) F(u64*, old_meta) F(u32*, kept) F(u64*, freed) F(u64*, freed_meta) F(u64*, reference)

#define BATCH_PLAN_FIELDS(F) BATCH_PLAN_GIVEN(F) BATCH_PLAN_COLUMNS(F)
struct BatchPlan {
    BATCH_PLAN_FIELDS(GPKVS_FIELD)
};

// `told`, and `counts` where the kernels run. The first of each pair is the lower half of a word.
#define PLAN_COUNTS(F)                                                                    \
    F(NEEDED)       /* operations to order, SETs */                                         \
    F(UNSORTED)     /* where ties were left as they are */                                  \
    F(CHAINS)       /* writes, chains */                                                    \
    F(CHANGES)      /* changes, removed keys */                                             \
    F(BLOCKS)       /* with new keys, new keys */                                           \
    F(PLACED)       /* keys without a way, displaced occupants */                           \
    F(VALUES)       /* that GETs found */                                                   \
    F(ABSENT)       /* 1: some key is not there */                                          \
    F(KEPT)         /* records */
#define PLAN_COUNT(name) COUNT_##name,
enum PlanCount { PLAN_COUNTS(PLAN_COUNT) COUNTS };

// A call launches steps by their bits, in this order.
#define PLAN_STEPS(F) F(LOCATE, 1) F(SELECT, 2) F(ORDER, 4) F(KEEP, 8) F(STAGE, 16) F(VALUES, 32) F(STAGE_MOVED, 64) F(TELL, 128)
#define PLAN_STEP(name, bit) STEP_##name = bit,
#define PLAN_STEP_NAME(name, bit) #name ";"
#define PLAN_NAME(name) #name ";"
enum PlanStep : u64 { PLAN_STEPS(PLAN_STEP) };

// A GET whose key has the place of another one's that is written is ordered without need: so few of them are.
static const u32 PLACES_BITS = 2;  // of an operation, and one more

// Memory for columns, one after the other; without memory, it counts how much they take.
struct Room {
    u64 at;

    template <class T>
    void take(T*& column, u64 count) {
        column = (T*)at;
        at += (count * sizeof(T) + 255) / 256 * 256;
    }
};

// All have room for as many operations as there are: who asked how many are to be ordered would ask for memory once more.
static void take_columns(BatchPlan& p, Room& room) {
    const u64 n = p.count, selected = p.selects ? n : 0, recorded = p.has_records ? n : 0;
    room.take(p.counts, COUNTS);
    room.take(p.marks, n);
    room.take(p.sums, n);
    room.take(p.tiles, tiles_of(n));
    room.take(p.packed, n);
    room.take(p.taken, n);
    p.sorted = p.selects ? p.taken : p.packed;
    p.spare = p.selects ? p.packed : p.taken;  // what is selected is in no need of the rest
    room.take(p.digits, digit_counts_of(n));
    room.take(p.value_offsets, p.has_only_sets || p.has_records ? 0 : n);
    u64 places = 1;
    while (places <= n) places *= 2;
    p.places = p.looks ? places << PLACES_BITS : 0;
    room.take(p.written, p.places);
    room.take(p.op_numbers, selected);
    room.take(p.taken_ops, p.has_only_sets ? 0 : selected);
    room.take(p.descents, n);
    room.take(p.order, n);
    room.take(p.chain_of, n);
    room.take(p.chain_start, n + 1);
    room.take(p.write_end, n);
    room.take(p.last_write, n);
    room.take(p.chain_fingerprint0, n);
    room.take(p.chain_fingerprint1, n);
    room.take(p.block, n);
    room.take(p.slot, n);
    room.take(p.old_word, p.has_only_sets && !p.has_records ? 0 : n);
    room.take(p.change, n);
    room.take(p.final_op, n);
    room.take(p.changed_chain, n);
    room.take(p.block_first, n + 1);
    room.take(p.moved_to, n);
    room.take(p.fingerprint0, recorded);
    room.take(p.fingerprint1, recorded);
    room.take(p.old_meta, recorded);
    room.take(p.kept, recorded);
    room.take(p.freed, recorded);
    room.take(p.freed_meta, recorded);
    room.take(p.reference, recorded);
}

// Launches with the names of kernels and of their arguments.
struct BatchPlanner {
    BatchPlan& p;

    template <class Args>
    void launch(Launch kernel, const Args& args, u64 items, const u32* limit = nullptr) {
        p.launcher->launch(kernel, &args, items, limit);
    }
    void scan(u64* sums, u64 items, const u32* limit, PlanCount total) {
        p.launcher->scan({p.marks, sums, p.tiles, p.counts + total}, items, limit);
    }
    const u32* low(PlanCount count) const { return (const u32*)(p.counts + count); }
    const u32* high(PlanCount count) const { return low(count) + 1; }
    void tell() { launch(LAUNCH_tell, tell_args{p.counts, p.told}, COUNTS); }

    // The bits that the number of an operation may take. In a short batch they are more: the rest has bits enough to tell keys
    // apart, and each bit less has less to sort.
    u64 numbers() const {
        u64 numbers = 0xFFFF;
        while (numbers + 1 < p.count) numbers = 2 * numbers + 1;
        return numbers;
    }

    void run(u64 steps) {
        if (steps & STEP_LOCATE) locate();
        if (steps & STEP_SELECT) select();
        if (steps & STEP_ORDER) order();
        if (steps & STEP_KEEP) keep();
        if (steps & STEP_STAGE) stage();
        if (steps & STEP_VALUES) values();
        if (steps & STEP_STAGE_MOVED) stage_moved();
        if (steps & STEP_TELL) tell();
    }

    const U64Bucket* numbers_index() const { return (const U64Bucket*)p.index; }
    const BytesBucket* records_index() const { return (const BytesBucket*)p.index; }
    const u64* fingerprints0() const { return p.has_records ? p.fingerprint0 : nullptr; }

    // Finds the keys of the shard, and what the table holds for each operation.
    void locate() {
        Room room = {(u64)p.room};
        take_columns(p, room);
        u8* const status = p.has_only_sets ? nullptr : p.status;
        p.launcher->zero(p.counts, COUNTS * sizeof(u64));
        if (!p.has_records) {
            launch(LAUNCH_locate_numbers,
                   locate_numbers_args{p.keys, p.hash_key0, p.hash_key1, numbers_index(), p.blocks, p.unmoved, p.shard, p.shards,
                                       p.stripe_blocks, numbers(), p.packed, status, p.source_word, p.counts + COUNT_ABSENT},
                   p.count);
            return;
        }
        launch(LAUNCH_route_bytes,
               route_bytes_args{p.keys, p.key_offsets, p.key_lengths, p.hash_key0, p.hash_key1, p.fingerprint0, p.fingerprint1},
               p.count);
        launch(LAUNCH_locate_records,
               locate_records_args{p.fingerprint0, p.fingerprint1, records_index(), p.blocks, p.unmoved, numbers(), p.packed, status,
                                   p.source_word, p.versions, p.counts + COUNT_ABSENT},
               p.count);
    }

    // Selects the operations to order, and tells where values begin.
    void select() {
        if (p.looks) {
            p.launcher->zero(p.written, p.places);
            launch(LAUNCH_mark_written_places, mark_written_places_args{p.ops, p.packed, numbers(), p.places, p.written}, p.count);
        }
        launch(LAUNCH_mark_needed,
               mark_needed_args{kinds(), p.packed, numbers(), p.places, p.looks ? p.written : nullptr,
                                p.has_only_sets ? nullptr : p.source_op, p.marks},
               p.count);
        scan(p.sums, p.count, nullptr, COUNT_NEEDED);
        if (!p.selects && p.has_records) return;
        launch(LAUNCH_pick_needed,
               pick_needed_args{p.marks, p.sums, kinds(), p.packed, numbers(), numbers_of_ops(), p.taken,
                                p.has_only_sets ? nullptr : p.taken_ops, p.has_only_sets || p.has_records ? nullptr : p.value_offsets},
               p.count);
    }

    // None of a batch of SETs, which may have had a plan before that left some.
    const u8* kinds() const { return p.has_only_sets ? nullptr : p.ops; }
    u32* numbers_of_ops() const { return p.selects ? p.op_numbers : nullptr; }

    // By slots. The bits above those of slots are 0 but for keys that are not there.
    void sort() {
        const u64 blocks = p.unmoved == p.blocks ? p.blocks : 2 * p.blocks;
        const RadixSort sort = {p.sorted, p.spare, p.digits, bits_of(numbers())};
        const u64 in_block = p.has_records ? BytesBucket::IN_BLOCK : U64Bucket::IN_BLOCK;
        sort.run(*p.launcher, p.ordered, nullptr, bits_of(blocks * in_block * WAYS - 1), p.counts + COUNT_ABSENT);
    }

    void order() {
        sort();
        chain();
        if (!p.has_only_sets) change();
        place();
    }

    void chain() {
        const u64 n = p.ordered;
        const u8* ops = p.selects && !p.has_only_sets ? p.taken_ops : kinds();
        launch(LAUNCH_tell_descents,
               tell_descents_args{p.sorted, numbers(), numbers_of_ops(), p.keys, p.hash_key0, p.hash_key1, fingerprints0(),
                                  p.fingerprint1, p.descents},
               n);
        launch(LAUNCH_sort_tied,
               sort_tied_args{p.sorted, numbers(), numbers_of_ops(), p.keys, p.hash_key0, p.hash_key1, fingerprints0(), p.fingerprint1,
                              p.descents, n, p.counts + COUNT_UNSORTED},
               n);
        launch(LAUNCH_mark_chains,
               mark_chains_args{p.sorted, numbers(), numbers_of_ops(), p.keys, p.hash_key0, p.hash_key1, fingerprints0(),
                                p.fingerprint1, ops, p.order, p.marks},
               n);
        scan(p.sums, n, nullptr, COUNT_CHAINS);
        launch(LAUNCH_spread, spread_args{p.marks, p.sums, n, p.chain_of, p.chain_start, p.write_end}, n);
        if (p.has_records)
            launch(LAUNCH_chain_records,
                   chain_records_args{p.sorted, numbers(), p.order, p.chain_start, high(COUNT_CHAINS), p.keys, p.hash_key0, p.hash_key1,
                                      p.fingerprint0, p.fingerprint1, records_index(), p.blocks, p.unmoved, p.chain_fingerprint0,
                                      p.chain_fingerprint1, p.block, p.slot, p.old_word, p.has_only_sets, p.change, p.final_op,
                                      p.changed_chain, p.counts + COUNT_CHANGES, p.old_meta},
                   n, high(COUNT_CHAINS));
        else
            launch(LAUNCH_chain_numbers,
                   chain_numbers_args{p.sorted, numbers(), p.order, p.chain_start, high(COUNT_CHAINS), p.keys, p.hash_key0, p.hash_key1,
                                      nullptr, nullptr, numbers_index(), p.blocks, p.unmoved, p.chain_fingerprint0,
                                      p.chain_fingerprint1, p.block, p.slot, p.has_only_sets ? nullptr : p.old_word, p.has_only_sets,
                                      p.change, p.final_op, p.changed_chain, p.counts + COUNT_CHANGES},
                   n, high(COUNT_CHAINS));
        if (!p.has_only_sets) fold();
    }

    void fold() {
        const u64 n = p.ordered;
        launch(LAUNCH_last_writes, last_writes_args{p.sums, p.write_end, p.last_write}, n);
        if (p.has_records)
            launch(LAUNCH_fold_bytes,
                   fold_bytes_args{p.order, p.chain_of, p.chain_start, p.last_write, p.ops, p.slot, p.old_word, p.status, p.source_word,
                                   p.source_op, p.change, p.final_op, p.old_meta, p.first_sequence, p.versions},
                   n);
        else
            launch(LAUNCH_fold_u64,
                   fold_u64_args{p.order, p.chain_of, p.chain_start, p.last_write, p.ops, p.slot, p.old_word, p.status, p.source_word,
                                 p.source_op, p.change, p.final_op},
                   n);
    }

    void change() {
        const u32* chains = high(COUNT_CHAINS);
        launch(LAUNCH_mark_changes, mark_changes_args{p.change, p.marks}, p.ordered, chains);
        scan(p.sums, p.ordered, chains, COUNT_CHANGES);
        launch(LAUNCH_pick_changes, pick_changes_args{p.marks, p.sums, p.changed_chain}, p.ordered, chains);
    }

    void place() {
        const u32* changes = low(COUNT_CHANGES);
        launch(LAUNCH_mark_blocks, mark_blocks_args{p.changed_chain, p.block, p.slot, p.moved_to, p.marks}, p.ordered, changes);
        scan(p.sums, p.ordered, changes, COUNT_BLOCKS);
        launch(LAUNCH_pick_blocks, pick_blocks_args{p.marks, p.sums, changes, p.block_first}, p.ordered, changes);
        if (p.has_records) place_news<place_records_args>(LAUNCH_place_records, records_index());
        else place_news<place_numbers_args>(LAUNCH_place_numbers, numbers_index());
        launch(LAUNCH_mark_placed, mark_placed_args{p.changed_chain, p.slot, p.moved_to, p.marks}, p.ordered, changes);
        scan(nullptr, p.ordered, changes, COUNT_PLACED);
    }

    template <class Args, class Buckets>
    void place_news(Launch kernel, const Buckets* index) {
        launch(kernel,
               Args{p.block_first, p.changed_chain, low(COUNT_CHANGES), high(COUNT_BLOCKS), p.block, p.chain_fingerprint0,
                    p.chain_fingerprint1, index, p.blocks, p.unmoved, p.hash_key0, p.hash_key1, p.slot, p.moved_to},
               std::min(p.ordered, 2 * p.blocks), low(COUNT_BLOCKS));
    }

    // The values that GETs found, once all shards have seen theirs.
    void values() {
        launch(LAUNCH_mark_values, mark_values_args{p.ops, p.status, p.marks}, p.count);
        scan(p.sums, p.count, nullptr, COUNT_VALUES);
        launch(LAUNCH_pick_values, pick_values_args{p.marks, p.sums, p.source_word, p.found_values}, p.count);
    }

    // The records that are kept, and what is freed for them.
    void keep() {
        const u32* changes = low(COUNT_CHANGES);
        p.launcher->zero(p.marks, p.count * sizeof(u64));
        launch(LAUNCH_mark_kept,
               mark_kept_args{p.changed_chain, p.change, p.final_op, p.old_word, p.old_meta, p.marks, p.freed, p.freed_meta}, p.ordered,
               changes);
        scan(p.sums, p.count, nullptr, COUNT_KEPT);
        launch(LAUNCH_pick_kept, pick_kept_args{p.marks, p.sums, p.kept}, p.count);
    }

    // What GETs see of the batch's own SETs, and the new contents of the slots that change. Those of records are known by number.
    void stage() {
        if (p.has_records) {
            stage_changes(p.changes, nullptr);
            return;
        }
        if (!p.has_only_sets)
            launch(LAUNCH_own_values, own_values_args{p.order, p.source_op, p.values, p.value_offsets, p.source_word}, p.ordered);
        stage_changes(p.ordered, low(COUNT_CHANGES));
    }

    void stage_changes(u64 changes, const u32* limit) {
        if (!p.has_records) {
            launch(LAUNCH_stage_u64,
                   stage_u64_args{p.changed_chain, p.change, p.final_op, p.slot, p.keys, p.values,
                                  p.has_only_sets ? nullptr : p.value_offsets, p.hash_key0, p.hash_key1, p.changed_slot,
                                  (U64Slot*)p.contents},
                   changes, limit);
            return;
        }
        launch(LAUNCH_name_records, name_records_args{p.kept, p.references, p.reference}, p.records);
        launch(LAUNCH_stage_bytes,
               stage_bytes_args{p.changed_chain, p.change, p.final_op, p.slot, p.chain_fingerprint0, p.chain_fingerprint1, p.reference,
                                p.key_lengths, p.value_lengths, p.record_format, p.expiries, p.first_sequence, nullptr, p.changed_slot,
                                (BytesSlot*)p.contents},
               changes, limit);
    }

    // The same again, with what is displaced: nobody knew before that there must be more room.
    void stage_moved() {
        stage_changes(p.changes, nullptr);
        launch(LAUNCH_mark_placed, mark_placed_args{p.changed_chain, p.slot, p.moved_to, p.marks}, p.changes);
        scan(p.sums, p.changes, nullptr, COUNT_PLACED);
        if (p.has_records) pick_moved<pick_moved_records_args>(LAUNCH_pick_moved_records, records_index(), (BytesSlot*)p.contents);
        else pick_moved<pick_moved_numbers_args>(LAUNCH_pick_moved_numbers, numbers_index(), (U64Slot*)p.contents);
    }

    template <class Args, class Buckets, class Slot>
    void pick_moved(Launch kernel, const Buckets* index, Slot* contents) {
        launch(kernel, Args{p.changed_chain, p.slot, p.moved_to, p.sums, index, p.changes, p.changed_slot, contents}, p.changes);
    }
};
