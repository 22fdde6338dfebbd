// A save of a checkpoint's group in one kernel (gpkvs/gpm/blocks.py): it digests all blocks of all arrays, and stores those
// whose digest is not the one that is kept of the copy. What restores bring back is digested by it, too, and stored nowhere.
//
// A copy in persistent memory is the digests of all blocks, then the arrays. Each thread's stores are durable when the kernel
// has ended; only then may a word say that the copy counts.
#include "gpm/gpm.cuh"

struct GpmPart {
    const u8* source;
    u64 bytes;
    u64 first_block;  // of all parts' blocks; a part without bytes has none
    u64 at;           // where it begins in a copy
};

// `digest`, near to the kernel, holds the digests of what the copy holds, if they `are_known`, and then those of all blocks.
// `differs` tells of each block whether they differ; without `to`, nothing is stored.
#define GPM_SAVE_ARGS(F)                                                                          \
    F(const GpmPart*, parts) F(u64, count) F(u64, block_bytes) F(const u64*, keys) F(u64*, digest) \
    F(u64, are_known) F(u8*, differs) F(u8*, to)

struct GpmBlock {
    const u8* source;
    u64 bytes;
    u64 at;  // in a copy
};

// The part that has a block: the last one that begins there or before.
GPKVS_DEVICE GpmBlock gpm_block_of(const GpmPart* parts, u64 count, u64 block_bytes, u64 block) {
    u64 low = 0, high = count;
    while (high - low > 1) {
        const u64 middle = (low + high) / 2;
        if (parts[middle].first_block <= block) low = middle;
        else high = middle;
    }
    const GpmPart part = parts[low];
    const u64 first = (block - part.first_block) * block_bytes, rest = part.bytes - first;
    return {part.source + first, rest < block_bytes ? rest : block_bytes, part.at + first};
}

// A digest has 128 bits: NH of RFC 4418 with words of 64 bits. Two blocks that differ agree with a probability of 2^-64,
// whatever they hold, as long as nobody chose them by the keys. Bytes behind a part's end count as zeros.
struct GpmHash {
    u64 low, high;
};

GPKVS_DEVICE void gpm_add(GpmHash& hash, u64 low, u64 high) {
    hash.low += low;
    hash.high += high + (hash.low < low);
}

GPKVS_DEVICE u64 gpm_padded_word(const u8* source, u64 bytes, u64 word) {
    u64 found = 0;
    for (u64 at = 8 * word; at < bytes && at < 8 * word + 8; at++) found |= (u64)source[at] << (8 * (at % 8));
    return found;
}

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define GPM_UNROLLED _Pragma("unroll 4")  // so many loads are on their way at once
#else
#define GPM_UNROLLED
#endif

// 16 bytes of an array, which on a GPU come by one load where they lie so.
template <bool ALIGNED>
GPKVS_DEVICE void gpm_load_pair(const u8* at, u64* words) {
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
    if (ALIGNED) {
        const ulonglong2 pair = *(const ulonglong2*)at;
        words[0] = pair.x;
        words[1] = pair.y;
        return;
    }
#endif
    words[0] = load_unaligned(at);
    words[1] = load_unaligned(at + 8);
}

// Of the words 2 * pair and 2 * pair + 1 of a block.
GPKVS_DEVICE void gpm_add_pair(GpmHash& hash, const u64* keys, u64 pair, const u64* words) {
    u64 key[2];
    gpm_load_pair<true>((const u8*)(keys + 2 * pair), key);
    const u64 a = words[0] + key[0], b = words[1] + key[1];
    gpm_add(hash, a * b, mul_high(a, b));
}

