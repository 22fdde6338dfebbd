// The limits of the GPU and its link, without a store: a benchmark's figures are compared with them.
typedef unsigned long long u64;

#define EACH(i) for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x)

extern "C" __global__ void nothing() {}

// Each thread stores 16 B, in order, as a log is stored.
extern "C" __global__ void store_stream(ulonglong2* to, u64 n) {
    EACH(i) to[i] = make_ulonglong2(i, ~i);
    __threadfence_system();
}

// Each thread stores 16 B at a given place, as slots are stored.
extern "C" __global__ void store_slots(ulonglong2* to, const u64* place, u64 n) {
    EACH(i) to[place[i]] = make_ulonglong2(i, ~i);
    __threadfence_system();
}

// The same as two words.
extern "C" __global__ void store_slots_by_word(u64* to, const u64* place, u64 n) {
    EACH(i) {
        *(volatile u64*)(to + 2 * place[i]) = i;
        *(volatile u64*)(to + 2 * place[i] + 1) = ~i;
    }
    __threadfence_system();
}

// Each thread loads 16 B from a given place.
extern "C" __global__ void load_slots(const ulonglong2* from, const u64* place, u64* sums, u64 n) {
    EACH(i) {
        const ulonglong2 slot = from[place[i]];
        sums[i] = slot.x ^ slot.y;
    }
}

// The mean cycles of a store to the host with a fence after it.
extern "C" __global__ void fence_cycles(volatile u64* to, u64* cycles, u64 n) {
    const u64 begin = clock64();
    for (u64 i = 0; i < n; i++) {
        to[i] = i;
        __threadfence_system();
    }
    *cycles = (clock64() - begin) / n;
}
