// How many GETs and SETs are in a batch: who plans it, and how, follows from that.
#pragma once
#include "base/layout.cuh"

struct Kinds {
    u64 gets, sets;
};

// In lanes of bytes side by side, which a compiler makes vectors of, and so many rows that no lane overflows.
GPKVS_CLONES static Kinds count_kinds(const u8* ops, u64 n) {
    static const u64 LANES = 64, ROWS = 255;
    Kinds kinds = {0, 0};
    u64 i = 0;
    while (i + LANES <= n) {
        u8 gets[LANES] = {}, sets[LANES] = {};
        for (u64 row = 0; row < ROWS && i + LANES <= n; row++, i += LANES)
            for (u64 lane = 0; lane < LANES; lane++) {
                gets[lane] += ops[i + lane] == OP_GET;
                sets[lane] += ops[i + lane] == OP_SET;
            }
        for (u64 lane = 0; lane < LANES; lane++) {
            kinds.gets += gets[lane];
            kinds.sets += sets[lane];
        }
    }
    for (; i < n; i++) {
        kinds.gets += ops[i] == OP_GET;
        kinds.sets += ops[i] == OP_SET;
    }
    return kinds;
}
