// Where a new key goes.
//
// A new key takes the less loaded of its two buckets. If both are full, one occupant moves to its own other bucket.
// A slot changes at most once in a batch: what this batch already changes, fills or moves is pinned, and a way that
// the batch frees is usable from the next one. Occupancy inside the batch is kept aside; nothing is claimed in PM.
#pragma once
#include "base/probe.cuh"

template <class Slot>
struct BlockState {
    u8* taken;   // of each bucket of the block: ways this batch fills
    u8* pinned;  // ways this batch changes in any way
    TableKey table;
    Geometry geometry;
    const Bucket<Slot>* index;
};

template <class Slot>
GPKVS_DEVICE u8& of_bucket(u8* ways, u64 bucket) {
    return ways[bucket % Bucket<Slot>::IN_BLOCK];
}

// Marks a way. All lanes of a group do, with the same outcome, when all have read what they decide by.
template <class Slot>
GPKVS_DEVICE void mark_way(u8* ways, u64 bucket, u32 way) {
    const u8 marked = of_bucket<Slot>(ways, bucket) | (u8)(1u << way);
    group_sync();
    of_bucket<Slot>(ways, bucket) = marked;
    group_sync();
}

template <class Slot>
GPKVS_DEVICE u32 free_ways(BlockState<Slot>& state, u64 bucket) {
    return empty8(state.table, state.index, bucket) & ~(u32)of_bucket<Slot>(state.taken, bucket);
}

// One of the free ways of a bucket, by the key: were it always the first, then the slots of a table that is not full would
// lie in every other cache line, and a GPU stores to those a third slower (docs/gpu.md).
GPKVS_DEVICE u32 choose_way(u32 free, Hash128 fingerprint) {
    const u32 from = (u32)(fingerprint.high >> 32) % WAYS;  // bits that did not choose the bucket
    const u32 turned = (free >> from | free << (WAYS - from)) & 0xFFu;
    return (first_bit(turned) + from) % WAYS;
}

template <class Slot>
GPKVS_DEVICE u64 take(BlockState<Slot>& state, u64 bucket, u32 way) {
    mark_way<Slot>(state.taken, bucket, way);
    mark_way<Slot>(state.pinned, bucket, way);
    return bucket * WAYS + way;
}

// Frees a way of a full bucket by moving one occupant to its other bucket: the way, or WAYS if none can move.
template <class Slot>
GPKVS_DEVICE u32 displace(BlockState<Slot>& state, u64 bucket, u64* moved_to) {
    u32 best_way = WAYS, best_room = 0, best_free = 0;
    u64 best_target = 0;
    for (u32 way = 0; way < WAYS; way++) {
        if (of_bucket<Slot>(state.pinned, bucket) >> way & 1) continue;
        const Hash128 fingerprint = fingerprint_of(state.table, state.index[bucket].ways[way]);
        const Candidates at = candidate_buckets<Slot>(fingerprint, state.geometry);
        // A damaged occupant may belong to another block: it stays where it is, `gpkvs check` names it.
        if (at.bucket0 != bucket && at.bucket1 != bucket) continue;
        const u64 target = at.bucket0 == bucket ? at.bucket1 : at.bucket0;
        const u32 free = free_ways(state, target);
        if (count_bits(free) > best_room) {
            best_way = way;
            best_room = count_bits(free);
            best_free = free;
            best_target = target;
        }
    }
    if (best_way < WAYS) {
        *moved_to = take(state, best_target, first_bit(best_free));
        mark_way<Slot>(state.pinned, bucket, best_way);
    }
    return best_way;
}

template <class Slot>
GPKVS_DEVICE u64 place_new(BlockState<Slot>& state, Hash128 fingerprint, u64* moved_to) {
    const Candidates at = candidate_buckets<Slot>(fingerprint, state.geometry);
    const u32 free0 = free_ways(state, at.bucket0), free1 = free_ways(state, at.bucket1);
    if (free0 | free1) {
        const bool second = count_bits(free1) > count_bits(free0);
        return take(state, second ? at.bucket1 : at.bucket0, choose_way(second ? free1 : free0, fingerprint));
    }
    u32 way = displace(state, at.bucket0, moved_to);
    if (way < WAYS) return at.bucket0 * WAYS + way;
    way = displace(state, at.bucket1, moved_to);
    return way < WAYS ? at.bucket1 * WAYS + way : NO_SLOT;
}
