// The requests that wait for the engine, clients' and those of Python's handlers: bounded, and fair to connections.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "net/connection.hpp"
#include "request/request.hpp"

namespace door {

enum class Verdict { TAKEN, PASSED_BY, END };

// Threads of connections append to an inbox. The engine's thread takes it in and owns all the rest, so requests are shared out
// without a lock.
class Queue {
  public:
    explicit Queue(u64 requests_max) : requests_max_(requests_max) {}

    // Any thread.

    // Room for one request, which must be appended then. False: the queue is full.
    bool reserve() {
        if (count_.fetch_add(1, std::memory_order_relaxed) < requests_max_) return true;
        count_.fetch_sub(1, std::memory_order_relaxed);
        return false;
    }

    void append(Request* first, Request* last) {
        std::lock_guard<std::mutex> guard(mutex_);
        (inbox_last_ ? inbox_last_->next : inbox_first_) = first;
        inbox_last_ = last;
    }

    // The engine's thread has something to see, such as requests that were appended.
    void ring() {
        std::lock_guard<std::mutex> guard(mutex_);
        is_rung_ = true;
        rings_.notify_one();
    }

    u64 requests() const { return count_.load(std::memory_order_relaxed); }

    // The engine's thread.

    // Returns when somebody rang since the last return, or at that time.
    void wait(u64 until_ns) {
        const auto is_rung = [this] { return is_rung_; };
        std::unique_lock<std::mutex> lock(mutex_);
        if (until_ns == NEVER)
            rings_.wait(lock, is_rung);
        else
            rings_.wait_until(lock, std::chrono::steady_clock::time_point(std::chrono::nanoseconds(until_ns)), is_rung);
        is_rung_ = false;
    }

    // Requests of the inbox get their places.
    void take_in();
    bool is_empty() const { return !front_; }
    // Of all that has a place.
    u64 operations() const { return operations_; }

    // Shows requests in turn by connection, up to CONNECTION_REQUESTS or CONNECTION_BYTES of each, until the judge ends it or
    // has passed by all that is left. A request that is passed by keeps its place, and those of its connection behind it. One
    // that is taken is the judge's, with its `next`.
    template <class Judge>  // Verdict(Request*)
    void offer(Judge judge);

    // Takes back a request that was taken: it is the next again. Of several the last comes first.
    void put_back(Request* request);
    // All others come before this connection.
    void end_turn(Connection* connection);

  private:
    static constexpr u64 CONNECTION_REQUESTS = 64, CONNECTION_BYTES = 256 << 10;

    void link_front(Connection* connection);
    void link_back(Connection* connection);
    void unlink(Connection* connection);

    const u64 requests_max_;
    std::atomic<u64> count_{0};
    std::mutex mutex_;
    std::condition_variable rings_;
    Request* inbox_first_ = nullptr;
    Request* inbox_last_ = nullptr;
    bool is_rung_ = false;

    Connection* front_ = nullptr;  // whose turn it is
    Connection* back_ = nullptr;
    u64 operations_ = 0;
};

inline void Queue::take_in() {
    Request* request;
    {
        std::lock_guard<std::mutex> guard(mutex_);
        request = inbox_first_;
        inbox_first_ = inbox_last_ = nullptr;
    }
    while (request) {
        Request* next = request->next;
        QueuePlace& place = request->connection->queue_place;
        request->next = nullptr;
        if (!place.first) link_back(request->connection);
        (place.first ? place.last->next : place.first) = request;
        place.last = request;
        operations_ += request->n;
        request = next;
    }
}

template <class Judge>
void Queue::offer(Judge judge) {
    for (bool any_taken = true; any_taken && front_;) {
        any_taken = false;
        Connection* const last = back_;  // who is given another turn stands behind it
        for (Connection* connection = front_; connection;) {
            Connection* const behind = connection == last ? nullptr : connection->queue_place.behind;
            QueuePlace& place = connection->queue_place;
            u64 requests = 0, bytes = 0;
            Verdict verdict = Verdict::TAKEN;
            while (place.first && requests < CONNECTION_REQUESTS && bytes < CONNECTION_BYTES) {
                Request* const request = place.first;
                Request* const next = request->next;
                verdict = judge(request);
                if (verdict != Verdict::TAKEN) break;
                place.first = next;
                requests++;
                bytes += request->payload_bytes();
                operations_ -= request->n;
                count_.fetch_sub(1, std::memory_order_relaxed);
            }
            if (requests) {
                any_taken = true;
                unlink(connection);
                if (place.first) link_back(connection);
            }
            if (verdict == Verdict::END) return;
            connection = behind;
        }
    }
}

inline void Queue::put_back(Request* request) {
    QueuePlace& place = request->connection->queue_place;
    if (place.first) unlink(request->connection);
    link_front(request->connection);
    request->next = place.first;
    if (!place.first) place.last = request;
    place.first = request;
    count_.fetch_add(1, std::memory_order_relaxed);
    operations_ += request->n;
}

inline void Queue::end_turn(Connection* connection) {
    if (!connection->queue_place.first) return;
    unlink(connection);
    link_back(connection);
}

inline void Queue::link_front(Connection* connection) {
    QueuePlace& place = connection->queue_place;
    place.before = nullptr;
    place.behind = front_;
    (front_ ? front_->queue_place.before : back_) = connection;
    front_ = connection;
}

inline void Queue::link_back(Connection* connection) {
    QueuePlace& place = connection->queue_place;
    place.before = back_;
    place.behind = nullptr;
    (back_ ? back_->queue_place.behind : front_) = connection;
    back_ = connection;
}

inline void Queue::unlink(Connection* connection) {
    QueuePlace& place = connection->queue_place;
    (place.before ? place.before->queue_place.behind : front_) = place.behind;
    (place.behind ? place.behind->queue_place.before : back_) = place.before;
    place.before = place.behind = nullptr;
}

}  // namespace door
