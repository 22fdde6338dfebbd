// A connection's place in the queue.
#pragma once
#include "request.hpp"

namespace door {

// Its own requests in their order, and its neighbours among the connections that have some. The engine's thread owns it.
struct QueuePlace {
    Request* first = nullptr;
    Request* last = nullptr;
    Connection* before = nullptr;
    Connection* behind = nullptr;
};

}  // namespace door
