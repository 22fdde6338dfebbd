#include "base/probe.cuh"

// mark_empty: the empty markers of a new u64 index, whose bytes are zero. One item for each bucket that may hold 0: two in
// every block.
#define MARK_EMPTY_ARGS(F)                                                                  \
    F(U64Bucket*, index) F(u64, hash_key0) F(u64, hash_key1)

GPKVS_PM_KERNEL(mark_empty, MARK_EMPTY_ARGS) {
    const TableKey table = table_key<U64Slot>(a.hash_key0, a.hash_key1);
    const u64 bucket = i / 2 * U64Bucket::IN_BLOCK + (i % 2 ? table.of_zero.bucket1 : table.of_zero.bucket0);
    for (u32 way = 0; way < WAYS; way++) pm_store(&a.index[bucket].ways[way].key, empty_marker(table, bucket));
}
