// Running sums of a column, on a GPU: the host's threads have their own (launcher.hpp). Each block takes a tile. `sum_tiles`
// adds up each one, `scan_tiles` runs through it from the sum of all tiles before. `add_tiles` only adds up.
//
// A word may hold two numbers of 32 bits: their sums stay apart, as long as no column is longer than 2^32.
#include "base/scan_block.cuh"

extern "C" __global__ void sum_tiles(const TileArgs a, u64 n, const u32* limit) {
    const u64 items = items_of(n, limit), first = (u64)blockIdx.x * TILE;
    u64 sum = 0, all;
    for (u32 e = 0; e < TILE_EACH; e++) {
        const u64 i = first + e * TILE_THREADS + threadIdx.x;
        if (i < items) sum += a.marks[i];
    }
    scan_block(sum, &all);
    if (threadIdx.x == 0) a.tiles[blockIdx.x] = all;
}

// The sum of the first tiles.
GPKVS_DEVICE u64 sum_before(const u64* tiles, u64 count) {
    u64 sum = 0, all;
    for (u64 tile = threadIdx.x; tile < count; tile += TILE_THREADS) sum += tiles[tile];
    scan_block(sum, &all);
    return all;
}

extern "C" __global__ void scan_tiles(const TileArgs a, u64 n, const u32* limit) {
    const u64 items = items_of(n, limit), first = (u64)blockIdx.x * TILE;
    if (first >= items) return;
    u64 before = sum_before(a.tiles, blockIdx.x);
    for (u32 e = 0; e < TILE_EACH; e++) {
        const u64 i = first + e * TILE_THREADS + threadIdx.x;
        u64 all;
        const u64 sum = scan_block(i < items ? a.marks[i] : 0, &all);
        if (i < items) a.sums[i] = before + sum;
        before += all;
    }
    if (threadIdx.x == 0 && items - first <= TILE) *a.total = before;
}

extern "C" __global__ void add_tiles(const TileArgs a, u64 n, const u32*) {
    const u64 all = sum_before(a.tiles, tiles_of(n));
    if (threadIdx.x == 0) *a.total = all;
}
