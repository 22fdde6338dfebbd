// The undo log of a transaction that a GPU planned: entries in chunks, each with a marker (chunks.hpp; docs/design.md).
#include "base/entry.cuh"

// The word of a slot that comes after so many others of its entry; the key's come last.
template <class Slot>
GPKVS_DEVICE u32 word_in_chunk(u32 word) {
    return (word + KEY_WORDS<Slot>) % (sizeof(Slot) / 8);
}

// How many of an entry's words are there.
template <class Slot>
GPKVS_DEVICE u32 chunk_words(u64 slot) {
    return CHUNK_ENTRY_WORDS<Slot> - (slot & KEY_CHANGES ? 0 : KEY_WORDS<Slot>);
}

// It covers the epoch, which the entry does not hold, and the entry's number.
GPKVS_DEVICE u64 chunk_digest(u64 number, u64 epoch) { return mix64(mix64(number + 1) ^ epoch); }

// log_chunk: the entries of some changed slots from the entry `first` on, with the words that the slots had, and their digests.
#define LOG_CHUNK_ARGS(F, Slot)                                                             \
    F(const u64*, changed_slot) F(const Slot*, contents) F(const Slot*, old) F(u64, epoch) F(u64, first) F(u64*, log) \
    F(u64*, digest)
#define LOG_CHUNK_BYTES_ARGS(F) LOG_CHUNK_ARGS(F, BytesSlot)
#define LOG_CHUNK_U64_ARGS(F) LOG_CHUNK_ARGS(F, U64Slot)

template <class Slot, class Args>
GPKVS_DEVICE void log_in_chunk(const Args& a, u64 i) {
    const u64 number = a.first + i, slot = a.changed_slot[i];
    const u64 *words = (const u64*)&a.old[i], *after = (const u64*)&a.contents[i];
    bool key_changes = false;
    for (u32 w = 0; w < KEY_WORDS<Slot>; w++) key_changes |= words[w] != after[w];
    const u64 named = slot | (key_changes ? KEY_CHANGES : 0);
    u64 digest = mix64(chunk_digest(number, a.epoch) ^ named);
    pm_store(a.log + striped_word_at(number, 0, CHUNK_ENTRY_WORDS<Slot>), named);
    for (u32 w = 1; w < chunk_words<Slot>(named); w++) {
        const u64 word = words[word_in_chunk<Slot>(w - 1)];
        pm_store(a.log + striped_word_at(number, w, CHUNK_ENTRY_WORDS<Slot>), word);
        digest = mix64(digest ^ word);
    }
    a.digest[i] = digest;
}

GPKVS_PM_KERNEL(log_chunk_bytes, LOG_CHUNK_BYTES_ARGS) { log_in_chunk<BytesSlot>(a, i); }
GPKVS_PM_KERNEL(log_chunk_u64, LOG_CHUNK_U64_ARGS) { log_in_chunk<U64Slot>(a, i); }

// mark_chunk: that a chunk's entries are durable, in both places. Runs only when they are. One item a place. `digest` is the sum
// of all of them.
#define MARK_CHUNK_ARGS(F)                                                                  \
    F(u64, epoch) F(u64, number) F(u64, first) F(u64, count) F(const u64*, digest) F(u64, first_word) F(u64, table) \
    F(u64*, marker0) F(u64*, marker1)

GPKVS_PM_KERNEL(mark_chunk, MARK_CHUNK_ARGS) {
    ChunkMarker marker = {a.epoch, a.number, a.first, a.count, *a.digest, a.first_word, a.table, 0};
    const u64* words = (const u64*)&marker;
    u32 crc = ~0u;
    for (u32 w = 0; w < sizeof(ChunkMarker) / 8 - 1; w++) crc = crc32c_word(crc, words[w]);
    marker.checksum = (u32)~crc;
    u64* to = i ? a.marker1 : a.marker0;
    for (u32 w = 0; w < sizeof(ChunkMarker) / 8; w++) pm_store(to + w, words[w]);
}

// verify_chunk: what recovery proves of every entry of a marked chunk before its first store (I6).
#define VERIFY_CHUNK_ARGS(F) F(const u64*, log) F(u64, epoch) F(u64, first) F(u64, slots) F(u64*, digest) F(u8*, wrong)

template <class Slot, class Args>
GPKVS_DEVICE void verify_in_chunk(const Args& a, u64 i) {
    const u64 number = a.first + i;
    const u64 named = a.log[striped_word_at(number, 0, CHUNK_ENTRY_WORDS<Slot>)];
    u64 digest = mix64(chunk_digest(number, a.epoch) ^ named);
    for (u32 w = 1; w < chunk_words<Slot>(named); w++)
        digest = mix64(digest ^ a.log[striped_word_at(number, w, CHUNK_ENTRY_WORDS<Slot>)]);
    a.digest[i] = digest;
    a.wrong[i] = (named & ~KEY_CHANGES) >= a.slots;
}
GPKVS_KERNEL(verify_chunk_bytes, VERIFY_CHUNK_ARGS) { verify_in_chunk<BytesSlot>(a, i); }
GPKVS_KERNEL(verify_chunk_u64, VERIFY_CHUNK_ARGS) { verify_in_chunk<U64Slot>(a, i); }

// undo_chunk: each logged slot as it was before the batch. Idempotent (I5).
#define UNDO_CHUNK_ARGS(F, Slot) F(const u64*, log) F(u64, first) F(Slot*, index)
#define UNDO_CHUNK_BYTES_ARGS(F) UNDO_CHUNK_ARGS(F, BytesSlot)
#define UNDO_CHUNK_U64_ARGS(F) UNDO_CHUNK_ARGS(F, U64Slot)

template <class Slot, class Args>
GPKVS_DEVICE void undo_in_chunk(const Args& a, u64 i) {
    const u64 number = a.first + i;
    const u64 named = a.log[striped_word_at(number, 0, CHUNK_ENTRY_WORDS<Slot>)];
    u64* slot = (u64*)&a.index[named & ~KEY_CHANGES];
    for (u32 w = 1; w < chunk_words<Slot>(named); w++)
        pm_store(slot + word_in_chunk<Slot>(w - 1), a.log[striped_word_at(number, w, CHUNK_ENTRY_WORDS<Slot>)]);
}
GPKVS_PM_KERNEL(undo_chunk_bytes, UNDO_CHUNK_BYTES_ARGS) { undo_in_chunk<BytesSlot>(a, i); }
GPKVS_PM_KERNEL(undo_chunk_u64, UNDO_CHUNK_U64_ARGS) { undo_in_chunk<U64Slot>(a, i); }
