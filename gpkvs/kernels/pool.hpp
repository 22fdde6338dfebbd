// The host's threads, which share the items of a kernel as the blocks of a GPU would.
#pragma once
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "order.hpp"

// Items below which waking a second thread costs more than it saves: a wake-up was measured to take about 10
// microseconds, an item of a typical kernel 20 to 100 nanoseconds.
static const u64 ITEMS_PER_THREAD = 2048;

// Workers that share the items of one kernel at a time; the caller works too.
class Pool {
  public:
    explicit Pool(unsigned threads) {
        // Where the system gives no more threads the pool is smaller: the caller alone would do. No exception may leave a
        // function that ctypes calls.
        try {
            for (unsigned t = 1; t < threads; t++) workers_.emplace_back([this] { work(); });
        } catch (const std::exception&) {
        }
    }

    ~Pool() {
        {
            std::lock_guard<std::mutex> guard(mutex_);
            stopping_ = true;
        }
        wake_.notify_all();
        for (std::thread& worker : workers_) worker.join();
    }

    // Runs a kernel over `items`, of which each stands for so many keys; returns when all are done.
    void run(const Kernel* kernel, const void* args, u64 items, u64 keys_per_item = 1) {
        const u64 grain = std::max<u64>(1, ITEMS_PER_THREAD / keys_per_item);
        if (workers_.empty() || items <= grain) return kernel->run(args, 0, items);
        std::unique_lock<std::mutex> lock(mutex_);
        kernel_ = kernel;
        args_ = args;
        items_ = items;
        grain_ = grain;
        next_.store(0, std::memory_order_relaxed);
        busy_ = (unsigned)workers_.size();
        round_++;
        lock.unlock();
        wake_.notify_all();
        take_chunks();
        lock.lock();
        done_.wait(lock, [this] { return busy_ == 0; });
    }

    // Sorts a batch (order.hpp); returns the number of chains. std::bad_alloc where there is no memory.
    u64 order(const u64* fingerprint0, const u64* fingerprint1, const u8* ops, u64 n, u32* order, u32* chain_of,
              u32* chain_start, u32* last_write) {
        const u64 parts = std::max<u64>(1, std::min<u64>(workers_.size() + 1, n / ITEMS_PER_THREAD));
        order_.begin(fingerprint0, fingerprint1, n, parts);
        run_parts(parts, [&](u64 part) { order_.sort(part); });
        const u64 chains = order_.place();
        chain_start[chains] = (u32)n;
        run_parts(parts, [&](u64 part) { order_.write(part, ops, order, chain_of, chain_start, last_write); });
        return chains;
    }

  private:
    template <class Function>
    void run_parts(u64 parts, Function function) {
        const Kernel kernel = {0, "", [](const void* args, u64 first, u64 last) {
                                   for (u64 part = first; part < last; part++) (*(const Function*)args)(part);
                               }, 1, 0, 0};
        run(&kernel, &function, parts, ITEMS_PER_THREAD);
    }

    void take_chunks() {
        for (u64 first; (first = next_.fetch_add(grain_, std::memory_order_relaxed)) < items_;)
            kernel_->run(args_, first, std::min(first + grain_, items_));
    }

    void work() {
        u64 seen = 0;
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            wake_.wait(lock, [&] { return stopping_ || round_ != seen; });
            if (stopping_) return;
            seen = round_;
            lock.unlock();
            take_chunks();
            lock.lock();
            if (--busy_ == 0) done_.notify_one();
        }
    }

    Order order_;
    std::vector<std::thread> workers_;
    std::mutex mutex_;
    std::condition_variable wake_, done_;
    std::atomic<u64> next_{0};
    const Kernel* kernel_ = nullptr;
    const void* args_ = nullptr;
    u64 items_ = 0, grain_ = 1, round_ = 0;
    unsigned busy_ = 0;
    bool stopping_ = false;
};
