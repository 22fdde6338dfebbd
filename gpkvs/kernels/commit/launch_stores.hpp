// A kernel that stores to PM, and what belongs to it, launched by one call: the sum of a column that it fills, and the same
// kernel on the mirror. `after` tells the host that the stores are complete and the sum is there; the mirror may be later.
#pragma once
#include "base/launcher.hpp"

#define LAUNCH_STORES_FIELDS(F)                                                             \
    F(Launcher*, launcher) F(void*, queue) F(u64, kernel) F(const void*, args) F(u64, items) \
    F(const u64*, summed) F(u64*, tiles) F(u64*, total)                                     \
    F(const void*, mirror_args) F(u64, mirrored) F(void*, beside)                           \
    F(void*, before) F(void*, after) F(void*, followed)

struct LaunchStores {
    LAUNCH_STORES_FIELDS(GPKVS_FIELD)

    void run() const {
        launcher->use(queue);
        launcher->record(before);
        launcher->launch((Launch)kernel, args, items, nullptr);
        if (summed) launcher->scan({summed, nullptr, tiles, total}, items, nullptr);
        launcher->record(after);
        if (mirror_args) follow();
    }

    // Beside the stores to PM, which take longer. What is launched on the queue later finds the mirror as it is then.
    void follow() const {
        launcher->use(beside);
        launcher->wait(before);
        launcher->launch((Launch)kernel, mirror_args, mirrored, nullptr);
        launcher->record(followed);
        launcher->use(queue);
        launcher->wait(followed);
    }
};
