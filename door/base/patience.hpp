// How long the door waits for clients.
#pragma once
#include "base/types.hpp"

namespace door {

struct Patience {
    static constexpr u64 SECOND_NS = 1000 * 1000 * 1000;

    // For a connection's first frames, for the rest of a call's headers, and for the next byte of a message that was begun.
    u64 preface_ns = 10 * SECOND_NS, headers_ns = 10 * SECOND_NS, message_ns = 10 * SECOND_NS;
    // A silent client is asked whether it is still there, and must answer.
    u64 keepalive_ns = 60 * SECOND_NS, keepalive_answer_ns = 20 * SECOND_NS;
    // For the answer to the ping of a drain.
    u64 drain_ns = 5 * SECOND_NS;
    // For a stranger's login, or where nobody logs in, for its first request or command.
    u64 login_ns = 60 * SECOND_NS, first_request_ns = 600 * SECOND_NS;
    // A stranger gives its place away sooner only if no other one is left.
    u64 young_ns = SECOND_NS;
    // For each MiB of a value that comes in pieces: its room must not be kept for ever.
    u64 mebibyte_ns = 8 * SECOND_NS;
    // For the next 64 KiB of what stands before a value that is lent, and of itself: nobody else gets its space meanwhile.
    u64 unread_ns = 60 * SECOND_NS;
    // Until a client that was told to calm down has read that.
    u64 calm_ns = 2 * SECOND_NS;
};

}  // namespace door
