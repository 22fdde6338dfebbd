// Running sums by tiles (tiles.cu): what both sides of the launch must know.
#pragma once
#include "base/platform.cuh"

static const u32 TILE_THREADS = 256, TILE_EACH = 8, TILE = TILE_THREADS * TILE_EACH;

struct TileArgs {
    const u64* marks;
    u64 *sums, *tiles, *total;
};

GPKVS_DEVICE u64 tiles_of(u64 items) { return (items + TILE - 1) / TILE; }
