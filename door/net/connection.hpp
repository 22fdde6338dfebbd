// A connection, whatever it speaks. Its thread calls it, and nobody else; so nothing in it is locked.
#pragma once
#include <memory>
#include <string>

#include "request/access.hpp"
#include "base/account.hpp"
#include "base/output.hpp"
#include "base/progress.hpp"
#include "request/queue_place.hpp"
#include "request/request.hpp"
#include "base/stats.hpp"
#include "net/transport.hpp"
#include "base/watched.hpp"

namespace door {

class Thread;

// What is known of a connection before it is made.
struct Arrival {
    u64 id;        // never used again
    int protocol;  // a DoorProtocol
    std::string peer;
};

class Connection : public Watched {
  public:
    Connection(Thread& thread, std::unique_ptr<Transport> transport, Arrival arrival);
    Connection(const Connection&) = delete;
    virtual ~Connection() = default;

    Thread& thread;
    std::unique_ptr<Transport> transport;  // null when it is closed
    ConnectionAccount account;
    Logins logins{account};
    const u64 id;
    const int protocol;
    const std::string peer;  // as gRPC writes it: ipv4:1.2.3.4:5
    const u64 begun_ns;

    // What the protocol does. std::bad_alloc out of one of these closes the connection.

    // Bytes came; they are gone when this returns. False: close now.
    virtual bool received(const u8* data, u64 size) = 0;
    // Nothing comes any more, and answers may still be read. False: close now.
    virtual bool input_ended() { return false; }
    // A request is back: executed and durable, or dropped. It comes back to a closed connection too, and is freed here even
    // where something throws.
    virtual void answered(Request* request) = 0;
    // What the slow log says of a request that is back, beside what that says itself. std::bad_alloc.
    virtual void describe(const Request& request, DoorSlowCall& call) = 0;
    // Append what may be sent now, about Output::LOW_BYTES; called again when that was sent. False: close when all is sent.
    virtual bool fill(Output& output) = 0;
    // Every 100 ms.
    virtual void tick(u64 now_ns) = 0;
    // Ends what has a deadline that has passed; returns the next deadline.
    virtual u64 expire(u64) { return NEVER; }
    // The server stops: end when the client has its answers.
    virtual void drain() = 0;
    // Whether its client may still send when all is done, and is waited for.
    virtual bool lingers() const { return false; }
    // Some callers are gone: hand their calls on.
    virtual void callers_changed() {}
    // The door is shut: Python has calls that wait for a message.
    virtual void shut() {}
    // The connection is over: cancel its requests. Nothing is received or sent any more.
    virtual void closed() = 0;
    // Whether a request or command of the client's was whole; asked of strangers only.
    virtual bool has_asked() const = 0;
    // Nobody has logged in, or asked for anything, in time: end when what is under way is answered, with a word.
    virtual void end_patience(const std::string& why) = 0;
    // The connection is closed now: append a last word, if the protocol has one.
    virtual void take_leave(const std::string& why, Output& output) = 0;
    // Whether to read on; a protocol without windows says no while it has enough to do.
    virtual bool wants_input() const { return true; }

    // What the protocol asks for.

    // Lends a request to the engine. False: the queue is full, and the request stays here.
    [[nodiscard]] bool submit(Request* request);
    // `fill` is called soon, and whether there is `wants_input` is asked again.
    void want_fill();
    // The connection is over, whatever it still has to send. It stays where it is until the end of the round.
    void close();
    // The same, by the door's own decision, which is counted.
    void close(StatsConnection why);
    // The same, and the client is told, as far as its socket takes that at once.
    void close(StatsConnection why, const std::string& word);
    // It is over when its requests are answered and all is sent.
    void close_answered() { closes_when_answered_ = true; }
    bool is_closed() const { return is_closed_; }
    // Whether nobody has shown yet who uses it (places.hpp).
    bool is_stranger() const { return is_stranger_; }
    // Somebody has logged in.
    void settle();
    // A stranger's place is a newcomer's now.
    void give_way(StatsConnection why);

    // Its place in the queue; only the queue touches it.
    QueuePlace queue_place;

  private:
    friend class Thread;

    // A new one is taken to have used so much, so that those who are there come first.
    static constexpr u64 NEW_NS = 20 * 1000 * 1000;

    void ready(u32 events) override;
    void take_turn();
    void receive();
    void send();
    void watch();
    void linger();
    void skip_input();
    void refuse_handshake();
    void look_at_stranger();
    void say_goodbye(const std::string& word);
    void end_for_user();
    void came_back(Request* request);
    void look_at_lent();
    void stop_looking();
    void tell_answered(Request* request);
    void note_slow(const Request& request);
    bool is_out_of_patience();
    void tick_if_open();

    // Calls the protocol: where there is no memory, the connection is over.
    template <class Function>
    void guard(Function function) {
        try {
            function();
        } catch (const std::bad_alloc&) {
            close(STATS_NO_MEMORY);
        }
    }

    Output output_;
    u64 counted_output_ = 0, counted_transport_ = 0;
    u64 ends_ns_ = NEVER;  // by then it is closed: nobody reads the last bytes
    u64 lingers_until_ns_ = NEVER;
    Connection* next_closed_ = nullptr;
    u64 lent_ = 0;  // requests that are not back, or are looked at
    Request* looking_first_ = nullptr;  // a list
    Request* looking_last_ = nullptr;
    Progress progress_;  // of its output
    u32 watched_events_, ready_events_ = 0;
    u64 used_ns_ = NEW_NS;  // of its thread's time; half of it is forgotten every 100 ms
    bool is_waiting_ = false;
    bool closes_when_sent_ = false, closes_when_answered_ = false, is_lingering_ = false;
    bool is_closed_ = false;
    bool is_stranger_ = true, has_lost_patience_ = false;
};

}  // namespace door
