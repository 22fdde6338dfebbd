// What a connection has to send and its socket has not taken yet: bytes, and between them values that are lent.
#pragma once
#include <sys/uio.h>

#include <deque>
#include <memory>
#include <vector>

#include "base/lent_value.hpp"
#include "base/types.hpp"

namespace door {

class Output {
  public:
    // Below so much a connection is asked for more; it should not append much more than this at once.
    static constexpr u64 LOW_BYTES = 64 << 10;
    // It keeps at most so much memory when nothing waits.
    static constexpr u64 KEPT_BYTES = 16 << 10;

    // std::bad_alloc where there is no memory: it closes the connection.
    void append(const void* from, u64 size) {
        const u8* bytes = (const u8*)from;
        bytes_.insert(bytes_.end(), bytes, bytes + size);
    }

    // A part of a value that is lent: it goes back when that is sent.
    void append(LentValue&& value, u64 first, u64 size) {
        if (!size) return;
        if (!lent_) lent_ = std::make_unique<std::deque<Lent>>();
        lent_->push_back({bytes_.size(), std::move(value), first, size});
        lent_bytes_ += size;
    }

    // All of another one, of which nothing was sent.
    void append(Output&& other) {
        u64 from = 0;
        for (; other.lent_ && !other.lent_->empty(); other.lent_->pop_front()) {
            Lent& next = other.lent_->front();
            append(other.bytes_.data() + from, next.at - from);
            from = next.at;
            append(std::move(next.value), next.first, next.size);
        }
        append(other.bytes_.data() + from, other.bytes_.size() - from);
    }

    u64 size() const { return bytes_.size() - sent_ + lent_bytes_; }
    bool has_lent() const { return lent_bytes_; }

    // What may be sent next: parts that lie at different places, in their order.
    struct Parts {
        static constexpr u64 MOST = 8;
        iovec at[MOST];
        u64 count = 0;
    };
    Parts front() const {
        Parts parts;
        u64 from = sent_, left = AT_ONCE;
        const auto add = [&](const u8* data, u64 size) {
            const u64 part = std::min(size, left);
            if (part) parts.at[parts.count++] = {(void*)data, part};
            left -= part;
        };
        for (u64 lent = 0; has_lent() && lent < lent_->size() && parts.count + 2 < Parts::MOST && left; lent++) {
            const Lent& next = (*lent_)[lent];
            add(bytes_.data() + from, next.at - from);
            add(next.value.data() + next.first, next.size);
            from = next.at;
            if (lent + 1 < lent_->size()) continue;
            add(bytes_.data() + from, bytes_.size() - from);
            return parts;
        }
        if (!has_lent()) add(bytes_.data() + from, bytes_.size() - from);
        return parts;
    }

    // What waits takes so much memory.
    u64 held_bytes() const { return bytes_.empty() ? 0 : bytes_.capacity(); }

    // The socket took the first bytes. Memory is kept for the next answers only where it is little.
    void sent(u64 size) {
        while (size) {
            const u64 before = (has_lent() ? lent_->front().at : bytes_.size()) - sent_;
            const u64 part = std::min(size, before ? before : lent_->front().size);
            if (before) sent_ += part;
            else lent_sent(part);
            size -= part;
        }
        if (sent_ == bytes_.size() && !has_lent()) {
            bytes_.clear();
            sent_ = 0;
            if (bytes_.capacity() > KEPT_BYTES) std::vector<u8>().swap(bytes_);
        } else if (sent_ >= LOW_BYTES) {
            bytes_.erase(bytes_.begin(), bytes_.begin() + (long)sent_);
            for (u64 lent = 0; has_lent() && lent < lent_->size(); lent++) (*lent_)[lent].at -= sent_;
            sent_ = 0;
        }
    }

  private:
    // One connection does not keep its thread for longer.
    static constexpr u64 AT_ONCE = 512 << 10;

    struct Lent {
        u64 at;  // it stands before this one of the bytes
        LentValue value;
        u64 first, size;  // of its bytes, those that are not sent
    };

    void lent_sent(u64 size) {
        Lent& front = lent_->front();
        front.first += size;
        front.size -= size;
        lent_bytes_ -= size;
        if (!front.size) lent_->pop_front();
        if (!lent_bytes_) lent_.reset();
    }

    std::vector<u8> bytes_;
    u64 sent_ = 0;
    std::unique_ptr<std::deque<Lent>> lent_;  // null: there was none
    u64 lent_bytes_ = 0;
};

}  // namespace door
