// Records of the heap: reading one, with every check, and writing one. Only this file knows their headers.
#pragma once
#include "layout.cuh"

// What a record's header says, and where its key is. The value follows the key.
struct Record {
    const u64* words;  // null: there is none, or it is damaged
    u32 table_id;
    u32 key_bytes;
    u64 value_bytes;
    u64 units;  // that it says it has; below RECORD_UNITS_MIN if it cannot be a record
    u64 version;
    u64 expiry_ms;  // 0: none
    const u8* key;
};

GPKVS_DEVICE Record no_record() { return {nullptr, 0, 0, 0, 0, 0, 0, nullptr}; }
GPKVS_DEVICE const u8* record_value(const Record& record) { return record.key + record.key_bytes; }

// Word 0 of any header: the CRC32C of all but itself, and the table.
GPKVS_DEVICE u64 record_word0(u32 crc, u64 table_id) { return table_id << 32 | crc; }

// Word 1 of format 4: u16 key bytes | u24 units | u4 flags | u4 bytes of padding | u16 zero.
enum RecordFlags { RECORD_EXPIRES = 1 };
GPKVS_DEVICE u64 record_word1(bool expires, u64 key_bytes, u64 value_bytes) {
    const u64 units = record_units(RECORDS_4, expires, key_bytes, value_bytes);
    const u64 padding = units * UNIT_BYTES - record_header_bytes(RECORDS_4, expires) - key_bytes - value_bytes;
    return key_bytes | units << 16 | (u64)(expires ? RECORD_EXPIRES : 0) << 40 | padding << 44;
}

GPKVS_DEVICE Record read_record_3(const u64* words) {
    const u32 key_bytes = (u32)words[3], value_bytes = (u32)(words[3] >> 32);
    return {words, (u32)(words[0] >> 32), key_bytes, value_bytes, record_units(RECORDS_3, true, key_bytes, value_bytes),
            words[1], words[2], (const u8*)(words + 4)};
}

GPKVS_DEVICE Record read_record_4(const u64* words) {
    const u64 word = words[1], key_bytes = word & 0xFFFF, units = word >> 16 & 0xFFFFFF;
    const bool expires = word >> 40 & RECORD_EXPIRES;
    const u64 other = record_header_bytes(RECORDS_4, expires) + key_bytes + (word >> 44 & 15), bytes = units * UNIT_BYTES;
    return {words, (u32)(words[0] >> 32), (u32)key_bytes, bytes >= other ? bytes - other : 0, bytes >= other ? units : 0,
            words[2], expires ? words[3] : 0, (const u8*)(words + (expires ? 4 : 3))};
}

// A record as its words say it is, unchecked. There are RECORD_UNITS_MIN units of it at least.
GPKVS_DEVICE Record read_record(const void* at, u64 format) {
    return format == RECORDS_3 ? read_record_3((const u64*)at) : read_record_4((const u64*)at);
}

// The one that a reference names; none if the reference leaves the heap.
GPKVS_DEVICE Record record_at(const u8* heap, u64 heap_bytes, u64 format, u64 reference) {
    const u64 offset = reference_offset(reference) * UNIT_BYTES, units = reference_length(reference);
    if (units < RECORD_UNITS_MIN || offset + units * UNIT_BYTES > heap_bytes) return no_record();
    return read_record(heap + offset, format);
}

// The CRC of a record's words: the upper half of word 0, then all others.
GPKVS_DEVICE u32 record_crc(const u64* words, u64 count) {
    u32 crc = crc32c_word(~0u, words[0] >> 32);
    for (u64 w = 1; w < count; w++) crc = crc32c_word(crc, words[w]);
    return ~crc;
}

// The record that a reference names; none if the reference leaves the heap, the lengths disagree, or the CRC is wrong.
GPKVS_DEVICE Record checked_record(const u8* heap, u64 heap_bytes, u64 format, u64 reference) {
    const Record record = record_at(heap, heap_bytes, format, reference);
    if (!record.words || record.units != reference_length(reference)) return no_record();
    return record_crc(record.words, record.units * (UNIT_BYTES / 8)) == (u32)record.words[0] ? record : no_record();
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
    for (; at + 8 <= bytes; at += 8) put_word(writer, load_unaligned(data + at));
    for (; at < bytes; at++) writer.partial |= (u64)data[at] << (8 * writer.partial_bytes++);
}

// Stores a record of `units`, its first word last.
GPKVS_DEVICE void write_record(u64* words, u64 format, u64 units, u64 table_id, u64 version, u64 expiry_ms, const u8* key,
                               u64 key_bytes, const u8* value, u64 value_bytes) {
    RecordWriter writer = {words + 1, 0, 0, crc32c_word(~0u, table_id)};
    if (format == RECORDS_3) {
        put_word(writer, version);
        put_word(writer, expiry_ms);
        put_word(writer, value_bytes << 32 | key_bytes);
    } else {
        put_word(writer, record_word1(expiry_ms != 0, key_bytes, value_bytes));
        put_word(writer, version);
        if (expiry_ms) put_word(writer, expiry_ms);
    }
    put_bytes(writer, key, key_bytes);
    put_bytes(writer, value, value_bytes);
    if (writer.partial_bytes) put_word(writer, writer.partial);
    while (writer.at < words + units * (UNIT_BYTES / 8)) put_word(writer, 0);
    pm_store(words, record_word0(~writer.crc, table_id));
}
