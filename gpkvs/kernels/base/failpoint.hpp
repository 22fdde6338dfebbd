// Named places where a test can kill the process, or stop a thread, one at each durability boundary (gpkvs/process/failpoint.py).
#pragma once
#include <csignal>
#include <cstdint>
#include <cstring>
#include <unistd.h>

// Python arms it, and counts the places that it gets to itself.
struct Failpoint {
    const char* armed;  // or nullptr
    uint64_t remaining;
    void (*stop)();  // called instead of the end of the process, or nullptr

    // Whether the next `hit` of a place counts: then the work around a `mid_` one is split in two.
    bool is_next(const char* name) const { return armed && remaining == 1 && !strcmp(armed, name); }

    void hit(const char* name) {
        if (!armed || strcmp(armed, name) || --remaining) return;
        if (stop) stop();
        else kill(getpid(), SIGKILL);
    }
};
