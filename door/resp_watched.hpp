// The keys that a client watches, each with the version that it had when it was watched first; 0: it was not there.
#pragma once
#include <string>
#include <unordered_map>

#include "types.hpp"

namespace door {

using WatchedKeys = std::unordered_map<std::string, u64>;

// What one of them takes, about.
constexpr u64 watched_bytes(u64 key_bytes) { return 88 + key_bytes; }

}  // namespace door
