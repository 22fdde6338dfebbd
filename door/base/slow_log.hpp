// The calls that took long, until Python takes them (server/signs/slow_log.py).
#pragma once
#include <mutex>
#include <string_view>
#include <vector>

#include "door.h"
#include "base/types.hpp"

namespace door {

struct Request;

class SlowLog {
  public:
    // std::bad_alloc. `over_ns`: a call that takes so long is slow; NEVER: none is.
    SlowLog(u64 over_ns, u64 calls_max) : over_ns_(over_ns), calls_(calls_max) {}

    // Any thread.

    bool is_slow(u64 ns) const { return ns >= over_ns_; }
    // Another one, in the place of the oldest where there is no room.
    void note(const DoorSlowCall& call);
    // Takes away the oldest, up to so many; returns how many these were.
    u64 take(DoorSlowCall* calls, u64 room);

    // So many notes a thread may make from one tick to the next: under a load under which all is slow, they would be a load.
    static constexpr u64 NOTES_PER_TICK = 128;

  private:
    const u64 over_ns_;
    std::mutex mutex_;
    std::vector<DoorSlowCall> calls_;  // a ring
    u64 first_ = 0, count_ = 0;
};

// What of a slow call its request knows: where its time went until `ended_ns`, its operations and bytes, and the beginning of
// its first key.
DoorSlowCall slow_call_of(const Request& request, u64 ended_ns);

// Copies as much as there is room for, and a zero.
template <size_t ROOM>
void copy_text(char (&to)[ROOM], std::string_view text) {
    to[text.copy(to, ROOM - 1)] = 0;
}

}  // namespace door
