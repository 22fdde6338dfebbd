// The only place that knows whether a kernel is compiled for a GPU (NVRTC) or for the CPU (a C++ compiler).
//
// A kernel is the body of one logical thread i of n:
//
//     #define COPY_ARGS(F) F(const u64*, source) F(u64*, target)
//     GPKVS_KERNEL(copy, COPY_ARGS) { a.target[i] = a.source[i]; }
//
// Every argument is 8 bytes, a pointer or a u64; the host fills them by name, so their order means nothing to it. On a GPU
// there may be fewer items than n, if `limit` says so: the host need not know yet how many there are.
//   GPKVS_KERNEL        one thread an item, volatile memory only
//   GPKVS_PM_KERNEL     the same, and it stores to PM: every storing thread fences its own stores before it ends
//   GPKVS_GROUP_KERNEL  eight lanes an item on a GPU: match8 and empty8 look at a whole bucket; leader() stores
//   GPKVS_SERIAL_KERNEL one item, which a thread of the host runs, whatever the backend (the .hpp files)
//   ..._SOON         with a function that is told on a CPU which item comes soon, and asks for the cache lines it will
//                    read (`prefetch`): one item waits for memory while the ones before it run. A GPU's other warps do that.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define GPKVS_FIELD(type, name) type name;

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

#define GPKVS_DEVICE static __device__ __forceinline__
#define GPKVS_MEMBER __device__ __forceinline__

GPKVS_DEVICE u64 items_of(u64 n, const u32* limit) { return limit && *limit < n ? *limit : n; }

#define GPKVS_DEFINE(name, LIST, LANES, AT_END)                                             \
    struct name##_args { LIST(GPKVS_FIELD) };                                               \
    GPKVS_DEVICE void name##_lane(const name##_args& a, u64 i);                             \
    extern "C" __global__ void name(const name##_args a, u64 n, const u32* limit) {         \
        const u64 items = items_of(n, limit), stride = (u64)gridDim.x * blockDim.x / LANES; \
        for (u64 i = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / LANES; i < items; i += stride) \
            name##_lane(a, i);                                                              \
        AT_END;                                                                             \
    }                                                                                       \
    GPKVS_DEVICE void name##_lane(const name##_args& a, u64 i)

#define GPKVS_KERNEL(name, LIST) GPKVS_DEFINE(name, LIST, 1, )
#define GPKVS_KERNEL_SOON(name, LIST, soon) GPKVS_KERNEL(name, LIST)
#define GPKVS_PM_KERNEL(name, LIST) GPKVS_DEFINE(name, LIST, 1, pm_persist())
#define GPKVS_PM_KERNEL_SOON(name, LIST, soon) GPKVS_PM_KERNEL(name, LIST)
#define GPKVS_GROUP_KERNEL(name, LIST) GPKVS_DEFINE(name, LIST, 8, )
#define GPKVS_GROUP_KERNEL_SOON(name, LIST, soon) GPKVS_GROUP_KERNEL(name, LIST)

GPKVS_DEVICE void prefetch(const void*) {}
GPKVS_DEVICE u64 mul_high(u64 a, u64 b) { return __umul64hi(a, b); }
GPKVS_DEVICE u32 first_bit(u32 mask) { return __ffs(mask) - 1; }
GPKVS_DEVICE u32 count_bits(u32 mask) { return __popc(mask); }
GPKVS_DEVICE void atomic_add(u64* at, u64 value) { atomicAdd(at, value); }
GPKVS_DEVICE void atomic_max(u64* at, u64 value) { atomicMax(at, value); }
// Counts the threads for which something holds: one addition for those that run side by side.
GPKVS_DEVICE void count_where(u64* at, bool holds) {
    const u32 together = __activemask(), votes = __ballot_sync(together, holds);
    if (votes && (threadIdx.x & 31) == first_bit(together)) atomicAdd(at, (u64)count_bits(votes));
}
// Several threads may mark one place at once.
GPKVS_DEVICE void mark_place(u8* at) { *(volatile u8*)at = 1; }
GPKVS_DEVICE void set_mark(u64* at, u64 mark) { *(volatile u64*)at = mark; }
GPKVS_DEVICE u64 load_word(const u64* at) { return *(const volatile u64*)at; }
// Stores a word where another one is still there; whether it was.
GPKVS_DEVICE bool swap_word(u64* at, u64 expected, u64 word) { return atomicCAS(at, expected, word) == expected; }
GPKVS_DEVICE u64 load_unaligned(const u8* at) {
    if (((u64)at & 7) == 0) return *(const u64*)at;
    u64 word = 0;
    for (u32 b = 0; b < 8; b++) word |= (u64)at[b] << (8 * b);
    return word;
}
GPKVS_DEVICE void store_unaligned(u8* at, u64 word) {
    if (((u64)at & 7) == 0) *(u64*)at = word;
    else for (u32 b = 0; b < 8; b++) at[b] = (u8)(word >> (8 * b));
}
GPKVS_DEVICE void copy_bytes(void* to, const void* from, u64 bytes) {
    for (u64 at = 0; at < bytes; at++) ((u8*)to)[at] = ((const u8*)from)[at];
}

