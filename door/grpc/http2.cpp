#include "grpc/http2.hpp"

#include <string_view>

#include "door.hpp"
#include "net/foreign.hpp"
#include "grpc/grpc_text.hpp"
#include "grpc/kv_request.hpp"
#include "base/texts.hpp"

namespace door {

namespace {

constexpr u32 STREAMS_MAX = 100;
constexpr u32 HEADERS_BYTES_MAX = 16 << 10;
// A client may not know of that; beyond this much it means harm.
constexpr u64 HEADERS_BYTES_FLOOD = 64 << 10;
constexpr u64 HEADER_BYTES = 32;  // HTTP/2 counts so many for each beside its text

// The windows of streams bound what a client may send.
constexpr i32 CONNECTION_WINDOW_BYTES = 16 << 20;

// Pings of a client that were not more apart, though nothing was sent to it meanwhile; after so many the next one is too many.
constexpr u64 PING_NS = 10ull * 1000 * 1000 * 1000;
constexpr u32 PING_STRIKES_MAX = 2;

// Calls that clients give up: so many at once, and so many a second.
constexpr u64 RESETS_MAX = 1000, RESETS_PER_SECOND = 1000;
constexpr u64 FLOOD_RESETS = 100;  // a call with far too many headers takes as long to unpack as so many
// Frames that bring no call and no message, beyond those that come with calls and messages.
constexpr u64 FRAMES_MAX = 10 * 1000, FRAMES_PER_SECOND = 1000;
constexpr u64 FRAMES_PER_CALL = 16, FRAMES_PER_DATA = 8, SETTINGS_FRAMES = 16;

constexpr u8 DRAIN_PING[8] = {'d', 'r', 'a', 'i', 'n', 'i', 'n', 'g'};

nghttp2_nv header(std::string_view name, std::string_view value, u8 flags = 0) {
    return {(u8*)name.data(), (u8*)value.data(), name.size(), value.size(), flags};
}

constexpr u8 CONSTANT = NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE;

std::string_view code_text(int code) {
    static const char* TEXTS[] = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16"};
    return TEXTS[code >= 0 && code <= 16 ? code : 2];
}

void add_response_headers(std::vector<nghttp2_nv>& headers) {
    headers.push_back(header(":status", "200", CONSTANT));
    headers.push_back(header("content-type", "application/grpc", CONSTANT));
}

// `text` must live as long as the headers.
void add_trailers(std::vector<nghttp2_nv>& headers, const Status& status, const std::string& text) {
    headers.push_back(header("grpc-status", code_text(status.code), CONSTANT));
    if (!text.empty()) headers.push_back(header("grpc-message", text, NGHTTP2_NV_FLAG_NO_INDEX));
    for (std::string_view lines = status.trailers; !lines.empty();) {
        const size_t end = std::min(lines.find('\n'), lines.size()), name = lines.find(": ");
        if (name < end) headers.push_back(header(lines.substr(0, name), lines.substr(name + 2, end - name - 2)));
        lines.remove_prefix(std::min(end + 1, lines.size()));
    }
}

bool is_grpc(std::string_view type) {
    constexpr std::string_view GRPC = "application/grpc";
    return type.substr(0, GRPC.size()) == GRPC &&
           (type.size() == GRPC.size() || type[GRPC.size()] == '+' || type[GRPC.size()] == ';');
}

// Headers of the transport, which are not the call's.
bool is_of_transport(std::string_view name) {
    return name == "te" || name == "content-type" || name == "grpc-timeout" || name == "grpc-encoding" ||
           name == "grpc-accept-encoding" || name == "priority";
}

}  // namespace

// What nghttp2 calls. No exception may pass through it.
struct Http2::Callbacks {
    template <class Function>
    static int guarded(Function function) {
        try {
            function();
            return 0;
        } catch (const std::exception&) {
            return NGHTTP2_ERR_CALLBACK_FAILURE;
        }
    }

    static Http2& of(void* user) { return *(Http2*)user; }

    static int frame_begins(nghttp2_session*, const nghttp2_frame_hd* head, void* user) {
        Http2& http2 = of(user);
        const int failure = guarded([&] { http2.frame_begins(*head); });
        return http2.is_calmed_ ? NGHTTP2_ERR_CALLBACK_FAILURE : failure;
    }

