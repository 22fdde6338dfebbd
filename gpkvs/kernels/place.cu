// place: a way for each new key. One item a block; inside it serially, so that every backend makes the same image.
//
// A new key takes the less loaded of its two buckets. If both are full, one occupant moves to its own other bucket.
// A slot changes at most once in a batch: what this batch already changes, fills or moves is pinned, and a way that
// the batch frees is usable from the next one. Occupancy inside the batch is kept aside; nothing is claimed in PM.
#include "probe.cuh"

#define PLACE_ARGS(F)                                                                       \
    F(const u32*, block_first) F(const u32*, sequence) F(const u32*, changed_chain)         \
    F(const u64*, chain_fingerprint0) F(const u64*, chain_fingerprint1)                     \
    F(const Bucket*, index) F(u64, buckets) F(u64*, slot) F(u64*, moved_to)

struct BlockState {
    u8 taken[BLOCK_BUCKETS];   // ways this batch fills
    u8 pinned[BLOCK_BUCKETS];  // ways this batch changes in any way
};

GPKVS_DEVICE u32 free_ways(const BlockState& state, const Bucket* index, u64 bucket) {
    return empty8(index[bucket]) & ~(u32)state.taken[bucket % BLOCK_BUCKETS];
}

GPKVS_DEVICE u64 take(BlockState& state, u64 bucket, u32 way) {
    state.taken[bucket % BLOCK_BUCKETS] |= (u8)(1u << way);
    state.pinned[bucket % BLOCK_BUCKETS] |= (u8)(1u << way);
    return bucket * WAYS + way;
}

// Frees a way of a full bucket by moving one occupant to its other bucket: the way, or WAYS if none can move.
GPKVS_DEVICE u32 displace(BlockState& state, const Bucket* index, u64 buckets, u64 bucket, u64* moved_to) {
    u32 best_way = WAYS, best_room = 0, best_free = 0;
    u64 best_target = 0;
    for (u32 way = 0; way < WAYS; way++) {
        if (state.pinned[bucket % BLOCK_BUCKETS] >> way & 1) continue;
        const Slot& occupant = index[bucket].ways[way];
        const Candidates at = candidate_buckets(occupant.fingerprint0, occupant.fingerprint1, buckets);
        const u64 target = at.bucket0 == bucket ? at.bucket1 : at.bucket0;
        const u32 free = free_ways(state, index, target);
        if (count_bits(free) > best_room) {
            best_way = way;
            best_room = count_bits(free);
            best_free = free;
            best_target = target;
        }
    }
    if (best_way < WAYS) {
        *moved_to = take(state, best_target, first_bit(best_free));
        state.pinned[bucket % BLOCK_BUCKETS] |= (u8)(1u << best_way);
    }
    return best_way;
}

GPKVS_GROUP_KERNEL(place, PLACE_ARGS) {
    BlockState state;
    for (u32 b = 0; b < BLOCK_BUCKETS; b++) state.taken[b] = state.pinned[b] = 0;

    const u32 first = a.block_first[i], last = a.block_first[i + 1];
    for (u32 j = first; j < last; j++) {
        const u64 slot = a.slot[a.changed_chain[j]];
        if (slot != NO_SLOT) state.pinned[slot / WAYS % BLOCK_BUCKETS] |= (u8)(1u << slot % WAYS);
    }
    for (u32 j = first; j < last; j++) {
        const u32 change = a.sequence[j];
        const u32 chain = a.changed_chain[change];
        u64 moved_to = NO_SLOT;
        u64 slot = a.slot[chain];
        if (slot == NO_SLOT) {
            const Candidates at =
                candidate_buckets(a.chain_fingerprint0[chain], a.chain_fingerprint1[chain], a.buckets);
            const u32 free0 = free_ways(state, a.index, at.bucket0), free1 = free_ways(state, a.index, at.bucket1);
            if (free0 | free1) {
                const bool second = count_bits(free1) > count_bits(free0);
                slot = take(state, second ? at.bucket1 : at.bucket0, first_bit(second ? free1 : free0));
            } else {
                u64 bucket = at.bucket0;
                u32 way = displace(state, a.index, a.buckets, bucket, &moved_to);
                if (way == WAYS) way = displace(state, a.index, a.buckets, bucket = at.bucket1, &moved_to);
                if (way < WAYS) slot = bucket * WAYS + way;
            }
            if (leader()) a.slot[chain] = slot;
        }
        if (leader()) a.moved_to[change] = moved_to;
    }
}
