// A pass of a sort of words (radix.hpp): what both sides of the launch must know.
#pragma once
#include "base/tile.cuh"

static const u32 DIGIT_BITS = 8, DIGITS = 1 << DIGIT_BITS;
static_assert(DIGITS == TILE_THREADS, "each thread of a block has a digit of its own");

// From one column to another one, in the order of a digit of theirs: the bits from `shift` on. Words of one digit stay in the order
// that they have. Where `wanted` is given, and says 0 when the pass begins, nothing is done.
struct DigitArgs {
    const u64* from;
    u64* to;
    u32* counts;  // of each digit: how many words of each tile have it; and then of each, how many of all do
    u64 shift;
    const u64* wanted;
};

GPKVS_DEVICE u32 digit_of(u64 word, u64 shift) { return (u32)(word >> shift) & (DIGITS - 1); }
GPKVS_DEVICE u64 digit_counts_of(u64 items) { return DIGITS * (tiles_of(items) + 1); }
