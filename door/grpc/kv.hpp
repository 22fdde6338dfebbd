// The KV service, as far as its requests are plain: Get, Set, Delete, Increment, MultiGet, Batch and Pipeline. Python serves all the rest.
#pragma once
#include "grpc/service.hpp"

namespace door {

class KvService final : public Service {
  public:
    bool open(Call& call) override;
};

}  // namespace door
