// One gRPC call over HTTP/2: its headers, its messages one by one, its responses, its end.
#pragma once
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <string_view>

#include "request/handler.hpp"
#include "base/progress.hpp"
#include "base/request_id.hpp"
#include "base/stats.hpp"

namespace door {

class Http2;
class Output;

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
