// How often something may happen: a number of times at once, and so many times a second.
#pragma once
#include <algorithm>

#include "base/types.hpp"

namespace door {

class TokenBucket {
  public:
    TokenBucket(u64 most, u64 per_second, u64 now_ns)
        : most_(most * ONE), per_second_(per_second), tokens_(most_), filled_ns_(now_ns) {}

    // False: too often.
    bool take(u64 now_ns, u64 tokens = 1) {
        // A token is so many nanoseconds' worth: no rounding loses any.
        const u64 passed = std::min(now_ns - filled_ns_, ONE * 60);
        filled_ns_ = now_ns;
        give_parts(passed * per_second_);
        if (tokens_ < tokens * ONE) return false;
        tokens_ -= tokens * ONE;
        return true;
    }

    void give(u64 tokens) { give_parts(tokens * ONE); }

  private:
    static constexpr u64 ONE = 1000 * 1000 * 1000;

    void give_parts(u64 parts) { tokens_ = std::min(most_, tokens_ + parts); }

    const u64 most_, per_second_;
    u64 tokens_, filled_ns_;
};

}  // namespace door
