// Ends the transactions of GPUs, whose chunks are launched, beside the plan of the next one:
//
//     ... -> slots -> (all durable) -> IDLE -> (durable)
//
// One transaction is on its way at a time. It is ended by the first who has to wait for it, or by a thread, if somebody says that
// nobody will wait soon: to wake a thread, and to be woken by it, takes a tenth of a short transaction.
#pragma once
#include "commit/chunks.hpp"
#include "commit/commit_undo.hpp"

// `steps` are left to do with all chunks of `parts`, of which each processor has one. `delivered`: tells that the results have
// left for the host, or null. `apply_ns`, `idle_ns`: what it took to have the slots durable, and to end.
#define LANDING_FIELDS(F)                                                                   \
    F(StoreChunks**, parts) F(u64*, chunks) F(u64, count) F(u64, steps) F(u64, epoch) F(u64*, flag) \
    F(void*, delivered) F(Failpoint*, failpoint) F(u64, apply_ns) F(u64, idle_ns)

struct Landing {
    LANDING_FIELDS(GPKVS_FIELD)

    // An error of the driver ends the process: some slots may be stored, and the log has what they were.
    void run() {
        const u64 began = monotonic_ns();
        for (u64 p = 0; p < count; p++)
            if (chunks[p]) store(*parts[p], chunks[p]);
        failpoint->hit("before_apply_persist");  // the fences have: where a file must be synced, the host commits
        const u64 stored = monotonic_ns();
        failpoint->hit("before_idle_flag");
        const u64 idle = pack_flag(FLAG_IDLE, epoch);
        store_words("host store of IDLE in land", flag, &idle, 1);
        failpoint->hit("before_idle_persist");
        apply_ns = stored - began;
        idle_ns = monotonic_ns() - stored;
        if (delivered) wait_for_results(*parts[0]->waiter);
    }

  private:
    void store(StoreChunks& part, u64 of_part) {
        Launcher& waiter = *part.waiter;
        void* const entered = waiter.enter();
        part.run(steps, 0, of_part);
        waiter.leave(entered);
        if (const int error = waiter.error()) end_after_driver_error("a transaction could not be completed", error);
    }

    void wait_for_results(Launcher& waiter) {
        void* const entered = waiter.enter();
        waiter.settle(delivered);
        waiter.leave(entered);
        if (const int error = waiter.error()) end_after_driver_error("the results of a transaction could not be read", error);
    }
};

class Flight {
  public:
    ~Flight() { end(); }

    // Begins to end a transaction; the one before has landed. Returns its gate.
    u64 begin(Landing* landing) {
        std::lock_guard<std::mutex> guard(mutex_);
        waiting_ = landing;
        return ++begun_;
    }

    // Has the thread end what is on its way.
    void go_on() {
        std::lock_guard<std::mutex> guard(mutex_);
        if (!waiting_) return;
        is_left_ = true;
        if (!thread_.joinable()) start();
        wake_.notify_one();
    }

    // The newest gate that is durable, and whose results are there.
    u64 landed() const { return landed_.load(std::memory_order_acquire); }

    // Returns when a gate is durable, from any thread.
    void wait(u64 gate) {
        if (gate <= landed()) return;
        std::unique_lock<std::mutex> lock(mutex_);
        if (waiting_ && gate > landed()) land(lock);
        told_.wait(lock, [&] { return gate <= landed(); });
    }

    // Returns when nothing is on its way, for the one thread that begins.
    void wait_for_all() { wait(begun_); }

    // Ends the thread, when what is on its way has landed.
    void end() {
        {
            std::unique_lock<std::mutex> lock(mutex_);
            if (waiting_) land(lock);
            told_.wait(lock, [&] { return landed() == begun_; });
            is_ending_ = true;
        }
        wake_.notify_all();
        if (thread_.joinable()) thread_.join();
    }

  private:
    // Where the system gives no thread, those who wait do its work.
    void start() {
        try {
            thread_ = std::thread([this] { work(); });
        } catch (const std::exception&) {
        }
    }

    void work() {
        use_thread_storage();
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            wake_.wait(lock, [&] { return is_left_ || is_ending_; });
            if (is_ending_) return;
            if (waiting_) land(lock);
        }
    }

    void land(std::unique_lock<std::mutex>& lock) {
        Landing* const landing = waiting_;
        waiting_ = nullptr;
        is_left_ = false;
        lock.unlock();
        landing->run();
        lock.lock();
        landed_.fetch_add(1, std::memory_order_release);
        told_.notify_all();
    }

    std::thread thread_;
    std::mutex mutex_;
    std::condition_variable wake_, told_;
    Landing* waiting_ = nullptr;  // until somebody ends it
    u64 begun_ = 0;
    std::atomic<u64> landed_{0};
    bool is_left_ = false, is_ending_ = false;
};

static Flight& flight_of(const Commit& c) { return *undo(c).flight; }

// The last epoch of an incarnation is Python's: it begins the next one. All that the host's threads store is durable at once.
extern "C" const Committer gpkvs_undo_committer = {
    [](const Commit& c, u64 entry_words) {
        if (entry_words > undo(c).log_words) return LEFT_GROW_LOG;
        return undo(c).transaction->counter + 1 < 1ull << COUNTER_BITS ? LEFT_NOT : LEFT_RENEW;
    },
    [](Commit& c) { commit_undo(static_cast<CommitUndo&>(c)); },
    [](const Commit& c) { return undo(c).transaction->current.next_sequence; },
    [](const Commit&, u64& stable_sequence) {
        stable_sequence = ALL_STABLE;
        return u64{0};
    },
    [](const Commit& c) { return flight_of(c).landed(); },
    [](const Commit& c, u64 gate) { flight_of(c).wait(gate); },
    [](const Commit& c) { flight_of(c).wait_for_all(); },
};
