// Records of the heap: reading one, with every check, and writing one. Only this file knows their headers.
#pragma once
#include "base/layout.cuh"

// What a record's header says, and where its key is. The value follows the key, or lies in a blob.
struct Record {
    const u64* words;  // null: there is none, or it is damaged
    u32 table_id;
    u32 key_bytes;
    u64 held_bytes;  // of its value, if it has no blob (value_bytes_of)
    u64 units;  // that it says it has; below RECORD_UNITS_MIN if it cannot be a record
    u64 version;
    u64 expiry_ms;  // 0: none
    const u8* key;
    const u64* blob;  // what it says of its blob (BlobWords); null: it has none
};

// What a record says of its blob.
enum BlobWords {
    BLOB_REFERENCE,
    BLOB_VALUE_BYTES,
    BLOB_CRC,  // CRC32C of the checksums of its pieces; and BLOB_IS_KEPT
};
// The blob is older than the batch that wrote the record. Nothing else may say so: an index that a checkpoint was writing may show
// a later batch.
static const u64 BLOB_IS_KEPT = 1ull << 63;

// The file of blobs, as far as it is mapped; without one, no blob is sound.
struct BlobFile {
    const u8* base;
    u64 pages;
};
#define BLOB_FILE_ARGS(F) F(const u8*, blobs) F(u64, blob_file_pages)
template <class Args>
GPKVS_DEVICE BlobFile blob_file_of(const Args& a) {
    return {a.blobs, a.blob_file_pages};
}

GPKVS_DEVICE Record no_record() { return {nullptr, 0, 0, 0, 0, 0, 0, nullptr, nullptr}; }

// The value of a record that was checked; of one with a blob, see `is_blob_sound`.
GPKVS_DEVICE const u8* record_value(const Record& record, const BlobFile& file) {
    if (record.blob) return file.base + reference_offset(record.blob[BLOB_REFERENCE]) * BLOB_PAGE_BYTES;
    return record.key + record.key_bytes;
}

// Word 0 of any header: the CRC32C of all but itself, and the table.
GPKVS_DEVICE u64 record_word0(u32 crc, u64 table_id) { return table_id << 32 | crc; }

// Word 1 of format 4: u16 key bytes | u24 units | u4 flags | u4 bytes of padding | u16 zero.
enum RecordFlags { RECORD_EXPIRES = 1, RECORD_HAS_BLOB = 2 };
GPKVS_DEVICE u64 record_word1(bool expires, u64 key_bytes, u64 value_bytes) {
    const bool is_blob = is_in_blob(RECORDS_4, key_bytes, value_bytes);
    const u64 units = record_units(RECORDS_4, expires, key_bytes, value_bytes);
    const u64 held = key_bytes + (is_blob ? BLOB_WORDS_BYTES : value_bytes);
    const u64 padding = units * UNIT_BYTES - record_header_bytes(RECORDS_4, expires) - held;
    const u64 flags = (expires ? RECORD_EXPIRES : 0) | (is_blob ? RECORD_HAS_BLOB : 0);
    return key_bytes | units << 16 | flags << 40 | padding << 44;
}

GPKVS_DEVICE Record read_record_3(const u64* words) {
    const u32 key_bytes = (u32)words[3], value_bytes = (u32)(words[3] >> 32);
    return {words, (u32)(words[0] >> 32), key_bytes, value_bytes, record_units(RECORDS_3, true, key_bytes, value_bytes),
            words[1], words[2], (const u8*)(words + 4), nullptr};
}

GPKVS_DEVICE Record read_record_4(const u64* words) {
    const u64 word = words[1], key_bytes = word & 0xFFFF, units = word >> 16 & 0xFFFFFF;
    const bool expires = word >> 40 & RECORD_EXPIRES, is_blob = word >> 40 & RECORD_HAS_BLOB;
    const u64 header = record_header_bytes(RECORDS_4, expires), held = units * UNIT_BYTES - header - key_bytes - (word >> 44 & 15);
    const u8* const after = (const u8*)words + header;
    Record record = {words, (u32)(words[0] >> 32), (u32)key_bytes, held, units,
                     words[2], expires ? words[3] : 0, after, nullptr};
    if (is_blob) {
        record.key = after + BLOB_WORDS_BYTES;
        record.blob = (const u64*)after;
    }
    // A length below zero is a large one.
    if (is_blob ? held != BLOB_WORDS_BYTES : held > units * UNIT_BYTES) {
        record.key = after;
        record.held_bytes = record.units = 0;
        record.blob = nullptr;
    }
    return record;
}

