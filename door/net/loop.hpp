// A thread that owns connections: it waits for their sockets and for what other threads send it.
#pragma once
#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "net/connection.hpp"
#include "net/mailbox.hpp"
#include "base/published.hpp"
#include "base/slow_log.hpp"
#include "base/stats.hpp"
#include "request/tables.hpp"
#include "net/tls.hpp"
#include "base/watched.hpp"

struct Door;

namespace door {

class Scripts;

// The C library allocates what a library keeps for each thread when the thread first uses it, such as when it throws
// something; where there is no memory for that, it ends the process (status 127). So threads use it when they begin.
void use_thread_storage();

class Thread {
  public:
    // std::system_error where the system gives no more threads or files.
    Thread(Door& door, u32 number);
    // Ends the thread, after what was posted before. Its requests must be back.
    ~Thread();

    Door& door;
    const u32 number;

    // Any thread.

    // Runs `mail` in this thread, soon, in the order of posting. std::bad_alloc where there is no memory.
    void post(std::function<void()> mail) { mailbox_.post(std::move(mail)); }
    // Does this after the mail that came before.
    void post(Errand& errand) { mailbox_.post(errand); }
    // Requests come back: a list.
    void post_answered(Request* first, Request* last);
    // How many it has, or will have soon.
    u64 connections() const { return connections_count_.load(std::memory_order_relaxed); }
    void expect_connection() { connections_count_.fetch_add(1, std::memory_order_relaxed); }
    void forget_expected() { connections_count_.fetch_sub(1, std::memory_order_relaxed); }

    // This thread only.

    Callers callers;
    ThreadStats stats;  // others read it
    // The time at which this round began.
    u64 now() const { return now_; }
    // Whether a connection may go on with its handshake. That takes milliseconds: the others have their turn in between.
    bool may_shake_hands() { return handshakes_++ < HANDSHAKES; }
    // Whether one more slow call may be noted before the next tick.
    bool may_note_slow() { return slow_notes_++ < SlowLog::NOTES_PER_TICK; }
    const Tables& tables() { return *tables_.now(); }
    const Scripts& scripts() { return *scripts_.now(); }
    // Null without TLS.
    const std::shared_ptr<const TlsContext>& tls() { return tls_.now(); }
    // The connection has a turn soon.
    void wait(Connection& connection);
    // A connection has something that ends then (`Connection::expire`).
    void expect_deadline(u64 deadline_ns) { next_deadline_ = std::min(next_deadline_, deadline_ns); }
    // Takes over a connection that was expected.
    void add(std::unique_ptr<Connection> connection);
    // Null where there is none with that id, or it is closed.
    Connection* find(u64 id) const;
    // Does this with each that is open.
    void for_open(const std::function<void(Connection&)>& work);
    void drain();
    void close_all();

    // How `watched` is waited for: EPOLLIN, EPOLLOUT. A file is forgotten before it is closed. False: the system watches no more.
    bool watch(Watched& watched, int file, u32 events);
    void change(Watched& watched, int file, u32 events);
    void forget(int file);

  private:
    friend class Connection;

    static constexpr u64 TICK_NS = 100000000, ROUND_NS = 200000;
    static constexpr u64 EXPIRE_NS = 10000000;  // so far apart are two looks for deadlines that have passed
    static constexpr u32 HANDSHAKES = 2;  // in a round

    void run();
    void round();
    void tick();
    void serve_waiting();
    void push_waiting(Connection& connection);
    static bool used_more(const Connection* one, const Connection* other);
    void expire();
    u64 expires_at() const { return std::max(next_deadline_, next_expire_); }
    u64 wakes_at() const { return std::min(next_tick_, expires_at()); }
    bool append_submitted();
    bool is_small_batch() const;
    void give_back(Request* request);
    void remove_closed();

    const int epoll_;
    u64 now_ = 0, next_tick_ = 0;
    u64 next_deadline_ = NEVER, next_expire_ = 0;  // no deadline is before the first; nobody looks before the second
    u32 handshakes_ = 0;
    u64 slow_notes_ = 0;  // since the last tick
    bool is_draining_ = false, is_closed_ = false, is_ending_ = false;
    Mailbox mailbox_;
    std::unordered_map<u64, std::unique_ptr<Connection>> connections_;
    std::atomic<u64> connections_count_{0};
    Reader<Tables> tables_;
    Reader<Scripts> scripts_;
    Reader<TlsContext> tls_;
    std::vector<u8> input_;  // what was read last, of any connection
    // A heap: in front is who used least. A connection that is served waits for its next turn outside.
    std::vector<Connection*> waiting_;
    Connection* served_ = nullptr;
    // Lists.
    Connection* closed_ = nullptr;
    Request* submitted_first_ = nullptr;
    Request* submitted_last_ = nullptr;
    Request* answered_ = nullptr;  // of a batch that ran here
    std::thread thread_;
};

}  // namespace door
