// Whether a client takes what it has asked for: where that keeps space of others', a byte now and then is not enough.
#pragma once
#include "base/types.hpp"

namespace door {

class Progress {
  public:
    // Something is to be sent from now on.
    void begin(u64 now_ns) {
        since_ns_ = now_ns;
        bytes_ = 0;
    }
    void sent(u64 bytes, u64 now_ns) {
        bytes_ += bytes;
        if (bytes_ >= LEAST_BYTES) begin(now_ns);
    }
    bool is_late(u64 now_ns, u64 patience_ns) const { return now_ns > since_ns_ + patience_ns; }

  private:
    static constexpr u64 LEAST_BYTES = 64 << 10;

    u64 since_ns_ = 0, bytes_ = 0;
};

}  // namespace door
