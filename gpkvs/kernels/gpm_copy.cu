// What checkpoints do with the bytes of arrays (gpkvs/gpm/checkpoint.py).
#include "gpm.cuh"

static const u64 GPM_COPIED_AT_ONCE = 64 << 10;  // bytes, by one thread of the host

// gpm_copy: bytes to persistent memory, past the caches. Item i copies the i-th part; `target` is a multiple of 16.
#define GPM_COPY_ARGS(F) F(const u8*, source) F(u8*, target) F(u64, bytes)
GPKVS_PM_KERNEL(gpm_copy, GPM_COPY_ARGS) {
    const u64 first = i * GPM_COPIED_AT_ONCE, rest = a.bytes - first;
    const u64 bytes = rest < GPM_COPIED_AT_ONCE ? rest : GPM_COPIED_AT_ONCE, pairs = bytes / 16 * 16;
    const u8* source = a.source + first;
    u8* target = a.target + first;
    for (u64 at = 0; at < pairs; at += 16) {
        const u64 words[2] = {load_unaligned(source + at), load_unaligned(source + at + 8)};
        pm_stream_pair((u64*)(target + at), words);
    }
    for (u64 at = pairs; at < bytes; at++) gpm_store(target + at, source[at]);
}

// gpm_load: bytes to memory of the host, in the same parts.
#define GPM_LOAD_ARGS(F) F(const u8*, source) F(u8*, target) F(u64, bytes)
GPKVS_KERNEL(gpm_load, GPM_LOAD_ARGS) {
    const u64 first = i * GPM_COPIED_AT_ONCE, rest = a.bytes - first;
    memcpy(a.target + first, a.source + first, rest < GPM_COPIED_AT_ONCE ? rest : GPM_COPIED_AT_ONCE);
}

// gpm_digest: a hash of each block, 128 bits: NH of RFC 4418 with words of 64 bits. Two blocks that differ agree with a
// probability of 2^-64, whatever they hold, as long as nobody chose them by the keys. Bytes behind the end count as zeros.
#define GPM_DIGEST_ARGS(F) F(const u8*, source) F(u64, bytes) F(u64, block_words) F(const u64*, keys) F(u64*, digest)

GPKVS_DEVICE u64 gpm_padded_word(const u8* source, u64 bytes, u64 word) {
    if (8 * word + 8 <= bytes) return load_unaligned(source + 8 * word);
    u64 found = 0;
    for (u64 at = 8 * word; at < bytes; at++) found |= (u64)source[at] << (8 * (at % 8));
    return found;
}

struct GpmHash {
    u64 low, high;
};

GPKVS_DEVICE void gpm_add(GpmHash& hash, u64 low, u64 high) {
    hash.low += low;
    hash.high += high + (hash.low < low);
}

// Of the words 2 * pair and 2 * pair + 1 of a block.
GPKVS_DEVICE void gpm_add_pair(GpmHash& hash, const u64* keys, u64 pair, u64 first, u64 second) {
    const u64 a = first + keys[2 * pair], b = second + keys[2 * pair + 1];
    gpm_add(hash, a * b, mul_high(a, b));
}

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
static const u32 GPM_DIGEST_THREADS = 256;

GPM_BLOCK_KERNEL(gpm_digest, GPM_DIGEST_ARGS, 256) {
    GPM_SHARED(GpmHash, part, 256);
    const u64 first = b * a.block_words, words = (a.bytes + 7) / 8 - first;
    const u64 pairs = ((words < a.block_words ? words : a.block_words) + 1) / 2;
    const u32 t = threadIdx.x;
    GpmHash hash = {0, 0};
    for (u64 pair = t; pair < pairs; pair += GPM_DIGEST_THREADS) {
        const u64 word = first + 2 * pair;
        gpm_add_pair(hash, a.keys, pair, gpm_padded_word(a.source, a.bytes, word), gpm_padded_word(a.source, a.bytes, word + 1));
    }
    part[t] = hash;
    for (u32 half = GPM_DIGEST_THREADS / 2; half; half /= 2) {
        GPM_SYNC();
        if (t < half) gpm_add(part[t], part[t + half].low, part[t + half].high);
    }
    if (t == 0) {
        a.digest[2 * b] = part[0].low;
        a.digest[2 * b + 1] = part[0].high;
    }
}
#else
GPKVS_KERNEL(gpm_digest, GPM_DIGEST_ARGS) {
    const u64 first = i * a.block_words, words = (a.bytes + 7) / 8 - first;
    const u64 pairs = ((words < a.block_words ? words : a.block_words) + 1) / 2;
    const u64 whole = a.bytes / 8 < first + 2 * pairs ? (a.bytes / 8 - first) / 2 : pairs;  // without padding
    GpmHash hash = {0, 0};
    for (u64 pair = 0; pair < whole; pair++) {
        const u8* at = a.source + 8 * (first + 2 * pair);
        gpm_add_pair(hash, a.keys, pair, load_unaligned(at), load_unaligned(at + 8));
    }
    for (u64 pair = whole; pair < pairs; pair++) {
        const u64 word = first + 2 * pair;
        gpm_add_pair(hash, a.keys, pair, gpm_padded_word(a.source, a.bytes, word), gpm_padded_word(a.source, a.bytes, word + 1));
    }
    a.digest[2 * i] = hash.low;
    a.digest[2 * i + 1] = hash.high;
}
#endif