    static int headers_begin(nghttp2_session*, const nghttp2_frame* frame, void* user) {
        if (frame->hd.type != NGHTTP2_HEADERS) return 0;
        Http2& http2 = of(user);
        return guarded([&] {
            http2.headers_since_ns_ = http2.now();
            http2.opening_ = {};
            http2.opening_.stream = frame->hd.stream_id;
            if (frame->headers.cat == NGHTTP2_HCAT_REQUEST) http2.begin_call(frame->hd.stream_id);
        });
    }

    static int header_came(nghttp2_session*, const nghttp2_frame* frame, const u8* name, size_t name_bytes, const u8* value,
                           size_t value_bytes, u8, void* user) {
        Http2& http2 = of(user);
        http2.opening_.bytes += name_bytes + value_bytes + HEADER_BYTES;
        if (http2.opening_.bytes > HEADERS_BYTES_FLOOD) {
            if (!http2.resets_.take(http2.now(), FLOOD_RESETS)) http2.calm("too many headers");
            // nghttp2 resets the stream, and gives no further header of this block.
            return http2.is_calmed_ ? NGHTTP2_ERR_CALLBACK_FAILURE : NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
        }
        if (frame->headers.cat != NGHTTP2_HCAT_REQUEST || http2.opening_.bytes > HEADERS_BYTES_MAX) return 0;
        return guarded([&] {
            Call* call = http2.call_of(frame->hd.stream_id);
            if (call) http2.take_header(*call, {(const char*)name, name_bytes}, {(const char*)value, value_bytes});
        });
    }

    static int frame_came(nghttp2_session*, const nghttp2_frame* frame, void* user) {
        return guarded([&] { of(user).frame_came(*frame); });
    }

    static int data_came(nghttp2_session* session, u8, int32_t stream, const u8* data, size_t size, void* user) {
        Http2& http2 = of(user);
        return guarded([&] {
            http2.require(nghttp2_session_consume_connection(session, size));
            http2.frames_.give(FRAMES_PER_DATA);
            if (Call* call = http2.call_of(stream)) call->receive(data, size);
        });
    }

    static int stream_closed(nghttp2_session*, int32_t stream, u32, void* user) {
        return guarded([&] { of(user).stream_closed(stream); });
    }

    static int frame_left(nghttp2_session*, const nghttp2_frame* frame, void* user) {
        return guarded([&] { of(user).frame_left(*frame); });
    }

    static ssize_t read_responses(nghttp2_session*, int32_t, u8*, size_t room, u32* flags, nghttp2_data_source* source,
                                  void* user) {
        ssize_t bytes = 0;
        const int failure = guarded([&] { bytes = of(user).read_responses(*(Call*)source->ptr, room, flags); });
        return failure ? failure : bytes;
    }

    static int send_responses(nghttp2_session*, nghttp2_frame*, const u8* head, size_t size, nghttp2_data_source* source,
                              void* user) {
        constexpr u64 FRAME_HEAD_BYTES = 9;
        return guarded([&] {
            of(user).output_->append(head, FRAME_HEAD_BYTES);
            ((Call*)source->ptr)->send(size, *of(user).output_);
        });
    }

    // Made once.
    static const nghttp2_session_callbacks* all() {
        static const nghttp2_session_callbacks* made = [] {
            nghttp2_session_callbacks* callbacks;
            if (nghttp2_session_callbacks_new(&callbacks)) throw std::bad_alloc();
            nghttp2_session_callbacks_set_on_begin_frame_callback(callbacks, frame_begins);
            nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, headers_begin);
            nghttp2_session_callbacks_set_on_header_callback(callbacks, header_came);
            nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, frame_came);
            nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, data_came);
            nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, stream_closed);
            nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, frame_left);
            nghttp2_session_callbacks_set_send_data_callback(callbacks, send_responses);
            return callbacks;
        }();
        return made;
    }

    static const nghttp2_option* options() {
        static const nghttp2_option* made = [] {
            nghttp2_option* options;
            if (nghttp2_option_new(&options)) throw std::bad_alloc();
            // A message flows when it is charged.
            nghttp2_option_set_no_auto_window_update(options, 1);
            // Such as a header "Bearer " without a token: Python says what is wrong with it.
            nghttp2_option_set_no_rfc9113_leading_and_trailing_ws_validation(options, 1);
            // Ours counts the resets that cost something.
            nghttp2_option_set_stream_reset_rate_limit(options, NEVER, NEVER);
            return options;
        }();
        return made;
    }
};