// A record as its words say it is, unchecked. There are RECORD_UNITS_MIN units of it at least.
GPKVS_DEVICE Record read_record(const void* at, u64 format) {
    return format == RECORDS_3 ? read_record_3((const u64*)at) : read_record_4((const u64*)at);
}

// How long the value of a record is. Those of a record are there if the record is: it lies in the heap.
GPKVS_DEVICE u64 value_bytes_of(const Record& record) { return record.blob ? record.blob[BLOB_VALUE_BYTES] : record.held_bytes; }

// The one that a reference names; none if the reference leaves the heap.
GPKVS_DEVICE Record record_at(const u8* heap, u64 heap_bytes, u64 format, u64 reference) {
    const u64 offset = reference_offset(reference) * UNIT_BYTES, units = reference_length(reference);
    if (units < RECORD_UNITS_MIN || offset + units * UNIT_BYTES > heap_bytes) return no_record();
    return read_record(heap + offset, format);
}

// The bytes of the value that a reference leads to, as its record says, if that is in a blob.
template <class Args>
GPKVS_DEVICE u64 blob_bytes(const Args& a, u64 reference) {
    if (!a.blobs) return 0;
    const Record record = record_at(a.heap, a.heap_bytes, a.record_format, reference);
    if (!record.blob || record.units != reference_length(reference)) return 0;
    const u64 bytes = value_bytes_of(record);
    return bytes < a.blob_file_pages * BLOB_PAGE_BYTES ? bytes : 0;
}

// The CRC of a record's words: the upper half of word 0, then all others.
GPKVS_DEVICE u32 record_crc(const u64* words, u64 count) {
    return ~crc32c_words(crc32c_word(~0u, words[0] >> 32), (const u8*)(words + 1), count - 1);
}

// The record that a reference names; none if the reference leaves the heap, the lengths disagree, or the CRC is wrong.
GPKVS_DEVICE Record checked_record(const u8* heap, u64 heap_bytes, u64 format, u64 reference) {
    const Record record = record_at(heap, heap_bytes, format, reference);
    if (!record.words || record.units != reference_length(reference)) return no_record();
    return record_crc(record.words, record.units * (UNIT_BYTES / 8)) == (u32)record.words[0] ? record : no_record();
}

// The last word of some bytes, of which there are so many; zeros fill it up.
GPKVS_DEVICE u64 load_last(const u8* at, u64 bytes) {
    if (bytes >= 8) return load_unaligned(at);
    u64 word = 0;
    for (u64 byte = 0; byte < bytes; byte++) word |= (u64)at[byte] << (8 * byte);
    return word;
}

// The CRC of a piece of a blob: of whole words, zeros fill up the last one.
GPKVS_DEVICE u32 piece_crc(const u8* piece, u64 bytes) {
    const u64 whole = bytes / 8 * 8;
    u32 crc = crc32c_words(~0u, piece, bytes / 8);
    if (whole < bytes) crc = crc32c_word(crc, load_last(piece + whole, bytes - whole));
    return ~crc;
}

// The CRCs of three whole pieces that follow each other: a processor has three at work in the time that one takes.
GPKVS_DEVICE void three_piece_crcs(const u8* pieces, u32* crcs) {
    u32 first = ~0u, second = ~0u, third = ~0u;
    for (u64 at = 0; at < BLOB_PIECE_BYTES; at += 8) {
        first = crc32c_word(first, load_unaligned(pieces + at));
        second = crc32c_word(second, load_unaligned(pieces + BLOB_PIECE_BYTES + at));
        third = crc32c_word(third, load_unaligned(pieces + 2 * BLOB_PIECE_BYTES + at));
    }
    crcs[0] = ~first;
    crcs[1] = ~second;
    crcs[2] = ~third;
}

// The CRC of the checksums of all pieces of a blob.
GPKVS_DEVICE u32 checksums_crc(const u8* checksums, u64 pieces) {
    u32 crc = ~0u;
    for (u64 piece = 0; piece < pieces; piece++) crc = crc32c_word(crc, ((const u32*)checksums)[piece]);
    return ~crc;
}

