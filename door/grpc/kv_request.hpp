// A request of the KV service that came as a message, and the words where it cannot be done.
#pragma once
#include <optional>

#include "grpc/call.hpp"
#include "grpc/messages.hpp"

namespace door {

enum class Method { GET, SET, DELETE, INCREMENT, MULTI_GET, BATCH, PIPELINE };

class KvRequest : public Request {
  public:
    // `handler` hears when it is back.
    KvRequest(Call& call, Handler& handler);
    // One that no call of the door makes.
    explicit KvRequest(Connection& connection);
    ~KvRequest();

    // Takes a message of a call if it is plain, its caller may do that, and the door may serve it. Else Python does: then
    // the message stays where it is.
    // `value`: what came in pieces beside the message. Of a value without room, only its refusal is left.
    bool take(Call& call, Method method, Message& message, LargeValue* value = nullptr);

    // The same of a BatchRequest on a table with this id, whose sender may do all.
    bool take_batch(u32 table_id, Message& message);

    // Finds the id of a message that is refused.
    void look(Method method, const Message& message);

    // Lends itself to the engine; or returns why not.
    std::optional<Refusal> lend();

    // Of a request that is back: why it was not done, or its response, which may take the results. std::bad_alloc.
    std::optional<Refusal> why_not_done() const;
    Message make_response();

    // A message with a value that came in pieces, as Python takes it: it is not there if it is too long, or there is no memory.
    Message whole(const Message& message, const LargeValue& value) const;

    // Why not, or why there was no room for its value.
    Refusal why_not_whole(const Message& message, const LargeValue& value) const;

    // Why it is refused where so many bytes more are not free.
    Refusal no_room(u64 bytes) const;

    // The message that was taken; the request has no columns then.
    Message take_back() { return std::move(taken_); }
    // Nobody needs its columns and results any more.
    void drop();

    // What the slow log says of it (`Connection::describe`). std::bad_alloc.
    void describe(DoorSlowCall& call) const;
    // Its call is about to end, and what the slow log says of that stays, if there is memory.
    void leave_call();

    u64 id() const { return said_.id; }
    // Whether the response is not longer than a message may be.
    bool fits_message();
    // What its response holds beside values.
    u64 response_bytes() const;
    // The same with values so long on average, as far as the table's limits allow.
    u64 response_bytes(u64 mean_value_bytes) const;

  private:
    Message response_in_place(const MessageWriter& writer);

    ConnectionAccount& account_;
    Call* origin_;  // null: it has ended
    u64 left_caller_ = 0;
    std::string left_id_;
    Method method_ = Method::BATCH;
    Said said_;
    Table table_ = {};
    Message taken_;
    Message columns_;  // of a message that has none
    std::shared_ptr<const Refusal> no_room_;  // for its value
    u64 planned_bytes_ = 0;  // charged for the response
};

// Those of a call that was refused.
std::string trailers_of(const Refusal& refusal);

}  // namespace door
