// A sort of words by their upper bits, without a look of the host: passes over a digit each, the lowest one first. A pass keeps the
// order of words that are alike in its digit, so all passes together keep that of words that are alike in all of them.
#pragma once
#include "base/launcher.hpp"

// How many bits a number takes.
static inline u64 bits_of(u64 number) {
    u64 bits = 0;
    for (; number; number >>= 1) bits++;
    return bits;
}

// Passes come in pairs, to the spare column and back: what is sorted is where it was.
struct RadixSort {
    u64* words;
    u64* spare;   // as long
    u32* counts;  // `digit_counts_of` the items
    u64 first;    // the lowest bit that counts

    void run(Launcher& launcher, u64 items, const u32* limit) const { run(launcher, items, limit, 64 - first, nullptr); }

    // Only the lower `bits` of those that count differ, unless `more` says something else than 0 when they are sorted.
    void run(Launcher& launcher, u64 items, const u32* limit, u64 bits, const u64* more) const {
        for (u64 pair = 0; pair < pairs_of(64 - first); pair++) {
            const u64 shift = first + 2 * DIGIT_BITS * pair;
            const u64* wanted = pair < pairs_of(bits) ? nullptr : more;
            launcher.sort_digit({words, spare, counts, shift, wanted}, items, limit);
            // Where no bit is left, the highest one once more.
            launcher.sort_digit({spare, words, counts, std::min<u64>(shift + DIGIT_BITS, 63), wanted}, items, limit);
        }
    }

  private:
    static u64 pairs_of(u64 bits) { return (bits + 2 * DIGIT_BITS - 1) / (2 * DIGIT_BITS); }
};
