// Who serves a call, and where what Python answers goes: to the client of a call, or to native code.
#pragma once
#include <memory>
#include <string_view>

#include "request/call_head.hpp"
#include "request/large_message.hpp"
#include "request/message.hpp"

namespace door {

class Call;
class Connection;
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

}  // namespace door
