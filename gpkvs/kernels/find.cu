// find: the slot of each key, or none. One item a chain (all operations of one key); PM is only read.
#include "probe.cuh"

#define FIND_ARGS(F)                                                                        \
    F(const u32*, order) F(const u32*, chain_start) F(const u64*, fingerprint0) F(const u64*, fingerprint1) \
    F(const Bucket*, index) F(u64, buckets)                                                 \
    F(u64*, chain_fingerprint0) F(u64*, chain_fingerprint1) F(u32*, block) F(u64*, slot)            \
    F(u64*, old_reference) F(u64*, old_meta)

GPKVS_GROUP_KERNEL(find, FIND_ARGS) {
    const u32 op = a.order[a.chain_start[i]];
    const u64 fingerprint0 = a.fingerprint0[op], fingerprint1 = a.fingerprint1[op];
    const u64 slot = find_slot(a.index, a.buckets, fingerprint0, fingerprint1);
    if (!leader()) return;
    a.chain_fingerprint0[i] = fingerprint0;
    a.chain_fingerprint1[i] = fingerprint1;
    a.block[i] = (u32)(mul_high(fingerprint0, a.buckets) / BLOCK_BUCKETS);
    a.slot[i] = slot;
    if (slot == NO_SLOT) {
        a.old_reference[i] = NO_RECORD;
        a.old_meta[i] = 0;
    } else {
        const Slot& old = a.index[slot / WAYS].ways[slot % WAYS];
        a.old_reference[i] = old.reference;
        a.old_meta[i] = old.meta;
    }
}
