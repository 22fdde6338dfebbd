// The memory of an HTTP/2 session, charged to its connection.
#pragma once
#include <nghttp2/nghttp2.h>

#include <cstdlib>
#include <cstring>

#include "base/account.hpp"

namespace door {

class SessionMemory {
  public:
    explicit SessionMemory(ConnectionAccount& account) : account_(account) {}
    SessionMemory(const SessionMemory&) = delete;
    ~SessionMemory() {
        while (blocks_) drop(blocks_ + 1);
        account_.give(CALLS, charged_);
    }

    // Whether an allocation has failed. nghttp2 may have kept what it freed then: the connection ends, and the session is not
    // touched any more, nor deleted.
    bool has_failed() const { return has_failed_; }

    // nghttp2 copies it.
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

    // Stands before each block, and keeps it aligned.
    struct alignas(16) Head {
        u64 whole;  // bytes, with the head
        Head *previous, *next;
    };

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
        const u64 whole = size + sizeof(Head);
        Head* const head = whole > size && take(whole) ? (Head*)malloc(whole) : nullptr;
        if (!head) {
            has_failed_ = true;
            return nullptr;
        }
        *head = {whole, nullptr, blocks_};
        if (blocks_) blocks_->previous = head;
        blocks_ = head;
        return head + 1;
    }

    void drop(void* bytes) {
        if (!bytes) return;
        Head* const head = (Head*)bytes - 1;
        (head->previous ? head->previous->next : blocks_) = head->next;
        if (head->next) head->next->previous = head->previous;
        give(head->whole);
        free(head);
    }

    void* zeroed(u64 count, u64 size) {
        void* bytes = make(size && count > ~0ull / size ? ~0ull : count * size);
        if (bytes) memset(bytes, 0, count * size);
        return bytes;
    }

    void* moved(void* bytes, u64 size) {
        void* to = make(size);
        if (to && bytes) {
            const u64 had = ((Head*)bytes - 1)->whole - sizeof(Head);
            memcpy(to, bytes, had < size ? had : size);
            drop(bytes);
        }
        return to;
    }

    ConnectionAccount& account_;
    u64 used_ = 0, charged_ = 0;
    Head* blocks_ = nullptr;  // a list of all
    bool has_failed_ = false;
};

}  // namespace door
