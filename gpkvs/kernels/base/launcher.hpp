// What runs the kernels that native code launches: a GPU, through the functions of its driver, or the host's threads,
// which stand for one in tests. Kernels run one after the other, in the order of their launches.
#pragma once
#include "base/pool.hpp"
#include "base/radix.cuh"

// Those that native code launches.
#define LAUNCHED(F)                                                                         \
    F(get_u64) F(route_bytes) F(locate_numbers) F(locate_records) F(mark_written_places) F(mark_needed) F(pick_needed) \
    F(tell_descents) F(sort_tied) F(mark_chains) F(spread) F(last_writes) F(chain_numbers) F(chain_records) F(fold_u64) F(fold_bytes) \
    F(own_values) F(mark_changes) F(pick_changes) F(mark_blocks) F(pick_blocks) F(place_numbers) F(place_records) F(mark_placed) \
    F(mark_kept) F(pick_kept) F(name_records) F(stage_u64) F(stage_bytes) F(pick_moved_numbers) F(pick_moved_records) \
    F(mark_values) F(pick_values) F(tell) F(widen) F(log_chunk_u64) F(log_chunk_bytes) F(mark_chunk) F(log_redo_u64) F(log_redo_bytes) \
    F(load_slots_u64) F(load_slots_bytes) F(apply_u64) F(apply_bytes) F(locate_rows) F(gather_rows)
// Those that only a GPU has.
#define LAUNCHED_ON_GPU(F) F(sum_tiles) F(scan_tiles) F(add_tiles) F(count_digits) F(sum_digits) F(move_digits)

#define LAUNCH_NUMBER(name) LAUNCH_##name,
#define LAUNCH_NAME(name) #name ";"
#define LAUNCH_KERNEL(name) &gpkvs_kernel_##name,
enum Launch : u32 { LAUNCHED(LAUNCH_NUMBER) LAUNCHED_ON_GPU(LAUNCH_NUMBER) LAUNCHES };
static const Kernel* const LAUNCHED_KERNELS[] = {LAUNCHED(LAUNCH_KERNEL)};

class Launcher {
  public:
    virtual ~Launcher() = default;

    // Runs a kernel over so many items, or over fewer, if `limit` says so where the kernel runs.
    virtual void launch(Launch kernel, const void* args, u64 items, const u32* limit) = 0;

    // The running sums of a column, and in `total` the sum of all; `sums` may be null. `tiles` has room for `tiles_of(items)`.
    virtual void scan(const TileArgs& args, u64 items, const u32* limit) = 0;

    // A pass of a sort (radix.hpp).
    virtual void sort_digit(const DigitArgs& args, u64 items, const u32* limit) = 0;

    virtual void zero(void* at, u64 bytes) = 0;

    // Copies from the processor's memory to the host's, which is pinned.
    virtual void bring(void* to, const void* from, u64 bytes) = 0;

    // Says on which queue of a GPU all that follows is launched, and whether kernels there leave most of the GPU to others.
    virtual void use(void* queue, bool leaves_room = false) = 0;

    // Has an event tell that the queue has come so far; has the queue wait for an event.
    virtual void record(void* event) = 0;
    virtual void wait(void* event) = 0;

    // Returns when an event has told.
    virtual void settle(void* event) = 0;

    // Has the calling thread, which may be anyone's, reach the GPU of the queues; `leave` has it as it was before.
    virtual void* enter() = 0;
    virtual void leave(void* entered) = 0;

    // How long after the first of two events that have told the second one did; 0 where nobody knows.
    virtual u64 ns_between(void* first, void* then) = 0;

    // Whether the driver has refused something: nothing is launched after that.
    virtual bool has_failed() const = 0;

    // The first error of the driver since the last call, or 0.
    virtual int error() = 0;
};

class HostLauncher final : public Launcher {
  public:
    explicit HostLauncher(Pool* pool) : pool_(pool) {}

    void launch(Launch kernel, const void* args, u64 items, const u32* limit) override {
        const u64 fewer = limited(items, limit);
        if (fewer) pool_->run(LAUNCHED_KERNELS[kernel], args, fewer);
    }
    void scan(const TileArgs& a, u64 items, const u32* limit) override {
        u64 sum = 0;
        for (u64 i = 0; i < limited(items, limit); i++) {
            sum += a.marks[i];
            if (a.sums) a.sums[i] = sum;
        }
        *a.total = sum;
    }
    void sort_digit(const DigitArgs& a, u64 items, const u32* limit) override {
        if (a.wanted && !*a.wanted) return;
        const u64 n = limited(items, limit);
        u64 ends[DIGITS + 1] = {};
        for (u64 i = 0; i < n; i++) ends[digit_of(a.from[i], a.shift) + 1]++;
        for (u32 digit = 0; digit < DIGITS; digit++) ends[digit + 1] += ends[digit];
        for (u64 i = 0; i < n; i++) a.to[ends[digit_of(a.from[i], a.shift)]++] = a.from[i];
    }
    void zero(void* at, u64 bytes) override { memset(at, 0, bytes); }
    void bring(void* to, const void* from, u64 bytes) override { copy_bytes(to, from, bytes); }
    void use(void*, bool) override {}
    void record(void*) override {}
    void wait(void*) override {}
    void settle(void*) override {}
    void* enter() override { return nullptr; }
    void leave(void*) override {}
    u64 ns_between(void*, void*) override { return 0; }
    bool has_failed() const override { return false; }
    int error() override { return 0; }

