// Calls that Python serves: what happens to them goes to Python's event loop as events, what Python does comes back to the
// thread of their connection.
#pragma once
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "door.h"
#include "request/handler.hpp"
#include "request/request.hpp"

namespace door {

class Forward;
class PythonRequest;
class Thread;

// What Python is to be told. Its bytes are charged to the server: they may outlive the connection.
class Event {
  public:
    Event(Account& account, u64 id, DoorEventKind kind) : account_(account), id_(id), kind_(kind) {}
    // Python is to serve a call, or to say who makes it. std::bad_alloc.
    Event(Account& account, u64 id, DoorEventKind kind, const Connection& connection, const CallHead& call);
    Event(Account& account, u64 id, Message&& message);
    Event(const Event&) = delete;
    ~Event();

    // What the beginning of this call takes.
    static u64 opening_bytes(const Connection& connection, const CallHead& call);
    // An answer: a BatchResponse; or none, where the request was cancelled or there is no memory.
    void answer(Message&& response, bool is_refusal);
    void answer_nothing(int code, bool is_refusal);
    void take_times(const PythonRequest& request);
    // As Python sees it, while this is there.
    DoorEvent view() const;
    u64 id() const { return id_; }
    bool is_of_call() const { return kind_ == EVENT_OPEN || kind_ == EVENT_LOGIN; }

  private:
    void take(Message&& message);

    Account& account_;
    const u64 id_;
    const DoorEventKind kind_;
    bool is_counted_ = false, is_refusal_ = false;
    int code_ = 0;
    u64 connection_ = 0, deadline_ns_ = NEVER, caller_ = 0;
    std::string path_, peer_, metadata_, names_;
    u64 times_ns_[4] = {};
    Kind message_kind_ = REQUESTS;
    u8* message_ = nullptr;
    u64 message_bytes_ = 0, charged_bytes_ = 0;
};

// One of them, in its thread. Whoever feeds it, a call of the wire or native code, tells it of messages and of their end as a
// call tells its handler. It is gone after `over`, and after its responder has heard `finish`.
class Forwarded final : public Handler {
  public:
    Forwarded(Forward& forward, u64 id, bool has_end, CallHead& call, Responder& responder);

    const u64 id;

    // Messages wait until Python asks for them.
    void message(Message&& message) override;
    void half_closed() override;
    void sent() override;
    void stop_waiting() override {}  // Python knows
    void over() override;

  private:
    friend class Forward;

    void ask();

    Forward& forward_;
    const bool has_end_;  // Python counts the call's end
    CallHead& call_;
    Responder& responder_;
    std::list<Message> waiting_;
    bool is_asked_ = false, ends_ = false;
    std::list<Event> over_;  // made in advance: that must not fail
};

// All of them.
class Forward {
  public:
    // std::system_error without a file for the wake-ups.
    explicit Forward(Account& account);
    ~Forward();

    // A connection's thread.

    // Python serves a call with this head; null if the connection may not hold that. std::bad_alloc.
    Forwarded* open(CallHead& call, Responder& responder);
    // Python only says who makes it (login.hpp).
    Forwarded* ask_for_login(CallHead& call, Responder& responder);

    // What Python does, brought to the thread of its call (`thread_of`). A call that has ended ignores it.
    void ask(u64 call);
    // Takes bytes of malloc.
    void respond(u64 call, u8* response, u64 size);
    void finish(u64 call, const Status& status);
    void set_session(u64 call, const RespSession& session);
    void set_subscriptions(u64 call, std::shared_ptr<const Subscriptions> subscriptions);
    // Who makes it (access.hpp).
    void note_login(u64 call, u64 caller, u64 end_ns, u64 idle_ns);
    // Makes a request of a BatchRequest, which are bytes of malloc, over a connection; null: it is gone. `answer` is the event
    // that is told when it is back.
    void submit(Connection* connection, std::list<Event>&& answer, u32 table_id, u64 deadline_ns, u8* message, u64 size);
    // Nobody waits for it any more.
    void withdraw(u32 thread, u64 ticket);

    // A request of Python's is back; it is freed.
    void answered(PythonRequest& request);

    // Python's event loop.

    // Can be read while there are events.
    int file() const { return file_; }
    // Takes events; those that it took before are gone then.
    u64 take(DoorEvent* events, u64 room);

    static constexpr u64 THREADS_MAX = 64;
    // Ids of calls and of connections say which thread they are of.
    static u64 id_of(u64 number, u32 thread) { return number * THREADS_MAX + thread; }
    static u32 thread_of(u64 id) { return (u32)(id % THREADS_MAX); }

  private:
    friend class Forwarded;

    // Of one thread.
    struct Calls {
        u64 opened = 0;
        std::unordered_map<u64, std::unique_ptr<Forwarded>> open;
        std::unordered_map<u64, PythonRequest*> requests;  // that are not back
    };

    Forwarded* begin(DoorEventKind kind, CallHead& call, Responder& responder);
    template <class... Arguments>
    void tell(u64 call, Arguments&&... arguments);
    void tell(std::list<Event>&& event);
    // Takes back that a call has begun. False: Python has heard of it.
    bool take_back(u64 call);
    void forget(u64 call) { calls_[thread_of(call)].open.erase(call); }
    template <class Function>
    static void guard(Responder& responder, Function function);
    Forwarded* find(u64 call);
    void give_up(PythonRequest& request, int code, bool is_refusal);
    std::optional<Refusal> lend(PythonRequest& request, u32 table_id, u8* message, u64 size);

    Account& account_;
    Calls calls_[THREADS_MAX];
    const int file_;
    std::mutex mutex_;  // for `events_` and `unheard_`
    std::list<Event> events_, taken_;
    std::unordered_map<u64, std::list<Event>::iterator> unheard_;  // calls of which Python has not heard, by their beginnings
};

}  // namespace door
