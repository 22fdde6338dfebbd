// What a thread waits for with epoll.
#pragma once
#include "base/types.hpp"

namespace door {

class Watched {
  public:
    virtual ~Watched() = default;
    virtual void ready(u32 events) = 0;
};

}  // namespace door
