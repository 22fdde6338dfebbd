// What kernels of a user need to store to persistent memory (gpkvs.gpm): one source for GPUs and for the CPU.
//
//     #include "gpm/gpm.cuh"
//     #define SCALE_ARGS(F) F(const float*, in) F(float*, out) F(double, by)
//     GPM_KERNEL(scale, SCALE_ARGS) { gpm_store(&a.out[i], (float)(a.in[i] * a.by)); }
//
// GPM_KERNEL is the body of one thread i of n. Its arguments are `a`, each 8 bytes: a pointer, u64, i64 or double. What it
// stored to persistent memory is durable when it has returned; gpm_persist() makes it so earlier. Logs: gpm_log.cuh.
// GPM_BLOCK_KERNEL is the body of one block of threads, number b of n. What its threads do stands in GPM_THREADS; where
// they wait for each other, GPM_SYNC; what they share is GPM_SHARED. Every thread that stores calls gpm_persist().
//
// Stores to persistent memory go through gpm_store, so that the explorer of crashes sees them; loads are plain. On a GPU a
// fence for the system makes a thread's stores leave it (GPM, ASPLOS '22, section 5.1).
//
// gpm_fetch_add and gpm_replace are atomic, on u32 and u64 in volatile memory. The functions of math.h are there. GPM_DEVICE
// stands before a function of your own that kernels call.
#pragma once
#include "gpm/gpm_log.cuh"
#include "base/platform.cuh"
#if !defined(__CUDACC_RTC__)
#include <math.h>
#endif

typedef long long i64;

#define GPM_DEVICE GPKVS_DEVICE

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

#define GPM_NAME(type, name) #type " " #name ";"
// What the host reads of a kernel: `Kernel` of platform.cuh, for a library that is a GPU's.
#define GPM_DESCRIBED(name, LIST, THREADS)                              \
    extern "C" __device__ const char gpm_fields_##name[1024] = LIST(GPM_NAME); \
    extern "C" __device__ const u32 gpm_threads_##name = THREADS;

#define GPM_KERNEL(name, LIST)    \
    GPM_DESCRIBED(name, LIST, 0)  \
    GPKVS_PM_KERNEL(name, LIST)

#define GPM_BLOCK_KERNEL(name, LIST, THREADS)                                             \
    GPM_DESCRIBED(name, LIST, THREADS)                                                    \
    struct name##_args { LIST(GPKVS_FIELD) };                                             \
    GPKVS_DEVICE void name##_block(const name##_args& a, u64 b);                          \
    extern "C" __global__ void __launch_bounds__(THREADS) name(const name##_args a, u64 n, const u32* limit) { \
        const u64 blocks = items_of(n, limit);                                            \
        for (u64 b = blockIdx.x; b < blocks; b += gridDim.x) {                            \
            name##_block(a, b);                                                           \
            __syncthreads();                                                              \
        }                                                                                 \
        pm_persist();                                                                     \
    }                                                                                     \
    GPKVS_DEVICE void name##_block(const name##_args& a, u64 b)

#define GPM_THREADS(t, THREADS) if (const u32 t = threadIdx.x; t < (THREADS))
#define GPM_SYNC() __syncthreads()
#define GPM_SHARED(type, name, count) __shared__ type name[count]

template <class T>
GPKVS_DEVICE void gpm_store(T* at, T value) {
    *(volatile T*)at = value;
}

// Adds, and returns what was there.
template <class T>
GPKVS_DEVICE T gpm_fetch_add(T* at, T value) {
    return atomicAdd(at, value);
}
// Stores if what is expected is there; returns whether it was.
template <class T>
GPKVS_DEVICE bool gpm_replace(T* at, T expected, T value) {
    return atomicCAS(at, expected, value) == expected;
}

#else

#define GPM_KERNEL(name, LIST) GPKVS_PM_KERNEL(name, LIST)
#define GPM_BLOCK_KERNEL(name, LIST, THREADS) \
    GPKVS_DEFINE_OF(b, name, LIST, nothing_soon, pm_persist(), THREADS, 1, 0)

// The threads of a block run one after the other, from one place where they wait for each other to the next.
#if defined(GPKVS_TRACE)
#define GPM_THREADS(t, THREADS) for (u32 t = 0; gpm_is_thread(t, THREADS); t++)
static inline bool gpm_is_thread(u32 t, u32 threads) {  // in the trace, each is a thread
    trace->thread = t < threads ? (trace->threads << TRACE_BLOCK_BITS) + t : trace->threads;
    return t < threads;
}
// All threads of the block have come so far.
#define GPM_SYNC() trace_add(TRACE_BARRIER, trace->threads, 0)
#else
#define GPM_THREADS(t, THREADS) for (u32 t = 0; t < (THREADS); t++)
#define GPM_SYNC()
#endif
#define GPM_SHARED(type, name, count) type name[count]

template <class T>
GPKVS_DEVICE void gpm_store(T* at, T value) {
    static_assert(sizeof(T) <= 8, "larger than what a processor stores at once");
    __atomic_store(at, &value, __ATOMIC_RELAXED);
    u64* word = (u64*)((u64)at & ~7ull);
    GPKVS_TRACED(TRACE_STORE, (u64)word, *word);
    if (__builtin_expect(pm_write_back != WRITE_BACK_NONE, 0)) pm_note_store(word);
}

template <class T>
GPKVS_DEVICE T gpm_fetch_add(T* at, T value) {
    return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}
template <class T>
GPKVS_DEVICE bool gpm_replace(T* at, T expected, T value) {
    return __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

// Called before kernels run: what the library of gpkvs has learned of this machine, and its trace.
extern "C" inline __attribute__((used)) void gpm_attach(u32 write_back, void* traced) {
    pm_write_back = write_back;
#if defined(GPKVS_TRACE)
    if (traced) trace = (TraceState*)traced;
#else
    (void)traced;
#endif
}

#endif

// What the calling thread stored before is durable when this returns.
GPKVS_DEVICE void gpm_persist() { pm_persist(); }
