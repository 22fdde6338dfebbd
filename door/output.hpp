// What a connection has to send and its socket has not taken yet.
#pragma once
#include <vector>

#include "types.hpp"

namespace door {

class Output {
  public:
    // Below so much a connection is asked for more; it should not append much more than this at once.
    static constexpr u64 LOW_BYTES = 64 << 10;

    // std::bad_alloc where there is no memory: it closes the connection.
    void append(const void* from, u64 size) {
        const u8* bytes = (const u8*)from;
        bytes_.insert(bytes_.end(), bytes, bytes + size);
    }

    const u8* data() const { return bytes_.data() + sent_; }
    u64 size() const { return bytes_.size() - sent_; }

    // What it takes in memory.
    u64 held_bytes() const { return bytes_.capacity(); }

    // The socket took the first bytes. Memory is kept for the next answers only where it is little.
    void sent(u64 size) {
        sent_ += size;
        if (sent_ == bytes_.size()) {
            bytes_.clear();
            sent_ = 0;
            if (bytes_.capacity() > KEPT_BYTES) std::vector<u8>().swap(bytes_);
        } else if (sent_ >= LOW_BYTES) {
            bytes_.erase(bytes_.begin(), bytes_.begin() + (long)sent_);
            sent_ = 0;
        }
    }

  private:
    static constexpr u64 KEPT_BYTES = 16 << 10;

    std::vector<u8> bytes_;
    u64 sent_ = 0;
};

}  // namespace door
