// Digests of what checkpoints hold (gpkvs/gpm/digests.py).
#include "gpm.cuh"

// gpm_digest: a hash of each block of several parts, 128 bits: NH of RFC 4418 with words of 64 bits. Two blocks that differ
// agree with a probability of 2^-64, whatever they hold, as long as nobody chose them by the keys. A part's bytes behind
// its end count as zeros. One launch takes all parts: arrays of a checkpoint are often small.
struct GpmPart {
    const u8* source;
    u64 bytes;
    u64 first_block;  // of all parts' blocks; a part without bytes has none
};

#define GPM_DIGEST_ARGS(F) F(const GpmPart*, parts) F(u64, count) F(u64, block_words) F(const u64*, keys) F(u64*, digest)

// The part that has a block: the last one that begins there or before.
GPKVS_DEVICE GpmPart gpm_part_of(const GpmPart* parts, u64 count, u64 block) {
    u64 low = 0, high = count;
    while (high - low > 1) {
        const u64 middle = (low + high) / 2;
        if (parts[middle].first_block <= block) low = middle;
        else high = middle;
    }
    return parts[low];
}

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
static const u32 GPM_DIGEST_THREADS = 1024;  // a block of 256 KiB is digested in microseconds, if there is but one

GPM_BLOCK_KERNEL(gpm_digest, GPM_DIGEST_ARGS, GPM_DIGEST_THREADS) {
    GPM_SHARED(GpmHash, sum, GPM_DIGEST_THREADS);
    const GpmPart part = gpm_part_of(a.parts, a.count, b);
    const u64 first = (b - part.first_block) * a.block_words, words = (part.bytes + 7) / 8 - first;
    const u64 pairs = ((words < a.block_words ? words : a.block_words) + 1) / 2;
    const u32 t = threadIdx.x;
    GpmHash hash = {0, 0};
    for (u64 pair = t; pair < pairs; pair += GPM_DIGEST_THREADS) {
        const u64 word = first + 2 * pair;
        gpm_add_pair(hash, a.keys, pair, gpm_padded_word(part.source, part.bytes, word),
                     gpm_padded_word(part.source, part.bytes, word + 1));
    }
    sum[t] = hash;
    for (u32 half = GPM_DIGEST_THREADS / 2; half; half /= 2) {
        GPM_SYNC();
        if (t < half) gpm_add(sum[t], sum[t + half].low, sum[t + half].high);
    }
    if (t == 0) {
        a.digest[2 * b] = sum[0].low;
        a.digest[2 * b + 1] = sum[0].high;
    }
}
#else
GPKVS_KERNEL(gpm_digest, GPM_DIGEST_ARGS) {
    const GpmPart part = gpm_part_of(a.parts, a.count, i);
    const u64 first = (i - part.first_block) * a.block_words, words = (part.bytes + 7) / 8 - first;
    const u64 pairs = ((words < a.block_words ? words : a.block_words) + 1) / 2;
    const u64 whole = part.bytes / 8 < first + 2 * pairs ? (part.bytes / 8 - first) / 2 : pairs;  // without padding
    GpmHash hash = {0, 0};
    for (u64 pair = 0; pair < whole; pair++) {
        const u8* at = part.source + 8 * (first + 2 * pair);
        gpm_add_pair(hash, a.keys, pair, load_unaligned(at), load_unaligned(at + 8));
    }
    for (u64 pair = whole; pair < pairs; pair++) {
        const u64 word = first + 2 * pair;
        gpm_add_pair(hash, a.keys, pair, gpm_padded_word(part.source, part.bytes, word),
                     gpm_padded_word(part.source, part.bytes, word + 1));
    }
    a.digest[2 * i] = hash.low;
    a.digest[2 * i + 1] = hash.high;
}
#endif
