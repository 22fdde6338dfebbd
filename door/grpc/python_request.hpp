// A request that one of Python's handlers makes: a BatchRequest over the connection that it serves, in the place that this one
// has in the queue. Its answer is an event.
#pragma once
#include <list>

#include "python/forward.hpp"
#include "grpc/kv_request.hpp"

namespace door {

class PythonRequest final : public KvRequest {
  public:
    PythonRequest(Connection& connection, std::list<Event>&& answer) : KvRequest(connection), answer(std::move(answer)) {
        python = this;
    }

    u64 ticket() const { return answer.front().id(); }

    std::list<Event> answer;  // one, made in advance: Python must hear of it
};

}  // namespace door
