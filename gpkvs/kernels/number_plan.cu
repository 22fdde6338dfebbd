// What a plan for a table of numbers needs beside the phases, where no host looks on between the kernels (number_plan.hpp):
// each `mark_` marks items with two numbers of 32 bits, a running sum over the marks numbers them, and each `pick_` puts the
// marked items side by side.
#include "probe.cuh"

// mark_needed: the operations of a shard that are to be ordered, as `needs_order` tells them, or all where nothing marks what
// is written; in the upper half, the SETs of the batch. Without `ops` all operations are SETs.
#define MARK_NEEDED_ARGS(F)                                                                 \
    F(const u8*, ops) F(const u64*, fingerprint0) GEOMETRY_ARGS(F) SHARD_ARGS(F) F(u64, places) F(const u8*, written) \
    F(u32*, source_op) F(u64*, marks)

GPKVS_KERNEL(mark_needed, MARK_NEEDED_ARGS) {
    const u64 fingerprint0 = a.fingerprint0[i];
    const u32 kind = a.ops ? a.ops[i] : (u32)OP_SET;
    const bool own = is_own(a, {fingerprint0, 0});
    const bool needed = own && (!a.written || is_write(kind) || a.written[fingerprint0 & (a.places - 1)]);
    if (own && a.source_op) a.source_op[i] = NO_OP;
    a.marks[i] = (u64)(kind == OP_SET) << 32 | needed;
}

// pick_needed: their numbers and columns; and where the value of each SET begins. What stands at other operations means nothing.
#define PICK_NEEDED_ARGS(F)                                                                 \
    F(const u64*, marks) F(const u64*, sums) F(const u8*, ops) F(const u64*, fingerprint0) F(const u64*, fingerprint1) \
    F(u32*, op_numbers) F(u64*, taken0) F(u64*, taken1) F(u8*, taken_ops) F(u64*, value_offsets)

GPKVS_KERNEL(pick_needed, PICK_NEEDED_ARGS) {
    if (a.value_offsets) a.value_offsets[i] = 8 * (a.sums[i] >> 32) - 8;
    if (!a.op_numbers || !(u32)a.marks[i]) return;
    const u32 at = (u32)a.sums[i] - 1;
    a.op_numbers[at] = (u32)i;
    a.taken0[at] = a.fingerprint0[i];
    a.taken1[at] = a.fingerprint1[i];
    if (a.taken_ops) a.taken_ops[at] = a.ops[i];
}

// mark_changes: the chains that change a slot; in the upper half, those that remove a key.
#define MARK_CHANGES_ARGS(F) F(const u8*, change) F(u64*, marks)

GPKVS_KERNEL(mark_changes, MARK_CHANGES_ARGS) {
    a.marks[i] = (u64)(a.change[i] == CHANGE_REMOVE) << 32 | (a.change[i] != CHANGE_NONE);
}

#define PICK_CHANGES_ARGS(F) F(const u64*, marks) F(const u64*, sums) F(u32*, changed_chain)

GPKVS_KERNEL(pick_changes, PICK_CHANGES_ARGS) {
    if ((u32)a.marks[i]) a.changed_chain[(u32)a.sums[i] - 1] = (u32)i;
}

// mark_blocks: where the changes of a block begin; in the upper half, new keys. Nothing moves yet.
#define MARK_BLOCKS_ARGS(F) \
    F(const u32*, changed_chain) F(const u32*, block) F(const u64*, slot) F(u64*, moved_to) F(u64*, marks)

GPKVS_KERNEL(mark_blocks, MARK_BLOCKS_ARGS) {
    const u32 chain = a.changed_chain[i];
    const bool begins = i == 0 || a.block[chain] != a.block[a.changed_chain[i - 1]];
    a.moved_to[i] = NO_SLOT;
    a.marks[i] = (u64)(a.slot[chain] == NO_SLOT) << 32 | begins;
}

// pick_blocks: the first change of each block, and the end. `place_blocks` says how many blocks `place` must look at: none
// if no key is new.
#define PICK_BLOCKS_ARGS(F) \
    F(const u64*, marks) F(const u64*, sums) F(const u32*, changes) F(u32*, block_first) F(u64*, place_blocks)

GPKVS_KERNEL(pick_blocks, PICK_BLOCKS_ARGS) {
    const u32 blocks = (u32)a.sums[i];
    if ((u32)a.marks[i]) a.block_first[blocks - 1] = (u32)i;
    if (i + 1 != *a.changes) return;
    a.block_first[blocks] = (u32)i + 1;
    *a.place_blocks = a.sums[i] >> 32 ? blocks : 0;
}

// mark_placed: new keys without a way; in the upper half, changes that displace an occupant.
#define MARK_PLACED_ARGS(F) F(const u32*, changed_chain) F(const u64*, slot) F(const u64*, moved_to) F(u64*, marks)

GPKVS_KERNEL(mark_placed, MARK_PLACED_ARGS) {
    a.marks[i] = (u64)(a.moved_to[i] != NO_SLOT) << 32 | (a.slot[a.changed_chain[i]] == NO_SLOT);
}

// pick_moved: what is displaced, as it is, behind the changes. `sums` are those of `mark_placed`.
#define PICK_MOVED_ARGS(F)                                                                  \
    F(const u32*, changed_chain) F(const u64*, slot) F(const u64*, moved_to) F(const u64*, sums) F(const U64Bucket*, index) \
    F(u64, changes) F(u64*, changed_slot) F(U64Slot*, contents)

GPKVS_KERNEL(pick_moved, PICK_MOVED_ARGS) {
    if (a.moved_to[i] == NO_SLOT) return;
    const u64 at = a.changes + (a.sums[i] >> 32) - 1, slot = a.slot[a.changed_chain[i]];
    a.changed_slot[at] = a.moved_to[i];
    a.contents[at] = a.index[slot / WAYS].ways[slot % WAYS];
}

// mark_values: the GETs that found a value; pick_values: those values, side by side.
#define MARK_VALUES_ARGS(F) F(const u8*, ops) F(const u8*, status) F(u64*, marks)

GPKVS_KERNEL(mark_values, MARK_VALUES_ARGS) { a.marks[i] = a.ops[i] == OP_GET && a.status[i] == STATUS_OK; }

#define PICK_VALUES_ARGS(F) F(const u64*, marks) F(const u64*, sums) F(const u64*, source_word) F(u64*, found_values)

GPKVS_KERNEL(pick_values, PICK_VALUES_ARGS) {
    if (a.marks[i]) a.found_values[a.sums[i] - 1] = a.source_word[i];
}

// tell: counts to where the host reads them.
#define TELL_ARGS(F) F(const u64*, counts) F(u64*, told)

GPKVS_KERNEL(tell, TELL_ARGS) { a.told[i] = a.counts[i]; }

// widen: bytes as words, which can be added up by tiles.
#define WIDEN_ARGS(F) F(const u8*, bytes) F(u64*, words)

GPKVS_KERNEL(widen, WIDEN_ARGS) { a.words[i] = a.bytes[i]; }
