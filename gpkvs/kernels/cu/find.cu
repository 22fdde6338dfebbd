// Looking up keys; PM is only read.
#include "base/probe.cuh"

// find: the slot of each key, or none. One item a chain (all operations of one key).
#define FIND_ARGS(F, Buckets)                                                               \
    F(const u32*, order) F(const u32*, chain_start) F(const u64*, fingerprint0) F(const u64*, fingerprint1) \
    F(const Buckets*, index) GEOMETRY_ARGS(F)                                                \
    F(u64*, chain_fingerprint0) F(u64*, chain_fingerprint1) F(u32*, block) F(u64*, slot) F(u64*, old_word)

template <class Args>
GPKVS_DEVICE Hash128 fingerprint_of_chain(const Args& a, u64 i) {
    const u32 op = a.order[a.chain_start[i]];
    return {a.fingerprint0[op], a.fingerprint1[op]};
}

template <class Args>
GPKVS_DEVICE void find_soon(const Args& a, u64 i) {
    prefetch_candidates(a.index, geometry_of(a), fingerprint_of_chain(a, i));
}

template <class Slot, class Args>
GPKVS_DEVICE u64 find_chain(const Args& a, u64 i, Hash128 fingerprint, const Slot& key) {
    const u64 slot = find_slot(a.index, geometry_of(a), fingerprint, key);
    if (leader()) {
        a.chain_fingerprint0[i] = fingerprint.low;
        a.chain_fingerprint1[i] = fingerprint.high;
        a.block[i] = (u32)block_of(fingerprint, geometry_of(a));
        a.slot[i] = slot;
    }
    return slot;
}

#define FIND_BYTES_ARGS(F) FIND_ARGS(F, BytesBucket) F(u64*, old_meta)
GPKVS_GROUP_KERNEL_SOON(find_bytes, FIND_BYTES_ARGS, find_soon) {
    const Hash128 fingerprint = fingerprint_of_chain(a, i);
    const u64 slot = find_chain(a, i, fingerprint, BytesSlot{fingerprint.low, fingerprint.high, 0, 0});
    if (!leader()) return;
    const BytesSlot old = slot == NO_SLOT ? BytesSlot{0, 0, NO_RECORD, 0} : a.index[slot / WAYS].ways[slot % WAYS];
    a.old_word[i] = old.reference;
    a.old_meta[i] = old.meta;
}

// The same for the u64 layout: the old word is the value itself, and there is no version.
#define FIND_U64_ARGS(F) FIND_ARGS(F, U64Bucket) F(const u8*, keys)
GPKVS_GROUP_KERNEL_SOON(find_u64, FIND_U64_ARGS, find_soon) {
    const u64 key = load_unaligned(a.keys + 8ull * a.order[a.chain_start[i]]);
    const u64 slot = find_chain(a, i, fingerprint_of_chain(a, i), U64Slot{key, 0});
    if (leader()) a.old_word[i] = slot == NO_SLOT ? 0 : a.index[slot / WAYS].ways[slot % WAYS].value;
}

// look: what each operation sees in a batch that only reads: no order, no chains. One item an operation.
#define LOOK_ARGS(F, Buckets)                                                               \
    F(const u64*, fingerprint0) F(const u64*, fingerprint1) F(const Buckets*, index) GEOMETRY_ARGS(F) \
    F(u8*, status) F(u64*, source_word)

template <class Args>
GPKVS_DEVICE void look_soon(const Args& a, u64 i) {
    prefetch_candidates(a.index, geometry_of(a), {a.fingerprint0[i], a.fingerprint1[i]});
}

#define LOOK_BYTES_ARGS(F) LOOK_ARGS(F, BytesBucket) F(u64*, versions)
GPKVS_GROUP_KERNEL_SOON(look_bytes, LOOK_BYTES_ARGS, look_soon) {
    const Hash128 fingerprint = {a.fingerprint0[i], a.fingerprint1[i]};
    const u64 slot = find_slot(a.index, geometry_of(a), fingerprint, BytesSlot{fingerprint.low, fingerprint.high, 0, 0});
    if (!leader()) return;
    const BytesSlot old = slot == NO_SLOT ? BytesSlot{0, 0, NO_RECORD, 0} : a.index[slot / WAYS].ways[slot % WAYS];
    a.status[i] = slot == NO_SLOT ? STATUS_NOT_FOUND : STATUS_OK;
    a.source_word[i] = old.reference;
    a.versions[i] = slot_version(old.meta);
}

// slot: where each key is, or NO_SLOT. One item a key.
#define SLOT_BYTES_ARGS(F)                                                                  \
    F(const u64*, fingerprint0) F(const u64*, fingerprint1) F(const BytesBucket*, index) GEOMETRY_ARGS(F) F(u64*, slot)
GPKVS_GROUP_KERNEL_SOON(slot_bytes, SLOT_BYTES_ARGS, look_soon) {
    const Hash128 fingerprint = {a.fingerprint0[i], a.fingerprint1[i]};
    const u64 slot = find_slot(a.index, geometry_of(a), fingerprint, BytesSlot{fingerprint.low, fingerprint.high, 0, 0});
    if (leader()) a.slot[i] = slot;
}

#define LOOK_U64_ARGS(F) LOOK_ARGS(F, U64Bucket) F(const u8*, keys)
GPKVS_GROUP_KERNEL_SOON(look_u64, LOOK_U64_ARGS, look_soon) {
    const U64Slot key = {load_unaligned(a.keys + 8 * i), 0};
    const u64 slot = find_slot(a.index, geometry_of(a), {a.fingerprint0[i], a.fingerprint1[i]}, key);
    if (!leader()) return;
    a.status[i] = slot == NO_SLOT ? STATUS_NOT_FOUND : STATUS_OK;
    a.source_word[i] = slot == NO_SLOT ? 0 : a.index[slot / WAYS].ways[slot % WAYS].value;
}

// get: what each operation sees in a batch of GETs alone on a table of numbers, from its key to its value in one pass, and how
// many find nothing, if `missed` asks. `seen` gets 0 or 1: `if_there` where the key is there, else the other. That is a status, or
// whether the key is there. A GPU may read the keys, and store what they see, in the host's memory.
#define GET_U64_ARGS(F)                                                                     \
    F(const u8*, keys) F(u64, hash_key0) F(u64, hash_key1) F(const U64Bucket*, index) GEOMETRY_ARGS(F) \
    F(u64, if_there) F(u8*, seen) F(u64*, source_word) F(u64*, missed)
static_assert(STATUS_OK == 0 && STATUS_NOT_FOUND == 1, "a status is 0 or 1 here");

GPKVS_KERNEL(get_u64, GET_U64_ARGS) {
    const u64 key = load_unaligned(a.keys + 8 * i);
    const Candidates at = candidate_buckets<U64Slot>(siphash128_word(a.hash_key0, a.hash_key1, key), geometry_of(a));
    u64 value = 0;
    const u64 *first = (const u64*)&a.index[at.bucket0], *then = (const u64*)&a.index[at.bucket1];
    const bool found = find_pair8(first, then, key, true, value) != NO_PAIR;
    a.seen[i] = (u8)(found ? a.if_there : 1 - a.if_there);
    a.source_word[i] = value;
    if (a.missed) count_where(a.missed, !found);
}
