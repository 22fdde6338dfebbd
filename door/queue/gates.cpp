#include "queue/gates.hpp"

#include "door.hpp"

namespace door {

Gates::Gates(Door& door) : door_(door), thread_([this] { wait_for_gates(); }) {}

Gates::~Gates() {
    {
        std::lock_guard<std::mutex> guard(mutex_);
        is_ending_ = true;
        changed_.notify_all();
    }
    thread_.join();
}

void Gates::add(const Stored& stored) {
    std::lock_guard<std::mutex> guard(mutex_);
    if (stored.gate <= newest_durable()) return answer(stored);
    stored_[waiting_++] = stored;
    changed_.notify_all();
}

void Gates::set_engine(const Engine* engine) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !waiting_; });
    engine_ = engine;
}

void Gates::durable(u64 gate) {
    std::lock_guard<std::mutex> guard(mutex_);
    told_ = std::max(told_, gate);
    if (!engine_) answer_durable(told_);
}

void Gates::abandon() {
    std::lock_guard<std::mutex> guard(mutex_);
    answer_durable(NEVER);
}

// In a thread of its own: an engine waits by blocking.
void Gates::wait_for_gates() {
    use_thread_storage();
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return is_ending_ || (engine_ && waiting_); });
        if (is_ending_) return;
        const Engine* const engine = engine_;
        const u64 gate = stored_[0].gate;
        lock.unlock();
        engine->wait(engine->self, gate);
        lock.lock();
        answer_durable(newest_durable());
    }
}

void Gates::answer_durable(u64 durable) {
    u64 done = 0;
    while (done < waiting_ && stored_[done].gate <= durable) answer(stored_[done++]);
    if (!done) return;
    std::copy(stored_ + done, stored_ + waiting_, stored_);
    waiting_ -= done;
    changed_.notify_all();
    door_.queue.ring();  // a batch that was too small to start beside others may start
}

void Gates::answer(const Stored& stored) {
    door_.account.change(BATCH, -(i64)stored.counted_bytes);
    const u64 durable_ns = now_ns();
    door_.engine_stats.batch_ns.observe(durable_ns - stored.began_ns);
    door_.give_back(stored.first, durable_ns);
}

}  // namespace door