  private:
    static u64 limited(u64 items, const u32* limit) { return limit ? std::min<u64>(items, *limit) : items; }

    Pool* const pool_;
};

// The driver's functions, which this library is not linked with: cuLaunchKernel, cuMemsetD8Async, cuEventRecord,
// cuStreamWaitEvent, cuMemcpyDtoHAsync, cuEventSynchronize, cuEventElapsedTime, cuCtxGetCurrent and cuCtxSetCurrent.
struct Driver {
    int (*launch)(void* function, u32 blocks, u32, u32, u32 threads, u32, u32, u32 shared_bytes, void* queue,
                  void** parameters, void** extra);
    int (*fill)(u64 at, u8 value, size_t bytes, void* queue);
    int (*record)(void* event, void* queue);
    int (*wait)(void* queue, void* event, u32 flags);
    int (*bring)(void* to, u64 from, size_t bytes, void* queue);
    int (*settle)(void* event);
    int (*elapsed)(float* ms, void* first, void* then);
    int (*context)(void** current);
    int (*use)(void* context);
};

class GpuLauncher final : public Launcher {
  public:
    // `functions`: the driver's handles of all kernels, in the order of `gpkvs_launched`. `context`: of the GPU.
    GpuLauncher(const Driver& driver, void* const* functions, void* context)
        : driver_(driver), functions_(functions, functions + LAUNCHES), context_(context) {}

    void launch(Launch kernel, const void* args, u64 items, const u32* limit) override {
        run(kernel, (items * LAUNCHED_KERNELS[kernel]->lanes + THREADS - 1) / THREADS, args, items, limit, blocks_max_);
    }
    void scan(const TileArgs& a, u64 items, const u32* limit) override {
        run(LAUNCH_sum_tiles, tiles_of(items), &a, items, limit);
        if (a.sums) run(LAUNCH_scan_tiles, tiles_of(items), &a, items, limit);
        else run(LAUNCH_add_tiles, 1, &a, items, nullptr);
    }
    void sort_digit(const DigitArgs& a, u64 items, const u32* limit) override {
        run(LAUNCH_count_digits, tiles_of(items), &a, items, limit);
        run(LAUNCH_sum_digits, DIGITS, &a, items, limit);
        run(LAUNCH_move_digits, tiles_of(items), &a, items, limit);
    }
    void zero(void* at, u64 bytes) override {
        if (bytes && !error_) error_ = driver_.fill((u64)at, 0, bytes, queue_);
    }
    void bring(void* to, const void* from, u64 bytes) override {
        if (bytes && !error_) error_ = driver_.bring(to, (u64)from, bytes, queue_);
    }
    void use(void* queue, bool leaves_room) override {
        queue_ = queue;
        blocks_max_ = leaves_room ? FEW_BLOCKS : ~0u;
    }
    void record(void* event) override {
        if (!error_) error_ = driver_.record(event, queue_);
    }
    void wait(void* event) override {
        if (!error_) error_ = driver_.wait(queue_, event, 0);
    }
    void settle(void* event) override {
        if (!error_) error_ = driver_.settle(event);
    }
    void* enter() override {
        void* entered = nullptr;
        if (!error_) error_ = driver_.context(&entered);
        if (!error_ && entered != context_) error_ = driver_.use(context_);
        return entered;
    }
    void leave(void* entered) override {
        if (!error_ && entered != context_) error_ = driver_.use(entered);
    }
    u64 ns_between(void* first, void* then) override {
        float ms = 0;
        if (!error_) error_ = driver_.elapsed(&ms, first, then);
        return (u64)(1e6f * ms);
    }
    bool has_failed() const override { return error_; }
    int error() override {
        const int error = error_;
        error_ = 0;
        return error;
    }

  private:
    static const u32 THREADS = 256;  // of a block
    // Of a kernel that waits for the link: enough to fill it. Where its stores wait, those of other kernels would, too.
    static const u32 FEW_BLOCKS = 64;
    static_assert(THREADS == TILE_THREADS, "tiles are launched as all other kernels are");

    void run(Launch kernel, u64 blocks, const void* args, u64 items, const u32* limit, u64 blocks_max = ~0ull) {
        void* parameters[] = {(void*)args, &items, &limit};
        if (items && !error_)
            error_ = driver_.launch(functions_[kernel], (u32)std::min(blocks, blocks_max), 1, 1, THREADS, 1, 1, 0, queue_, parameters, nullptr);
    }

    const Driver driver_;
    const std::vector<void*> functions_;
    void* const context_;
    void* queue_ = nullptr;
    u32 blocks_max_ = ~0u;
    int error_ = 0;
};
