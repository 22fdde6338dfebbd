// One gRPC call over HTTP/2: its headers, its messages one by one, its responses, its end.
#pragma once
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <string_view>

#include "call_head.hpp"
#include "large_message.hpp"
#include "message.hpp"
#include "progress.hpp"
#include "request_id.hpp"
#include "stats.hpp"

namespace door {

class Call;
class Connection;
class Http2;
class Output;
struct Request;
struct RespSession;
class Subscriptions;

// Codes of gRPC that the door itself ends calls with.
enum Code {
    OK = 0,
    CANCELLED_CODE = 1,
    DEADLINE_EXCEEDED = 4,
    NOT_FOUND = 5,
    RESOURCE_EXHAUSTED = 8,
    FAILED_PRECONDITION = 9,
    ABORTED = 10,
    OUT_OF_RANGE = 11,
    UNIMPLEMENTED = 12,
    INTERNAL = 13,
    UNAVAILABLE = 14,
    DATA_LOSS = 15
};

// What a call is charged for: what its client may send unasked, and itself.
constexpr u64 CALL_BYTES = WINDOW_BYTES + (4 << 10);

// The trailers of a call that surely changed nothing, and of one that found no room.
constexpr std::string_view NOT_EXECUTED = "gpkvs-executed: no\n";
constexpr std::string_view MEMORY_FULL = "gpkvs-executed: no\ngpkvs-full: memory\n";

// How a call ends. Trailers are lines, "name: value\n" each.
struct Status {
    int code = OK;
    std::string_view text = {};
    std::string_view trailers = {};
};

// Serves one call. It ends the call by `Call::finish`, or hears `over`; after either of them the call may be gone, and the
// handler frees itself when it likes. std::bad_alloc out of one of these closes the connection.
class Handler {
  public:
    virtual ~Handler() = default;
    // A message that was asked for (`Call::ask`).
    virtual void message(Message&& message) = 0;
    // Where in its messages a value may stand that comes in pieces; and such a message.
    virtual LargeMessage::Kind large_kind() const { return {}; }
    virtual void large_message(Message&&, std::unique_ptr<LargeValue>) {}
    // No further message comes.
    virtual void half_closed() = 0;
    // A response has left.
    virtual void sent() = 0;
    // The caller's login counts no longer, or the door is shut. What waits for a message is forwarded now; what is executed
    // goes on.
    virtual void stop_waiting() = 0;
    // The next message cannot be taken, and no other one comes. True: the handler ends the call so, when those before it are
    // answered. False: it ends at once.
    virtual bool ends_with(const Status&) { return false; }
    // The client gave the call up, its deadline passed, its connection ended, or the door refused it.
    virtual void over() = 0;
    // A request is back whose `call` is this handler; also after the call's end.
    virtual void answered(Request*) {}
};

// Where responses go that Python makes: to the client of a call, or to native code that feeds Python's call (forward.hpp).
class Responder {
  public:
    virtual ~Responder() = default;
    // Which responses are charged to, and which ends where there is no memory for one.
    virtual Connection& responds_over() = 0;
    // Python wants one more message.
    virtual void ask() = 0;
    virtual void respond(Message&& response) = 0;
    virtual void finish(const Status& status) = 0;
    // How the session goes on.
    virtual void set_session(const RespSession&) {}
    virtual void set_subscriptions(std::shared_ptr<const Subscriptions>) {}
};

class Call final : public CallHead, public Responder {
  public:
    Call(Http2& connection, int32_t stream);
    Call(const Call&) = delete;
    ~Call();

    Http2& connection;
    const int32_t stream;

    // What a handler does.

    ConnectionAccount& account();
    Connection& responds_over() override;
    // By which errors, logs and the slow log name it: the client's own, or one that is made when somebody asks first.
    // std::bad_alloc.
    const std::string& request_id();
    // The message must be whole in the time that the only one of a call has, from now on.
    void expect_one();

