// gRPC over HTTP/2: a connection's calls, its limits, and its end. The frames are nghttp2's.
#pragma once
#include <nghttp2/nghttp2.h>

#include "grpc/call.hpp"
#include "net/connection.hpp"
#include "door.h"
#include "base/patience.hpp"
#include "grpc/service.hpp"
#include "grpc/session_memory.hpp"
#include "base/token_bucket.hpp"

namespace door {

class Http2 final : public Connection {
  public:
    // std::bad_alloc.
    Http2(Thread& thread, std::unique_ptr<Transport> transport, Arrival arrival);
    ~Http2() override;

    bool received(const u8* data, u64 size) override;
    void answered(Request* request) override;
    void describe(const Request& request, DoorSlowCall& call) override;
    bool fill(Output& output) override;
    void tick(u64 now_ns) override;
    u64 expire(u64 now_ns) override;
    void drain() override;
    bool lingers() const override { return drain_ == LAST && !is_calmed_; }
    void callers_changed() override;
    void shut() override;
    bool has_asked() const override;
    void end_patience(const std::string&) override;
    void take_leave(const std::string& why, Output& output) override;
    void closed() override;

    // For calls.

    u64 now() const;
    const DoorConfig& config() const;
    const Patience& patience() const;
    // The call's client may send so many bytes more, if it may not already.
    void open_window(Call& call, u64 bytes);
    // How many it may.
    u64 window(const Call& call) const;
    void submit_headers(Call& call);
    void submit_only_trailers(Call& call);
    void resume(Call& call);
    // Ends a call whose responses its client does not take.
    void reset(Call& call);
    // Native code serves a call of which nothing was received, or Python does.
    void serve(Call& call);
    void forward(Call& call, Message&& first);

  private:
    struct Callbacks;
    friend struct Callbacks;

    Call* call_of(int32_t stream) const;
    void begin_call(int32_t stream);
    void take_header(Call& call, std::string_view name, std::string_view value);
    void headers_end(Call& call);
    void refuse_http(Call& call, const char* status);
    void frame_begins(const nghttp2_frame_hd& head);
    void frame_came(const nghttp2_frame& frame);
    void windows_shrank();
    void frame_left(const nghttp2_frame& frame);
    void stream_closed(int32_t stream);
    void remove(Call& call);
    ssize_t read_responses(Call& call, u64 room, u32* flags);
    void answer_foreigner(std::string_view first);
    void ping_came();
    void calm(std::string_view why);
    void end_drain();
    void end_session();
    static void require(int outcome);

    SessionMemory memory_;
    nghttp2_session* session_ = nullptr;
    Output* output_ = nullptr;  // while it is filled

    Call* calls_ = nullptr;  // a list
    // The headers of a call that come; those of two never mix.
    struct Opening {
        int32_t stream = 0;
        u64 bytes = 0;  // as HTTP/2 counts them
        u64 deadline_ns = NEVER;
        bool is_post = false, is_grpc = false;
    } opening_;

    // What keeps a client from being a burden.
    bool has_begun_;  // it sent something, or has said by TLS that it speaks HTTP/2
    std::string foreign_answer_;  // to a client that does not speak HTTP/2
    bool has_settings_ = false;
    u64 headers_since_ns_ = NEVER;  // a block of headers that is not whole
    TokenBucket resets_, frames_;
    u64 last_ping_ns_ = 0;
    u32 ping_strikes_ = 0;
    bool is_calmed_ = false;
    u64 calmed_ns_ = 0;

    // Whether the client is still there: when it sent something, and when it was asked.
    u64 heard_ns_, keepalive_ns_ = NEVER;

    enum Drain { SERVING, NOTICED, LAST } drain_ = SERVING;
    u64 drain_ns_ = 0;
};

}  // namespace door
