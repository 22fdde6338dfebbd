// The memory that clients make the server take: counted by connection, by kind and in all (server/account/memory.py).
#pragma once
#include <atomic>

#include "base/types.hpp"

namespace door {

// CALLS: each open connection and call. REQUESTS: each request, until its transaction has ended. ANSWERS: each answer, from
// the moment it is planned until it is sent. BATCH: the working memory of transactions, on top of the others.
enum Kind { CALLS, REQUESTS, ANSWERS, BATCH, KINDS };

// Of the server.
class Account {
  public:
    explicit Account(u64 clients_bytes_max) : clients_bytes_max_(clients_bytes_max) {}

    // What the clients hold may not pass `clients_bytes_max`; the working memory of a batch comes on top.
    u64 clients_bytes_max() const { return clients_bytes_max_; }
    u64 clients_bytes() const { return (u64)clients_bytes_.load(std::memory_order_relaxed); }
    u64 bytes(Kind kind) const { return (u64)by_kind_[kind].load(std::memory_order_relaxed); }

    // Counts more, or less; returns what the clients held before.
    u64 change(Kind kind, i64 bytes) {
        by_kind_[kind].fetch_add(bytes, std::memory_order_relaxed);
        return kind == BATCH ? clients_bytes() : (u64)clients_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    }

  private:
    const u64 clients_bytes_max_;
    std::atomic<i64> clients_bytes_{0};
    std::atomic<i64> by_kind_[KINDS] = {};
};

// Of one connection. Its thread changes it; the engine's thread may ask whether it holds too much.
class ConnectionAccount {
  public:
    explicit ConnectionAccount(Account& server) : server_(server) {}
    ConnectionAccount(const ConnectionAccount&) = delete;

    ~ConnectionAccount() {
        for (int kind = 0; kind < KINDS; kind++) give((Kind)kind, by_kind_[kind]);
    }

    // Counts more if the connection may hold it: as much as it leaves free, so one alone gets half of all. What cannot be
    // refused comes on top; so the last part is left for it, and for connections that hold little.
    bool admit(Kind kind, u64 bytes) {
        const u64 before = server_.change(kind, (i64)bytes);
        if (!may_hold(before, bytes)) {
            server_.change(kind, -(i64)bytes);
            return false;
        }
        count(kind, (i64)bytes);
        return true;
    }

    // Counts what is there already and cannot be refused any more.
    void charge(Kind kind, u64 bytes) {
        server_.change(kind, (i64)bytes);
        count(kind, (i64)bytes);
    }

    // Counts what the server's account has already.
    void take_over(Kind kind, u64 bytes) { count(kind, (i64)bytes); }

    void give(Kind kind, u64 bytes) {
        server_.change(kind, -(i64)bytes);
        count(kind, -(i64)bytes);
    }

    // Whether the connection may hold so much more.
    bool has_room(u64 bytes) const { return may_hold(server_.clients_bytes(), bytes); }

    u64 bytes() const { return bytes_.load(std::memory_order_relaxed); }
    u64 bytes(Kind kind) const { return by_kind_[kind]; }

    u64 lent_values = 0;  // that it has, and nobody else gets their space

    // What is free for all.
    u64 free_bytes() const {
        const u64 held = server_.clients_bytes(), most = server_.clients_bytes_max();
        return held < most ? most - held : 0;
    }

  private:
    static constexpr u64 LITTLE_BYTES = 256 << 10, LAST_PART = 8;

    bool may_hold(u64 held_by_all, u64 bytes) const {
        u64 most = server_.clients_bytes_max();
        if (bytes > LITTLE_BYTES || this->bytes() + 2 * bytes > LITTLE_BYTES) most -= most / LAST_PART;
        return bytes <= most && this->bytes() <= most && held_by_all <= most &&
               this->bytes() + 2 * bytes <= most - held_by_all;
    }

    void count(Kind kind, i64 bytes) {
        by_kind_[kind] += (u64)bytes;
        bytes_.store(this->bytes() + (u64)bytes, std::memory_order_relaxed);
    }

    Account& server_;
    std::atomic<u64> bytes_{0};
    u64 by_kind_[KINDS] = {};
};

}  // namespace door
