// The only place that knows whether a kernel is compiled for a GPU (NVRTC) or for the CPU (a C++ compiler).
//
// A kernel is the body of one logical thread i of n:
//
//     #define COPY_ARGS(F) F(const u64*, source) F(u64*, target)
//     GPKVS_KERNEL(copy, COPY_ARGS) { a.target[i] = a.source[i]; }
//
// Every argument is 8 bytes, a pointer or a u64; the host fills them by name, so their order means nothing to it.
//   GPKVS_KERNEL     one thread an item, volatile memory only
//   GPKVS_PM_KERNEL  the same, and it stores to PM: every storing thread fences its own stores before it ends
//   GPKVS_GROUP_KERNEL  eight lanes an item on a GPU: match8 and empty8 look at a whole bucket; leader() stores
#pragma once

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#define GPKVS_FIELD(type, name) type name;

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

#define GPKVS_DEVICE static __device__ __forceinline__

#define GPKVS_DEFINE(name, LIST, LANES, AT_END)                                             \
    struct name##_args { LIST(GPKVS_FIELD) };                                               \
    GPKVS_DEVICE void name##_lane(const name##_args& a, u64 i);                             \
    extern "C" __global__ void name(const name##_args a, u64 n) {                           \
        const u64 stride = (u64)gridDim.x * blockDim.x / LANES;                             \
        for (u64 i = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / LANES; i < n; i += stride) \
            name##_lane(a, i);                                                              \
        AT_END;                                                                             \
    }                                                                                       \
    GPKVS_DEVICE void name##_lane(const name##_args& a, u64 i)

#define GPKVS_KERNEL(name, LIST) GPKVS_DEFINE(name, LIST, 1, )
#define GPKVS_PM_KERNEL(name, LIST) GPKVS_DEFINE(name, LIST, 1, pm_persist())
#define GPKVS_GROUP_KERNEL(name, LIST) GPKVS_DEFINE(name, LIST, 8, )

GPKVS_DEVICE u64 mul_high(u64 a, u64 b) { return __umul64hi(a, b); }
GPKVS_DEVICE u32 first_bit(u32 mask) { return __ffs(mask) - 1; }
GPKVS_DEVICE u32 count_bits(u32 mask) { return __popc(mask); }
GPKVS_DEVICE void atomic_add(u64* at, u64 value) { atomicAdd(at, value); }
GPKVS_DEVICE u64 load_unaligned(const u8* at) {
    u64 word = 0;
    for (u32 b = 0; b < 8; b++) word |= (u64)at[b] << (8 * b);
    return word;
}

// One lane looks at one way; the eight lanes of a group vote. Lanes hold nothing of their own between votes.
GPKVS_DEVICE u32 way_mask8(bool mine) {
    const u32 first = threadIdx.x & 24;
    return (__ballot_sync(0xFFu << first, mine) >> first) & 0xFFu;
}
#define GPKVS_WAYS8(way, condition) ([&]() { const u32 way = threadIdx.x & 7; return way_mask8(condition); }())
GPKVS_DEVICE bool leader() { return (threadIdx.x & 7) == 0; }
// What the leader stored in volatile memory is seen by the other lanes after this.
GPKVS_DEVICE void group_sync() { __syncwarp(0xFFu << (threadIdx.x & 24)); }

// A relaxed atomic store of 8 bytes: it becomes durable in any order with others until a fence.
GPKVS_DEVICE void pm_store(u64* at, u64 word) { *(volatile u64*)at = word; }
// The calling thread's earlier stores to PM have left the GPU when this returns (GPM, ASPLOS '22, section 5.1).
GPKVS_DEVICE void pm_persist() { __threadfence_system(); }

#else

#include <stddef.h>
#include <string.h>
#if defined(__SSE4_2__)
#include <nmmintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

#define GPKVS_DEVICE static inline __attribute__((always_inline))

// What the host needs to run a kernel: the names and types of its arguments, and the loop over a range of items.
struct Kernel {
    u64 args_bytes;
    const char* fields;
    void (*run)(const void* args, u64 first, u64 last);
};

#define GPKVS_NAME(type, name) #type " " #name ";"

#define GPKVS_DEFINE(name, LIST, AT_END)                                                    \
    struct name##_args { LIST(GPKVS_FIELD) };                                               \
    GPKVS_DEVICE void name##_lane(const name##_args& a, u64 i);                             \
    static void name##_run(const void* args, u64 first, u64 last) {                         \
        const name##_args& a = *(const name##_args*)args;                                   \
        for (u64 i = first; i < last; i++) name##_lane(a, i);                               \
        AT_END;                                                                             \
    }                                                                                       \
    extern "C" const Kernel gpkvs_kernel_##name = {sizeof(name##_args), LIST(GPKVS_NAME), name##_run}; \
    GPKVS_DEVICE void name##_lane(const name##_args& a, u64 i)

#define GPKVS_KERNEL(name, LIST) GPKVS_DEFINE(name, LIST, )
#define GPKVS_PM_KERNEL(name, LIST) GPKVS_DEFINE(name, LIST, pm_persist())
#define GPKVS_GROUP_KERNEL(name, LIST) GPKVS_DEFINE(name, LIST, )

GPKVS_DEVICE u64 mul_high(u64 a, u64 b) { return (u64)(((unsigned __int128)a * b) >> 64); }
GPKVS_DEVICE u32 first_bit(u32 mask) { return (u32)__builtin_ctz(mask); }
GPKVS_DEVICE u32 count_bits(u32 mask) { return (u32)__builtin_popcount(mask); }
GPKVS_DEVICE void atomic_add(u64* at, u64 value) { __atomic_fetch_add(at, value, __ATOMIC_RELAXED); }
GPKVS_DEVICE u64 load_unaligned(const u8* at) {
    u64 word;
    memcpy(&word, at, 8);
    return word;
}

#define GPKVS_WAYS8(way, condition)                                \
    ([&]() {                                                       \
        u32 mask = 0;                                              \
        for (u32 way = 0; way < 8; way++) mask |= (u32)(condition) << way; \
        return mask;                                               \
    }())
GPKVS_DEVICE bool leader() { return true; }
GPKVS_DEVICE void group_sync() {}

GPKVS_DEVICE void pm_store(u64* at, u64 word) { __atomic_store_n(at, word, __ATOMIC_RELAXED); }
GPKVS_DEVICE void pm_persist() {
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

#endif

// CRC32C over 8-byte words (RFC 3720, appendix B.4): by an instruction where there is one, else bit by bit.
GPKVS_DEVICE u32 crc32c_word(u32 crc, u64 word) {
#if defined(__SSE4_2__) && !defined(__CUDACC_RTC__)
    return (u32)_mm_crc32_u64(crc, word);
#elif defined(__ARM_FEATURE_CRC32) && !defined(__CUDACC_RTC__)
    return __crc32cd(crc, word);
#else
    for (u32 half = 0; half < 2; half++) {
        crc ^= (u32)(word >> (32 * half));
        for (u32 bit = 0; bit < 32; bit++) crc = (crc >> 1) ^ (0x82F63B78u & (0u - (crc & 1)));
    }
    return crc;
#endif
}
