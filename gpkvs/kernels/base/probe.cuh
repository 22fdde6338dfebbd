// Where a key may live, and which of a bucket's eight ways hold it.
//
// fingerprint0 alone chooses the block: it is scaled to the number of blocks, so sorting by it sorts by block, and
// doubling the table splits each block in two. fingerprint1 alone chooses the two buckets inside the block: a key keeps
// its bucket and way when its block is split.
//
// While a table grows, its blocks move one after the other, from the last to the first: block k becomes 2k and 2k + 1. The
// first `unmoved` ones are still in their places. Whatever is not in one of these is where twice the blocks have it.
#pragma once
#include "base/hash.cuh"
#include "base/layout.cuh"

struct Candidates {
    u64 bucket0, bucket1;
};

// How many blocks a table has, and how many of them did not move yet: all of them, unless it grows.
struct Geometry {
    u64 blocks, unmoved;
};
#define GEOMETRY_ARGS(F) F(u64, blocks) F(u64, unmoved)

template <class Args>
GPKVS_DEVICE Geometry geometry_of(const Args& a) {
    return {a.blocks, a.unmoved};
}

GPKVS_DEVICE u64 block_of(Hash128 fingerprint, const Geometry& geometry) {
    const u64 block = mul_high(fingerprint.low, geometry.blocks);
    return block < geometry.unmoved ? block : mul_high(fingerprint.low, 2 * geometry.blocks);
}

// A processor's share of an index: every `shards`-th stripe of blocks is the one's with the number `shard`.
#define SHARD_ARGS(F) F(u64, shard) F(u64, shards) F(u64, stripe_blocks)

template <class Args>
GPKVS_DEVICE bool is_own(const Args& a, Hash128 fingerprint) {
    return a.shards == 1 || block_of(fingerprint, geometry_of(a)) / a.stripe_blocks % a.shards == a.shard;
}

// Whether a block holds keys: not those that have moved, nor those that none has moved to.
GPKVS_DEVICE bool is_live_block(u64 block, const Geometry& geometry) {
    return block < geometry.unmoved || (block >= 2 * geometry.unmoved && block < 2 * geometry.blocks);
}

// The two buckets of a key, counted from the first one of its block.
template <class Slot>
GPKVS_DEVICE Candidates candidates_in_block(Hash128 fingerprint) {
    const u32 in_block = Bucket<Slot>::IN_BLOCK;
    const u64 first = mul_high(fingerprint.high, in_block);
    const u64 step = 1 + fingerprint.high % (in_block - 1);
    return {first, (first + step) % in_block};
}

template <class Slot>
GPKVS_DEVICE Candidates candidate_buckets(Hash128 fingerprint, const Geometry& geometry) {
    const u64 block = block_of(fingerprint, geometry) * Bucket<Slot>::IN_BLOCK;
    const Candidates at = candidates_in_block<Slot>(fingerprint);
    return {block + at.bucket0, block + at.bucket1};
}

// What a kernel must know of a table to tell an empty slot from a full one, and where an occupant may go.
struct TableKey {
    u64 hash_key0, hash_key1;
    Candidates of_zero;  // where in a block the number 0 may live: the only buckets whose empty marker is not 0
};

GPKVS_DEVICE Hash128 hash_number(const TableKey& table, u64 number) {
    return siphash128_word(table.hash_key0, table.hash_key1, number);
}

template <class Slot>
GPKVS_DEVICE TableKey table_key(u64 hash_key0, u64 hash_key1) {
    TableKey table = {hash_key0, hash_key1, {0, 0}};
    table.of_zero = candidates_in_block<Slot>(hash_number(table, 0));
    return table;
}

GPKVS_DEVICE Hash128 fingerprint_of(const TableKey&, const BytesSlot& slot) {
    return {slot.fingerprint0, slot.fingerprint1};
}
GPKVS_DEVICE Hash128 fingerprint_of(const TableKey& table, const U64Slot& slot) { return hash_number(table, slot.key); }

// The smallest number that cannot live in this bucket of a block. It is the same in every block.
GPKVS_DEVICE u64 empty_marker(const TableKey& table, u64 bucket) {
    const u64 in_block = bucket % U64Bucket::IN_BLOCK;
    if (in_block != table.of_zero.bucket0 && in_block != table.of_zero.bucket1) return 0;
    for (u64 number = 1;; number++) {
        const Candidates at = candidates_in_block<U64Slot>(hash_number(table, number));
        if (at.bucket0 != in_block && at.bucket1 != in_block) return number;
    }
}

GPKVS_DEVICE BytesSlot empty_slot(const TableKey&, u64, const BytesSlot*) { return {0, 0, 0, 0}; }
GPKVS_DEVICE U64Slot empty_slot(const TableKey& table, u64 bucket, const U64Slot*) {
    return {empty_marker(table, bucket), 0};
}

GPKVS_DEVICE bool holds(const BytesSlot& slot, const BytesSlot& key) {
    return slot.fingerprint0 == key.fingerprint0 && slot.fingerprint1 == key.fingerprint1 &&
           slot_kind(slot.meta) != KIND_EMPTY;
}
// A bucket's marker cannot be a key of that bucket, so a match is never an empty slot.
GPKVS_DEVICE bool holds(const U64Slot& slot, const U64Slot& key) { return slot.key == key.key; }

GPKVS_DEVICE bool is_empty(const BytesSlot& slot, const BytesSlot&) { return slot_kind(slot.meta) == KIND_EMPTY; }
GPKVS_DEVICE bool is_empty(const U64Slot& slot, const U64Slot& empty) { return slot.key == empty.key; }

template <class Slot>
GPKVS_DEVICE u32 match8(const Bucket<Slot>& bucket, const Slot& key) {
    return GPKVS_WAYS8(way, holds(bucket.ways[way], key));
}

template <class Slot>
GPKVS_DEVICE u32 empty8(const TableKey& table, const Bucket<Slot>* index, u64 bucket) {
    const Slot empty = empty_slot(table, bucket, (const Slot*)nullptr);
    return GPKVS_WAYS8(way, is_empty(index[bucket].ways[way], empty));
}

template <class Slot>
GPKVS_DEVICE void prefetch_candidates(const Bucket<Slot>* index, const Geometry& geometry, Hash128 fingerprint) {
    const Candidates at = candidate_buckets<Slot>(fingerprint, geometry);
    for (u32 line = 0; line < sizeof(Bucket<Slot>); line += 64) prefetch((const u8*)&index[at.bucket0] + line);
    for (u32 line = 0; line < sizeof(Bucket<Slot>); line += 64) prefetch((const u8*)&index[at.bucket1] + line);
}

// The number of the slot that holds the key, or NO_SLOT.
template <class Slot>
GPKVS_DEVICE u64 find_slot(const Bucket<Slot>* index, const Geometry& geometry, Hash128 fingerprint, const Slot& key) {
    const Candidates at = candidate_buckets<Slot>(fingerprint, geometry);
    u32 mask = match8(index[at.bucket0], key);
    if (mask) return at.bucket0 * WAYS + first_bit(mask);
    mask = match8(index[at.bucket1], key);
    return mask ? at.bucket1 * WAYS + first_bit(mask) : NO_SLOT;
}
