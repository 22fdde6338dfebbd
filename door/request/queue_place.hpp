// A connection's place in the queue, and what the queue's owner knows of its requests.
#pragma once
#include <algorithm>

#include "request/request.hpp"

namespace door {

// Its own requests in their order, and its neighbours among the connections that have some. The engine's thread owns it.
struct QueuePlace {
    Request* first = nullptr;
    Request* last = nullptr;
    Connection* before = nullptr;
    Connection* behind = nullptr;

    // The values that one of its requests may bring: the most that one has brought, or a guess.
    u64 value_bytes() const { return has_read ? most_value_bytes : GUESSED_VALUE_BYTES; }
    void learn(u64 bytes) {
        most_value_bytes = std::max(most_value_bytes, bytes);
        has_read = true;
    }

    static constexpr u64 GUESSED_VALUE_BYTES = 256 << 10;
    u64 most_value_bytes = 0;
    bool has_read = false;
};

}  // namespace door