// One lane looks at one way; the eight lanes of a group vote. Lanes hold nothing of their own between votes.
GPKVS_DEVICE u32 way_mask8(bool mine) {
    const u32 first = threadIdx.x & 24;
    return (__ballot_sync(0xFFu << first, mine) >> first) & 0xFFu;
}
#define GPKVS_WAYS8(way, condition) ([&]() { const u32 way = threadIdx.x & 7; return way_mask8(condition); }())
GPKVS_DEVICE bool leader() { return (threadIdx.x & 7) == 0; }
// Memory that the lanes of a group share; what one stores, the others see after group_sync. Blocks have 256 threads.
#define GPKVS_OF_GROUP(type, name, count)      \
    __shared__ type name##_of_all[32][count];  \
    type* const name = name##_of_all[threadIdx.x / 8]
GPKVS_DEVICE void group_sync() { __syncwarp(0xFFu << (threadIdx.x & 24)); }
GPKVS_DEVICE u64 of_leader(u64 word) { return __shfl_sync(0xFFu << (threadIdx.x & 24), word, 0, 8); }
// The lanes of a group copy bytes that are a multiple of a word's, and lie at multiples of it; four words of each are on their way.
template <class Word>
GPKVS_DEVICE void copy_words_by_group(Word* to, const Word* from, u64 words) {
    u64 at = threadIdx.x & 7;
    for (; at + 24 < words; at += 32) {
        const Word first = from[at], second = from[at + 8], third = from[at + 16], fourth = from[at + 24];
        to[at] = first;
        to[at + 8] = second;
        to[at + 16] = third;
        to[at + 24] = fourth;
    }
    for (; at < words; at += 8) to[at] = from[at];
}
// Words of 16, 8, 4 bytes, or single bytes.
GPKVS_DEVICE void copy_by_group(u8* to, const u8* from, u64 bytes, u64 step) {
    if (step == 16) copy_words_by_group((ulonglong2*)to, (const ulonglong2*)from, bytes / 16);
    else if (step == 8) copy_words_by_group((u64*)to, (const u64*)from, bytes / 8);
    else if (step == 4) copy_words_by_group((u32*)to, (const u32*)from, bytes / 4);
    else copy_words_by_group(to, from, bytes);
}
GPKVS_DEVICE void clear_of_group(u8* bytes, u32 count) {
    group_sync();
    for (u32 at = threadIdx.x & 7; at < count; at += 8) bytes[at] = 0;
    group_sync();
}

// Eight pairs of words side by side, 128 bytes at a multiple of them: the number of the first pair that begins with a key, and its
// second word; or NO_PAIR.
static const u32 NO_PAIR = 16;
GPKVS_DEVICE u32 find_pair8(const u64* pairs, u64 key, u64& second) {
    for (u32 way = 0; way < 8; way++)
        if (pairs[2 * way] == key) return second = pairs[2 * way + 1], way;
    return NO_PAIR;
}

