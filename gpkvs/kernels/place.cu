// place: a way for each new key. One item a block; inside it serially, so that every backend makes the same image.
//
// A new key takes the less loaded of its two buckets. If both are full, one occupant moves to its own other bucket.
// A slot changes at most once in a batch: what this batch already changes, fills or moves is pinned, and a way that
// the batch frees is usable from the next one. Occupancy inside the batch is kept aside; nothing is claimed in PM.
#include "probe.cuh"

#define PLACE_ARGS(F, Slots)                                                                \
    F(const u32*, block_first) F(const u32*, changed_chain)                                 \
    F(const u64*, chain_fingerprint0) F(const u64*, chain_fingerprint1)                     \
    F(const Slots*, index) F(u64, buckets) F(u64, hash_key0) F(u64, hash_key1) F(u64*, slot) F(u64*, moved_to)
#define PLACE_BYTES_ARGS(F) PLACE_ARGS(F, BytesBucket)
#define PLACE_U64_ARGS(F) PLACE_ARGS(F, U64Bucket)

template <class Slot>
struct BlockState {
    u8* taken;   // of each bucket of the block: ways this batch fills
    u8* pinned;  // ways this batch changes in any way
    TableKey table;
    const Bucket<Slot>* index;
};

template <class Slot>
GPKVS_DEVICE u8& of_bucket(u8* ways, u64 bucket) {
    return ways[bucket % Bucket<Slot>::IN_BLOCK];
}

template <class Slot>
GPKVS_DEVICE u32 free_ways(BlockState<Slot>& state, u64 bucket) {
    return empty8(state.table, state.index, bucket) & ~(u32)of_bucket<Slot>(state.taken, bucket);
}

// One of the free ways of a bucket, by the key: were it always the first, then the slots of a table that is not full would
// lie in every other cache line, and a GPU stores to those a third slower (docs/gpu.md).
GPKVS_DEVICE u32 choose_way(u32 free, Hash128 fingerprint) {
    const u32 from = (u32)(fingerprint.high >> 61);
    const u32 turned = (free >> from | free << (WAYS - from)) & 0xFFu;
    return (first_bit(turned) + from) % WAYS;
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
        return take(state, second ? at.bucket1 : at.bucket0, choose_way(second ? free1 : free0, fingerprint));
    }
    u32 way = displace(state, at.bucket0, moved_to);
    if (way < WAYS) return at.bucket0 * WAYS + way;
    way = displace(state, at.bucket1, moved_to);
    return way < WAYS ? at.bucket1 * WAYS + way : NO_SLOT;
}

