// Batches that were executed and are not durable yet: their answers wait for a gate.
#pragma once
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/account.hpp"
#include "door.h"
#include "request/request.hpp"
#include "base/stats.hpp"

namespace door {

// What remains of a batch while its answers wait.
struct Stored {
    Request* first;  // a list
    u64 gate;
    u64 counted_bytes;  // of its working memory
    u64 began_ns;
};

class Gates {
  public:
    static constexpr u64 MOST = 4;  // the journal has buffers for as many

    explicit Gates(Door& door);
    ~Gates();

    // The engine's thread.

    // Answers of a batch leave when its gate is durable, maybe at once. There is room for one more.
    void add(const Stored& stored);
    // Returns when nothing waits for the old one.
    void set_engine(const Engine* engine);

    // Any thread.

    u64 waiting() const { return waiting_.load(std::memory_order_relaxed); }
    // Without an engine: everything up to this gate is durable.
    void durable(u64 gate);
    // Everything is given back, durable or not: the door has no connections any more.
    void abandon();

  private:
    void wait_for_gates();
    u64 newest_durable() const { return engine_ ? engine_->durable(engine_->self) : told_; }
    void answer_durable(u64 durable);
    void answer(const Stored& stored);

    Door& door_;
    std::mutex mutex_;
    std::condition_variable changed_;
    const Engine* engine_ = nullptr;
    u64 told_ = 0;
    Stored stored_[MOST];  // the oldest first
    std::atomic<u64> waiting_{0};
    bool is_ending_ = false;
    std::thread thread_;
};

}  // namespace door
