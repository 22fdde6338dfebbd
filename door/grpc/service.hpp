// Native code that takes calls.
#pragma once
#include "grpc/call.hpp"

namespace door {

class Service {
  public:
    virtual ~Service() = default;
    // Serves a call: its headers are there. False: Python does.
    virtual bool open(Call& call) = 0;
};

}  // namespace door
