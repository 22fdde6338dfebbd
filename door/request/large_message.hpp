// A message of a call with a value that comes in pieces. What stands before the value and behind it is a short message; the
// value goes straight to where it will lie, once the engine has room for it. Where there is none, its bytes are thrown away, and
// the request is refused.
#pragma once
#include <memory>
#include <string>

#include "request/call_head.hpp"
#include "request/message.hpp"
#include "request/request.hpp"
#include "request/upload.hpp"

namespace door {

class Call;
class MessageReader;

// What there is of a value beside a message. It stood at `at`, behind `head`.
struct LargeValue {
    std::unique_ptr<Upload> upload;          // null: there was no room
    std::shared_ptr<const Refusal> refusal;  // why
    u64 at = 0;
    std::string head;

    // The message with the value in its place; it is not there if its connection may not hold it.
    Message whole(const Message& message, ConnectionAccount& account) const;
};

class LargeMessage {
  public:
    // How a message is begun that may have such a value.
    struct Kind {
        u32 value_field, ops_field;  // the first is 0 if there is none, the second if it has one value in any case
    };

    LargeMessage(Call& call, u64 size, Kind kind);

    // What is known of it so far.
    enum State {
        LOOKING,  // whether there is such a value
        NONE,     // there is none: it is a message like others, which begins with `small`
        WAITING,  // for the room, and takes nothing
        TAKING,
        WHOLE
    };
    State state() const { return state_; }
    // Takes the next bytes; returns how many.
    u64 take(const u8* data, u64 size);
    // Nobody waits for it any more; it may have to wait for the engine.
    static void end(std::unique_ptr<LargeMessage> message);
    // The engine has said whether there is room. It may be gone after that.
    static void reserved(Request* request);

    u64 left() const { return size_ - have_; }
    // Whether its value comes too slowly.
    bool is_late(u64 now_ns) const { return state_ == TAKING && now_ns > ends_ns_; }
    const std::string& small() const { return small_; }
    std::unique_ptr<LargeValue> take_value() { return std::move(value_); }

  private:
    // Of what stands around the value, together: of a call it is charged with the window. With a longer key, a message must
    // come whole.
    static constexpr u64 HEAD_BYTES_MAX = WINDOW_BYTES / 2;

    void look();
    bool ask(const std::string& table_name, const MessageReader& reader, u64 bytes);

    Call* call_;  // null: it has ended
    ConnectionAccount& account_;
    const u64 size_;
    const Kind kind_;
    State state_ = LOOKING;
    std::string small_;
    u64 have_ = 0, value_left_ = 0, ends_ns_ = NEVER;
    bool is_asking_ = false;
    std::unique_ptr<LargeValue> value_;
    Request reservation_;
};

}  // namespace door
