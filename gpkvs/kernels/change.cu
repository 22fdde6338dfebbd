// The slots a batch changes: their new contents, the undo log, and the stores in place. One item a slot.
#include "hash.cuh"
#include "layout.cuh"

// stage: the new contents of each changed slot, in volatile memory.
#define STAGE_ARGS(F)                                                                       \
    F(const u32*, changed_chain) F(const u8*, change) F(const u32*, final_op) F(const u64*, slot) \
    F(const u64*, chain_fingerprint0) F(const u64*, chain_fingerprint1) F(const u64*, reference) \
    F(u64, first_sequence) F(u64*, changed_slot) F(Slot*, contents)

GPKVS_KERNEL(stage, STAGE_ARGS) {
    const u32 chain = a.changed_chain[i];
    const u32 op = a.final_op[chain];
    a.changed_slot[i] = a.slot[chain];
    if (a.change[chain] == CHANGE_REMOVE) a.contents[i] = {0, 0, 0, 0};
    else
        a.contents[i] = {a.chain_fingerprint0[chain], a.chain_fingerprint1[chain], a.reference[op],
                         record_meta(a.first_sequence + op)};
}

// stage_moved: a displaced occupant, into its other bucket. `vacated` is the slot that its successor takes.
#define STAGE_MOVED_ARGS(F)                                                                 \
    F(const u64*, vacated) F(const u64*, moved_to) F(const Slot*, index) F(u64*, changed_slot) F(Slot*, contents)

GPKVS_KERNEL(stage_moved, STAGE_MOVED_ARGS) {
    a.changed_slot[i] = a.moved_to[i];
    a.contents[i] = a.index[a.vacated[i]];
}

GPKVS_DEVICE u64 entry_digest(u64 entry, const u64* words) {
    u64 digest = mix64(entry + 1);
    for (u32 w = 0; w < ENTRY_WORDS; w++) digest = mix64(digest ^ words[w]);
    return digest;
}

// log_undo: one entry a changed slot, at a computed place: no locks, no tail pointers.
#define LOG_UNDO_ARGS(F)                                                                    \
    F(const u64*, changed_slot) F(const Slot*, index) F(u64, epoch) F(u64, first) F(u64*, log) F(u64*, digest)

GPKVS_PM_KERNEL(log_undo, LOG_UNDO_ARGS) {
    const u64 slot = a.changed_slot[i];
    const Slot& old = a.index[slot];
    const u64 words[ENTRY_WORDS] = {slot, a.epoch, old.fingerprint0, old.fingerprint1, old.reference, old.meta};
    for (u32 w = 0; w < ENTRY_WORDS; w++) pm_store(a.log + entry_word_at(a.first + i, w), words[w]);
    a.digest[i] = entry_digest(a.first + i, words);
}

// apply: the new contents, in place. Runs only after the flag says ACTIVE and is durable (I2).
#define APPLY_ARGS(F) F(const u64*, changed_slot) F(const Slot*, contents) F(Slot*, index)

GPKVS_PM_KERNEL(apply, APPLY_ARGS) {
    u64* to = (u64*)&a.index[a.changed_slot[i]];
    const u64* from = (const u64*)&a.contents[i];
    for (u32 w = 0; w < sizeof(Slot) / 8; w++) pm_store(to + w, from[w]);
}

// verify_log: what recovery proves of every entry before its first store (I6).
#define VERIFY_LOG_ARGS(F)                                                                  \
    F(const u64*, log) F(u64, epoch) F(u64, first) F(u64, slots) F(u64*, digest) F(u8*, wrong)

GPKVS_KERNEL(verify_log, VERIFY_LOG_ARGS) {
    u64 words[ENTRY_WORDS];
    for (u32 w = 0; w < ENTRY_WORDS; w++) words[w] = a.log[entry_word_at(a.first + i, w)];
    a.digest[i] = entry_digest(a.first + i, words);
    a.wrong[i] = words[0] >= a.slots || words[1] != a.epoch;
}

// undo: each logged slot as it was before the batch. Idempotent (I5).
#define UNDO_ARGS(F) F(const u64*, log) F(u64, first) F(Slot*, index)

GPKVS_PM_KERNEL(undo, UNDO_ARGS) {
    u64* to = (u64*)&a.index[a.log[entry_word_at(a.first + i, 0)]];
    for (u32 w = 0; w < sizeof(Slot) / 8; w++) pm_store(to + w, a.log[entry_word_at(a.first + i, 2 + w)]);
}
