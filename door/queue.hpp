// The requests that wait for the engine: bounded, and fair to connections (server/fair_queue.py).
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>

#include "request.hpp"

namespace door {

// A connection's place in the queue: its own requests in their order, and its neighbours among the connections that have some.
struct QueuePlace {
    Request* first = nullptr;
    Request* last = nullptr;
    Connection* before = nullptr;
    Connection* behind = nullptr;
};

}  // namespace door
