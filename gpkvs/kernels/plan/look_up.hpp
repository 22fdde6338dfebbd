// GETs of numbers alone, on a GPU, launched by one call.
//
// The kernel reads keys that lie in pinned memory, and stores what they see there, over the link, which carries both directions at
// once. Plain keys get to pinned memory first: the host's threads copy them a MiB at a time, and each MiB is looked up while the
// next one is copied. Two queues take turns, so that a kernel begins while the last answers of the one before are on their way.
#pragma once
#include "base/launcher.hpp"

// `keys`: where the kernel reads them. `plain`: where they are copied from; null: nowhere. `missed` is zeroed, and its sum brought
// to `told`, if anybody asks (`missed` is not null). `before` and `after` are of the queue `beside`; `done` tells the host.
#define LOOK_UP_FIELDS(F)                                                                   \
    F(Launcher*, launcher) F(Pool*, pool) F(void*, queue) F(void*, beside) F(void*, before) F(void*, after) F(void*, done) \
    F(u64, count) F(const u8*, plain) F(u8*, keys) F(u64, hash_key0) F(u64, hash_key1) F(const U64Bucket*, index) \
    GEOMETRY_ARGS(F) F(u64, if_there) F(u8*, seen) F(u64*, values) F(u64*, missed) F(u64*, told)

struct LookUp {
    LOOK_UP_FIELDS(GPKVS_FIELD)

    void run() const {
        launcher->use(queue);
        if (missed) launcher->zero(missed, sizeof(u64));
        const u64 bytes = 8 * count;
        if (!plain) look(0, count);
        else if (bytes > COPIED_ALONE) copy_and_look(bytes);
        else {
            memcpy(keys, plain, bytes);
            look(0, count);
        }
        if (missed) launcher->bring(told, missed, sizeof(u64));
        launcher->record(done);
    }

  private:
    // To wake the threads takes longer than to copy so many bytes (docs/decisions/gpu.md).
    static const u64 COPIED_ALONE = 2 << 20;

    void copy_and_look(u64 bytes) const {
        launcher->record(before);
        launcher->use(beside);
        launcher->wait(before);
        u64 turn = 0;
        pool->copy_and_send(keys, plain, bytes, [&](u64 first, u64 last) {
            launcher->use(turn++ % 2 ? beside : queue);
            look(first / 8, last / 8);
            return 0;
        });
        launcher->use(beside);
        launcher->record(after);
        launcher->use(queue);
        launcher->wait(after);
    }

    void look(u64 first, u64 last) const {
        const get_u64_args args = {keys + 8 * first, hash_key0, hash_key1, index, blocks, unmoved, if_there, seen + first,
                                   values + first, missed};
        launcher->launch(LAUNCH_get_u64, &args, last - first, nullptr);
    }
};
