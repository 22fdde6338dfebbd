// Blobs (layout.cuh): the pieces of a value, and which ones an index has.
#include "base/hash.cuh"
#include "base/record.cuh"

// store_pieces: a value, past the caches: it is not read soon. The checksum of each piece goes to memory. One item a piece.
#define STORE_PIECES_ARGS(F) F(const u8*, value) F(u64, value_bytes) F(u8*, blob) F(u32*, checksums)

GPKVS_PM_KERNEL(store_pieces, STORE_PIECES_ARGS) {
    const u64 first = i * BLOB_PIECE_BYTES, left = a.value_bytes - first;
    const u64 bytes = left < BLOB_PIECE_BYTES ? left : BLOB_PIECE_BYTES;
    const u8* const from = a.value + first;
    u64* const to = (u64*)(a.blob + first);
    u32 crc = ~0u;
    u64 at = 0;
    for (; at + 16 <= bytes; at += 16) {
        const u64 words[2] = {load_unaligned(from + at), load_unaligned(from + at + 8)};
        crc = crc32c_word(crc32c_word(crc, words[0]), words[1]);
        pm_stream_pair(to + at / 8, words);
    }
    for (; at < bytes; at += 8) {
        const u64 word = load_last(from + at, bytes - at);
        crc = crc32c_word(crc, word);
        pm_store(to + at / 8, word);
    }
    a.checksums[i] = ~crc;
}

// store_words: as they are.
#define STORE_WORDS_ARGS(F) F(const u64*, words) F(u64*, to)

GPKVS_PM_KERNEL(store_words, STORE_WORDS_ARGS) { pm_store(a.to + i, a.words[i]); }

// find_blobs: the blob of the record of a slot, or 0 where the record is not surely that of the slot. One item a slot.
#define FIND_BLOBS_ARGS(F)                                                                  \
    F(const BytesBucket*, index) F(const u64*, slot) F(const u8*, heap) F(u64, heap_bytes) F(u64, record_format) F(u64, table_id) \
    F(u64, hash_key0) F(u64, hash_key1) F(u64*, blob)

GPKVS_KERNEL(find_blobs, FIND_BLOBS_ARGS) {
    const BytesSlot& slot = a.index[a.slot[i] / WAYS].ways[a.slot[i] % WAYS];
    const Record record = checked_record(a.heap, a.heap_bytes, a.record_format, slot.reference);
    a.blob[i] = 0;
    if (!record.blob || record.table_id != a.table_id || record.version != slot_version(slot.meta)) return;
    const Hash128 hash = siphash128(a.hash_key0, a.hash_key1, record.key, record.key_bytes);
    if (hash.low == slot.fingerprint0 && hash.high == slot.fingerprint1) a.blob[i] = record.blob[BLOB_REFERENCE];
}
