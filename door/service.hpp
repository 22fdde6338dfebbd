// Native code that takes calls.
#pragma once
#include "call.hpp"

namespace door {

class Service {
  public:
    virtual ~Service() = default;
    // A call has begun: its headers are there. Returns what handles it; null: Python does.
    virtual Handler* open(Call& call) = 0;
};

}  // namespace door
