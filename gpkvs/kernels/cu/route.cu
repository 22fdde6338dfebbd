// route: the keyed fingerprint of each operation's key.
#include "base/hash.cuh"

#define ROUTE_BYTES_ARGS(F)                                                                 \
    F(const u8*, keys) F(const u64*, key_offsets) F(const u32*, key_lengths) F(u64, hash_key0) F(u64, hash_key1) \
    F(u64*, fingerprint0) F(u64*, fingerprint1)

GPKVS_KERNEL(route_bytes, ROUTE_BYTES_ARGS) {
    const Hash128 hash = siphash128(a.hash_key0, a.hash_key1, a.keys + a.key_offsets[i], a.key_lengths[i]);
    a.fingerprint0[i] = hash.low;
    a.fingerprint1[i] = hash.high;
}

// The same for keys of 8 bytes, one after the other.
#define ROUTE_U64_ARGS(F)                                                                   \
    F(const u8*, keys) F(u64, hash_key0) F(u64, hash_key1) F(u64*, fingerprint0) F(u64*, fingerprint1)

GPKVS_KERNEL(route_u64, ROUTE_U64_ARGS) {
    const Hash128 hash = siphash128_word(a.hash_key0, a.hash_key1, load_unaligned(a.keys + 8 * i));
    a.fingerprint0[i] = hash.low;
    a.fingerprint1[i] = hash.high;
}