Http2::Http2(Thread& thread, std::unique_ptr<Transport> transport, Arrival arrival)
    : Connection(thread, std::move(transport), std::move(arrival)), memory_(account), has_begun_(thread.tls() != nullptr),
      resets_(RESETS_MAX, RESETS_PER_SECOND, begun_ns), frames_(FRAMES_MAX, FRAMES_PER_SECOND, begun_ns),
      heard_ns_(begun_ns) {
    nghttp2_mem hooks = memory_.hooks();
    require(nghttp2_session_server_new3(&session_, Callbacks::all(), this, Callbacks::options(), &hooks));
    try {
        const nghttp2_settings_entry settings[] = {{NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, STREAMS_MAX},
                                                   {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, WINDOW_BYTES},
                                                   {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, HEADERS_BYTES_MAX},
                                                   {NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1}};
        require(nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings, std::size(settings)));
        require(nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0, CONNECTION_WINDOW_BYTES));
    } catch (...) {
        end_session();
        throw;
    }
}

Http2::~Http2() {
    closed();
    end_session();
}

void Http2::end_session() {
    if (!memory_.has_failed()) nghttp2_session_del(session_);
}

bool Http2::received(const u8* data, u64 size) {
    if (is_calmed_) return true;
    heard_ns_ = now();
    keepalive_ns_ = NEVER;
    const ssize_t taken = nghttp2_session_mem_recv(session_, data, size);
    if (taken == NGHTTP2_ERR_BAD_CLIENT_MAGIC && !has_begun_) answer_foreigner({(const char*)data, size});
    if (taken < 0 && !is_calmed_ && foreign_answer_.empty()) {
        close(taken == NGHTTP2_ERR_BAD_CLIENT_MAGIC ? STATS_INVALID : taken == NGHTTP2_ERR_FLOODED ? STATS_FLOOD : STATS_NO_MEMORY);
        return false;
    }
    has_begun_ = true;
    want_fill();
    return true;
}

// A client that does not speak HTTP/2; it may be a person with a browser.
void Http2::answer_foreigner(std::string_view first) {
    const Language language = language_of(first);
    thread.stats.connections_refused[stats_of(language)].add();
    foreign_answer_ = in_words_of(language, language == Language::TLS ? NO_TLS_TEXT : GRPC_PORT_TEXT);
}

bool Http2::has_asked() const {
    for (const Call* call = calls_; call; call = call->next)
        if (call->has_delivered()) return true;
    return false;
}

void Http2::end_patience(const std::string&) {
    thread.stats.connections_refused[STATS_SILENT].add();
    drain();
}

// A client that has not sent its first frames may speak something else.
void Http2::take_leave(const std::string& why, Output& output) {
    if (!has_settings_ || is_calmed_) return;
    require(nghttp2_submit_goaway(session_, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(session_),
                                  NGHTTP2_NO_ERROR, (const u8*)why.data(), why.size()));
    const u8* data;
    output_ = &output;
    for (ssize_t size; output.size() < Output::LOW_BYTES && (size = nghttp2_session_mem_send(session_, &data)) > 0;)
        output.append(data, (u64)size);
}

void Http2::answered(Request* request) {
    if (request->reserve_bytes) LargeMessage::reserved(request);
    else ((Handler*)request->call)->answered(request);
}

void Http2::describe(const Request& request, DoorSlowCall& call) { static_cast<const KvRequest&>(request).describe(call); }

bool Http2::fill(Output& output) {
    if (!has_begun_) return true;  // HTTP/2 would be no answer to whoever speaks something else
    if (!foreign_answer_.empty()) {
        output.append(foreign_answer_.data(), foreign_answer_.size());
        return false;
    }
    output_ = &output;
    while (output.size() < Output::LOW_BYTES) {
        const u8* data;
        const ssize_t size = nghttp2_session_mem_send(session_, &data);
        if (size < 0) {
            close(STATS_NO_MEMORY);
            return false;
        }
        if (size == 0) {
            if (output.size() >= Output::LOW_BYTES) break;
            const bool is_over = is_calmed_ || (drain_ == LAST && !calls_);
            return !is_over && (nghttp2_session_want_read(session_) || nghttp2_session_want_write(session_));
        }
        output.append(data, (u64)size);
    }
    return true;
}

