// What the GPU and its link can do, without a store: the ceilings that a benchmark's figures are held against.
typedef unsigned long long u64;

#define EACH(i) for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x)

extern "C" __global__ void nothing() {}

// 16 B a thread, one after the other: how a log is stored.
extern "C" __global__ void store_stream(ulonglong2* to, u64 n) {
    EACH(i) to[i] = make_ulonglong2(i, ~i);
    __threadfence_system();
}

// 16 B a thread at given places: how slots are stored.
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

// 16 B a thread from given places.
extern "C" __global__ void load_slots(const ulonglong2* from, const u64* place, u64* sums, u64 n) {
    EACH(i) {
        const ulonglong2 slot = from[place[i]];
        sums[i] = slot.x ^ slot.y;
    }
}

// Cycles of one store to the host and the fence after it, the mean of many.
extern "C" __global__ void fence_cycles(volatile u64* to, u64* cycles, u64 n) {
    const u64 begin = clock64();
    for (u64 i = 0; i < n; i++) {
        to[i] = i;
        __threadfence_system();
    }
    *cycles = (clock64() - begin) / n;
}