// The same for each lane of a warp that still looks. Eight lanes read the pairs of one of them together, and all 32 places are asked
// for before the first one is waited for: a lane alone reads a place in eight steps (10,100 M/s of look-ups for 15,300; docs/gpu.md).
GPKVS_DEVICE void find_pair8_together(const u64* pairs, u64 key, bool looks, u32& found, u64& second) {
    const u32 lane = threadIdx.x & 31, looking = __ballot_sync(~0u, looks);
    ulonglong2 pair[8];
#pragma unroll
    for (u32 step = 0; step < 8; step++) {
        const u32 of = 4 * step + lane / 8;
        const u64 at = __shfl_sync(~0u, (u64)pairs, of);
        if (looking >> of & 1) pair[step] = ((const ulonglong2*)at)[lane & 7];
    }
#pragma unroll
    for (u32 step = 0; step < 8; step++) {
        const u32 of = 4 * step + lane / 8;
        const u64 wanted = __shfl_sync(~0u, key, of);
        const u32 votes = __ballot_sync(~0u, (looking >> of & 1) && pair[step].x == wanted);
        const u32 mine = votes >> 8 * (lane & 3) & 0xFF;  // of the eight lanes that looked for the lane 4 * step + lane % 4
        const u32 way = mine ? first_bit(mine) : 0;
        const u64 word = __shfl_sync(~0u, pair[step].y, 8 * (lane & 3) + way);
        if (lane / 4 == step && mine) {
            found = way;
            second = word;
        }
    }
}

// In either of two places: below 8 it is in the first one, below 16 in the other. Who does not look finds none.
GPKVS_DEVICE u32 find_pair8(const u64* first, const u64* then, u64 key, bool looks, u64& second) {
    u32 found = NO_PAIR, later = NO_PAIR;
    if (__activemask() != ~0u) {  // the last items
        if (looks) found = find_pair8(first, key, second);
        if (looks && found == NO_PAIR) later = find_pair8(then, key, second);
    } else {
        find_pair8_together(first, key, looks, found, second);
        const bool looks_on = looks && found == NO_PAIR;
        if (__any_sync(~0u, looks_on)) find_pair8_together(then, key, looks_on, later, second);
    }
    return later == NO_PAIR ? found : 8 + later;
}

// Of eight slots of four words side by side, 256 bytes at a multiple of 16: the number of the first one that begins with two words, or
// NO_PAIR.
GPKVS_DEVICE u32 find_quad8(const u64* quads, u64 low, u64 high) {
    for (u32 way = 0; way < 8; way++)
        if (quads[4 * way] == low && quads[4 * way + 1] == high) return way;
    return NO_PAIR;
}

// The same for each lane of a warp that looks, as in `find_pair8_together`. Not all 32 places are asked for at once: what waits for
// them takes registers, and so the place of other warps.
static const u32 STEPS_TOGETHER = 2;
GPKVS_DEVICE u32 find_quad8_together(const u64* quads, u64 low, u64 high, bool looks) {
    const u32 lane = threadIdx.x & 31, looking = __ballot_sync(~0u, looks);
    u32 found = NO_PAIR;
#pragma unroll 1
    for (u32 first = 0; first < 8; first += STEPS_TOGETHER) {
        ulonglong2 head[STEPS_TOGETHER];
#pragma unroll
        for (u32 step = 0; step < STEPS_TOGETHER; step++) {
            const u32 of = 4 * (first + step) + lane / 8;
            const u64 at = __shfl_sync(~0u, (u64)quads, of);
            if (looking >> of & 1) head[step] = ((const ulonglong2*)at)[2 * (lane & 7)];
        }
#pragma unroll
        for (u32 step = 0; step < STEPS_TOGETHER; step++) {
            const u32 of = 4 * (first + step) + lane / 8;
            const u64 wanted_low = __shfl_sync(~0u, low, of), wanted_high = __shfl_sync(~0u, high, of);
            const bool is_it = (looking >> of & 1) && head[step].x == wanted_low && head[step].y == wanted_high;
            const u32 mine = __ballot_sync(~0u, is_it) >> 8 * (lane & 3) & 0xFF;  // of the lane `of` - lane / 8 + lane % 4
            if (lane / 4 == first + step && mine) found = first_bit(mine);
        }
    }
    return found;
}

