// The log that GPM compares its own with (ASPLOS '22, section 5.2): partitions, each with a lock and a tail that is
// persisted after each entry. Entries are as in log_undo_u64.
typedef unsigned int u32;
typedef unsigned long long u64;

extern "C" __global__ void conventional_log(u64* log, u32* locks, u64* tails, const u64* slot, const ulonglong2* index,
                                            u64 epoch, u64 partitions, u64 capacity, u64 n) {
    const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const u64 partition = i % partitions;
    const ulonglong2 old = index[slot[i]];
    for (bool done = false; !done;) {
        if (atomicCAS(&locks[partition], 0u, 1u) == 0u) {
            volatile u64* tail = tails + partition * 16;
            const u64 at = tail[1];  // kept in device memory too, as a counter
            u64* entry = log + (partition * capacity + at % capacity) * 4;
            entry[0] = slot[i];
            entry[1] = epoch;
            entry[2] = old.x;
            entry[3] = old.y;
            __threadfence_system();
            tail[1] = at + 1;
            log[partitions * capacity * 4 + partition * 16] = at + 1;  // the tail, persisted after the entry
            __threadfence_system();
            atomicExch(&locks[partition], 0u);
            done = true;
        }
    }
}
