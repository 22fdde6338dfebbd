// Records of the heap: reading one back with every check.
#pragma once
#include "layout.cuh"

// The CRC of a record's words: the upper half of word 0, then all others.
GPKVS_DEVICE u32 record_crc(const u64* words, u64 count) {
    u32 crc = crc32c_word(~0u, words[0] >> 32);
    for (u64 w = 1; w < count; w++) crc = crc32c_word(crc, words[w]);
    return ~crc;
}

// The record a reference names, or nullptr if the reference leaves the heap, the lengths disagree, or the CRC is wrong.
GPKVS_DEVICE const RecordHeader* checked_record(const u8* heap, u64 heap_bytes, u64 reference) {
    const u64 offset = reference_offset(reference) * UNIT_BYTES, bytes = reference_length(reference) * UNIT_BYTES;
    if (bytes < sizeof(RecordHeader) || offset + bytes > heap_bytes) return nullptr;
    const RecordHeader* header = (const RecordHeader*)(heap + offset);
    if (record_units(header->key_bytes, header->value_bytes) * UNIT_BYTES != bytes) return nullptr;
    if (record_crc((const u64*)header, bytes / 8) != header->crc32c) return nullptr;
    return header;
}

GPKVS_DEVICE const u8* record_key(const RecordHeader* header) { return (const u8*)(header + 1); }
GPKVS_DEVICE const u8* record_value(const RecordHeader* header) { return record_key(header) + header->key_bytes; }

GPKVS_DEVICE bool same_bytes(const u8* left, const u8* right, u64 bytes) {
    u64 at = 0;
    for (; at + 8 <= bytes; at += 8)
        if (load_unaligned(left + at) != load_unaligned(right + at)) return false;
    for (; at < bytes; at++)
        if (left[at] != right[at]) return false;
    return true;
}