void Http2::tick(u64 now_ns) {
    if (is_calmed_) {
        if (now_ns > calmed_ns_ + patience().calm_ns) close();
        return;
    }
    if (!has_settings_ && now_ns > begun_ns + patience().preface_ns) return close(STATS_SILENT);
    if (headers_since_ns_ != NEVER && now_ns > headers_since_ns_ + patience().headers_ns)
        return close(STATS_SLOW_HEADERS, SLOW_HEADERS_TEXT);
    for (Call *call = calls_, *next; call; call = next) {
        next = call->next;
        call->tick(now_ns);
    }
    if (keepalive_ns_ != NEVER) {
        if (now_ns > keepalive_ns_ + patience().keepalive_answer_ns) return close(STATS_UNREACHABLE);
    } else if (now_ns > heard_ns_ + patience().keepalive_ns) {
        keepalive_ns_ = now_ns;
        require(nghttp2_submit_ping(session_, NGHTTP2_FLAG_NONE, nullptr));
        want_fill();
    }
    if (drain_ == NOTICED && now_ns > drain_ns_ + patience().drain_ns) end_drain();
}

u64 Http2::expire(u64 now_ns) {
    u64 next_deadline = NEVER;
    for (Call *call = calls_, *next; call; call = next) {
        next = call->next;
        if (now_ns >= call->deadline_ns) call->expire();
        next_deadline = std::min(next_deadline, call->deadline_ns);
    }
    return next_deadline;
}

void Http2::drain() {
    if (drain_ != SERVING || is_calmed_) return;
    if (!has_settings_) return close();
    drain_ = NOTICED;
    drain_ns_ = now();
    require(nghttp2_submit_shutdown_notice(session_));
    require(nghttp2_submit_ping(session_, NGHTTP2_FLAG_NONE, DRAIN_PING));
    want_fill();
}

void Http2::callers_changed() {
    for (Call *call = calls_, *next; call; call = next) {
        next = call->next;
        call->look_at_caller();
    }
}

void Http2::shut() {
    for (Call *call = calls_, *next; call; call = next) {
        next = call->next;
        call->stop_waiting();
    }
}

void Http2::closed() {
    while (Call* call = calls_) {
        remove(*call);
        call->close();
        delete call;
    }
}

u64 Http2::now() const { return thread.now(); }

const DoorConfig& Http2::config() const { return thread.door.config; }

const Patience& Http2::patience() const { return thread.door.patience; }

void Http2::open_window(Call& call, u64 bytes) {
    // Below zero where the client had sent more than the settings leave; nghttp2 has a function that would say zero.
    const i64 open = (i64)nghttp2_session_get_stream_effective_local_window_size(session_, call.stream) -
                     nghttp2_session_get_stream_effective_recv_data_length(session_, call.stream);
    if (open >= (i64)bytes) return;
    require(nghttp2_submit_window_update(session_, NGHTTP2_FLAG_NONE, call.stream, (i32)((i64)bytes - open)));
    want_fill();
}

u64 Http2::window(const Call& call) const {
    return (u64)std::max(0, nghttp2_session_get_stream_local_window_size(session_, call.stream));
}

void Http2::submit_headers(Call& call) {
    std::vector<nghttp2_nv> headers;
    add_response_headers(headers);
    const nghttp2_data_provider responses = {{.ptr = &call}, Callbacks::read_responses};
    require(nghttp2_submit_response(session_, call.stream, headers.data(), headers.size(), &responses));
    want_fill();
}

void Http2::submit_only_trailers(Call& call) {
    const Status status = call.status();
    const std::string text = percent_encoded(status.text);
    std::vector<nghttp2_nv> headers;
    add_response_headers(headers);
    if (status.code == UNIMPLEMENTED) headers.push_back(header("grpc-accept-encoding", "identity", CONSTANT));
    add_trailers(headers, status, text);
    require(nghttp2_submit_response(session_, call.stream, headers.data(), headers.size(), nullptr));
    want_fill();
}

