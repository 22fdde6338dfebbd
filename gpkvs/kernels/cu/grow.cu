// A table that doubles: block k becomes the blocks 2k and 2k + 1 of a table of twice the blocks (probe.cuh).
//
// fingerprint1 alone chooses a slot's place in its block, so a slot keeps its bucket and its way: moving a block is a filter,
// and it cannot fail. A damaged slot, whose key belongs to neither block, goes to the lower one as it is.
#include "base/entry.cuh"
#include "base/probe.cuh"

enum Side { SIDE_EMPTY = 0, SIDE_LOWER = 1, SIDE_UPPER = 2 };

// Where each slot of a bucket goes. The hashes have a loop of their own, of which a compiler makes vectors.
template <class Slot>
GPKVS_DEVICE void find_sides(const TableKey& table, const Bucket<Slot>& from, u64 bucket, u64 blocks, u8* sides) {
    const u64 upper = 2 * (bucket / Bucket<Slot>::IN_BLOCK) + 1;
    const Slot empty = empty_slot(table, bucket, (const Slot*)nullptr);
    u64 fingerprint0[WAYS];
    for (u32 way = 0; way < WAYS; way++) fingerprint0[way] = fingerprint_of(table, from.ways[way]).low;
    for (u32 way = 0; way < WAYS; way++) {
        const u8 side = mul_high(fingerprint0[way], 2 * blocks) == upper ? SIDE_UPPER : SIDE_LOWER;
        sides[way] = is_empty(from.ways[way], empty) ? (u8)SIDE_EMPTY : side;
    }
}

// Both lines of a target are stored whole, so they need not be read.
template <class Slot>
GPKVS_DEVICE void stream_way(Bucket<Slot>& target, u32 way, bool is_taken, const Slot& slot, const Slot& empty) {
    u64 words[sizeof(Slot) / 8];
    for (u32 w = 0; w < sizeof(Slot) / 8; w++) words[w] = is_taken ? ((const u64*)&slot)[w] : ((const u64*)&empty)[w];
    for (u32 w = 0; w < sizeof(Slot) / 8; w += 2) pm_stream_pair((u64*)&target.ways[way] + w, words + w);
}

// split: both targets of every block, from the block `first` on, all of their slots; with `upper_only`, only the upper one.
// One item a bucket of a source. No source may be a target of another one; block 0 may be its own.
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
    const Bucket<Slot> from = a.index[bucket];
    u8 sides[WAYS];
    find_sides(table, from, bucket, a.blocks, sides);
    for (u32 way = 0; way < WAYS; way++)
        stream_way(a.index[lower + in_block], way, sides[way] == SIDE_UPPER, from.ways[way], empty);
    if (a.upper_only) return;
    for (u32 way = 0; way < WAYS; way++) stream_way(a.index[lower], way, sides[way] == SIDE_LOWER, from.ways[way], empty);
}

GPKVS_PM_KERNEL(split_bytes, SPLIT_BYTES_ARGS) { split_bucket<BytesSlot>(a, i); }
GPKVS_PM_KERNEL(split_u64, SPLIT_U64_ARGS) { split_bucket<U64Slot>(a, i); }

// sides: where each slot goes (`Side`). One item a bucket, from the bucket `first` on.
#define SIDES_ARGS(F, Slots)                                                                \
    F(const Slots*, index) F(u64, blocks) F(u64, first) F(u64, hash_key0) F(u64, hash_key1) F(u8*, side)
#define SIDES_BYTES_ARGS(F) SIDES_ARGS(F, BytesBucket)
#define SIDES_U64_ARGS(F) SIDES_ARGS(F, U64Bucket)

template <class Slot, class Args>
GPKVS_DEVICE void store_sides(const Args& a, u64 i) {
    const TableKey table = table_key<Slot>(a.hash_key0, a.hash_key1);
    find_sides(table, a.index[a.first + i], a.first + i, a.blocks, a.side + WAYS * i);
}

GPKVS_KERNEL(sides_bytes, SIDES_BYTES_ARGS) { store_sides<BytesSlot>(a, i); }
GPKVS_KERNEL(sides_u64, SIDES_U64_ARGS) { store_sides<U64Slot>(a, i); }

// log_moved: an entry for each slot that moves, with its contents, in the order of the sources. One item a block, whose
// entries begin at the number `entry`; `digest` gets their sum.
#define LOG_MOVED_ARGS(F, Slots)                                                            \
    F(const Slots*, index) F(u64, first) F(const u8*, side) F(const u64*, entry) F(u64, epoch) F(u64*, log) F(u64*, digest)
#define LOG_MOVED_BYTES_ARGS(F) LOG_MOVED_ARGS(F, BytesBucket)
#define LOG_MOVED_U64_ARGS(F) LOG_MOVED_ARGS(F, U64Bucket)

template <class Slot, class Args>
GPKVS_DEVICE void log_moved_block(const Args& a, u64 i) {
    const u64 slots = Bucket<Slot>::IN_BLOCK * WAYS, block = a.first + i;
    const Slot* from = a.index[block * Bucket<Slot>::IN_BLOCK].ways;
    const u8* side = a.side + slots * i;
    u64 entry = a.entry[i], digest = 0;
    for (u64 slot = 0; slot < slots; slot++) {
        if (side[slot] == SIDE_EMPTY) continue;
        const u64 target = (2 * block + (side[slot] == SIDE_UPPER)) * slots + slot;
        digest += log_entry(a.log, entry++, target, a.epoch, from[slot]);
    }
    a.digest[i] = digest;
}

GPKVS_PM_KERNEL(log_moved_bytes, LOG_MOVED_BYTES_ARGS) { log_moved_block<BytesSlot>(a, i); }
GPKVS_PM_KERNEL(log_moved_u64, LOG_MOVED_U64_ARGS) { log_moved_block<U64Slot>(a, i); }

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
    for (u32 way = 0; way < WAYS; way++) stream_way(a.index[bucket], way, false, empty, empty);
}

GPKVS_PM_KERNEL(fill_bytes, FILL_BYTES_ARGS) { fill_bucket<BytesSlot>(a, i); }
GPKVS_PM_KERNEL(fill_u64, FILL_U64_ARGS) { fill_bucket<U64Slot>(a, i); }
