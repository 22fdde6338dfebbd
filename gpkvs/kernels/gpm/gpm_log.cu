// What logs do with columns (gpkvs/gpm/coalesced_log.py, partitioned_log.py).
#include "gpm/gpm_log.cuh"

// gpm_insert: entry i for the thread `first` + i.
#define GPM_INSERT_ARGS(F) F(const GpmLog*, log) F(const u64*, entry) F(u64, first)
GPKVS_PM_KERNEL(gpm_insert, GPM_INSERT_ARGS) { gpm_log_insert(a.log, a.first + i, a.entry + i * a.log->words); }

// gpm_remove: the last entry of the threads from `first` on.
#define GPM_REMOVE_ARGS(F) F(const GpmLog*, log) F(u64, first)
GPKVS_PM_KERNEL(gpm_remove, GPM_REMOVE_ARGS) { gpm_log_remove(a.log, a.first + i); }

// gpm_part_append: entries of the same length, each for a partition.
#define GPM_PART_APPEND_ARGS(F) F(const GpmPartitions*, log) F(const u64*, partition) F(const u64*, entry) F(u64, words)
GPKVS_PM_KERNEL(gpm_part_append, GPM_PART_APPEND_ARGS) {
    gpm_part_insert(a.log, a.partition[i], a.entry + i * a.words, a.words);
}

#define GPM_PART_TAKE_ARGS(F) F(const GpmPartitions*, log) F(const u64*, partition)
GPKVS_PM_KERNEL(gpm_part_take, GPM_PART_TAKE_ARGS) { gpm_part_remove(a.log, a.partition[i]); }
