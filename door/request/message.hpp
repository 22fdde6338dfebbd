// A message of a call, charged to its connection as long as it is there.
#pragma once
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>

#include "base/account.hpp"
#include "base/lent_value.hpp"
#include "base/output.hpp"
#include "request/results.hpp"

namespace door {

class Message {
  public:
    Message() = default;
    // Takes bytes of malloc that are charged already.
    Message(ConnectionAccount& account, Kind kind, u8* data, u64 size)
        : account_(&account), kind_(kind), data_(data), size_(size) {}
    // The same of results whose only holder it is from now on.
    Message(ConnectionAccount& account, Kind kind, Results* results, u8* data, u64 size)
        : Message(account, kind, data, size) {
        results_ = results;
    }
    Message(Message&& other) noexcept { *this = std::move(other); }
    ~Message() { drop(); }

    Message& operator=(Message&& other) noexcept {
        if (this != &other) {
            drop();
            account_ = other.account_;
            kind_ = other.kind_;
            results_ = other.results_;
            data_ = std::exchange(other.data_, nullptr);
            size_ = other.size_;
            lent_ = std::move(other.lent_);
            sent_ = other.sent_;
        }
        return *this;
    }

    // One of so many bytes; it is not there if the connection may not hold it, or there is no memory.
    static Message admitted(ConnectionAccount& account, Kind kind, u64 size) {
        return account.admit(kind, size) ? made(account, kind, size) : Message();
    }

    // The same for one that must be sent.
    static Message charged(ConnectionAccount& account, Kind kind, u64 size) {
        account.charge(kind, size);
        return made(account, kind, size);
    }

    bool is_there() const { return data_; }
    Kind kind() const { return kind_; }
    u8* data() { return data_; }
    const u8* data() const { return data_; }
    u64 size() const { return size_; }

    // Has a value that is lent stand before one of the bytes. Those before it come first. std::bad_alloc.
    void insert(u64 at, LentValue&& value) {
        if (!lent_) lent_ = std::make_unique<std::deque<Lent>>();
        lent_->push_back({at, 0, std::move(value)});
    }
    bool has_lent() const { return lent_ && !lent_->empty(); }
    // With what is lent.
    u64 whole_size() const {
        u64 size = size_;
        if (lent_)
            for (const Lent& lent : *lent_) size += lent.value.size();
        return size;
    }
    // Sends the next bytes of the whole.
    void send(u64 size, Output& output) {
        while (size) {
            const bool is_lent = has_lent() && lent_->front().at == sent_;
            const u64 left = is_lent ? lent_->front().value.size() - lent_->front().sent : (has_lent() ? lent_->front().at : size_) - sent_;
            const u64 part = std::min(size, left);
            u64& sent = is_lent ? lent_->front().sent : sent_;
            output.append((is_lent ? lent_->front().value.data() : data_) + sent, part);
            sent += part;
            size -= part;
            if (is_lent && part == left) lent_->pop_front();
        }
    }

    // The whole as one piece, charged as this is; it is not there where there is no memory.
    Message flat() {
        Message made = charged(*account_, kind_, whole_size());
        if (!made.is_there()) return made;
        u8* to = made.data_;
        u64 from = 0;
        for (const Lent& lent : *lent_) {
            memcpy(to, data_ + from, lent.at - from);
            memcpy(to + lent.at - from, lent.value.data(), lent.value.size());
            to += lent.at - from + lent.value.size();
            from = lent.at;
        }
        memcpy(to, data_ + from, size_ - from);
        return made;
    }

    // Of bytes of malloc only:

    // Makes it longer. False: the connection may not hold that, or there is no memory.
    bool grow(u64 more) {
        if (!account_->admit(kind_, more)) return false;
        u8* const data = (u8*)realloc(data_, size_ + more);
        if (!data) {
            account_->give(kind_, more);
            return false;
        }
        data_ = data;
        size_ += more;
        return true;
    }

    // The server holds the bytes from now on, not the connection. The caller frees them, and gives them back to the server.
    u8* leave(Account& server) {
        server.change(kind_, (i64)size_);
        account_->give(kind_, size_);
        return release();
    }

    // The caller frees the bytes, and gives them back to the account then.
    u8* release() { return std::exchange(data_, nullptr); }

  private:
    struct Lent {
        u64 at, sent;
        LentValue value;
    };

    static Message made(ConnectionAccount& account, Kind kind, u64 size) {
        u8* data = (u8*)malloc(size + !size);
        if (!data) account.give(kind, size);
        return Message(account, kind, data, size);
    }

    void drop() {
        if (!data_) return;
        if (results_) results_->release();
        else free(data_);
        account_->give(kind_, size_);
        data_ = nullptr;
        lent_.reset();
    }

    ConnectionAccount* account_ = nullptr;
    Kind kind_ = REQUESTS;
    Results* results_ = nullptr;  // whose bytes they are; null: of malloc
    u8* data_ = nullptr;
    u64 size_ = 0;
    std::unique_ptr<std::deque<Lent>> lent_;  // null: nothing is
    u64 sent_ = 0;
};

}  // namespace door