// In either of two places: below 8 it is in the first one, below 16 in the other. Who does not look finds none.
GPKVS_DEVICE u32 find_quad8(const u64* first, const u64* then, u64 low, u64 high, bool looks) {
    u32 found = NO_PAIR, later = NO_PAIR;
    if (__activemask() != ~0u) {  // the last items
        if (looks) found = find_quad8(first, low, high);
        if (looks && found == NO_PAIR) later = find_quad8(then, low, high);
    } else if (__any_sync(~0u, looks)) {
        found = find_quad8_together(first, low, high, looks);
        const bool looks_on = looks && found == NO_PAIR;
        if (__any_sync(~0u, looks_on)) later = find_quad8_together(then, low, high, looks_on);
    }
    return later == NO_PAIR ? found : 8 + later;
}

// Of 16 words side by side, at a multiple of 16: the number of one that is another word under a mask, or NO_PAIR. Who does
// not look finds none.
GPKVS_DEVICE u32 find_word16(const u64* words, u64 mask, u64 word, bool looks) {
    u32 found = NO_PAIR;
    if (__activemask() != ~0u) {
        for (u32 at = 0; looks && found == NO_PAIR && at < 16; at++)
            if ((words[at] & mask) == word) found = at;
        return found;
    }
    const u32 lane = threadIdx.x & 31, looking = __ballot_sync(~0u, looks);
    if (!looking) return found;
#pragma unroll 1
    for (u32 first = 0; first < 8; first += STEPS_TOGETHER) {
        ulonglong2 pair[STEPS_TOGETHER];
#pragma unroll
        for (u32 step = 0; step < STEPS_TOGETHER; step++) {
            const u32 of = 4 * (first + step) + lane / 8;
            const u64 at = __shfl_sync(~0u, (u64)words, of);
            if (looking >> of & 1) pair[step] = ((const ulonglong2*)at)[lane & 7];
        }
#pragma unroll
        for (u32 step = 0; step < STEPS_TOGETHER; step++) {
            const u32 of = 4 * (first + step) + lane / 8;
            const u64 wanted = __shfl_sync(~0u, word, of);
            const bool looked = looking >> of & 1;
            const u32 even = __ballot_sync(~0u, looked && (pair[step].x & mask) == wanted) >> 8 * (lane & 3) & 0xFF;
            const u32 odd = __ballot_sync(~0u, looked && (pair[step].y & mask) == wanted) >> 8 * (lane & 3) & 0xFF;
            if (lane / 4 == first + step && (even | odd)) found = even ? 2 * first_bit(even) : 2 * first_bit(odd) + 1;
        }
    }
    return found;
}

