// The host's threads, which share the items of a kernel as the blocks of a GPU would.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "order.hpp"

// Items below which waking a second thread costs more than it saves: a wake-up was measured to take about 10
// microseconds, an item of a typical kernel 20 to 100 nanoseconds.
static const u64 ITEMS_PER_THREAD = 2048;

static const u64 COPIED_AT_ONCE = 64 << 10;  // bytes, by one thread
static const u64 SENT_AT_ONCE = 1 << 20;     // bytes, in whole parts of that
static const u64 PIECES_MAX = 32;            // that are sent
static const u64 SUMMED_AT_ONCE = 1 << 15;   // numbers

// Workers that share the items of one kernel at a time; the caller works too.
class Pool {
  public:
    // After a job, a worker looks for the next one so long before it sleeps: to wake it takes longer than a short job.
    explicit Pool(unsigned threads, u64 awake_ns = 0) : awake_(awake_ns) {
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
        begin(kernel, args, items, grain);
        while (take_chunk()) {}
        finish();
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

    // Copies memory, and sends each piece on when it is whole: `send` is told of its first byte and of the one after its
    // last, in order, while the rest is still copied. It returns an error or 0; the first error ends the sending.
    template <class Send>
    int copy_and_send(u8* to, const u8* from, u64 bytes, Send send) {
        std::atomic<u32> copied[PIECES_MAX] = {};
        const auto copy = [&](u64 part) {
            const u64 first = part * COPIED_AT_ONCE;
            memcpy(to + first, from + first, std::min(COPIED_AT_ONCE, bytes - first));
            copied[first / SENT_AT_ONCE].fetch_add(1, std::memory_order_release);
        };
        const Kernel kernel = of_parts(copy);
        const u64 parts = (bytes + COPIED_AT_ONCE - 1) / COPIED_AT_ONCE;
        begin(&kernel, &copy, parts, 1);
        int error = 0;
        for (u64 first = 0, piece = 0; first < bytes; first += SENT_AT_ONCE, piece++) {
            const u64 last = std::min(bytes, first + SENT_AT_ONCE);
            while (copied[piece].load(std::memory_order_acquire) * COPIED_AT_ONCE < last - first)
                if (!take_chunk()) std::this_thread::yield();
            if (!error) error = send(first, last);
        }
        finish();
        return error;
    }

    // The sum of a column modulo 2^64.
    u64 sum(const u64* column, u64 n) {
        std::atomic<u64> all{0};
        run_parts((n + SUMMED_AT_ONCE - 1) / SUMMED_AT_ONCE, [&](u64 part) {
            const u64 first = part * SUMMED_AT_ONCE, last = std::min(n, first + SUMMED_AT_ONCE);
            u64 sum = 0;
            for (u64 i = first; i < last; i++) sum += column[i];
            all.fetch_add(sum, std::memory_order_relaxed);
        });
        return all;
    }

  private:
    template <class Function>
    void run_parts(u64 parts, Function function) {
        const Kernel kernel = of_parts(function);
        run(&kernel, &function, parts, ITEMS_PER_THREAD);
    }

    template <class Function>
    static Kernel of_parts(const Function&) {
        return {0, "", [](const void* args, u64 first, u64 last) {
                    for (u64 part = first; part < last; part++) (*(const Function*)args)(part);
                }, 1, 0, 0};
    }

    void begin(const Kernel* kernel, const void* args, u64 items, u64 grain) {
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
    }

    void finish() {
        std::unique_lock<std::mutex> lock(mutex_);
        done_.wait(lock, [this] { return busy_ == 0; });
    }

    bool take_chunk() {
        const u64 first = next_.fetch_add(grain_, std::memory_order_relaxed);
        if (first >= items_) return false;
        kernel_->run(args_, first, std::min(first + grain_, items_));
        return true;
    }

    void work() {
        u64 seen = 0;
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            wake_.wait(lock, [&] { return stopping_ || round_ != seen; });
            if (stopping_) return;
            seen = round_;
            lock.unlock();
            while (take_chunk()) {}
            lock.lock();
            if (--busy_ == 0) done_.notify_one();
            if (awake_.count() == 0) continue;
            lock.unlock();
            const auto end = std::chrono::steady_clock::now() + awake_;
            while (round_ == seen && std::chrono::steady_clock::now() < end) std::this_thread::yield();
            lock.lock();
        }
    }

    Order order_;
    std::vector<std::thread> workers_;
    std::mutex mutex_;
    std::condition_variable wake_, done_;
    std::atomic<u64> next_{0};
    const Kernel* kernel_ = nullptr;
    const void* args_ = nullptr;
    u64 items_ = 0, grain_ = 1;
    std::atomic<u64> round_{0};
    const std::chrono::nanoseconds awake_;
    unsigned busy_ = 0;
    bool stopping_ = false;
};
