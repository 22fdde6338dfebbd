// find: the slot of each key, or none. One item a chain (all operations of one key); PM is only read.
#include "probe.cuh"

#define FIND_BYTES_ARGS(F)                                                                  \
    F(const u32*, order) F(const u32*, chain_start) F(const u64*, fingerprint0) F(const u64*, fingerprint1) \
    F(const BytesBucket*, index) F(u64, buckets)                                            \
    F(u64*, chain_fingerprint0) F(u64*, chain_fingerprint1) F(u32*, block) F(u64*, slot)    \
    F(u64*, old_word) F(u64*, old_meta)

GPKVS_GROUP_KERNEL(find_bytes, FIND_BYTES_ARGS) {
    const u32 op = a.order[a.chain_start[i]];
    const Hash128 fingerprint = {a.fingerprint0[op], a.fingerprint1[op]};
    const u64 slot = find_slot(a.index, a.buckets, fingerprint, BytesSlot{fingerprint.low, fingerprint.high, 0, 0});
    if (!leader()) return;
    a.chain_fingerprint0[i] = fingerprint.low;
    a.chain_fingerprint1[i] = fingerprint.high;
    a.block[i] = (u32)(mul_high(fingerprint.low, a.buckets) / BytesBucket::IN_BLOCK);
    a.slot[i] = slot;
    const BytesSlot old = slot == NO_SLOT ? BytesSlot{0, 0, NO_RECORD, 0} : a.index[slot / WAYS].ways[slot % WAYS];
    a.old_word[i] = old.reference;
    a.old_meta[i] = old.meta;
}

// The same for the u64 layout: the old word is the value itself, and there is no version.
#define FIND_U64_ARGS(F)                                                                    \
    F(const u32*, order) F(const u32*, chain_start) F(const u64*, fingerprint0) F(const u64*, fingerprint1) \
    F(const u8*, keys) F(const U64Bucket*, index) F(u64, buckets)                           \
    F(u64*, chain_fingerprint0) F(u64*, chain_fingerprint1) F(u32*, block) F(u64*, slot)    \
    F(u64*, old_word) F(u64*, old_meta)

GPKVS_GROUP_KERNEL(find_u64, FIND_U64_ARGS) {
    const u32 op = a.order[a.chain_start[i]];
    const Hash128 fingerprint = {a.fingerprint0[op], a.fingerprint1[op]};
    const u64 key = load_unaligned(a.keys + 8ull * op);
    const u64 slot = find_slot(a.index, a.buckets, fingerprint, U64Slot{key, 0});
    if (!leader()) return;
    a.chain_fingerprint0[i] = fingerprint.low;
    a.chain_fingerprint1[i] = fingerprint.high;
    a.block[i] = (u32)(mul_high(fingerprint.low, a.buckets) / U64Bucket::IN_BLOCK);
    a.slot[i] = slot;
    a.old_word[i] = slot == NO_SLOT ? 0 : a.index[slot / WAYS].ways[slot % WAYS].value;
    a.old_meta[i] = 0;
}
