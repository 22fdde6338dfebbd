// place: a way for each new key. One item a block; inside it serially, so that every backend makes the same image.
//
// A new key takes the less loaded of its two buckets. If both are full, one occupant moves to its own other bucket.
// A slot changes at most once in a batch: what this batch already changes, fills or moves is pinned, and a way that
// the batch frees is usable from the next one. Occupancy inside the batch is kept aside; nothing is claimed in PM.
#include "probe.cuh"

#define PLACE_ARGS(F, Slots)                                                                \
    F(const u32*, block_first) F(const u32*, sequence) F(const u32*, changed_chain)         \
    F(const u64*, chain_fingerprint0) F(const u64*, chain_fingerprint1)                     \
    F(const Slots*, index) F(u64, buckets) F(u64, hash_key0) F(u64, hash_key1) F(u64*, slot) F(u64*, moved_to)
#define PLACE_BYTES_ARGS(F) PLACE_ARGS(F, BytesBucket)
#define PLACE_U64_ARGS(F) PLACE_ARGS(F, U64Bucket)

template <class Slot>
struct BlockState {
    u8 taken[Bucket<Slot>::IN_BLOCK];   // ways this batch fills
    u8 pinned[Bucket<Slot>::IN_BLOCK];  // ways this batch changes in any way
    TableKey table;
    const Bucket<Slot>* index;
};

template <class Slot>
GPKVS_DEVICE u8& of_bucket(u8 (&ways)[Bucket<Slot>::IN_BLOCK], u64 bucket) {
    return ways[bucket % Bucket<Slot>::IN_BLOCK];
}

template <class Slot>
GPKVS_DEVICE u32 free_ways(BlockState<Slot>& state, u64 bucket) {
    return empty8(state.table, state.index, bucket) & ~(u32)of_bucket<Slot>(state.taken, bucket);
}

template <class Slot>
GPKVS_DEVICE u64 take(BlockState<Slot>& state, u64 bucket, u32 way) {
    of_bucket<Slot>(state.taken, bucket) |= (u8)(1u << way);
    of_bucket<Slot>(state.pinned, bucket) |= (u8)(1u << way);
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
        const Candidates at = candidate_buckets<Slot>(fingerprint, state.table.buckets);
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
        of_bucket<Slot>(state.pinned, bucket) |= (u8)(1u << best_way);
    }
    return best_way;
}

template <class Slot>
GPKVS_DEVICE u64 place_new(BlockState<Slot>& state, Hash128 fingerprint, u64* moved_to) {
    const Candidates at = candidate_buckets<Slot>(fingerprint, state.table.buckets);
    const u32 free0 = free_ways(state, at.bucket0), free1 = free_ways(state, at.bucket1);
    if (free0 | free1) {
        const bool second = count_bits(free1) > count_bits(free0);
        return take(state, second ? at.bucket1 : at.bucket0, first_bit(second ? free1 : free0));
    }
    u32 way = displace(state, at.bucket0, moved_to);
    if (way < WAYS) return at.bucket0 * WAYS + way;
    way = displace(state, at.bucket1, moved_to);
    return way < WAYS ? at.bucket1 * WAYS + way : NO_SLOT;
}

template <class Slot, class Args>
GPKVS_DEVICE void place_block(const Args& a, u64 i) {
    const u32 in_block = Bucket<Slot>::IN_BLOCK;
    BlockState<Slot> state;
    for (u32 b = 0; b < in_block; b++) state.taken[b] = state.pinned[b] = 0;
    state.table = table_key<Slot>(a.buckets, a.hash_key0, a.hash_key1);
    state.index = a.index;

    const u32 first = a.block_first[i], last = a.block_first[i + 1];
    for (u32 j = first; j < last; j++) {
        const u64 slot = a.slot[a.changed_chain[j]];
        if (slot != NO_SLOT) of_bucket<Slot>(state.pinned, slot / WAYS) |= (u8)(1u << slot % WAYS);
    }
    for (u32 j = first; j < last; j++) {
        const u32 change = a.sequence[j];
        const u32 chain = a.changed_chain[change];
        u64 moved_to = NO_SLOT;
        if (a.slot[chain] == NO_SLOT) {
            const u64 slot = place_new(state, {a.chain_fingerprint0[chain], a.chain_fingerprint1[chain]}, &moved_to);
            if (leader()) a.slot[chain] = slot;
        }
        if (leader()) a.moved_to[change] = moved_to;
    }
}

GPKVS_GROUP_KERNEL(place_bytes, PLACE_BYTES_ARGS) { place_block<BytesSlot>(a, i); }
GPKVS_GROUP_KERNEL(place_u64, PLACE_U64_ARGS) { place_block<U64Slot>(a, i); }
