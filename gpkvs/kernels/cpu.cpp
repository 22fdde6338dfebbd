// The kernels compiled for the CPU, with what a GPU brings by itself: threads, a sort, a scan.
//
// The host calls through ctypes, which releases Python's global lock for the length of a call.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <sys/vfs.h>
#include <thread>
#include <vector>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "change.cu"
#include "find.cu"
#include "fold.cu"
#include "order.cu"
#include "order.hpp"
#include "place.cu"
#include "read.cu"
#include "record.cu"
#include "route.cu"
#include "scan.cu"
#include "small.hpp"

namespace {

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

    void run(const Kernel* kernel, const void* args, u64 items, u64 grain) {
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

    u64 order(const u64* fingerprint0, const u64* fingerprint1, const u8* ops, u64 n, u64 grain, u32* order,
              u32* chain_of, u32* chain_start, u32* last_write) {
        const u64 parts = std::max<u64>(1, std::min<u64>(workers_.size() + 1, n / grain));
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
                               }};
        run(&kernel, &function, parts, 1);
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

}  // namespace

extern "C" {

void* gpkvs_pool_new(u32 threads) { return new Pool(threads); }
void gpkvs_pool_delete(void* pool) { delete (Pool*)pool; }

// Runs a kernel over `items`, `grain` of them at a time to a thread; returns when all are done.
void gpkvs_run(void* pool, const Kernel* kernel, const void* args, u64 items, u64 grain) {
    ((Pool*)pool)->run(kernel, args, items, grain);
}

static const u64 NO_MEMORY = ~0ull;

// order: fills order[n], chain_of[n] (by sorted position), chain_start[chains + 1], last_write[n]; returns the chains, or
// NO_MEMORY.
u64 gpkvs_order(void* pool, const u64* fingerprint0, const u64* fingerprint1, const u8* ops, u64 n, u64 grain, u32* order,
                u32* chain_of, u32* chain_start, u32* last_write) {
    try {
        return ((Pool*)pool)->order(fingerprint0, fingerprint1, ops, n, grain, order, chain_of, chain_start, last_write);
    } catch (const std::bad_alloc&) {
        return NO_MEMORY;
    }
}

// The one way by which the host stores to PM: whole words, then a fence.
void gpkvs_pm_store(u64* to, const u64* from, u64 words) {
    for (u64 w = 0; w < words; w++) pm_store(to + w, from[w]);
    pm_persist();
}

// The best way of this processor to write a cache line back to memory; WRITE_BACK_NONE if it has none that is known.
u32 gpkvs_write_back_best() {
#if defined(__x86_64__)
    u32 a, b = 0, c, d = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        if (b >> 24 & 1) return WRITE_BACK_CLWB;
        if (b >> 23 & 1) return WRITE_BACK_CLFLUSHOPT;
    }
    if (__get_cpuid(1, &a, &b, &c, &d) && d >> 19 & 1) return WRITE_BACK_CLFLUSH;
#endif
    return WRITE_BACK_NONE;
}

// From now on, whatever a kernel or the host stores to PM is written back before the fence that follows.
void gpkvs_write_back_on(u32 how) { pm_write_back = how; }

// How many cache lines were written back since the process began.
u64 gpkvs_lines_written_back() { return __atomic_load_n(&pm_lines_written_back, __ATOMIC_RELAXED); }

// CRC32C of whole words, for the structures that the host writes.
u32 gpkvs_crc32c(const u8* data, u64 words) {
    u32 crc = ~0u;
    for (u64 w = 0; w < words; w++) crc = crc32c_word(crc, load_unaligned(data + 8 * w));
    return ~crc;
}

// The magic number of the file system a file is on (statfs), 0 if it cannot be told.
u64 gpkvs_filesystem(int file) {
    struct statfs found;
    return fstatfs(file, &found) == 0 ? (u64)found.f_type : 0;
}

}  // extern "C"
