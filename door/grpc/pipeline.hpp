// One stream of batches: many in flight, responses in order, bounded in number and bytes. It reads the next message while there
// is room, so a slow client takes at most the room of its own stream.
//
// It becomes a call of Python's too, the companion, when Python is needed: to end it since its caller is gone or the server
// stops, or for a message that is not plain. Python gets those messages, and responds to them. All are executed in order:
// a message for Python waits until the engine is done with those before it, and while Python has some, all others go there
// too.
#pragma once
#include <deque>
#include <list>

#include "grpc/kv_request.hpp"

namespace door {

class Forwarded;

// It frees itself when the call has ended and its requests are back.
class Pipeline final : public Handler, public Responder {
  public:
    // Serves a call from now on.
    static void open(Call& call);

    // What the call tells.
    void message(Message&& message) override;
    LargeMessage::Kind large_kind() const override { return {6, 2}; }
    void large_message(Message&& message, std::unique_ptr<LargeValue> value) override;
    void half_closed() override;
    void sent() override;
    void stop_waiting() override;
    bool ends_with(const Status& status) override;
    void over() override;
    void answered(Request* request) override;

    // What Python says.
    Connection& responds_over() override;
    void ask() override {}  // the stream reads as it has room
    void respond(Message&& response) override;
    void finish(const Status& status) override;

  private:
    // A message that was read, until the call has its response.
    struct InFlight : KvRequest {
        InFlight(Call& call, Pipeline& pipeline, u64 message_bytes);
        ~InFlight();

        const u64 message_bytes;
        u64 room_bytes;  // what it may hold in memory: its message and its response
        bool is_pythons = false;
        Message response;            // when it is there
        std::optional<Refusal> end;  // or why the stream ends when its turn comes
    };

    // A response that has not left.
    struct Unsent {
        u64 room_bytes;
        bool is_pythons;
    };

    explicit Pipeline(Call& call) : call_(&call) {}

    bool may_open_companion() const { return !companion_ && !status_.is_there; }
    bool open_companion();
    void take(Message&& message, LargeValue* value);
    void submit(InFlight& request);
    void fail(InFlight& request, const Refusal& refusal);
    void give_python();
    void set_room(InFlight& request, u64 bytes);
    void learn(const InFlight& request);
    void plan_end(const Status& status);
    void advance();
    bool may_read() const;
    void leave_call();
    void end(const Refusal& refusal);
    void finish_call();

    Call* call_;                    // null: it has ended
    Forwarded* companion_ = nullptr;  // Python's call; null: there is none yet, or it has ended
    std::list<InFlight> in_flight_;
    std::deque<Unsent> unsent_;
    std::deque<InFlight*> pythons_;  // those that Python has to answer: the last ones
    Message held_;                   // the message of the very last, which Python does not have yet
    u64 lent_ = 0;                   // requests that the engine has
    u64 room_bytes_ = 0;             // taken
    // The largest mean of a response's values so far. Before the first response a GET is taken for the largest.
    u64 value_bytes_ = NEVER;
    bool is_asked_ = false;
    bool is_half_closed_ = false;
    struct {
        bool is_there = false;
        int code = OK;
        std::string text, trailers;
    } status_;  // with which the stream ends, when all that was read is answered
};

}  // namespace door
