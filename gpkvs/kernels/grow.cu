// A table that doubles: block k becomes the blocks 2k and 2k + 1 of a table of twice the blocks (probe.cuh).
//
// fingerprint1 alone chooses a slot's place in its block, so a slot keeps its bucket and its way: moving a block is a filter,
// and it cannot fail. A damaged slot, whose key belongs to neither block, goes to the lower one as it is.
#include "entry.cuh"
#include "probe.cuh"

enum Side { SIDE_EMPTY = 0, SIDE_LOWER = 1, SIDE_UPPER = 2 };

template <class Slot>
GPKVS_DEVICE u8 side_of(const TableKey& table, const Slot& slot, u64 bucket, u64 blocks) {
    if (is_empty(slot, empty_slot(table, bucket, (const Slot*)nullptr))) return SIDE_EMPTY;
    const u64 upper = 2 * (bucket / Bucket<Slot>::IN_BLOCK) + 1;
    return mul_high(fingerprint_of(table, slot).low, 2 * blocks) == upper ? SIDE_UPPER : SIDE_LOWER;
}

template <class Slot>
GPKVS_DEVICE void store_way(Bucket<Slot>* index, u64 bucket, u32 way, const Slot& slot) {
    store_slot(index->ways, bucket * WAYS + way, (const u64*)&slot);
}

// split: both targets of every block, from the block `first` on, all of their slots; with `upper_only`, only the upper one.
// One item a bucket of a source. No source may be a target of another one.
#define SPLIT_ARGS(F, Slots)                                                                \
    F(Slots*, index) F(u64, blocks) F(u64, first) F(u64, upper_only) F(u64, hash_key0) F(u64, hash_key1)
#define SPLIT_BYTES_ARGS(F) SPLIT_ARGS(F, BytesBucket)
#define SPLIT_U64_ARGS(F) SPLIT_ARGS(F, U64Bucket)

template <class Slot, class Args>
GPKVS_DEVICE void split_bucket(const Args& a, u64 i) {
    const u64 in_block = Bucket<Slot>::IN_BLOCK, bucket = a.first * in_block + i;
    const u64 lower = bucket / in_block * 2 * in_block + bucket % in_block;
    const TableKey table = table_key<Slot>(a.hash_key0, a.hash_key1);
    const Slot empty = empty_slot(table, bucket, (const Slot*)nullptr);
    for (u32 way = 0; way < WAYS; way++) {
        const Slot slot = a.index[bucket].ways[way];
        const bool is_upper = side_of(table, slot, bucket, a.blocks) == SIDE_UPPER;
        store_way(a.index, lower + in_block, way, is_upper ? slot : empty);
        if (!a.upper_only) store_way(a.index, lower, way, is_upper ? empty : slot);
    }
}

GPKVS_PM_KERNEL(split_bytes, SPLIT_BYTES_ARGS) { split_bucket<BytesSlot>(a, i); }
GPKVS_PM_KERNEL(split_u64, SPLIT_U64_ARGS) { split_bucket<U64Slot>(a, i); }

// sides: where each slot goes (`Side`). One item a slot, from the slot `first` on.
#define SIDES_ARGS(F, Slots)                                                                \
    F(const Slots*, index) F(u64, blocks) F(u64, first) F(u64, hash_key0) F(u64, hash_key1) F(u8*, side)
#define SIDES_BYTES_ARGS(F) SIDES_ARGS(F, BytesBucket)
#define SIDES_U64_ARGS(F) SIDES_ARGS(F, U64Bucket)

template <class Slot, class Args>
GPKVS_DEVICE void find_side(const Args& a, u64 i) {
    const u64 slot = a.first + i;
    const TableKey table = table_key<Slot>(a.hash_key0, a.hash_key1);
    a.side[i] = side_of(table, a.index[slot / WAYS].ways[slot % WAYS], slot / WAYS, a.blocks);
}

GPKVS_KERNEL(sides_bytes, SIDES_BYTES_ARGS) { find_side<BytesSlot>(a, i); }
GPKVS_KERNEL(sides_u64, SIDES_U64_ARGS) { find_side<U64Slot>(a, i); }

// empty_slots: the contents of slots that a table does without. One item a slot.
#define EMPTY_SLOTS_ARGS(F, Slot)                                                           \
    F(const u64*, changed_slot) F(u64, hash_key0) F(u64, hash_key1) F(Slot*, contents)
#define EMPTY_SLOTS_BYTES_ARGS(F) EMPTY_SLOTS_ARGS(F, BytesSlot)
#define EMPTY_SLOTS_U64_ARGS(F) EMPTY_SLOTS_ARGS(F, U64Slot)

template <class Slot, class Args>
GPKVS_DEVICE Slot empty_at(const Args& a, u64 bucket) {
    return empty_slot(table_key<Slot>(a.hash_key0, a.hash_key1), bucket, (const Slot*)nullptr);
}

GPKVS_KERNEL(empty_slots_bytes, EMPTY_SLOTS_BYTES_ARGS) {
    a.contents[i] = empty_at<BytesSlot>(a, a.changed_slot[i] / WAYS);
}
GPKVS_KERNEL(empty_slots_u64, EMPTY_SLOTS_U64_ARGS) { a.contents[i] = empty_at<U64Slot>(a, a.changed_slot[i] / WAYS); }

// fill: all slots of blocks become empty. One item a bucket, from the block `first` on.
#define FILL_ARGS(F, Slots) F(Slots*, index) F(u64, first) F(u64, hash_key0) F(u64, hash_key1)
#define FILL_BYTES_ARGS(F) FILL_ARGS(F, BytesBucket)
#define FILL_U64_ARGS(F) FILL_ARGS(F, U64Bucket)

template <class Slot, class Args>
GPKVS_DEVICE void fill_bucket(const Args& a, u64 i) {
    const u64 bucket = a.first * Bucket<Slot>::IN_BLOCK + i;
    const Slot empty = empty_at<Slot>(a, bucket);
    for (u32 way = 0; way < WAYS; way++) store_way(a.index, bucket, way, empty);
}

GPKVS_PM_KERNEL(fill_bytes, FILL_BYTES_ARGS) { fill_bucket<BytesSlot>(a, i); }
GPKVS_PM_KERNEL(fill_u64, FILL_U64_ARGS) { fill_bucket<U64Slot>(a, i); }
