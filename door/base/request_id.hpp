// The ids by which the server's log, the errors of calls and the slow log name a call.
#pragma once
#include <string>
#include <string_view>

#include "base/types.hpp"

namespace door {

// The client says it in this header, and hears it in this trailer (proto/metadata.py).
constexpr std::string_view REQUEST_ID = "gpkvs-request-id: ";
constexpr size_t REQUEST_ID_BYTES_MAX = 64;

// The one that a client gives, among the lines of its headers; empty if it gives none that may be one: 1 to 64 characters of
// printable ASCII without spaces.
std::string_view given_request_id(std::string_view metadata);

// One that no other call has. std::bad_alloc.
std::string new_request_id();

// The id of a call that cannot bring one: it is made when somebody asks, and stays.
class LateRequestId {
  public:
    std::string text();

  private:
    u64 number_ = 0;
};

// The text of an error, with the id behind it: the Redis protocol has no other place for it. What Redis says in words of its
// own stays as it is, since clients compare it.
inline std::string with_request_id(std::string text, const std::string& id) { return std::move(text) + " (request " + id + ")"; }

}  // namespace door
