// The host's threads, which share the items of a kernel as the blocks of a GPU would.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/order.hpp"

// Items below which waking a second thread costs more than it saves: a wake-up was measured to take about 10
// microseconds, an item of a typical kernel 20 to 100 nanoseconds.
static const u64 ITEMS_PER_THREAD = 2048;

// Items share so many bytes. An item counts for one key, and one more for each 256 of them: a typical kernel takes as long for a key.
static const u64 BYTES_OF_KEY = 256;
static u64 keys_of_bytes(u64 bytes, u64 items) { return 1 + bytes / (std::max<u64>(items, 1) * BYTES_OF_KEY); }

static const u64 COPIED_AT_ONCE = 64 << 10;  // bytes, by one thread
static const u64 SENT_AT_ONCE = 1 << 20;     // bytes, in whole parts of that
static const u64 PIECES_MAX = 32;            // that are copied before any other one is
static const u64 SUMMED_AT_ONCE = 1 << 15;   // numbers

// Workers that share the items of one kernel at a time; the caller works too. Callers of several threads wait for each other.
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

    void copy(u8* to, const u8* from, u64 bytes) {
        run_parts((bytes + SENT_AT_ONCE - 1) / SENT_AT_ONCE, [&](u64 part) {
            const u64 first = part * SENT_AT_ONCE;
            memcpy(to + first, from + first, std::min(SENT_AT_ONCE, bytes - first));
        });
    }

    // Copies memory past the caches, and sends each piece on when it is whole: `send` is told of its first byte and of the one
    // after its last, in order, while the rest is still copied. It returns an error or 0; the first error ends the sending.
    template <class Send>
    int copy_and_send(u8* to, const u8* from, u64 bytes, Send send) {
        int error = 0;
        for (u64 first = 0; first < bytes; first += PIECES_MAX * SENT_AT_ONCE)
            copy_and_send_some(to, from, first, std::min(bytes, first + PIECES_MAX * SENT_AT_ONCE), send, error);
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

    // Does each of so many parts, by its number.
    template <class Function>
    void run_parts(u64 parts, Function function) {
        const Kernel kernel = of_parts(function);
        run(&kernel, &function, parts, ITEMS_PER_THREAD);
    }

  private:
    template <class Send>
    void copy_and_send_some(u8* to, const u8* from, u64 begin_at, u64 end_at, Send& send, int& error) {
        std::atomic<u32> copied[PIECES_MAX] = {};
        const auto copy = [&](u64 part) {
            const u64 first = begin_at + part * COPIED_AT_ONCE;
            copy_past_caches(to + first, from + first, std::min(COPIED_AT_ONCE, end_at - first));
            copied[part * COPIED_AT_ONCE / SENT_AT_ONCE].fetch_add(1, std::memory_order_release);
        };
        const Kernel kernel = of_parts(copy);
        begin(&kernel, &copy, (end_at - begin_at + COPIED_AT_ONCE - 1) / COPIED_AT_ONCE, 1);
        for (u64 first = begin_at, piece = 0; first < end_at; first += SENT_AT_ONCE, piece++) {
            const u64 last = std::min(end_at, first + SENT_AT_ONCE);
            while (copied[piece].load(std::memory_order_acquire) * COPIED_AT_ONCE < last - first)
                if (!take_chunk()) std::this_thread::yield();
            if (!error) error = send(first, last);
        }
        finish();
    }

    template <class Function>
    static Kernel of_parts(const Function&) {
        return {0, "", [](const void* args, u64 first, u64 last) {
                    for (u64 part = first; part < last; part++) (*(const Function*)args)(part);
                }, 1, 0, 0};
    }

    // Only as many workers are woken as there are chunks, and nobody waits for one that has not begun: to wake all of many
    // threads takes longer than most jobs.
    void begin(const Kernel* kernel, const void* args, u64 items, u64 grain) {
        const u64 chunks = (items + grain - 1) / grain;
        callers_.lock();
        job_ = {kernel, args, items, grain, chunks};  // no chunk of the job before is being done: nobody reads it
        done_chunks_.store(0, std::memory_order_relaxed);
        round_++;
        left_.store(round_ << CHUNK_BITS | chunks, std::memory_order_release);
        u64 wanted = chunks - 1;
        {
            std::lock_guard<std::mutex> guard(mutex_);
            wanted = std::min<u64>(wanted, sleeping_);
        }
        for (; wanted; wanted--) wake_.notify_one();
    }

    void finish() {
        const u64 chunks = job_.chunks;
        if (done_chunks_.load(std::memory_order_acquire) < chunks) {
            std::unique_lock<std::mutex> lock(mutex_);
            done_.wait(lock, [&] { return done_chunks_.load(std::memory_order_acquire) == chunks; });
        }
        callers_.unlock();
    }

    bool is_work_left() const { return (left_.load(std::memory_order_relaxed) & CHUNK_MASK) != 0; }

    // Does one chunk of the job; false: all are taken. Chunks are taken in their order.
    bool take_chunk() {
        u64 left = left_.load(std::memory_order_relaxed);
        do {
            if ((left & CHUNK_MASK) == 0) return false;
        } while (!left_.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel, std::memory_order_relaxed));
        const Job job = job_;  // it stays until this chunk is done
        const u64 first = (job.chunks - (left & CHUNK_MASK)) * job.grain;
        job.kernel->run(job.args, first, std::min(first + job.grain, job.items));
        if (done_chunks_.fetch_add(1, std::memory_order_acq_rel) + 1 == job.chunks) {
            std::lock_guard<std::mutex> guard(mutex_);  // or the caller may look just before, and sleep just after
            done_.notify_one();
        }
        return true;
    }

    void work() {
        use_thread_storage();
        for (;;) {
            while (take_chunk()) {}
            if (awake_.count()) {
                const auto end = std::chrono::steady_clock::now() + awake_;
                while (!is_work_left() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
                if (is_work_left()) continue;
            }
            std::unique_lock<std::mutex> lock(mutex_);
            sleeping_++;
            wake_.wait(lock, [&] { return stopping_ || is_work_left(); });
            sleeping_--;
            if (stopping_) return;
        }
    }

    struct Job {
        const Kernel* kernel;
        const void* args;
        u64 items, grain, chunks;
    };

    // `left_`: the number of the job, so that nobody takes a chunk of another one than it saw, and the chunks not taken yet.
    static const u64 CHUNK_BITS = 32, CHUNK_MASK = (1ull << CHUNK_BITS) - 1;

    Order order_;
    std::vector<std::thread> workers_;
    std::mutex callers_;  // of the one whose job it is
    std::mutex mutex_;
    std::condition_variable wake_, done_;
    Job job_ = {};
    u64 round_ = 0;  // of jobs
    std::atomic<u64> left_{0}, done_chunks_{0};
    const std::chrono::nanoseconds awake_;
    u64 sleeping_ = 0;  // workers
    bool stopping_ = false;
};