template <class Slot, class Args>
GPKVS_DEVICE void place_block(const Args& a, u64 i) {
    const u32 in_block = Bucket<Slot>::IN_BLOCK;
    u8 taken[in_block], pinned[in_block];
    for (u32 b = 0; b < in_block; b++) taken[b] = pinned[b] = 0;
    BlockState<Slot> state = {taken, pinned, table_key<Slot>(a.buckets, a.hash_key0, a.hash_key1), a.index};

    const u32 first = a.block_first[i], last = a.block_first[i + 1];
    for (u32 j = first; j < last; j++) {
        const u64 slot = a.slot[a.changed_chain[j]];
        if (slot != NO_SLOT) of_bucket<Slot>(state.pinned, slot / WAYS) |= (u8)(1u << slot % WAYS);
    }
    for (u32 change = first; change < last; change++) {
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

// admit: the same when not all find room, request by request in arrival order; one item, serially. A request of which
// one key finds no way is refused, and what it had taken is given back. `set_*` are the SETs of new keys in arrival
// order; `taken` and `pinned` have one byte for each bucket of the blocks that change, zero at first.
#define ADMIT_ARGS(F, Slots)                                                                \
    F(u64, sets) F(const u32*, set_change) F(const u32*, set_request)                       \
    F(u64, changes) F(const u32*, changed_chain) F(const u32*, change_block)                \
    F(const u64*, chain_fingerprint0) F(const u64*, chain_fingerprint1)                     \
    F(const Slots*, index) F(u64, buckets) F(u64, hash_key0) F(u64, hash_key1)              \
    F(u8*, taken) F(u8*, pinned) F(u32*, placed) F(u64*, slot) F(u64*, moved_to) F(u8*, refused)
#define ADMIT_BYTES_ARGS(F) ADMIT_ARGS(F, BytesBucket)
#define ADMIT_U64_ARGS(F) ADMIT_ARGS(F, U64Bucket)

template <class Slot>
GPKVS_DEVICE void give_back(BlockState<Slot>& state, u64 slot) {
    of_bucket<Slot>(state.taken, slot / WAYS) &= (u8)~(1u << slot % WAYS);
    of_bucket<Slot>(state.pinned, slot / WAYS) &= (u8)~(1u << slot % WAYS);
}

template <class Slot, class Args>
GPKVS_DEVICE BlockState<Slot> block_of_change(const Args& a, const TableKey& table, u32 change) {
    const u64 at = (u64)a.change_block[change] * Bucket<Slot>::IN_BLOCK;
    return {a.taken + at, a.pinned + at, table, a.index};
}

template <class Slot, class Args>
GPKVS_DEVICE void admit_all(const Args& a) {
    const TableKey table = table_key<Slot>(a.buckets, a.hash_key0, a.hash_key1);
    for (u32 change = 0; change < a.changes; change++) {
        const u64 slot = a.slot[a.changed_chain[change]];
        BlockState<Slot> state = block_of_change<Slot>(a, table, change);
        if (slot != NO_SLOT && leader()) of_bucket<Slot>(state.pinned, slot / WAYS) |= (u8)(1u << slot % WAYS);
    }
    group_sync();
    u32 request = ~0u, placed = 0;
    for (u64 s = 0; s < a.sets; s++) {
        if (a.set_request[s] != request) placed = 0;
        request = a.set_request[s];
        const u32 change = a.set_change[s];
        const u32 chain = a.changed_chain[change];
        if (a.refused[request] || a.slot[chain] != NO_SLOT) continue;
        BlockState<Slot> state = block_of_change<Slot>(a, table, change);
        u64 moved_to = NO_SLOT;
        const u64 slot = place_new(state, {a.chain_fingerprint0[chain], a.chain_fingerprint1[chain]}, &moved_to);
        group_sync();
        if (leader() && slot != NO_SLOT) {
            a.slot[chain] = slot;
            a.moved_to[change] = moved_to;
            a.placed[placed] = change;
        } else if (leader()) {
            a.refused[request] = 1;
            for (u32 p = 0; p < placed; p++) {
                const u32 undone = a.placed[p];
                BlockState<Slot> its = block_of_change<Slot>(a, table, undone);
                give_back(its, a.slot[a.changed_chain[undone]]);
                if (a.moved_to[undone] != NO_SLOT) give_back(its, a.moved_to[undone]);
                a.slot[a.changed_chain[undone]] = NO_SLOT;
                a.moved_to[undone] = NO_SLOT;
            }
        }
        placed += slot != NO_SLOT;
        group_sync();
    }
}

GPKVS_GROUP_KERNEL(admit_bytes, ADMIT_BYTES_ARGS) { if (i == 0) admit_all<BytesSlot>(a); }
GPKVS_GROUP_KERNEL(admit_u64, ADMIT_U64_ARGS) { if (i == 0) admit_all<U64Slot>(a); }

// admit_records: which requests' records do not fit `budget` units, in arrival order; one item, serially. A record
// costs what it adds to the one that an accepted request would leave for the same key (`held`, zero at first).
#define ADMIT_RECORDS_ARGS(F)                                                               \
    F(u64, sets) F(const u32*, set_chain) F(const u32*, set_request) F(const u64*, set_units) F(u64, budget) \
    F(u64*, held) F(u64*, before) F(u8*, refused)

GPKVS_KERNEL(admit_records, ADMIT_RECORDS_ARGS) {
    if (i != 0) return;
    u64 used = 0;
    for (u64 first = 0, last; first < a.sets; first = last) {
        const u64 used_before = used;
        for (last = first; last < a.sets && a.set_request[last] == a.set_request[first]; last++) {
            u64& held = a.held[a.set_chain[last]];
            a.before[last] = held;
            used += a.set_units[last] - held;
            held = a.set_units[last];
        }
        if (used <= a.budget) continue;
        a.refused[a.set_request[first]] = 1;
        for (u64 s = last; s-- > first;) a.held[a.set_chain[s]] = a.before[s];
        used = used_before;
    }
}
