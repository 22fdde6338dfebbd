// The keys that a client watches, each with the version that it had when it was watched first; 0: it was not there.
#pragma once
#include <map>
#include <string>

#include "base/types.hpp"

namespace door {

// In order: keys that a client has chosen could all fall on one place of a hash table.
using WatchedKeys = std::map<std::string, u64>;

// What one of them takes, about.
constexpr u64 watched_bytes(u64 key_bytes) { return 96 + key_bytes; }

}  // namespace door
