// A pass of a sort on a GPU: the host's threads have their own (launcher.hpp). Each block takes a tile. `count_digits` counts the
// digits of each tile, `sum_digits` adds up those of the tiles before, and `move_digits` moves each word to where it belongs.
//
// No block waits for another one: a kernel begins when all blocks of the one before are done.
#include "base/radix.cuh"
#include "base/scan_block.cuh"

GPKVS_DEVICE bool is_wanted(const DigitArgs& a) { return !a.wanted || *a.wanted; }

extern "C" __global__ void count_digits(const DigitArgs a, u64 n, const u32* limit) {
    __shared__ u32 counts[DIGITS];
    if (!is_wanted(a)) return;
    const u64 items = items_of(n, limit), first = (u64)blockIdx.x * TILE;
    counts[threadIdx.x] = 0;
    __syncthreads();
    for (u32 e = 0; e < TILE_EACH; e++) {
        const u64 i = first + e * TILE_THREADS + threadIdx.x;
        if (i < items) atomicAdd(&counts[digit_of(a.from[i], a.shift)], 1u);
    }
    __syncthreads();
    a.counts[threadIdx.x * tiles_of(n) + blockIdx.x] = counts[threadIdx.x];
}

// One block a digit.
extern "C" __global__ void sum_digits(const DigitArgs a, u64 n, const u32*) {
    if (!is_wanted(a)) return;
    const u64 tiles = tiles_of(n);
    u32* const counts = a.counts + blockIdx.x * tiles;
    u64 before = 0;
    for (u64 first = 0; first < tiles; first += TILE_THREADS) {
        const u64 tile = first + threadIdx.x;
        const u64 count = tile < tiles ? counts[tile] : 0;
        u64 all;
        const u64 sum = scan_block(count, &all);
        if (tile < tiles) counts[tile] = (u32)(before + sum - count);
        before += all;
    }
    if (threadIdx.x == 0) a.counts[DIGITS * tiles + blockIdx.x] = (u32)before;
}

// The lanes of a warp whose digits are that of the calling one. All lanes call it; those without a word are like none.
GPKVS_DEVICE u32 lanes_alike(u32 digit, bool has_word) {
    u32 alike = __ballot_sync(~0u, has_word);
    for (u32 b = 0; b < DIGIT_BITS; b++) {
        const bool bit = digit >> b & 1;
        const u32 votes = __ballot_sync(~0u, bit);
        alike &= bit ? votes : ~votes;
    }
    return alike;
}

// Each warp takes words side by side, so what comes first in a tile is in an earlier warp, in an earlier step, or in a lower lane:
// words of one digit are counted in that order. They are put in order in shared memory first, so that neighbours of one digit
// leave together.
extern "C" __global__ void move_digits(const DigitArgs a, u64 n, const u32* limit) {
    const u32 WARPS = TILE_THREADS / 32;
    __shared__ u32 begins_at[WARPS][DIGITS];  // of a digit in a warp: at first how many words have it, then where they begin
    __shared__ u32 goes_to[DIGITS];           // of a digit: what is to be added to a place in the tile
    __shared__ u64 ordered[TILE];
    if (!is_wanted(a)) return;
    const u64 items = items_of(n, limit), tiles = tiles_of(n), first = (u64)blockIdx.x * TILE;
    if (first >= items) return;
    const u32 thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const u32 count = items - first < TILE ? (u32)(items - first) : TILE;
    for (u32 w = 0; w < WARPS; w++) begins_at[w][thread] = 0;
    __syncthreads();

    u64 words[TILE_EACH];
    u32 ranks[TILE_EACH];  // of a word, among those of its digit in its warp
    const u32 own = warp * 32 * TILE_EACH + lane;
#pragma unroll
    for (u32 e = 0; e < TILE_EACH; e++) words[e] = own + 32 * e < count ? a.from[first + own + 32 * e] : 0;
#pragma unroll
    for (u32 e = 0; e < TILE_EACH; e++) {
        const bool has_word = own + 32 * e < count;
        const u32 digit = digit_of(words[e], a.shift), alike = lanes_alike(digit, has_word);
        const u32 before = begins_at[warp][digit];
        __syncwarp();  // all have read it
        if (has_word && lane == first_bit(alike)) begins_at[warp][digit] = before + count_bits(alike);
        __syncwarp();
        ranks[e] = before + count_bits(alike & ((1u << lane) - 1));
    }
    __syncthreads();

    // From here each thread has a digit, too. A word holds two counts: their sums stay apart.
    u32 of_tile = 0;
    for (u32 w = 0; w < WARPS; w++) {
        const u32 of_warp = begins_at[w][thread];
        begins_at[w][thread] = of_tile;
        of_tile += of_warp;
    }
    const u64 counts = (u64)a.counts[DIGITS * tiles + thread] << 32 | of_tile;
    u64 all;
    const u64 begins = scan_block(counts, &all) - counts;
    for (u32 w = 0; w < WARPS; w++) begins_at[w][thread] += (u32)begins;
    goes_to[thread] = (u32)(begins >> 32) + a.counts[thread * tiles + blockIdx.x] - (u32)begins;
    __syncthreads();

#pragma unroll
    for (u32 e = 0; e < TILE_EACH; e++)
        if (own + 32 * e < count) ordered[begins_at[warp][digit_of(words[e], a.shift)] + ranks[e]] = words[e];
    __syncthreads();
    for (u32 at = thread; at < count; at += TILE_THREADS) {
        const u64 word = ordered[at];
        a.to[goes_to[digit_of(word, a.shift)] + at] = word;  // modulo 2^32
    }
}
