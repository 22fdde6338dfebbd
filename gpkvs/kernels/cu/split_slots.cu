// A step of growth on a GPU (grow.cu is that of the host's threads): a thread for every 16 bytes of a slot, so that
// neighbours store neighbouring words. It reads the mirror, and the link carries only what it stores.
#include "base/entry.cuh"
#include "base/probe.cuh"

// split_slots: both targets of every block, from the slot `first` on. One item a pair of words. No source may be a target
// of another one.
#define SPLIT_SLOTS_ARGS(F, Slot)                                                           \
    F(const Slot*, source) F(Slot*, index) F(u64, blocks) F(u64, first) F(u64, hash_key0) F(u64, hash_key1)
#define SPLIT_SLOTS_BYTES_ARGS(F) SPLIT_SLOTS_ARGS(F, BytesSlot)
#define SPLIT_SLOTS_U64_ARGS(F) SPLIT_SLOTS_ARGS(F, U64Slot)

template <class Slot, class Args>
GPKVS_DEVICE void split_slot(const Args& a, u64 i) {
    const u64 in_block = Bucket<Slot>::IN_BLOCK * WAYS, pairs = sizeof(Slot) / 16, word = i % pairs * 2;
    const u64 at = a.first + i / pairs, block = at / in_block;
    const TableKey table = table_key<Slot>(a.hash_key0, a.hash_key1);
    const Slot slot = a.source[at], empty = empty_slot(table, at / WAYS, (const Slot*)nullptr);
    const bool is_upper = mul_high(fingerprint_of(table, slot).low, 2 * a.blocks) == 2 * block + 1;
    const bool goes_up = is_upper && !is_empty(slot, empty);
    const u64 lower = 2 * block * in_block + at % in_block;
    pm_store_pair((u64*)&a.index[lower] + word, (const u64*)(goes_up ? &empty : &slot) + word);
    pm_store_pair((u64*)&a.index[lower + in_block] + word, (const u64*)(goes_up ? &slot : &empty) + word);
}

GPKVS_PM_KERNEL(split_slots_bytes, SPLIT_SLOTS_BYTES_ARGS) { split_slot<BytesSlot>(a, i); }
GPKVS_PM_KERNEL(split_slots_u64, SPLIT_SLOTS_U64_ARGS) { split_slot<U64Slot>(a, i); }