void Http2::resume(Call& call) {
    require(nghttp2_session_resume_data(session_, call.stream));
    want_fill();
}

void Http2::reset(Call& call) {
    require(nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, call.stream, NGHTTP2_CANCEL));
    want_fill();
}

void Http2::serve(Call& call) {
    if (!thread.door.service || !thread.door.service->open(call)) call.forward();
}

void Http2::forward(Call& call, Message&& first) {
    Forwarded* forwarded = thread.door.forward.open(call, call);
    if (!forwarded) {
        call.refuse({RESOURCE_EXHAUSTED, memory_text(account, call.metadata.size()), MEMORY_FULL});
        return;
    }
    call.set_handler(forwarded);
    if (first.is_there()) forwarded->message(std::move(first));
}

Call* Http2::call_of(int32_t stream) const { return (Call*)nghttp2_session_get_stream_user_data(session_, stream); }

void Http2::begin_call(int32_t stream) {
    auto call = std::make_unique<Call>(*this, stream);
    require(nghttp2_session_set_stream_user_data(session_, stream, call.get()));
    // Each stream has its turn; a client cannot change that.
    const nghttp2_extpri in_turns = {NGHTTP2_EXTPRI_DEFAULT_URGENCY, 1};
    require(nghttp2_session_change_extpri_stream_priority(session_, stream, &in_turns, 1));
    call->next = calls_;
    if (calls_) calls_->previous = call.get();
    calls_ = call.release();
}

void Http2::take_header(Call& call, std::string_view name, std::string_view value) {
    if (name == ":method") opening_.is_post = value == "POST";
    else if (name == ":path") call.path = value;
    else if (name == "content-type") opening_.is_grpc = is_grpc(value);
    else if (name == "grpc-timeout" && timeout_ns(value) != NEVER) opening_.deadline_ns = now() + timeout_ns(value);
    if (name.front() == ':' || is_of_transport(name)) return;
    call.metadata.append(name).append(": ").append(value) += '\n';
}

void Http2::headers_end(Call& call) {
    frames_.give(FRAMES_PER_CALL);
    call.deadline_ns = opening_.deadline_ns;
    thread.expect_deadline(call.deadline_ns);
    if (opening_.bytes > HEADERS_BYTES_MAX) {
        call.refuse({RESOURCE_EXHAUSTED, "received metadata size exceeds hard limit (" + std::to_string(opening_.bytes) +
                                             " vs. " + std::to_string(HEADERS_BYTES_MAX) + ")"});
    } else if (!opening_.is_post) {
        refuse_http(call, "405");
    } else if (!opening_.is_grpc) {
        refuse_http(call, "415");
    } else if (!call.admit()) {
        call.refuse({RESOURCE_EXHAUSTED, memory_text(account, CALL_BYTES), MEMORY_FULL});
    } else {
        serve(call);
    }
}

// To a client that does not speak gRPC.
void Http2::refuse_http(Call& call, const char* status) {
    call.close();
    const nghttp2_nv headers[] = {header(":status", status, CONSTANT)};
    require(nghttp2_submit_response(session_, call.stream, headers, std::size(headers), nullptr));
}

void Http2::frame_begins(const nghttp2_frame_hd& head) {
    if (!frames_.take(now(), head.type == NGHTTP2_SETTINGS ? SETTINGS_FRAMES : 1)) calm("too many frames");
}

void Http2::frame_came(const nghttp2_frame& frame) {
    switch (frame.hd.type) {
        case NGHTTP2_HEADERS:
            headers_since_ns_ = NEVER;
            if (Call* call = call_of(frame.hd.stream_id)) {
                if (frame.headers.cat == NGHTTP2_HCAT_REQUEST) headers_end(*call);
                if (frame.hd.flags & NGHTTP2_FLAG_END_STREAM) call->half_close();
            }
            break;
        case NGHTTP2_DATA:
            if (frame.hd.flags & NGHTTP2_FLAG_END_STREAM)
                if (Call* call = call_of(frame.hd.stream_id)) call->half_close();
            break;
        case NGHTTP2_SETTINGS:
            if (frame.hd.flags & NGHTTP2_FLAG_ACK) windows_shrank();
            else has_settings_ = true;
            break;
        case NGHTTP2_PING:
            if (!(frame.hd.flags & NGHTTP2_FLAG_ACK)) ping_came();
            else if (drain_ == NOTICED && !memcmp(frame.ping.opaque_data, DRAIN_PING, sizeof DRAIN_PING)) end_drain();
            break;
    }
}