// Whether a record's blob lies where it may; true where it has none.
GPKVS_DEVICE bool is_blob_placed(const Record& record, const BlobFile& file) {
    if (!record.blob) return true;
    const u64 bytes = record.blob[BLOB_VALUE_BYTES];
    const u64 first = reference_offset(record.blob[BLOB_REFERENCE]), pages = reference_length(record.blob[BLOB_REFERENCE]);
    return bytes <= file.pages * BLOB_PAGE_BYTES && pages == blob_pages(bytes) && first + pages <= file.pages;
}

// Whether the checksums of a blob's pieces are those that its record means.
GPKVS_DEVICE bool are_checksums_sound(const u8* value, u64 bytes, u64 crc) {
    return checksums_crc(value + blob_checksums_at(bytes), blob_pieces(bytes)) == (u32)crc;
}

// Whether the pieces of a blob from a byte to another are as they were written; its checksums are sound.
GPKVS_DEVICE bool are_pieces_sound(const u8* value, u64 bytes, u64 from, u64 end) {
    const u32* expected = (const u32*)(value + blob_checksums_at(bytes)) + from / BLOB_PIECE_BYTES;
    u64 at = from;
    for (; at + 3 * BLOB_PIECE_BYTES <= end; at += 3 * BLOB_PIECE_BYTES, expected += 3) {
        u32 crcs[3];
        three_piece_crcs(value + at, crcs);
        if (crcs[0] != expected[0] || crcs[1] != expected[1] || crcs[2] != expected[2]) return false;
    }
    for (; at < end; at += BLOB_PIECE_BYTES) {
        const u64 left = end - at;
        if (piece_crc(value + at, left < BLOB_PIECE_BYTES ? left : BLOB_PIECE_BYTES) != *expected++) return false;
    }
    return true;
}

// Whether a record's blob is where it may be, and as it was written, every piece of it; true where it has none.
GPKVS_DEVICE bool is_blob_sound(const Record& record, const BlobFile& file) {
    if (!record.blob) return true;
    const u64 bytes = record.blob[BLOB_VALUE_BYTES];
    const u8* const value = file.base + reference_offset(record.blob[BLOB_REFERENCE]) * BLOB_PAGE_BYTES;
    return is_blob_placed(record, file) && are_checksums_sound(value, bytes, record.blob[BLOB_CRC]) &&
           are_pieces_sound(value, bytes, 0, bytes);
}

GPKVS_DEVICE bool same_bytes(const u8* left, const u8* right, u64 bytes) {
    u64 at = 0;
    for (; at + 8 <= bytes; at += 8)
        if (load_unaligned(left + at) != load_unaligned(right + at)) return false;
    for (; at < bytes; at++)
        if (left[at] != right[at]) return false;
    return true;
}

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
    const u64 whole = (bytes - at) / 8;
    writer.crc = crc32c_stored(writer.crc, writer.at, data + at, whole);
    writer.at += whole;
    for (at += 8 * whole; at < bytes; at++) writer.partial |= (u64)data[at] << (8 * writer.partial_bytes++);
}

// Stores a record of `units`, its first word last. `blob`: where its value is, if that lies in one (BlobWords).
GPKVS_DEVICE void write_record(u64* words, u64 format, u64 units, u64 table_id, u64 version, u64 expiry_ms, const u8* key,
                               u64 key_bytes, const u8* value, u64 value_bytes, const u64* blob) {
    RecordWriter writer = {words + 1, 0, 0, crc32c_word(~0u, table_id)};
    if (format == RECORDS_3) {
        put_word(writer, version);
        put_word(writer, expiry_ms);
        put_word(writer, value_bytes << 32 | key_bytes);
    } else {
        put_word(writer, record_word1(expiry_ms != 0, key_bytes, value_bytes));
        put_word(writer, version);
        if (expiry_ms) put_word(writer, expiry_ms);
        for (u32 word = 0; blob && word < BLOB_WORDS_BYTES / 8; word++) put_word(writer, blob[word]);
    }
    put_bytes(writer, key, key_bytes);
    if (!blob) put_bytes(writer, value, value_bytes);
    if (writer.partial_bytes) put_word(writer, writer.partial);
    while (writer.at < words + units * (UNIT_BYTES / 8)) put_word(writer, 0);
    pm_store(words, record_word0(~writer.crc, table_id));
}
