// The time by which keys expire, for a door and an engine alike: the wall clock's, and where that was set back, what it was
// before and what has passed since.
//
// A single word says it: how far the wall clock was ahead of a clock that nobody sets, when that was most. The word only
// rises, and that clock never goes back, so their sum does not either, whichever threads ask.
#pragma once
#include <algorithm>
#include <cstdint>
#include <ctime>

// CLOCK_BOOTTIME goes on while the machine sleeps, as times to live do.
static const clockid_t WALL_CLOCK = CLOCK_REALTIME, PASSED_CLOCK = CLOCK_BOOTTIME;

inline int64_t read_clock_us(clockid_t clock) {
    timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

// Microseconds since 1970; 0 before: that would be a very late time without a sign. The wall clock must have been read
// first: if the thread waits between both, the wall clock seems to be less far ahead, and the word stays as it is.
inline uint64_t count_time(int64_t* ahead_us, int64_t wall_us, int64_t passed_us) {
    const int64_t seen = wall_us - passed_us;
    int64_t ahead = __atomic_load_n(ahead_us, __ATOMIC_RELAXED);
    while (ahead < seen)
        if (__atomic_compare_exchange_n(ahead_us, &ahead, seen, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) ahead = seen;
    return (uint64_t)std::max<int64_t>(ahead + passed_us, 0);
}

inline uint64_t counted_ms(int64_t* ahead_us) {
    const int64_t wall_us = read_clock_us(WALL_CLOCK);
    return count_time(ahead_us, wall_us, read_clock_us(PASSED_CLOCK)) / 1000;
}
