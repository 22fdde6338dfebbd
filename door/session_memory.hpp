// The memory of an HTTP/2 session, charged to its connection.
#pragma once
#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "account.hpp"

namespace door {

class SessionMemory {
  public:
    explicit SessionMemory(ConnectionAccount& account) : account_(account) {}
    SessionMemory(const SessionMemory&) = delete;
    ~SessionMemory() {
        while (blocks_) free(std::exchange(blocks_, blocks_->next));
        account_.give(CALLS, charged_);
    }

    // nghttp2 copies it. An allocation that fails ends the connection. nghttp2 may free a block twice then (1.52, where a
    // stream finds no place in its queue), so none is freed from then on before the session is gone.
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
        Head* previous;
        Head* next;
        u64 bytes;  // with this
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
        const u64 bytes = size + sizeof(Head);
        Head* const head = bytes > size && take(bytes) ? (Head*)malloc(bytes) : nullptr;
        if (!head) {
            has_failed_ = true;
            return nullptr;
        }
        *head = {nullptr, blocks_, bytes};
        if (blocks_) blocks_->previous = head;
        blocks_ = head;
        return head + 1;
    }

    void drop(void* block) {
        if (!block || has_failed_) return;
        Head* const head = (Head*)block - 1;
        (head->previous ? head->previous->next : blocks_) = head->next;
        if (head->next) head->next->previous = head->previous;
        give(head->bytes);
        free(head);
    }

    void* zeroed(u64 count, u64 size) {
        if (size && count > ~0ull / size) return nullptr;
        void* const block = make(count * size);
        if (block) memset(block, 0, count * size);
        return block;
    }

    void* moved(void* block, u64 size) {
        void* const to = make(size);
        if (to && block) {
            memcpy(to, block, std::min(((Head*)block - 1)->bytes - sizeof(Head), size));
            drop(block);
        }
        return to;
    }

    ConnectionAccount& account_;
    u64 used_ = 0, charged_ = 0;
    Head* blocks_ = nullptr;  // a list
    bool has_failed_ = false;
};

}  // namespace door
