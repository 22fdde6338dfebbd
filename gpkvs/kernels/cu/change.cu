// The slots a batch changes: their new contents, the undo log, and the stores in place. One item a slot.
#include "base/entry.cuh"
#include "base/probe.cuh"

// stage: the new contents of each changed slot, in volatile memory. `expiries` is missing (0) where none expires, and
// `given_versions` where versions are new ones.
#define STAGE_BYTES_ARGS(F)                                                                 \
    F(const u32*, changed_chain) F(const u8*, change) F(const u32*, final_op) F(const u64*, slot) \
    F(const u64*, chain_fingerprint0) F(const u64*, chain_fingerprint1) F(const u64*, reference) \
    F(const u32*, key_lengths) F(const u32*, value_lengths) F(u64, record_format) \
    F(const u64*, expiries) F(u64, first_sequence) F(const u64*, given_versions) F(u64*, changed_slot) F(BytesSlot*, contents)

GPKVS_KERNEL(stage_bytes, STAGE_BYTES_ARGS) {
    const u32 chain = a.changed_chain[i];
    const u32 op = a.final_op[chain];
    a.changed_slot[i] = a.slot[chain];
    if (a.change[chain] == CHANGE_REMOVE) a.contents[i] = {0, 0, 0, 0};
    else
        a.contents[i] = {a.chain_fingerprint0[chain], a.chain_fingerprint1[chain], a.reference[op],
                         record_meta(version_of(a, op), a.expiries ? a.expiries[op] : 0,
                                     is_in_blob(a.record_format, a.key_lengths[op], a.value_lengths[op]))};
}

#define STAGE_U64_ARGS(F)                                                                   \
    F(const u32*, changed_chain) F(const u8*, change) F(const u32*, final_op) F(const u64*, slot) \
    F(const u8*, keys) F(const u8*, values) F(const u64*, value_offsets)                    \
    F(u64, hash_key0) F(u64, hash_key1) F(u64*, changed_slot) F(U64Slot*, contents)

GPKVS_KERNEL(stage_u64, STAGE_U64_ARGS) {
    const u32 chain = a.changed_chain[i];
    const u32 op = a.final_op[chain];
    const u64 slot = a.slot[chain];
    a.changed_slot[i] = slot;
    if (a.change[chain] == CHANGE_REMOVE)
        a.contents[i] = {empty_marker(table_key<U64Slot>(a.hash_key0, a.hash_key1), slot / WAYS), 0};
    else {
        const u64 value_at = a.value_offsets ? a.value_offsets[op] : 8ull * op;  // without offsets, all are SETs
        a.contents[i] = {load_unaligned(a.keys + 8ull * op), load_unaligned(a.values + value_at)};
    }
}

// load_slots: slots as they are, for displaced occupants, which move as they are.
#define LOAD_SLOTS_ARGS(F, Slot) F(const u64*, slot) F(const Slot*, index) F(Slot*, contents)
#define LOAD_SLOTS_BYTES_ARGS(F) LOAD_SLOTS_ARGS(F, BytesSlot)
#define LOAD_SLOTS_U64_ARGS(F) LOAD_SLOTS_ARGS(F, U64Slot)

GPKVS_KERNEL(load_slots_bytes, LOAD_SLOTS_BYTES_ARGS) { a.contents[i] = a.index[a.slot[i]]; }
GPKVS_KERNEL(load_slots_u64, LOAD_SLOTS_U64_ARGS) { a.contents[i] = a.index[a.slot[i]]; }

// log_undo: one entry a changed slot, at a computed place: no locks, no tail pointers.
#define LOG_UNDO_ARGS(F, Slot)                                                              \
    F(const u64*, changed_slot) F(const Slot*, index) F(u64, epoch) F(u64, first) F(u64*, log) F(u64*, digest)
#define LOG_UNDO_BYTES_ARGS(F) LOG_UNDO_ARGS(F, BytesSlot)
#define LOG_UNDO_U64_ARGS(F) LOG_UNDO_ARGS(F, U64Slot)

GPKVS_PM_KERNEL_SOON(log_undo_bytes, LOG_UNDO_BYTES_ARGS, slot_soon<BytesSlot>) {
    store_entry(a, i, a.index[a.changed_slot[i]]);
}
GPKVS_PM_KERNEL_SOON(log_undo_u64, LOG_UNDO_U64_ARGS, slot_soon<U64Slot>) {
    store_entry(a, i, a.index[a.changed_slot[i]]);
}

// apply: the new contents, in place. Runs only after the flag says ACTIVE and is durable (I2).
#define APPLY_ARGS(F, Slot) F(const u64*, changed_slot) F(const Slot*, contents) F(Slot*, index)
#define APPLY_BYTES_ARGS(F) APPLY_ARGS(F, BytesSlot)
#define APPLY_U64_ARGS(F) APPLY_ARGS(F, U64Slot)

GPKVS_PM_KERNEL_SOON(apply_bytes, APPLY_BYTES_ARGS, slot_soon<BytesSlot>) {
    store_slot(a.index, a.changed_slot[i], (const u64*)&a.contents[i]);
}
GPKVS_PM_KERNEL_SOON(apply_u64, APPLY_U64_ARGS, slot_soon<U64Slot>) {
    store_slot(a.index, a.changed_slot[i], (const u64*)&a.contents[i]);
}

// verify_log: what recovery proves of every entry of a log or a frame before its first store (I6).
#define VERIFY_LOG_ARGS(F) F(const u64*, log) F(u64, epoch) F(u64, slots) F(u64*, digest) F(u8*, wrong)

template <class Slot, class Args>
GPKVS_DEVICE void verify_entry(const Args& a, u64 i) {
    const Entry<Slot> entry = load_entry<Slot>(a.log, i);
    a.digest[i] = entry_digest(i, entry);
    a.wrong[i] = entry.slot >= a.slots || entry.epoch != a.epoch;
}
GPKVS_KERNEL(verify_log_bytes, VERIFY_LOG_ARGS) { verify_entry<BytesSlot>(a, i); }
GPKVS_KERNEL(verify_log_u64, VERIFY_LOG_ARGS) { verify_entry<U64Slot>(a, i); }

// undo: each logged slot as it was before the batch. Idempotent (I5).
#define UNDO_ARGS(F, Slot) F(const u64*, log) F(u64, first) F(Slot*, index)
#define UNDO_BYTES_ARGS(F) UNDO_ARGS(F, BytesSlot)
#define UNDO_U64_ARGS(F) UNDO_ARGS(F, U64Slot)

template <class Slot, class Args>
GPKVS_DEVICE void undo_slot(const Args& a, u64 i) {
    const Entry<Slot> entry = load_entry<Slot>(a.log, a.first + i);
    store_slot(a.index, entry.slot, entry.words);
}
GPKVS_PM_KERNEL(undo_bytes, UNDO_BYTES_ARGS) { undo_slot<BytesSlot>(a, i); }
GPKVS_PM_KERNEL(undo_u64, UNDO_U64_ARGS) { undo_slot<U64Slot>(a, i); }
