// What the threads of a block add up together, on a GPU.
#pragma once
#include "base/tile.cuh"

// The running sum over the threads of a block, and in `all` the sum of all of them.
GPKVS_DEVICE u64 scan_block(u64 value, u64* all) {
    __shared__ u64 of_warps[TILE_THREADS / 32];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (u32 step = 1; step < 32; step *= 2) {
        const u64 before = __shfl_up_sync(~0u, value, step);
        if (lane >= step) value += before;
    }
    if (lane == 31) of_warps[warp] = value;
    __syncthreads();
    *all = 0;
    for (u32 w = 0; w < TILE_THREADS / 32; w++) {
        if (w < warp) value += of_warps[w];
        *all += of_warps[w];
    }
    __syncthreads();  // before the next one
    return value;
}
