// Space of the heap that is written before it is used (gpkvs/engine/space/zeroed_space.py).
#pragma once
#include <algorithm>

#include "space/write_set.hpp"

static const u64 STRETCH_BYTES = 1 << 20;

// Where a record may go.
struct HeapPlace {
    u64 segment, units;
};

// Writes zeros ahead of the tail of the heap.
struct ZeroedSpace {
    u64 file, direct;        // of data
    u64 offset;              // of the heap in it
    u64 segment_bytes;
    const u8* zeros;         // a stretch of them
    u64 ready, ready_end;    // bytes of the heap that were looked at

    // Prepares space for the records of a batch, which go from one tail to the other, and for those after it. Nothing is done
    // for much at once: it carries the cost itself.
    void prepare(HeapPlace start, HeapPlace end, u64 heap_bytes) {
        const u64 segment_at = end.segment * segment_bytes;
        const u64 first = segment_at + (start.segment == end.segment ? start.units * UNIT_BYTES : 0);
        const u64 last = segment_at + end.units * UNIT_BYTES;
        if ((ready <= first && last <= ready_end) || last - first > STRETCH_BYTES / 4) return;
        const u64 until = std::min({whole_pages(last) + STRETCH_BYTES / 2, segment_at + segment_bytes, heap_bytes});
        u64 at = whole_pages(first);
        ready = first;
        ready_end = until;
        if (at >= until) return;
        const off_t hole = lseek((int)file, (off_t)(offset + at), SEEK_HOLE);
        if (hole < 0) end_after_failed_write("a search for holes in the store", errno);
        at = std::max(at, ((u64)hole - offset) / PAGE_BYTES * PAGE_BYTES);
        if (at < until) write_whole((int)direct, zeros, until - at, offset + at);
    }

  private:
    static u64 whole_pages(u64 bytes) { return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES; }
};

extern "C" void gpkvs_prepare_space(void* space, u64 segment, u64 units, u64 end_segment, u64 end_units, u64 heap_bytes) {
    ((ZeroedSpace*)space)->prepare({segment, units}, {end_segment, end_units}, heap_bytes);
}
