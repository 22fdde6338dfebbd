// What a sort of packed operations could not tell apart: words that are equal but for the operation's number, which `numbers` has
// the bits of. `Fingerprints` tells which of two belongs before the other.
#pragma once
#include "probe.cuh"

// Whether the sort could not tell this position and the one before it apart.
template <class Args>
GPKVS_DEVICE bool is_tied(const Args& a, u64 i) {
    return i && !((a.packed[i - 1] ^ a.packed[i]) & ~a.numbers);
}

// Whether one packed operation belongs before another that it is tied with: by its fingerprint, then by its number.
template <class Fingerprints, class Args>
GPKVS_DEVICE bool belongs_before(const Args& a, u64 left, u64 right) {
    const Hash128 fingerprint = Fingerprints::of(a, left), of_other = Fingerprints::of(a, right);
    if (fingerprint.low != of_other.low) return fingerprint.low < of_other.low;
    if (fingerprint.high != of_other.high) return fingerprint.high < of_other.high;
    return (left & a.numbers) < (right & a.numbers);
}

// Where a position belongs before the one that it follows.
template <class Fingerprints, class Args>
GPKVS_DEVICE void tell_descent(const Args& a, u64 i) {
    a.descents[i] = is_tied(a, i) && belongs_before<Fingerprints>(a, a.packed[i], a.packed[i - 1]);
}

// The first of tied positions puts all of them in order, if they have a descent. Ties stay what they are meanwhile, so no thread
// needs what another one stores. One thread does it, so longer ties are left as they are, and `left` counts that: a hot key that
// ties with another one.
static const u64 TIED_MAX = 64;

template <class Fingerprints, class Args>
GPKVS_DEVICE void sort_ties_from(const Args& a, u64 i) {
    if (a.descents[i]) {  // ascending as they are, positions so far apart are alike if all between them are
        if (i >= TIED_MAX && !((a.packed[i - TIED_MAX] ^ a.packed[i]) & ~a.numbers)) atomic_add(a.left, 1);
        return;
    }
    if (is_tied(a, i)) return;
    u64 last = i + 1;
    bool descends = false;
    for (; last < a.count && last - i < TIED_MAX && is_tied(a, last); last++) descends |= a.descents[last] != 0;
    if (!descends) return;
    if (last < a.count && is_tied(a, last)) return atomic_add(a.left, 1);
    for (u64 next = i + 1; next < last; next++) {
        const u64 moving = a.packed[next];
        u64 at = next;
        for (; at > i && belongs_before<Fingerprints>(a, moving, a.packed[at - 1]); at--) a.packed[at] = a.packed[at - 1];
        a.packed[at] = moving;
    }
}