    // Lets one more message come. The handler may get it, or hear that none comes, before this returns.
    void ask() override;
    // Sends a response, after those before it.
    void respond(Message&& response) override;
    // Ends the call when its responses are sent. The handler hears nothing of it any more.
    void finish(const Status& status) override;
    // Counts the call as one of this method. Python does that if the call is forwarded, but for its start.
    void count_in(MethodStats& stats);
    bool is_counted() const override { return counted_in_; }
    void leave_end() override { stats_ = nullptr; }
    // Its end is counted here.
    void count_unheard() override;
    // Python serves the call from now on. It gets this message first, if it is there, then those that come.
    void forward(Message&& first = {});
    // Whether a message was whole.
    bool has_delivered() const { return has_delivered_; }
    // Responses that have not left, with what gRPC writes before each.
    u64 unsent_bytes() const { return unsent_bytes_; }

    // What the connection does.

    // Charges the call. False: its connection may not hold it.
    bool admit();
    // A handler that comes after another one hears of the end of the messages too, when it asks for one.
    void set_handler(Handler* handler) {
        handler_ = handler;
        told_half_closed_ = false;
    }
    void receive(const u8* data, u64 size);
    // The client sends no more.
    void half_close();
    void tick(u64 now_ns);
    // The deadline has passed.
    void expire();
    // Lets the client send what is left of a message that was begun, or the next ones; not a little more after each of
    // these.
    void open_window();
    // The engine has said whether there is room for a value that comes in pieces.
    void room_decided();
    // Tells the handler if the caller is gone.
    void look_at_caller();
    void stop_waiting() {
        if (handler_) handler_->stop_waiting();
    }
    // Ends the call in the place of its handler.
    void refuse(const Status& status);
    // The stream is closed: nobody hears of the call any more.
    void close();
    // Sends exactly so many bytes of responses.
    void send(u64 size, Output& output);
    // Nothing can be sent until there is more.
    void defer() { is_deferred_ = true; }
    bool is_finished() const { return is_finished_; }
    Status status() const { return {code_, text_, trailers_}; }

    Call* previous = nullptr;  // of the connection's calls
    Call* next = nullptr;

  private:
    static constexpr u64 PREFIX_BYTES = 5;

    struct Response {
        u8 prefix[PREFIX_BYTES];
        u64 whole;  // bytes, with the prefix
        Message message;
    };

    void deliver(const u8* data, u64 size);
    u64 take(const u8* data, u64 size);
    bool begin_message();
    bool begin_whole(u64 size);
    u64 take_large(const u8* data, u64 size);
    void message_is_whole();
    void keep_unread(const u8* data, u64 size);
    void refuse_message(Status status);
    void count_refusal(const Status& status);
    void end(const Status& status);
    void drop_input();
    void drop_responses();
    bool keeps_lent() const;
    void count_end(int code);
    void wake();

    Handler* handler_ = nullptr;
    MethodStats* stats_ = nullptr;  // null: Python counts its end, or it has ended
    MethodStats* counted_in_ = nullptr;

    // The message that comes, and what came before anybody asked for it.
    std::string unread_;
    u64 unread_charged_ = 0;
    u8 prefix_[PREFIX_BYTES];
    u64 prefix_have_ = 0;
    Message message_;
    u64 message_have_ = 0;
    std::unique_ptr<LargeMessage> large_;  // or that, as long as it may be one
    u64 charged_bytes_ = 0;
    u64 begun_ns_, progress_ns_;  // when the call came, and the last byte of a message
    u64 expected_ns_ = NEVER;     // when its only message was asked for
    bool is_asked_ = false, is_delivering_ = false, ends_ = false, told_half_closed_ = false;
    bool has_delivered_ = false, is_deaf_ = false;

    std::list<Response> responses_;
    u64 sent_ = 0;  // of the first
    Progress sending_;
    u64 unsent_bytes_ = 0;
    bool has_headers_ = false, is_deferred_ = false, is_finished_ = false;
    int code_ = OK;
    std::string text_, trailers_, request_id_;
};

}  // namespace door
