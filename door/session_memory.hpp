// The memory of an HTTP/2 session, charged to its connection.
#pragma once
#include <nghttp2/nghttp2.h>

#include <cstdlib>
#include <cstring>

#include "account.hpp"

namespace door {

class SessionMemory {
  public:
    explicit SessionMemory(ConnectionAccount& account) : account_(account) {}
    SessionMemory(const SessionMemory&) = delete;
    ~SessionMemory() { account_.give(CALLS, charged_); }

    // nghttp2 copies it. An allocation that fails ends the connection.
    nghttp2_mem hooks() {
        return {this, [](size_t size, void* memory) { return ((SessionMemory*)memory)->make(size); },
                [](void* bytes, void* memory) { ((SessionMemory*)memory)->drop(bytes); },
                [](size_t count, size_t size, void* memory) { return ((SessionMemory*)memory)->zeroed(count, size); },
                [](void* bytes, size_t size, void* memory) { return ((SessionMemory*)memory)->moved(bytes, size); }};
    }

  private:
    // 100 streams with their headers take a fifth of it. A connection that may not hold more can still refuse calls.
    static constexpr u64 BYTES_MAX = 512 << 10;
    // Charged in steps: a session allocates and frees several times a call.
    static constexpr u64 STEP_BYTES = 16 << 10;
    // Before each block stands its size, in as many bytes as keep the block aligned.
    static constexpr u64 HEAD_BYTES = 16;

    bool take(u64 bytes) {
        if (used_ + bytes > BYTES_MAX) return false;
        used_ += bytes;
        if (used_ > charged_) {
            account_.charge(CALLS, used_ - charged_ + STEP_BYTES);
            charged_ = used_ + STEP_BYTES;
        }
        return true;
    }

    void give(u64 bytes) {
        used_ -= bytes;
        if (charged_ - used_ > 4 * STEP_BYTES) {
            const u64 less = charged_ - used_ - STEP_BYTES;
            account_.give(CALLS, less);
            charged_ -= less;
        }
    }

    void* make(u64 size) {
        const u64 whole = size + HEAD_BYTES;
        if (whole < size || !take(whole)) return nullptr;
        u8* block = (u8*)malloc(whole);
        if (!block) {
            give(whole);
            return nullptr;
        }
        memcpy(block, &whole, sizeof whole);
        return block + HEAD_BYTES;
    }

    void drop(void* bytes) {
        if (!bytes) return;
        give(whole_of(bytes));
        free((u8*)bytes - HEAD_BYTES);
    }

    void* zeroed(u64 count, u64 size) {
        if (size && count > ~0ull / size) return nullptr;
        void* bytes = make(count * size);
        if (bytes) memset(bytes, 0, count * size);
        return bytes;
    }

    void* moved(void* bytes, u64 size) {
        void* to = make(size);
        if (to && bytes) {
            const u64 had = whole_of(bytes) - HEAD_BYTES;
            memcpy(to, bytes, had < size ? had : size);
            drop(bytes);
        }
        return to;
    }

    static u64 whole_of(void* bytes) {
        u64 whole;
        memcpy(&whole, (u8*)bytes - HEAD_BYTES, sizeof whole);
        return whole;
    }

    ConnectionAccount& account_;
    u64 used_ = 0, charged_ = 0;
};

}  // namespace door
