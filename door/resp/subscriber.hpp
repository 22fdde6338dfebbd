// A connection of RESP that is told of keys that change: its messages wait here until its thread sends them.
//
// One thread tells, that of the connection takes. What is subscribed to is looked at without a lock; what was found counts only
// if it is still the same when the messages are appended. So neither waits for the other for longer than a message is copied,
// and each message stands where it belongs: behind the answer to the SUBSCRIBE that asks for it, before that to UNSUBSCRIBE.
#pragma once
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/account.hpp"
#include "base/output.hpp"
#include "base/stats.hpp"
#include "resp/subscriptions.hpp"

namespace door {

class Thread;

class Subscriber {
  public:
    Subscriber(Thread& thread, u64 connection, u64 bytes_max);
    ~Subscriber() { end(); }
    Subscriber(const Subscriber&) = delete;

    // The thread of its connection.

    // These count from now on. Returns how far the messages go that it was told before.
    u64 change(std::shared_ptr<const Subscriptions> subscriptions);
    // Appends messages that wait, up to there, while there is little in the output. True: there is none left of these.
    bool take(Output& output, u64 until);
    bool has_messages() {
        std::lock_guard<std::mutex> guard(mutex_);
        return !pieces_.empty();
    }
    // It did not read as fast as it was told, or there was no memory: it is told nothing any more, and is to be closed.
    bool is_cut_off(StatsConnection& why);
    // Nothing is told any more.
    void end();

    // The thread that tells. Returns how many messages these were.
    u64 tell(const std::string& channel, std::string_view payload, Subscriptions::Found& found);

    static constexpr u64 ALL = ~0ull;

  private:
    // Of the messages.
    struct Piece {
        std::vector<u8> bytes;
        u64 counted;
    };

    static constexpr u64 PIECE_BYTES = 4 << 10;

    void append(u32 protocol, const std::string* pattern, std::string_view channel, std::string_view payload);
    bool make_room(u64 bytes);
    bool admit(u64 bytes);
    void cut_off(StatsConnection why);
    void drop();
    void wake();

    Thread& thread_;
    Account& account_;  // of the server
    const u64 connection_, bytes_max_;
    std::mutex mutex_;  // for all below
    std::shared_ptr<const Subscriptions> subscriptions_;
    std::deque<Piece> pieces_;
    u64 counted_ = 0;              // for them
    u64 appended_ = 0, taken_ = 0;  // bytes of messages, ever
    bool is_piece_closed_ = true;  // the next message begins another one
    bool is_woken_ = false, is_cut_off_ = false, is_over_ = false;
    StatsConnection why_ = STATS_BEHIND;
};

// All that have subscribed to something.
class Subscribers {
  public:
    void add(std::shared_ptr<Subscriber> subscriber);  // std::bad_alloc
    void remove(const std::shared_ptr<Subscriber>& subscriber);
    // Tells each of them of keys of a database that changed (`ChangeKind`); one thread at a time. std::bad_alloc.
    void tell(u64 database, u64 n, const u8* kinds, const u8* keys, const u32* key_lengths);

    Counter messages;  // that were told

  private:
    std::mutex mutex_;
    std::unordered_set<std::shared_ptr<Subscriber>> all_;
};

}  // namespace door
