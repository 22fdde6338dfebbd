// record: the new records, appended to the heap. One item a record: the SET and the place of each. `expiries` is missing (0)
// where none expires.
#include "record.cuh"

#define RECORD_ARGS(F)                                                                      \
    F(const u32*, put_op) F(const u64*, reference) F(const u8*, keys) F(const u64*, key_offsets)  \
    F(const u32*, key_lengths) F(const u8*, values) F(const u64*, value_offsets) F(const u32*, value_lengths) \
    F(const u64*, expiries) F(u64, first_sequence) F(u64, table_id) F(u8*, heap)

// Stores a byte string word by word into a record, carrying the bytes that do not fill a word to the next string.
struct RecordWriter {
    u64* at;
    u64 partial;
    u32 partial_bytes;
    u32 crc;
};

GPKVS_DEVICE void put_word(RecordWriter& writer, u64 word) {
    writer.crc = crc32c_word(writer.crc, word);
    pm_store(writer.at++, word);
}

GPKVS_DEVICE void put_bytes(RecordWriter& writer, const u8* data, u64 bytes) {
    u64 at = 0;
    while (at < bytes && writer.partial_bytes) {
        writer.partial |= (u64)data[at++] << (8 * writer.partial_bytes);
        if (++writer.partial_bytes == 8) {
            put_word(writer, writer.partial);
            writer.partial = 0;
            writer.partial_bytes = 0;
        }
    }
    for (; at + 8 <= bytes; at += 8) put_word(writer, load_unaligned(data + at));
    for (; at < bytes; at++) writer.partial |= (u64)data[at] << (8 * writer.partial_bytes++);
}

GPKVS_PM_KERNEL(record, RECORD_ARGS) {
    const u32 op = a.put_op[i];
    const u64 reference = a.reference[i];
    u64* words = (u64*)(a.heap + reference_offset(reference) * UNIT_BYTES);
    const u64* end = words + reference_length(reference) * (UNIT_BYTES / 8);

    RecordWriter writer = {words + 1, 0, 0, crc32c_word(~0u, a.table_id)};
    put_word(writer, a.first_sequence + op);
    put_word(writer, a.expiries ? a.expiries[op] : 0);
    put_word(writer, (u64)a.value_lengths[op] << 32 | a.key_lengths[op]);
    put_bytes(writer, a.keys + a.key_offsets[op], a.key_lengths[op]);
    put_bytes(writer, a.values + a.value_offsets[op], a.value_lengths[op]);
    if (writer.partial_bytes) put_word(writer, writer.partial);
    while (writer.at < end) put_word(writer, 0);
    pm_store(words, a.table_id << 32 | (u32)~writer.crc);
}

// move_record: records as they are, damaged ones too, from one place of the heap to another.
#define MOVE_RECORD_ARGS(F) F(const u64*, moved_from) F(const u64*, reference) F(const u8*, heap) F(u8*, to)

GPKVS_PM_KERNEL(move_record, MOVE_RECORD_ARGS) {
    const u64* from = (const u64*)(a.heap + reference_offset(a.moved_from[i]) * UNIT_BYTES);
    u64* to = (u64*)(a.to + reference_offset(a.reference[i]) * UNIT_BYTES);
    const u64 words = reference_length(a.reference[i]) * (UNIT_BYTES / 8);
    for (u64 w = 0; w < words; w++) pm_store(to + w, from[w]);
}