// A relaxed atomic store of 8 bytes: it becomes durable in any order with others until a fence.
GPKVS_DEVICE void pm_store(u64* at, u64 word) { *(volatile u64*)at = word; }
// Two neighbouring words at a multiple of 16 bytes: one store over the link, which counts stores (docs/gpu.md).
GPKVS_DEVICE void pm_store_pair(u64* at, const u64* words) {
    asm volatile("st.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(words[0]), "l"(words[1]) : "memory");
}
GPKVS_DEVICE void pm_stream_pair(u64* at, const u64* words) { pm_store_pair(at, words); }
// The calling thread's earlier stores to PM have left the GPU when this returns (GPM, ASPLOS '22, section 5.1).
GPKVS_DEVICE void pm_persist() { __threadfence_system(); }

#else

#include <exception>
#include <stddef.h>
#include <string.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif
#if defined(__SSE4_2__)
#include <nmmintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

#define GPKVS_DEVICE static inline __attribute__((always_inline))
#define GPKVS_MEMBER inline __attribute__((always_inline))

// What the host must know of a kernel: the names and types of its arguments, the loop over a range of items, and what every
// backend asks of it (`KernelSymbol` in gpkvs/native.py).
struct Kernel {
    u64 args_bytes;
    const char* fields;
    void (*run)(const void* args, u64 first, u64 last);
    u32 lanes;         // of an item, on a GPU
    u32 stores_to_pm;  // 1: the kernel stores to PM
    u32 is_serial;     // 1: it is one item, for a thread of the host
};

#define GPKVS_NAME(type, name) #type " " #name ";"

// Every kernel is there twice, and the loader takes the one for this processor: with 256-bit vectors the hash of 8-byte
// keys takes half the time.
//
// Clang 22 leaves out constructors and destructors that only clones call: the linker then misses them. Serial kernels and
// the traced build have some, and gain little from vectors: clang makes no clones of them.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_ADDRESS__) && !defined(GPKVS_NO_CLONES) && \
    !(defined(__clang__) && defined(GPKVS_TRACE))
#define GPKVS_CLONES __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define GPKVS_CLONES
#endif
#define GPKVS_CLONES_0 GPKVS_CLONES
#if defined(__clang__)
#define GPKVS_CLONES_1
// It knows no such promise, and asks at run time whether columns overlap.
#define GPKVS_INDEPENDENT
#else
#define GPKVS_CLONES_1 GPKVS_CLONES
#define GPKVS_INDEPENDENT _Pragma("GCC ivdep")
#endif

// How many items ahead a kernel asks for memory: their cache lines must fit the first cache, and the processor's queue.
static const u64 SOON = 16;
template <class Args>
GPKVS_DEVICE void nothing_soon(const Args&, u64) {}
GPKVS_DEVICE void prefetch(const void* at) { __builtin_prefetch(at); }

// The traced build (docs/reliability.md) records every store, write-back and fence; in any other build nothing is left
// of it. Items are independent, as a GPU's threads are: a compiler may take several at once.
#if defined(GPKVS_TRACE)
#include "base/trace.cuh"
#else
#define GPKVS_ITEMS(name, soon, AT_END)                                 \
    for (u64 i = first; i < last && i < first + SOON; i++) soon(a, i);  \
    GPKVS_INDEPENDENT for (u64 i = first; i < last; i++) {              \
        if (i + SOON < last) soon(a, i + SOON);                         \
        name##_lane(a, i);                                              \
    }                                                                   \
    AT_END;
#define GPKVS_TRACED(kind, at, word)
#define GPKVS_TRACED_SYNC(site, file)
#endif

// `item` is what the body calls the number of its item.
#define GPKVS_DEFINE_OF(item, name, LIST, soon, AT_END, LANES, STORES_TO_PM, IS_SERIAL)      \
    struct name##_args { LIST(GPKVS_FIELD) };                                               \
    GPKVS_DEVICE void name##_lane(const name##_args& a, u64 item);                          \
    GPKVS_CLONES_##IS_SERIAL static void name##_run(const void* args, u64 first, u64 last) { \
        const name##_args a = *(const name##_args*)args;                                    \
        GPKVS_ITEMS(name, soon, AT_END)                                                     \
    }                                                                                       \
    extern "C" const Kernel gpkvs_kernel_##name = {sizeof(name##_args), LIST(GPKVS_NAME), name##_run, LANES, \
                                                   STORES_TO_PM, IS_SERIAL};                \
    GPKVS_DEVICE void name##_lane(const name##_args& a, u64 item)
#define GPKVS_DEFINE(...) GPKVS_DEFINE_OF(i, __VA_ARGS__)

#define GPKVS_KERNEL_SOON(name, LIST, soon) GPKVS_DEFINE(name, LIST, soon, , 1, 0, 0)
#define GPKVS_PM_KERNEL_SOON(name, LIST, soon) GPKVS_DEFINE(name, LIST, soon, pm_persist(), 1, 1, 0)
#define GPKVS_GROUP_KERNEL_SOON(name, LIST, soon) GPKVS_DEFINE(name, LIST, soon, , 8, 0, 0)
#define GPKVS_KERNEL(name, LIST) GPKVS_KERNEL_SOON(name, LIST, nothing_soon)
#define GPKVS_PM_KERNEL(name, LIST) GPKVS_PM_KERNEL_SOON(name, LIST, nothing_soon)
#define GPKVS_GROUP_KERNEL(name, LIST) GPKVS_GROUP_KERNEL_SOON(name, LIST, nothing_soon)
#define GPKVS_SERIAL_KERNEL(name, LIST) GPKVS_DEFINE(name, LIST, nothing_soon, , 1, 0, 1)

