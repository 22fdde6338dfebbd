// A thread that owns connections: it waits for their sockets and for what other threads send it.
#pragma once
#include <functional>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "connection.hpp"
#include "published.hpp"
#include "tables.hpp"
#include "watched.hpp"

struct Door;

namespace door {

class Thread {
  public:
    Thread(Door& door, u32 number);
    ~Thread();

    Door& door;
    const u32 number;

    // Any thread.

    // Runs `mail` in this thread, soon, in the order of posting. std::bad_alloc where there is no memory.
    void post(std::function<void()> mail);
    // Requests come back: a list.
    void post_answered(Request* first, Request* last);
    u64 connections() const { return connections_count_.load(std::memory_order_relaxed); }

    // This thread only.

    Callers callers;
    // The time at which this round began.
    u64 now() const { return now_; }
    const Tables& tables() { return *tables_.now(); }
    // Null where there is none with that id, or it is closed.
    Connection* find(u64 id) const;
    const std::unordered_map<u64, std::unique_ptr<Connection>>& all() const { return connections_; }
    // Takes over a connection.
    void add(std::unique_ptr<Connection> connection);
    u64 next_id();

  private:
    friend class Connection;

    u64 now_ = 0;
    std::unordered_map<u64, std::unique_ptr<Connection>> connections_;
    std::atomic<u64> connections_count_{0};
    Reader<Tables> tables_;
};

}  // namespace door
