// A save of a checkpoint's group by one call, which returns when all that differs is stored durably (gpkvs/gpm/blocks.py).
#pragma once
#include "base/pool.hpp"

// What kernel gpm_save takes; `host_parts` are its parts as the host reads them.
#define GPM_SAVE_FIELDS(F) GPM_SAVE_ARGS(F) F(const GpmPart*, host_parts) F(u64, blocks)

// The driver's functions, which this library is not linked with: cuLaunchKernel, cuMemcpyAsync and cuStreamSynchronize. And
// what they are called with.
struct GpmQueue {
    int (*launch)(void* function, u32 blocks, u32, u32, u32 threads, u32, u32, u32 shared_bytes, void* queue,
                  void** parameters, void** extra);
    int (*copy)(u64 to, u64 from, size_t bytes, void* queue);
    int (*settle)(void* queue);
    void* function;
    u64 threads;  // of a block
    void* queue;
    u64 copies;  // whether the copy engine stores, not the kernel
};

struct GpmSave {
    GPM_SAVE_FIELDS(GPKVS_FIELD)

    u64 run(Pool& pool) const {
        const gpm_save_args args = arguments(to);
        u64 bytes = 0;
        for (u64 p = 0; p < count; p++) bytes += host_parts[p].bytes;
        pool.run(&gpkvs_kernel_gpm_save, &args, blocks, bytes / blocks / BYTES_OF_KEY + 1);
        return each_run([](const GpmPart&, u64, u64) {});
    }

    int run(const GpmQueue& on, u64& bytes) const {
        int error = launch(on, on.copies ? nullptr : to);
        if (!error) error = on.settle(on.queue);
        if (!error && on.copies && to) error = copy(on);
        if (error) return error;
        bytes = each_run([&](const GpmPart& part, u64 first, u64 last) {
            if (to) pm_persist_range((u64)to + part.at + first, last - first);
        });
        if (to) pm_persist_range((u64)to, DIGEST_BYTES * blocks);
        return 0;
    }

  private:
    static const u64 DIGEST_BYTES = 16;
    static const u64 BYTES_OF_KEY = 128;  // take as long as a key of another kernel: a whole block is worth another thread

    int launch(const GpmQueue& on, u8* stored_to) const {
        gpm_save_args args = arguments(stored_to);
        u64 items = blocks;
        const u32* limit = nullptr;
        void* parameters[] = {&args, &items, &limit};
        return on.launch(on.function, (u32)blocks, 1, 1, (u32)on.threads, 1, 1, 0, on.queue, parameters, nullptr);
    }

    int copy(const GpmQueue& on) const {
        int error = on.copy((u64)to, (u64)digest, DIGEST_BYTES * blocks, on.queue);
        each_run([&](const GpmPart& part, u64 first, u64 last) {
            if (!error) error = on.copy((u64)to + part.at + first, (u64)part.source + first, last - first, on.queue);
        });
        const int settled = on.settle(on.queue);  // also after an error: nothing is under way when this returns
        return error ? error : settled;
    }

    gpm_save_args arguments(u8* stored_to) const {
        return {parts, count, block_bytes, keys, digest, are_known, differs, stored_to};
    }

    // Calls with each run of bytes that differ, by the first one in its part and the one behind the last; returns their number.
    template <class Run>
    u64 each_run(Run run) const {
        u64 bytes = 0;
        for (u64 p = 0; differs && p < count; p++) {
            const GpmPart& part = host_parts[p];
            for (u64 first = 0, last = 0; first < part.bytes; first = last) {
                const u8* mark = differs + part.first_block + first / block_bytes;
                if (!*mark) {
                    last = first + block_bytes;
                    continue;
                }
                for (last = first; last < part.bytes && *mark; mark++) last += block_bytes;
                last = std::min(last, part.bytes);
                run(part, first, last);
                bytes += last - first;
            }
        }
        return bytes;
    }
};