GPKVS_DEVICE u64 mul_high(u64 a, u64 b) { return (u64)(((unsigned __int128)a * b) >> 64); }
GPKVS_DEVICE u32 first_bit(u32 mask) { return (u32)__builtin_ctz(mask); }
GPKVS_DEVICE u32 count_bits(u32 mask) { return (u32)__builtin_popcount(mask); }
GPKVS_DEVICE void mark_place(u8* at) { __atomic_store_n(at, (u8)1, __ATOMIC_RELAXED); }
GPKVS_DEVICE void set_mark(u64* at, u64 mark) { __atomic_store_n(at, mark, __ATOMIC_RELAXED); }
GPKVS_DEVICE u64 load_word(const u64* at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
GPKVS_DEVICE bool swap_word(u64* at, u64 expected, u64 word) {
    return __atomic_compare_exchange_n(at, &expected, word, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}
GPKVS_DEVICE void atomic_add(u64* at, u64 value) { __atomic_fetch_add(at, value, __ATOMIC_RELAXED); }
GPKVS_DEVICE void count_where(u64* at, bool holds) {
    if (holds) atomic_add(at, 1);
}
GPKVS_DEVICE void atomic_max(u64* at, u64 value) {
    u64 seen = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (seen < value && !__atomic_compare_exchange_n(at, &seen, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}
GPKVS_DEVICE u64 load_unaligned(const u8* at) {
    u64 word;
    memcpy(&word, at, 8);
    return word;
}
GPKVS_DEVICE void store_unaligned(u8* at, u64 word) { memcpy(at, &word, 8); }
// For a device that reads what is copied: it would have to ask the caches of all threads for lines that lie there. `to` is at a
// multiple of 16; other threads that see what this one stores next see the copy.
GPKVS_DEVICE void copy_past_caches(u8* to, const u8* from, u64 bytes) {
    u64 at = 0;
#if defined(__x86_64__)
    for (; at + 16 <= bytes; at += 16) _mm_stream_si128((__m128i*)(to + at), _mm_loadu_si128((const __m128i*)(from + at)));
    __builtin_ia32_sfence();
#endif
    memcpy(to + at, from + at, bytes - at);
}
// A column without an item may be null, which memcpy may not be given.
GPKVS_DEVICE void copy_bytes(void* to, const void* from, u64 bytes) {
    if (bytes) memcpy(to, from, bytes);
}

#define GPKVS_WAYS8(way, condition)                                \
    ([&]() {                                                       \
        u32 mask = 0;                                              \
        for (u32 way = 0; way < 8; way++) mask |= (u32)(condition) << way; \
        return mask;                                               \
    }())
GPKVS_DEVICE bool leader() { return true; }
#define GPKVS_OF_GROUP(type, name, count) type name[count]
GPKVS_DEVICE void group_sync() {}
GPKVS_DEVICE u64 of_leader(u64 word) { return word; }
GPKVS_DEVICE void copy_by_group(u8* to, const u8* from, u64 bytes, u64) { memcpy(to, from, bytes); }
GPKVS_DEVICE void clear_of_group(u8* bytes, u32 count) { memset(bytes, 0, count); }
static const u32 NO_PAIR = 16;
GPKVS_DEVICE u32 find_pair8(const u64* pairs, u64 key, u64& second) {
    const u32 mask = GPKVS_WAYS8(way, pairs[2 * way] == key);
    if (!mask) return NO_PAIR;
    second = pairs[2 * first_bit(mask) + 1];
    return first_bit(mask);
}
GPKVS_DEVICE u32 find_pair8(const u64* first, const u64* then, u64 key, bool looks, u64& second) {
    if (!looks) return NO_PAIR;
    const u32 found = find_pair8(first, key, second);
    if (found != NO_PAIR) return found;
    const u32 later = find_pair8(then, key, second);
    return later == NO_PAIR ? NO_PAIR : 8 + later;
}

GPKVS_DEVICE u32 find_quad8(const u64* quads, u64 low, u64 high) {
    const u32 mask = GPKVS_WAYS8(way, quads[4 * way] == low && quads[4 * way + 1] == high);
    return mask ? first_bit(mask) : NO_PAIR;
}
GPKVS_DEVICE u32 find_quad8(const u64* first, const u64* then, u64 low, u64 high, bool looks) {
    if (!looks) return NO_PAIR;
    const u32 found = find_quad8(first, low, high);
    if (found != NO_PAIR) return found;
    const u32 later = find_quad8(then, low, high);
    return later == NO_PAIR ? NO_PAIR : 8 + later;
}
GPKVS_DEVICE u32 find_word16(const u64* words, u64 mask, u64 word, bool looks) {
    for (u32 at = 0; looks && at < 16; at++)
        if ((words[at] & mask) == word) return at;
    return NO_PAIR;
}

// Write-back (the domain `flush`): how a stored cache line leaves the cache, 0 where the cache itself is durable or does
// not matter. Set before the first store that needs it, and never back, so that kernels need no lock to read it.
enum WriteBack : u32 { WRITE_BACK_NONE, WRITE_BACK_CLFLUSH, WRITE_BACK_CLFLUSHOPT, WRITE_BACK_CLWB };
static u32 pm_write_back = WRITE_BACK_NONE;
static u64 pm_lines_written_back = 0;

GPKVS_DEVICE void write_back_line(u64 line) {
    GPKVS_TRACED(TRACE_WRITE_BACK, line * 64, 0);
#if defined(__x86_64__)
    char* at = (char*)(line * 64);
    if (pm_write_back == WRITE_BACK_CLWB) __asm__ volatile("clwb %0" : "+m"(*at) : : "memory");
    else if (pm_write_back == WRITE_BACK_CLFLUSHOPT) __asm__ volatile("clflushopt %0" : "+m"(*at) : : "memory");
    else __asm__ volatile("clflush %0" : "+m"(*at) : : "memory");
#else
    (void)line;
#endif
}

// The lines that this thread stored to and has not yet written back: a line is written back when another one takes its
// place, and all of them before the fence. Neighbouring words then cost one write-back, not eight; the six words of a
// striped log entry, four lines apart, do not meet.
struct DirtyLines {
    static const u32 PLACES = 32;
    u64 line[PLACES];  // 0: none
    u64 written_back;

    void add(u64 stored) {
        u64& place = line[stored % PLACES];
        if (place == stored) return;
        if (place) write_back(place);
        place = stored;
    }
    void write_back(u64 stored) {
        write_back_line(stored);
        written_back++;
    }
    void write_back_all() {
        for (u64& place : line) {
            if (place) write_back(place);
            place = 0;
        }
        atomic_add(&pm_lines_written_back, written_back);
        written_back = 0;
    }
};
static thread_local DirtyLines pm_dirty_lines;

// The C library allocates what a library keeps for each thread when the thread first uses it, such as when it throws
// something; where there is no memory for that, it ends the process (status 127). So threads use it when they begin.
static inline void use_thread_storage() {
    pm_dirty_lines.written_back = 0;
    (void)std::uncaught_exceptions();
}

static __attribute__((noinline)) void pm_note_store(u64* at) { pm_dirty_lines.add((u64)at / 64); }
static __attribute__((noinline)) void pm_write_back_all() { pm_dirty_lines.write_back_all(); }

// The branch is never taken outside the domain `flush`; docs/persistence.md says what it was measured to cost.
GPKVS_DEVICE void pm_store(u64* at, u64 word) {
    __atomic_store_n(at, word, __ATOMIC_RELAXED);
    GPKVS_TRACED(TRACE_STORE, (u64)at, word);
    if (__builtin_expect(pm_write_back != WRITE_BACK_NONE, 0)) pm_note_store(at);
}
GPKVS_DEVICE void pm_store_pair(u64* at, const u64* words) {
    pm_store(at, words[0]);
    pm_store(at + 1, words[1]);
}
// The same for lines that are stored whole and not read soon: past the caches, which would read each line first.
GPKVS_DEVICE void pm_stream_pair(u64* at, const u64* words) {
#if defined(__x86_64__) && !defined(GPKVS_TRACE)
    if (__builtin_expect(pm_write_back == WRITE_BACK_NONE, 1)) {
        _mm_stream_si64((long long*)at, (long long)words[0]);
        _mm_stream_si64((long long*)at + 1, (long long)words[1]);
        return;
    }
#endif
    pm_store_pair(at, words);
}
GPKVS_DEVICE void pm_persist() {
    if (__builtin_expect(pm_write_back != WRITE_BACK_NONE, 0)) pm_write_back_all();
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
    GPKVS_TRACED(TRACE_FENCE, 0, 0);
}
// Makes durable what somebody stored to memory at an address, by whatever instructions, where the domain asks for it.
GPKVS_DEVICE void pm_persist_range(u64 address, u64 bytes) {
#if defined(GPKVS_TRACE)
    for (u64 word = address / 8; word < (address + bytes + 7) / 8; word++) trace_add(TRACE_STORE, word * 8, *(u64*)(word * 8));
#endif
    if (pm_write_back != WRITE_BACK_NONE)
        for (u64 line = address / 64; line < (address + bytes + 63) / 64; line++) write_back_line(line);
    pm_persist();
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

#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
// What the CRC of some words becomes if so many zero words follow. It is linear in the bits of the CRC, so eight tables of 16
// give it.
class ZeroWords {
  public:
    constexpr explicit ZeroWords(u64 words) : of_() {
        u32 of_bit[32] = {};
        for (u32 bit = 0; bit < 32; bit++) {
            u32 crc = 1u << bit;
            for (u64 step = 0; step < 64 * words; step++) crc = (crc >> 1) ^ (0x82F63B78u & (0u - (crc & 1)));
            of_bit[bit] = crc;
        }
        for (u32 bits = 0; bits < 8; bits++)
            for (u32 value = 0; value < 16; value++)
                for (u32 bit = 0; bit < 4; bit++)
                    if (value >> bit & 1) of_[bits][value] ^= of_bit[4 * bits + bit];
    }
    u32 after(u32 crc) const {
        u32 sum = 0;
        for (u32 bits = 0; bits < 8; bits++) sum ^= of_[bits][crc >> (4 * bits) & 15];
        return sum;
    }

  private:
    u32 of_[8][16];
};
static const u64 CRC_LANE_WORDS = 16;
static constexpr ZeroWords crc_lane(CRC_LANE_WORDS), crc_two_lanes(2 * CRC_LANE_WORDS);
#endif

// The same over words that follow each other, which may lie anywhere. `take` is given each of them, with its number; in any
// order. On a CPU an instruction waits for the one before it: three lanes are at work in the time that one takes.
template <class Take>
GPKVS_DEVICE u32 crc32c_of_each(u32 crc, const u8* at, u64 words, Take take) {
    const auto add = [&](u32 before, u64 w) {
        const u64 word = load_unaligned(at + 8 * w);
        take(w, word);
        return crc32c_word(before, word);
    };
    u64 w = 0;
#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
    for (; w + 3 * CRC_LANE_WORDS <= words; w += 3 * CRC_LANE_WORDS) {
        u32 of_second = 0, of_third = 0;
        for (u64 lane = w; lane < w + CRC_LANE_WORDS; lane++) {
            crc = add(crc, lane);
            of_second = add(of_second, lane + CRC_LANE_WORDS);
            of_third = add(of_third, lane + 2 * CRC_LANE_WORDS);
        }
        crc = crc_two_lanes.after(crc) ^ crc_lane.after(of_second) ^ of_third;
    }
#endif
    for (; w < words; w++) crc = add(crc, w);
    return crc;
}

GPKVS_DEVICE u32 crc32c_words(u32 crc, const u8* at, u64 words) {
    return crc32c_of_each(crc, at, words, [](u64, u64) {});
}
// Of words that are stored. Each is read once: somebody may change them meanwhile.
GPKVS_DEVICE u32 crc32c_stored(u32 crc, u64* to, const u8* from, u64 words) {
    return crc32c_of_each(crc, from, words, [to](u64 w, u64 word) { pm_store(to + w, word); });
}
