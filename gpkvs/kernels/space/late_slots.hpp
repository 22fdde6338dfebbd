// The slots in which a GPU's mirror of an index lags behind: the host's threads have stored to them.
#pragma once
#include "base/platform.cuh"

// Python makes it (gpkvs/backends/late_slots.py). A count above `room` means that more slots are late than there was room for:
// perhaps all.
struct LateSlots {
    u64 count, room;
    u64* slots;
};

// Takes note of slots; cannot fail. A slot that is stored to often is noted often.
static void note_late(LateSlots& late, const u64* slots, u64 count) {
    if (late.count + count > late.room) {
        late.count = late.room + 1;
        return;
    }
    memcpy(late.slots + late.count, slots, count * sizeof *slots);
    late.count += count;
}
