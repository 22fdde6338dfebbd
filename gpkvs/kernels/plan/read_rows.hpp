// Rows that a GPU has in its memory (rows.cu), read by one call: first where they are, then they.
#pragma once
#include "base/launcher.hpp"

#define READ_ROWS_FIELDS(F)                                                                 \
    F(Launcher*, launcher) F(void*, queue) F(u64, count)                                    \
    F(const u8*, keys) F(u64, keys_max) F(u64, hash_key0) F(u64, hash_key1) F(const BytesBucket*, index) GEOMETRY_ARGS(F) \
    ROW_CELLS_ARGS(F) ROWS_ARGS(F) F(u64*, cell) F(u64*, counts) F(u64*, told)

// `counts`, of rows that are left to the host and of keys above `keys_max`, are brought to `told`.
struct ReadRows {
    READ_ROWS_FIELDS(GPKVS_FIELD)

    void run() const {
        launcher->use(queue);
        launcher->zero(counts, 2 * sizeof(u64));
        const locate_rows_args located = {keys, keys_max, hash_key0, hash_key1, index, blocks, unmoved, tags, known, cells,
                                          sets, cell_bytes, seen, cell, counts, counts + 1};
        launcher->launch(LAUNCH_locate_rows, &located, count, nullptr);
        const gather_rows_args gathered = {cell, cells, cell_bytes, row_bytes, step, absent, rows, seen};
        launcher->launch(LAUNCH_gather_rows, &gathered, count, nullptr);
        launcher->bring(told, counts, 2 * sizeof(u64));
    }
};
