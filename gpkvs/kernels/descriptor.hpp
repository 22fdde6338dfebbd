// D(e), what must be known of the batch with epoch e: `Descriptor` in gpkvs/media/layout.py.
#pragma once
#include "platform.cuh"

// `count` entries of one kind, table and generation, from the log's word `first_word` on; or blocks that become empty.
struct LogRun {
    u32 kind, table_id, generation, entry_bytes;
    u64 first_word, count;
};

enum RunKind : u32 { RUN_UNDO = 1, RUN_REDO = 2, RUN_FILL = 3 };

// A table whose index is being doubled; zeros where none is.
struct Growth {
    u32 table_id, blocks, unmoved;
};

struct Descriptor {
    char magic[8];
    u64 epoch;
    u64 tail_segment, tail_bytes;
    u64 first_sequence, next_sequence;
    u64 time_horizon_ms;
    u64 applied_sequence;
    u64 log_digest;
    u32 run_count;
    Growth growth;
    LogRun runs[13];
    u64 checksum;
};
static_assert(sizeof(Descriptor) == 512, "as docs/format.md has it");

// Ends a descriptor whose other fields are set: the runs that it does not have are zeros.
static inline void seal(Descriptor& descriptor) {
    for (u64 run = descriptor.run_count; run < sizeof descriptor.runs / sizeof(LogRun); run++) descriptor.runs[run] = {};
    const u64* words = (const u64*)&descriptor;
    u32 crc = ~0u;
    for (u64 word = 0; word < sizeof descriptor / 8 - 1; word++) crc = crc32c_word(crc, words[word]);
    descriptor.checksum = ~crc;
}
