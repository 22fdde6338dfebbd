// place: a way for each new key (place.cuh). One item a block; inside it serially, so that every backend makes the same
// image. After the first key that finds none nothing more of a block is placed.
#include "cu/place.cuh"

#define PLACE_ARGS(F, Slots)                                                                \
    F(const u32*, block_first) F(const u32*, changed_chain)                                 \
    F(const u64*, chain_fingerprint0) F(const u64*, chain_fingerprint1)                     \
    F(const Slots*, index) GEOMETRY_ARGS(F) F(u64, hash_key0) F(u64, hash_key1) F(u64*, slot) F(u64*, moved_to)
#define PLACE_BYTES_ARGS(F) PLACE_ARGS(F, BytesBucket)
#define PLACE_U64_ARGS(F) PLACE_ARGS(F, U64Bucket)

template <class Slot, class Args>
GPKVS_DEVICE void place_block(const Args& a, u64 i) {
    const u32 in_block = Bucket<Slot>::IN_BLOCK;
    GPKVS_OF_GROUP(u8, taken, in_block);
    GPKVS_OF_GROUP(u8, pinned, in_block);
    clear_of_group(taken, in_block);
    clear_of_group(pinned, in_block);
    BlockState<Slot> state = {taken, pinned, table_key<Slot>(a.hash_key0, a.hash_key1), geometry_of(a), a.index};

    const u32 first = a.block_first[i], last = a.block_first[i + 1];
    for (u32 j = first; j < last; j++) {
        const u64 slot = a.slot[a.changed_chain[j]];
        if (slot != NO_SLOT) mark_way<Slot>(state.pinned, slot / WAYS, slot % WAYS);
    }
    for (u32 change = first; change < last; change++) {
        const u32 chain = a.changed_chain[change];
        u64 moved_to = NO_SLOT;
        if (a.slot[chain] == NO_SLOT) {
            const u64 slot = place_new(state, {a.chain_fingerprint0[chain], a.chain_fingerprint1[chain]}, &moved_to);
            if (slot == NO_SLOT) return;  // the plan is in vain: a million more keys would find none in a small table, slowly
            if (leader()) a.slot[chain] = slot;
        }
        if (leader()) a.moved_to[change] = moved_to;
    }
}

GPKVS_GROUP_KERNEL(place_bytes, PLACE_BYTES_ARGS) { place_block<BytesSlot>(a, i); }
GPKVS_GROUP_KERNEL(place_u64, PLACE_U64_ARGS) { place_block<U64Slot>(a, i); }
