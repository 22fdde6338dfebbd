// fold: what each operation sees and what each chain leaves behind.
//
// One item a position in sorted order. An operation sees the last write before it in its chain, or what `find`
// found. `last_write[p]` is 1 + the position of the last SET or DELETE at or before p, in any chain; it belongs to
// this chain if it is past the chain's start.
#include "layout.cuh"

#define FOLD_ARGS(F)                                                                        \
    F(const u32*, order) F(const u32*, chain_of) F(const u32*, chain_start) F(const u32*, last_write) \
    F(const u8*, ops) F(const u64*, slot) F(const u64*, old_reference) F(const u64*, old_meta) F(u64, first_sequence) \
    F(u8*, status) F(u64*, versions) F(u64*, source_reference) F(u32*, source_op) F(u8*, change) F(u32*, final_op)

GPKVS_KERNEL(fold, FOLD_ARGS) {
    const u32 op = a.order[i], chain = a.chain_of[i];
    const u32 start = a.chain_start[chain];
    const u32 kind = a.ops[op];
    const bool is_last = i + 1 == a.chain_start[chain + 1];

    // The write this operation sees: the last one before it in its chain.
    const u32 before = i > start ? a.last_write[i - 1] : 0;
    const bool written = before > start;
    const u32 writer = written ? a.order[before - 1] : NO_OP;
    const bool stored = a.slot[chain] != NO_SLOT;
    const bool present = written ? a.ops[writer] == OP_SET : stored;
    const u64 version = !present ? 0 : written ? a.first_sequence + writer : slot_version(a.old_meta[chain]);

    a.source_reference[op] = NO_RECORD;
    a.source_op[op] = NO_OP;
    if (kind == OP_SET) {
        a.status[op] = STATUS_OK;
        a.versions[op] = a.first_sequence + op;
    } else {
        a.status[op] = present ? STATUS_OK : STATUS_NOT_FOUND;
        a.versions[op] = version;
        if (kind == OP_GET && present) {
            if (written) a.source_op[op] = writer;
            else a.source_reference[op] = a.old_reference[chain];
        }
    }

    if (is_last) {
        const u32 last = a.last_write[i];
        const u32 final_op = last > start ? a.order[last - 1] : NO_OP;
        const bool put = final_op != NO_OP && a.ops[final_op] == OP_SET;
        const bool remove = final_op != NO_OP && !put && stored;
        a.final_op[chain] = final_op;
        a.change[chain] = put ? CHANGE_PUT : remove ? CHANGE_REMOVE : CHANGE_NONE;
    }
}
