// Where a key may live, and which of a bucket's eight ways hold it.
//
// The first bucket is fingerprint0 scaled to the number of buckets: sorting by fingerprint0 sorts by block and
// bucket, and doubling the table splits each block in two. The second one is another bucket of the same block.
#pragma once
#include "layout.cuh"

struct Candidates {
    u64 bucket0, bucket1;
};

GPKVS_DEVICE Candidates candidate_buckets(u64 fingerprint0, u64 fingerprint1, u64 buckets) {
    const u64 first = mul_high(fingerprint0, buckets);
    const u64 block = first / BLOCK_BUCKETS * BLOCK_BUCKETS;
    const u64 step = 1 + fingerprint1 % (BLOCK_BUCKETS - 1);
    return {first, block + (first + step) % BLOCK_BUCKETS};
}

GPKVS_DEVICE u32 match8(const Bucket& bucket, u64 fingerprint0, u64 fingerprint1) {
    return GPKVS_WAYS8(way, bucket.ways[way].fingerprint0 == fingerprint0 &&
                                bucket.ways[way].fingerprint1 == fingerprint1 &&
                                slot_kind(bucket.ways[way].meta) != KIND_EMPTY);
}

GPKVS_DEVICE u32 empty8(const Bucket& bucket) {
    return GPKVS_WAYS8(way, slot_kind(bucket.ways[way].meta) == KIND_EMPTY);
}

// The number of the slot that holds the key, or NO_SLOT.
GPKVS_DEVICE u64 find_slot(const Bucket* index, u64 buckets, u64 fingerprint0, u64 fingerprint1) {
    const Candidates at = candidate_buckets(fingerprint0, fingerprint1, buckets);
    u32 mask = match8(index[at.bucket0], fingerprint0, fingerprint1);
    if (mask) return at.bucket0 * WAYS + first_bit(mask);
    mask = match8(index[at.bucket1], fingerprint0, fingerprint1);
    return mask ? at.bucket1 * WAYS + first_bit(mask) : NO_SLOT;
}
