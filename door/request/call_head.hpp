// What Python is told of a call when it begins: of one of gRPC, or of a connection that speaks as clients of Redis do.
#pragma once
#include <memory>
#include <string>

#include "request/access.hpp"

namespace door {

// What a client may send of a stream unasked.
constexpr u64 WINDOW_BYTES = 16 << 10;

struct CallHead {
    virtual ~CallHead() = default;

    // What the client said: `/service/method`, the rest of its headers as lines, and when the call must be over.
    std::string path;
    std::string metadata;
    u64 deadline_ns = NEVER;

    // Who makes it, if the door knows (access.hpp), by what it shows.
    std::shared_ptr<Caller> caller;
    Shown shown;

    // Whether the door has counted its start.
    virtual bool is_counted() const { return false; }
    // Python has a call of its own for it, and counts its end.
    virtual void leave_end() {}
    // Python has not heard of it, and never will.
    virtual void count_unheard() {}
};

}  // namespace door