// The first streams of a connection begin with the windows of the standard. When the client knows of ours, both sides
// take the difference from each stream's window: also from one that was to last for the rest of a message.
void Http2::windows_shrank() {
    for (Call* call = calls_; call; call = call->next) call->open_window();
}

void Http2::frame_left(const nghttp2_frame& frame) {
    if (frame.hd.type == NGHTTP2_GOAWAY && frame.goaway.error_code != NGHTTP2_NO_ERROR && !is_calmed_)
        thread.stats.connections_refused[STATS_INVALID].add();  // nghttp2 ends it
    if (frame.hd.type != NGHTTP2_HEADERS && frame.hd.type != NGHTTP2_DATA) return;
    frames_.give(FRAMES_PER_DATA);
    // Whoever is sent something may ask whether it is still there.
    last_ping_ns_ = 0;
    ping_strikes_ = 0;
    // The rest of a request is of no use when the call has ended.
    if (frame.hd.flags & NGHTTP2_FLAG_END_STREAM && !nghttp2_session_get_stream_remote_close(session_, frame.hd.stream_id))
        require(nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, frame.hd.stream_id, NGHTTP2_NO_ERROR));
}

void Http2::stream_closed(int32_t stream) {
    // nghttp2 tells nothing else of headers that it refuses.
    if (stream == opening_.stream) headers_since_ns_ = NEVER;
    Call* call = call_of(stream);
    if (!call) return;
    // Before it had its answer; also where nghttp2 reset the stream for what the client sent.
    if (!nghttp2_session_get_stream_local_close(session_, stream) && !resets_.take(now())) calm("too many resets");
    remove(*call);
    call->close();
    delete call;
}

ssize_t Http2::read_responses(Call& call, u64 room, u32* flags) {
    // nghttp2 would go on for as long as windows are open.
    if (output_->size() >= Output::LOW_BYTES) return NGHTTP2_ERR_PAUSE;
    const u64 bytes = std::min(room, call.unsent_bytes());
    if (call.is_finished() && bytes == call.unsent_bytes()) {
        *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
        const Status status = call.status();
        const std::string text = percent_encoded(status.text);
        std::vector<nghttp2_nv> trailers;
        add_trailers(trailers, status, text);
        require(nghttp2_submit_trailer(session_, call.stream, trailers.data(), trailers.size()));
    } else if (!bytes) {
        call.defer();
        return NGHTTP2_ERR_DEFERRED;
    }
    if (bytes) *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
    return (ssize_t)bytes;
}

void Http2::remove(Call& call) {
    (call.previous ? call.previous->next : calls_) = call.next;
    if (call.next) call.next->previous = call.previous;
}

void Http2::ping_came() {
    const bool is_early = last_ping_ns_ && now() < last_ping_ns_ + PING_NS;
    last_ping_ns_ = now();
    if (is_early && ++ping_strikes_ > PING_STRIKES_MAX) calm("too_many_pings");
}

// Ends the connection of a client that asks too much.
void Http2::calm(std::string_view why) {
    if (is_calmed_) return;
    is_calmed_ = true;
    calmed_ns_ = now();
    thread.stats.connections_refused[STATS_FLOOD].add();
    require(nghttp2_submit_goaway(session_, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(session_),
                                  NGHTTP2_ENHANCE_YOUR_CALM, (const u8*)why.data(), why.size()));
    want_fill();
}

// The client knows that we stop: calls that it made before have come.
void Http2::end_drain() {
    drain_ = LAST;
    require(nghttp2_submit_goaway(session_, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(session_),
                                  NGHTTP2_NO_ERROR, nullptr, 0));
    want_fill();
}

void Http2::require(int outcome) {
    // The stream ends, or the session: nghttp2 says so by itself.
    if (outcome == NGHTTP2_ERR_NOMEM) throw std::bad_alloc();
}

}  // namespace door
