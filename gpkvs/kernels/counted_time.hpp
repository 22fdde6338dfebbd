// The time by which keys expire, for a door and an engine alike: it never goes back while a store is open.
#pragma once
#include <cstdint>
#include <ctime>

// Milliseconds since 1970; 0 where the clock says an earlier time, which would be a very late one without a sign.
inline uint64_t wall_clock_ms() {
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (now.tv_sec < 0) return 0;
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

// The later one of the time that counted last, which is kept at an address, and of one that a clock says.
inline uint64_t take_time(uint64_t* latest_ms, uint64_t now_ms) {
    uint64_t latest = __atomic_load_n(latest_ms, __ATOMIC_RELAXED);
    while (latest < now_ms)
        if (__atomic_compare_exchange_n(latest_ms, &latest, now_ms, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return now_ms;
    return latest;
}
