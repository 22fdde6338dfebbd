// order, on a GPU: around a sort of the operations by fingerprint, which is the backend's. (The CPU has its own; cpu.cpp.)
//
// `pack` puts as much of each fingerprint as leaves room for the operation's number before that number: one sort of single
// words, stable by itself. `mark` then counts chains and writes at each position, a running sum over the marks numbers
// them, `spread` puts every chain's start and every write's position at its number, `last_writes` looks them up.
#include "layout.cuh"
#include "probe.cuh"

// In a batch with many GETs most keys are not written, and a GET of such a key needs no order: `look` tells what it sees.
// mark_written marks the keys that writes name, by some bits of their fingerprints: a place may stand for several keys, and
// then a GET is ordered without need. needs_order tells which operations of a shard are to be ordered.
#define MARK_WRITTEN_ARGS(F) F(const u8*, ops) F(const u64*, fingerprint0) F(u64, places) F(u8*, written)

GPKVS_KERNEL(mark_written, MARK_WRITTEN_ARGS) {
    if (is_write(a.ops[i])) mark_place(a.written + (a.fingerprint0[i] & (a.places - 1)));
}

#define NEEDS_ORDER_ARGS(F)                                                                 \
    F(const u8*, ops) F(const u64*, fingerprint0) GEOMETRY_ARGS(F) SHARD_ARGS(F) F(u64, places) F(const u8*, written) \
    F(u8*, needs) F(u32*, source_op)

GPKVS_KERNEL(needs_order, NEEDS_ORDER_ARGS) {
    const bool own = is_own(a, {a.fingerprint0[i], 0});
    a.needs[i] = own && (is_write(a.ops[i]) || a.written[a.fingerprint0[i] & (a.places - 1)]);
    if (own) a.source_op[i] = NO_OP;
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

// own_ops: which operations are a shard's.
#define OWN_OPS_ARGS(F) F(const u64*, fingerprint0) GEOMETRY_ARGS(F) SHARD_ARGS(F) F(u8*, own)

GPKVS_KERNEL(own_ops, OWN_OPS_ARGS) { a.own[i] = is_own(a, {a.fingerprint0[i], 0}); }

// pack: `numbers` has the low bits set that the number of an operation may take.
#define PACK_ARGS(F) F(const u64*, fingerprint0) F(u64, numbers) F(u64*, packed)

GPKVS_KERNEL(pack, PACK_ARGS) { a.packed[i] = (a.fingerprint0[i] & ~a.numbers) | i; }

// mark: 1 << 32 where a chain starts, 1 where an operation writes. Where what was packed is equal, whole fingerprints
// tell; if they do not ascend, another sort must come: `found[0]` counts that.
#define MARK_ARGS(F)                                                                        \
    F(const u64*, packed) F(u64, numbers) F(const u64*, fingerprint0) F(const u64*, fingerprint1) F(const u8*, ops) \
    F(u32*, order) F(u64*, marks) F(u64*, found)

GPKVS_KERNEL(mark, MARK_ARGS) {
    const u64 packed = a.packed[i];
    const u64 op = packed & a.numbers;
    u64 mark = is_write(a.ops[op]);
    if (i == 0) mark |= 1ull << 32;
    else {
        const u64 before = a.packed[i - 1];
        if ((before ^ packed) & ~a.numbers) mark |= 1ull << 32;
        else {
            const u64 low = a.fingerprint0[op], low_before = a.fingerprint0[before & a.numbers];
            const u64 high = a.fingerprint1[op], high_before = a.fingerprint1[before & a.numbers];
            if (low != low_before || high != high_before) mark |= 1ull << 32;
            if (low < low_before || (low == low_before && high < high_before)) atomic_add(a.found, 1);
        }
    }
    a.order[i] = (u32)op;
    a.marks[i] = mark;
}

// spread: `sums` is the running sum of the marks, this position's included. The last position tells the number of chains.
#define SPREAD_ARGS(F)                                                                      \
    F(const u64*, marks) F(const u64*, sums) F(u64, count) F(u32*, chain_of) F(u32*, chain_start) F(u32*, write_end) \
    F(u64*, found)

GPKVS_KERNEL(spread, SPREAD_ARGS) {
    const u32 chain = (u32)(a.sums[i] >> 32) - 1;
    a.chain_of[i] = chain;
    if (a.marks[i] >> 32) a.chain_start[chain] = (u32)i;
    if (i + 1 == a.count) {
        a.chain_start[chain + 1] = (u32)a.count;
        a.found[1] = chain + 1;
    }
    if ((u32)a.marks[i]) a.write_end[(u32)a.sums[i] - 1] = (u32)i + 1;
}

#define LAST_WRITES_ARGS(F) F(const u64*, sums) F(const u32*, write_end) F(u32*, last_write)

GPKVS_KERNEL(last_writes, LAST_WRITES_ARGS) {
    const u32 writes = (u32)a.sums[i];
    a.last_write[i] = writes ? a.write_end[writes - 1] : 0;
}
