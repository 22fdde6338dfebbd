// Records as msgpack: an array of key, value and expiry for each. For exports, at the speed of a scan.
#pragma once
#include "base/platform.cuh"

static const u64 PACKED_BYTES_MAX = 1 + 5 + 5 + 9;  // of a record, beside its key and value

static inline u8* pack_number(u8* to, u8 type, u64 number, u32 bytes) {
    *to++ = type;
    for (u32 byte = bytes; byte-- > 0;) *to++ = (u8)(number >> (8 * byte));
    return to;
}

static inline u8* pack_bytes(u8* to, const u8* data, u32 bytes) {
    if (bytes < 1 << 8) to = pack_number(to, 0xc4, bytes, 1);
    else if (bytes < 1 << 16) to = pack_number(to, 0xc5, bytes, 2);
    else to = pack_number(to, 0xc6, bytes, 4);
    copy_bytes(to, data, bytes);
    return to + bytes;
}

// Packs n records, one after the other, and returns how many bytes that took. `expiries` may be nullptr: none expires.
static inline u64 pack_records(const u8* keys, const u32* key_lengths, const u8* values, const u32* value_lengths,
                               const u64* expiries, u64 n, u8* out) {
    u8* to = out;
    for (u64 i = 0; i < n; i++) {
        *to++ = 0x93;
        to = pack_bytes(to, keys, key_lengths[i]);
        to = pack_bytes(to, values, value_lengths[i]);
        if (expiries && expiries[i]) to = pack_number(to, 0xcf, expiries[i], 8);
        else *to++ = 0;
        keys += key_lengths[i];
        values += value_lengths[i];
    }
    return (u64)(to - out);
}
