// fold: what each operation sees and what each chain leaves behind.
//
// One item a position in sorted order. An operation sees the last write before it in its chain, or what `find`
// found. `last_write[p]` is 1 + the position of the last SET or DELETE at or before p, in any chain; it belongs to
// this chain if it is past the chain's start.
#include "base/layout.cuh"

#define FOLD_ARGS(F)                                                                        \
    F(const u32*, order) F(const u32*, chain_of) F(const u32*, chain_start) F(const u32*, last_write) \
    F(const u8*, ops) F(const u64*, slot) F(const u64*, old_word)                           \
    F(u8*, status) F(u64*, source_word) F(u32*, source_op) F(u8*, change) F(u32*, final_op)

struct Seen {
    u32 op, chain, kind;
    u32 writer;  // the operation of this batch whose write it sees; NO_OP if it sees the table
    bool present;
};

template <class Args>
GPKVS_DEVICE Seen fold_position(const Args& a, u64 i) {
    const u32 op = a.order[i], chain = a.chain_of[i];
    const u32 start = a.chain_start[chain];
    const u32 kind = a.ops[op];
    const bool stored = a.slot[chain] != NO_SLOT;

    // The write this operation sees: the last one before it in its chain.
    const u32 before = i > start ? a.last_write[i - 1] : 0;
    const u32 writer = before > start ? a.order[before - 1] : NO_OP;
    const bool present = writer == NO_OP ? stored : a.ops[writer] == OP_SET;
    const bool reads = kind == OP_GET && present;
    a.status[op] = kind == OP_SET || present ? STATUS_OK : STATUS_NOT_FOUND;
    a.source_op[op] = reads ? writer : NO_OP;
    a.source_word[op] = reads && writer == NO_OP ? a.old_word[chain] : 0;

    if (i + 1 == a.chain_start[chain + 1]) {
        const u32 last = a.last_write[i];
        const u32 final_op = last > start ? a.order[last - 1] : NO_OP;
        const bool put = final_op != NO_OP && a.ops[final_op] == OP_SET;
        const bool remove = final_op != NO_OP && !put && stored;
        a.final_op[chain] = final_op;
        a.change[chain] = put ? CHANGE_PUT : remove ? CHANGE_REMOVE : CHANGE_NONE;
    }
    return {op, chain, kind, writer, present};
}

#define FOLD_BYTES_ARGS(F) FOLD_ARGS(F) F(const u64*, old_meta) F(u64, first_sequence) F(u64*, versions)
GPKVS_KERNEL(fold_bytes, FOLD_BYTES_ARGS) {
    const Seen seen = fold_position(a, i);
    const u32 writer = seen.kind == OP_SET ? seen.op : seen.writer;
    if (writer != NO_OP) a.versions[seen.op] = seen.kind == OP_SET || seen.present ? a.first_sequence + writer : 0;
    else a.versions[seen.op] = seen.present ? slot_version(a.old_meta[seen.chain]) : 0;
}

// The u64 layout has no versions.
GPKVS_KERNEL(fold_u64, FOLD_ARGS) { fold_position(a, i); }

// last_set: what a batch of SETs only leaves: the last one of each chain. One item a chain.
#define LAST_SET_ARGS(F) F(const u32*, order) F(const u32*, chain_start) F(u8*, change) F(u32*, final_op)
GPKVS_KERNEL(last_set, LAST_SET_ARGS) {
    a.change[i] = CHANGE_PUT;
    a.final_op[i] = a.order[a.chain_start[i + 1] - 1];
}
