// order, on a GPU: around a sort of the operations by fingerprint, which is the backend's. (The CPU has its own; cpu.cpp.)
//
// `pack` puts as much of each fingerprint as leaves room for the operation's number before that number: one sort of single
// words, stable by itself. Where what was packed is equal and the fingerprints are not, `tell_descents` and `sort_tied` put
// right what the sort could not tell apart: of 2 M operations a quarter of a pair. `mark` then counts chains and writes at
// each position, a running sum over the marks numbers them, `spread` puts every chain's start and every write's position
// at its number, `last_writes` looks them up.
#include "ties.cuh"

// In a batch with many GETs most keys are not written, and a GET of such a key needs no order: `look` tells what it sees.
// mark_written marks the keys that writes name, by some bits of their fingerprints: a place may stand for several keys, and
// then a GET is ordered without need. needs_order tells which operations are to be ordered.
#define MARK_WRITTEN_ARGS(F) F(const u8*, ops) F(const u64*, fingerprint0) F(u64, places) F(u8*, written)

GPKVS_KERNEL(mark_written, MARK_WRITTEN_ARGS) {
    if (is_write(a.ops[i])) mark_place(a.written + (a.fingerprint0[i] & (a.places - 1)));
}

#define NEEDS_ORDER_ARGS(F)                                                                 \
    F(const u8*, ops) F(const u64*, fingerprint0) F(u64, places) F(const u8*, written) F(u8*, needs) F(u32*, source_op)

GPKVS_KERNEL(needs_order, NEEDS_ORDER_ARGS) {
    a.needs[i] = is_write(a.ops[i]) || a.written[a.fingerprint0[i] & (a.places - 1)];
    a.source_op[i] = NO_OP;
}

// pick_numbers: the numbers of the items that are marked with 1; `ends` counts them up to each item.
#define PICK_NUMBERS_ARGS(F) F(const u8*, marks) F(const u32*, ends) F(u32*, numbers)

GPKVS_KERNEL(pick_numbers, PICK_NUMBERS_ARGS) {
    if (a.marks[i]) a.numbers[a.ends[i] - 1] = (u32)i;
}

// take_ops: the columns of some operations, side by side.
#define TAKE_OPS_ARGS(F)                                                                    \
    F(const u32*, numbers) F(const u64*, fingerprint0) F(const u64*, fingerprint1) F(const u8*, ops) \
    F(u64*, taken0) F(u64*, taken1) F(u8*, taken_ops)

GPKVS_KERNEL(take_ops, TAKE_OPS_ARGS) {
    const u32 op = a.numbers[i];
    a.taken0[i] = a.fingerprint0[op];
    a.taken1[i] = a.fingerprint1[op];
    a.taken_ops[i] = a.ops[op];
}

// pack: `numbers` has the low bits set that the number of an operation may take.
#define PACK_ARGS(F) F(const u64*, fingerprint0) F(u64, numbers) F(u64*, packed)

GPKVS_KERNEL(pack, PACK_ARGS) { a.packed[i] = (a.fingerprint0[i] & ~a.numbers) | i; }

// The fingerprint of a packed operation, from the columns of the batch.
struct FromColumns {
    template <class Args>
    static GPKVS_MEMBER Hash128 of(const Args& a, u64 packed) {
        return {a.fingerprint0[packed & a.numbers], a.fingerprint1[packed & a.numbers]};
    }
};

#define TIED_ARGS(F) F(u64*, packed) F(u64, numbers) F(const u64*, fingerprint0) F(const u64*, fingerprint1) F(u8*, descents)
GPKVS_KERNEL(tell_descents, TIED_ARGS) { tell_descent<FromColumns>(a, i); }

#define SORT_TIED_ARGS(F) TIED_ARGS(F) F(u64, count) F(u64*, left)
GPKVS_KERNEL(sort_tied, SORT_TIED_ARGS) { sort_ties_from<FromColumns>(a, i); }

// mark: 1 << 32 where a chain starts, 1 where an operation writes. Without `ops` all do. With `op_numbers`, what was sorted
// is a part of a batch's operations: their numbers in it.
#define MARK_ARGS(F)                                                                        \
    F(const u64*, packed) F(u64, numbers) F(const u64*, fingerprint0) F(const u64*, fingerprint1) F(const u8*, ops) \
    F(const u32*, op_numbers) F(u32*, order) F(u64*, marks)

GPKVS_KERNEL(mark, MARK_ARGS) {
    const u64 op = a.packed[i] & a.numbers;
    bool starts = !is_tied(a, i);
    if (!starts) {
        const u64 before = a.packed[i - 1] & a.numbers;
        starts = a.fingerprint0[op] != a.fingerprint0[before] || a.fingerprint1[op] != a.fingerprint1[before];
    }
    a.order[i] = a.op_numbers ? a.op_numbers[op] : (u32)op;
    a.marks[i] = (u64)starts << 32 | (!a.ops || is_write(a.ops[op]));
}

// spread: `sums` is the running sum of the marks, this position's included. `chains` may be missing (0).
#define SPREAD_ARGS(F)                                                                      \
    F(const u64*, marks) F(const u64*, sums) F(u64, count) F(u32*, chain_of) F(u32*, chain_start) F(u32*, write_end) \
    F(u64*, chains)

GPKVS_KERNEL(spread, SPREAD_ARGS) {
    const u32 chain = (u32)(a.sums[i] >> 32) - 1;
    a.chain_of[i] = chain;
    if (a.marks[i] >> 32) a.chain_start[chain] = (u32)i;
    if (i + 1 == a.count) {
        a.chain_start[chain + 1] = (u32)a.count;
        if (a.chains) *a.chains = chain + 1;
    }
    if ((u32)a.marks[i]) a.write_end[(u32)a.sums[i] - 1] = (u32)i + 1;
}

#define LAST_WRITES_ARGS(F) F(const u64*, sums) F(const u32*, write_end) F(u32*, last_write)

GPKVS_KERNEL(last_writes, LAST_WRITES_ARGS) {
    const u32 writes = (u32)a.sums[i];
    a.last_write[i] = writes ? a.write_end[writes - 1] : 0;
}