// What one of several lanes adds to the digest of a block; the sum of all lanes is the digest.
template <bool ALIGNED>
GPKVS_DEVICE GpmHash gpm_hash(const GpmBlock& block, const u64* keys, u64 lane, u64 lanes) {
    GpmHash hash = {0, 0};
    const u64 whole = block.bytes / 16;
    GPM_UNROLLED
    for (u64 pair = lane; pair < whole; pair += lanes) {
        u64 words[2];
        gpm_load_pair<ALIGNED>(block.source + 16 * pair, words);
        gpm_add_pair(hash, keys, pair, words);
    }
    if (lane == 0 && block.bytes % 16) {
        const u64 words[2] = {gpm_padded_word(block.source, block.bytes, 2 * whole),
                              gpm_padded_word(block.source, block.bytes, 2 * whole + 1)};
        gpm_add_pair(hash, keys, whole, words);
    }
    return hash;
}

// What one of several lanes stores of a block, past the caches; a block in a copy begins at a multiple of 16.
template <bool ALIGNED>
GPKVS_DEVICE void gpm_store_block(const GpmBlock& block, u8* to, u64 lane, u64 lanes) {
    const u64 whole = block.bytes / 16;
    u8* target = to + block.at;
    GPM_UNROLLED
    for (u64 pair = lane; pair < whole; pair += lanes) {
        u64 words[2];
        gpm_load_pair<ALIGNED>(block.source + 16 * pair, words);
        pm_stream_pair((u64*)(target + 16 * pair), words);
    }
    for (u64 at = 16 * whole + lane; at < block.bytes; at += lanes) gpm_store(target + at, block.source[at]);
}

// Keeps a digest; returns whether the block is to be stored. Its digest is then, too.
GPKVS_DEVICE bool gpm_keep(u64* digest, u64 are_known, u8* differs, u8* to, u64 block, const GpmHash& hash) {
    const u64 words[2] = {hash.low, hash.high};
    u64* kept = digest + 2 * block;
    const bool is_other = !are_known || kept[0] != words[0] || kept[1] != words[1];
    kept[0] = words[0];
    kept[1] = words[1];
    if (differs) differs[block] = is_other;
    if (!to || !is_other) return false;
    pm_store_pair((u64*)to + 2 * block, words);
    return true;
}

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
static const u32 GPM_SAVE_THREADS = 1024;  // a block of 256 KiB is digested in microseconds, if there is but one

template <bool ALIGNED, class Args>
GPKVS_DEVICE void gpm_save_block(const Args& a, u64 b, const GpmBlock& block, GpmHash* sum, bool& is_stored) {
    const u32 t = threadIdx.x;
    sum[t] = gpm_hash<ALIGNED>(block, a.keys, t, GPM_SAVE_THREADS);
    for (u32 half = GPM_SAVE_THREADS / 2; half; half /= 2) {
        GPM_SYNC();
        if (t < half) gpm_add(sum[t], sum[t + half].low, sum[t + half].high);
    }
    if (t == 0) is_stored = gpm_keep(a.digest, a.are_known, a.differs, a.to, b, sum[0]);
    GPM_SYNC();
    if (is_stored) gpm_store_block<ALIGNED>(block, a.to, t, GPM_SAVE_THREADS);
}

GPM_BLOCK_KERNEL(gpm_save, GPM_SAVE_ARGS, GPM_SAVE_THREADS) {
    GPM_SHARED(GpmHash, sum, GPM_SAVE_THREADS);
    GPM_SHARED(bool, is_stored, 1);
    const GpmBlock block = gpm_block_of(a.parts, a.count, a.block_bytes, b);
    if ((u64)block.source % 16 == 0) gpm_save_block<true>(a, b, block, sum, is_stored[0]);
    else gpm_save_block<false>(a, b, block, sum, is_stored[0]);
}
#else
GPKVS_DEFINE(gpm_save, GPM_SAVE_ARGS, nothing_soon, if (a.to) pm_persist(), 1, 1, 0) {
    const GpmBlock block = gpm_block_of(a.parts, a.count, a.block_bytes, i);
    const GpmHash hash = gpm_hash<true>(block, a.keys, 0, 1);
    if (gpm_keep(a.digest, a.are_known, a.differs, a.to, i, hash)) gpm_store_block<true>(block, a.to, 0, 1);
}
#endif
