// The short names of numbers, and the clock of deadlines.
#pragma once
#include <cstddef>
#include <cstdint>
#include <ctime>

namespace door {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using i32 = int32_t;
using i64 = int64_t;

// Nanoseconds of CLOCK_MONOTONIC.
inline u64 now_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (u64)time.tv_sec * 1000000000u + (u64)time.tv_nsec;
}

constexpr u64 NEVER = ~0ull;

}  // namespace door
