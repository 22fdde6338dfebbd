// Keyed hashing: SipHash-2-4 with 128 bits of output (Aumasson and Bernstein, INDOCRYPT 2012).
// The key is random in every store, so that no client can aim at a bucket.
#pragma once
#include "base/platform.cuh"

struct Hash128 {
    u64 low, high;
};

GPKVS_DEVICE u64 rotate_left(u64 x, u32 bits) { return (x << bits) | (x >> (64 - bits)); }

struct SipState {
    u64 v0, v1, v2, v3;
};

GPKVS_DEVICE void sip_round(SipState& s) {
    s.v0 += s.v1; s.v2 += s.v3;
    s.v1 = rotate_left(s.v1, 13) ^ s.v0; s.v3 = rotate_left(s.v3, 16) ^ s.v2;
    s.v0 = rotate_left(s.v0, 32);
    s.v2 += s.v1; s.v0 += s.v3;
    s.v1 = rotate_left(s.v1, 17) ^ s.v2; s.v3 = rotate_left(s.v3, 21) ^ s.v0;
    s.v2 = rotate_left(s.v2, 32);
}

// No loops over rounds: a compiler makes vectors of several keys of a loop over keys only if it holds no other loop.
GPKVS_DEVICE void sip_word(SipState& s, u64 word) {
    s.v3 ^= word;
    sip_round(s); sip_round(s);
    s.v0 ^= word;
}

GPKVS_DEVICE SipState sip_start(u64 key0, u64 key1) {
    return {key0 ^ 0x736f6d6570736575ull, key1 ^ 0x646f72616e646f6dull ^ 0xee, key0 ^ 0x6c7967656e657261ull,
            key1 ^ 0x7465646279746573ull};
}

GPKVS_DEVICE Hash128 sip_end(SipState& s, u64 last_word) {
    sip_word(s, last_word);
    s.v2 ^= 0xee;
    sip_round(s); sip_round(s); sip_round(s); sip_round(s);
    Hash128 hash;
    hash.low = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
    s.v1 ^= 0xdd;
    sip_round(s); sip_round(s); sip_round(s); sip_round(s);
    hash.high = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
    return hash;
}

GPKVS_DEVICE Hash128 siphash128(u64 key0, u64 key1, const u8* data, u64 bytes) {
    SipState s = sip_start(key0, key1);
    u64 at = 0;
    for (; at + 8 <= bytes; at += 8) sip_word(s, load_unaligned(data + at));
    u64 last = bytes << 56;
    for (u32 b = 0; at + b < bytes; b++) last |= (u64)data[at + b] << (8 * b);
    return sip_end(s, last);
}

// The same of one 8-byte word.
GPKVS_DEVICE Hash128 siphash128_word(u64 key0, u64 key1, u64 word) {
    SipState s = sip_start(key0, key1);
    sip_word(s, word);
    return sip_end(s, 8ull << 56);
}

// A strong 64-bit mixer for checksums that are added up in any order (the finaliser of MurmurHash3).
GPKVS_DEVICE u64 mix64(u64 x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    return x ^ (x >> 33);
}
