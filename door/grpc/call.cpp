#include "grpc/call.hpp"

#include <algorithm>
#include <cstdio>

#include "door.hpp"
#include "grpc/http2.hpp"
#include "net/loop.hpp"
#include "base/output.hpp"
#include "base/texts.hpp"

namespace door {

namespace {


std::string seconds_text(double seconds) {
    char text[32];
    snprintf(text, sizeof text, "%g", seconds);
    return text;
}

}  // namespace

Call::Call(Http2& connection, int32_t stream)
    : connection(connection), stream(stream), begun_ns_(connection.now()), progress_ns_(begun_ns_) {}

Call::~Call() {
    drop_input();
    connection.account.give(CALLS, charged_bytes_);
}

bool Call::admit() {
    const u64 bytes = CALL_BYTES + path.size() + metadata.size();
    if (!connection.account.admit(CALLS, bytes)) return false;
    charged_bytes_ = bytes;
    return true;
}

ConnectionAccount& Call::account() { return connection.account; }

Connection& Call::responds_over() { return connection; }

const std::string& Call::request_id() {
    if (request_id_.empty()) request_id_ = given_request_id(metadata);
    if (request_id_.empty()) request_id_ = new_request_id();
    return request_id_;
}

void Call::expect_one() { expected_ns_ = connection.now(); }

void Call::ask() {
    if (!handler_) return;
    is_asked_ = true;
    progress_ns_ = connection.now();
    if (is_delivering_) return;
    if (!unread_.empty() || ends_) deliver(nullptr, 0);
    open_window();
}

void Call::respond(Message&& response) {
    if (is_finished_) return;
    const u64 size = response.whole_size();
    responses_.push_back({{0, (u8)(size >> 24), (u8)(size >> 16), (u8)(size >> 8), (u8)size}, PREFIX_BYTES + size, std::move(response)});
    unsent_bytes_ += PREFIX_BYTES + size;
    if (!has_headers_) {
        has_headers_ = true;
        connection.submit_headers(*this);
    }
    if (responses_.size() == 1) sending_.begin(connection.now());
    wake();
}

void Call::finish(const Status& status) {
    if (is_finished_) return;
    is_finished_ = true;
    count_end(status.code);
    handler_ = nullptr;
    drop_input();
    code_ = status.code;
    text_ = status.text;
    trailers_ = status.trailers;
    // Python says it by itself.
    if (code_ != OK && trailers_.find(REQUEST_ID) == std::string::npos)
        trailers_.append(REQUEST_ID).append(request_id()) += '\n';
    if (has_headers_) wake();
    else connection.submit_only_trailers(*this);
}

void Call::count_in(MethodStats& stats) {
    stats_ = counted_in_ = &stats;
    stats.started.add();
}

void Call::count_unheard() {
    stats_ = counted_in_;
    count_end(CANCELLED_CODE);
}

void Call::count_end(int code) {
    MethodStats* const stats = std::exchange(stats_, nullptr);
    if (!stats) return;
    stats->handled[(u64)code < CODES ? code : 2].add();
    stats->ns.observe(now_ns() - begun_ns_);
}

void Call::forward(Message&& first) {
    handler_ = nullptr;
    if (large_) LargeMessage::end(std::move(large_));
    connection.forward(*this, std::move(first));
}

void Call::receive(const u8* data, u64 size) {
    if (!handler_ || is_deaf_) return;
    progress_ns_ = connection.now();
    if (is_asked_ && !is_delivering_ && unread_.empty()) deliver(data, size);
    else keep_unread(data, size);
    open_window();
}

void Call::half_close() {
    ends_ = true;
    if (handler_ && !is_delivering_) deliver(nullptr, 0);
}

void Call::tick(u64 now_ns) {
    if (sending_.is_late(now_ns, connection.patience().unread_ns) && keeps_lent()) return drop_responses();
    if (handler_ && is_asked_ && !ends_) {
        if (large_ && large_->is_late(now_ns)) {
            refuse_message({DEADLINE_EXCEEDED, "the value came too slowly: at least 128 KiB a second", NOT_EXECUTED});
        } else if (expected_ns_ != NEVER && (!large_ || large_->state() == LargeMessage::LOOKING) &&
                   (double)(now_ns - expected_ns_) > 1e9 * connection.config().receive_seconds_max) {
            refuse_message({DEADLINE_EXCEEDED,
                            "the message was not whole after " + seconds_text(connection.config().receive_seconds_max) +
                                " s (--receive-seconds-max)",
                            NOT_EXECUTED});
        } else if (large_ && large_->state() == LargeMessage::WAITING) {
            progress_ns_ = now_ns;
        } else if (prefix_have_ && now_ns > progress_ns_ + connection.patience().message_ns) {
            refuse_message({DEADLINE_EXCEEDED, "no byte of the message came for 10 s", NOT_EXECUTED});
        }
    }
}

void Call::expire() {
    deadline_ns = NEVER;
    if (is_finished_) drop_responses();
    else refuse({DEADLINE_EXCEEDED, DEADLINE_TEXT});
}

void Call::look_at_caller() {
    if (caller && caller->is_gone && handler_) handler_->stop_waiting();
}

void Call::count_refusal(const Status& status) {
    if (status.trailers == MEMORY_FULL) connection.thread.stats.refused[STATS_MEMORY_FULL].add();
    else if (status.code == UNIMPLEMENTED) connection.thread.stats.refused[STATS_UNSUPPORTED].add();
    else if (status.code == DEADLINE_EXCEEDED && status.trailers == NOT_EXECUTED)
        connection.thread.stats.refused[STATS_SLOW].add();
}

// What was read before it is executed all the same. Where nobody can say whether it was, nobody says that it was not.
void Call::refuse_message(Status status) {
    count_refusal(status);
    is_deaf_ = true;
    is_asked_ = false;
    drop_input();
    if (handler_->ends_with(status)) return;
    if (has_delivered_ && status.trailers.substr(0, NOT_EXECUTED.size()) == NOT_EXECUTED)
        status.trailers.remove_prefix(NOT_EXECUTED.size());
    end(status);
}

void Call::refuse(const Status& status) {
    count_refusal(status);
    end(status);
}

void Call::end(const Status& status) {
    if (Handler* handler = std::exchange(handler_, nullptr)) handler->over();
    finish(status);
}

void Call::close() {
    is_finished_ = true;
    count_end(CANCELLED_CODE);
    if (Handler* handler = std::exchange(handler_, nullptr)) handler->over();
}

void Call::send(u64 size, Output& output) {
    u64 left = 0;
    unsent_bytes_ -= size;
    sending_.sent(size, connection.now());
    while (size) {
        Response& first = responses_.front();
        if (sent_ < PREFIX_BYTES) {
            const u64 part = std::min(size, PREFIX_BYTES - sent_);
            output.append(first.prefix + sent_, part);
            sent_ += part;
            size -= part;
        }
        const u64 part = std::min(size, first.whole - sent_);
        first.message.send(part, output);
        sent_ += part;
        size -= part;
        if (sent_ == first.whole) {
            responses_.pop_front();
            sent_ = 0;
            left++;
        }
    }
    for (; left && handler_; left--) handler_->sent();
}

// Gives the handler what it asks for, of what came before and of this; keeps what is left.
void Call::deliver(const u8* data, u64 size) {
    is_delivering_ = true;
    std::string before;
    if (!unread_.empty()) {
        before.swap(unread_);
        data = (const u8*)before.data();
        size = before.size();
    }
    while (handler_ && is_asked_ && size) {
        const u64 taken = take(data, size);
        if (!taken) break;  // it waits
        data += taken;
        size -= taken;
    }
    connection.account.give(REQUESTS, std::exchange(unread_charged_, 0));
    if (handler_ && size) keep_unread(data, size);
    is_delivering_ = false;
    if (handler_ && ends_ && !told_half_closed_ && (is_asked_ || unread_.empty())) {
        told_half_closed_ = true;
        handler_->half_closed();
    }
}

// Takes bytes of one message; when it is whole, the handler gets it.
u64 Call::take(const u8* data, u64 size) {
    u64 taken = 0;
    if (prefix_have_ < PREFIX_BYTES) {
        taken = std::min(size, PREFIX_BYTES - prefix_have_);
        memcpy(prefix_ + prefix_have_, data, taken);
        prefix_have_ += taken;
        if (prefix_have_ < PREFIX_BYTES || !begin_message()) return taken;
    }
    if (large_) return taken + take_large(data + taken, size - taken);
    const u64 part = std::min(size - taken, message_.size() - message_have_);
    memcpy(message_.data() + message_have_, data + taken, part);
    message_have_ += part;
    if (message_have_ == message_.size()) {
        message_is_whole();
        handler_->message(std::move(message_));
    }
    return taken + part;
}

void Call::message_is_whole() {
    is_asked_ = false;
    prefix_have_ = message_have_ = 0;
    has_delivered_ = true;
}

// Takes bytes of a message that may have a value that comes in pieces.
u64 Call::take_large(const u8* data, u64 size) {
    const u64 taken = large_->take(data, size);
    const LargeMessage::State state = large_->state();
    if (state != LargeMessage::NONE && state != LargeMessage::WHOLE) return taken;
    const std::unique_ptr<LargeMessage> large = std::move(large_);
    const std::string& small = large->small();
    if (!begin_whole(state == LargeMessage::NONE ? small.size() + large->left() : small.size())) return taken;
    memcpy(message_.data(), small.data(), small.size());
    message_have_ = small.size();
    if (message_have_ < message_.size()) return taken;
    message_is_whole();
    if (state == LargeMessage::WHOLE) handler_->large_message(std::move(message_), large->take_value());
    else handler_->message(std::move(message_));
    return taken;
}

void Call::room_decided() {
    if (!handler_) return;
    progress_ns_ = connection.now();
    deliver(nullptr, 0);
    open_window();
}

// All of a message is charged before the client may send more of it than a window.
bool Call::begin_message() {
    const u64 size = (u64)prefix_[1] << 24 | (u64)prefix_[2] << 16 | (u64)prefix_[3] << 8 | prefix_[4];
    if (prefix_[0] == 1) {
        refuse_message(
            {UNIMPLEMENTED, "compressed messages are not accepted: send grpc-encoding identity", NOT_EXECUTED});
    } else if (prefix_[0]) {
        refuse({INTERNAL, "a message begins with an unknown flag"});
    } else if (size >= Upload::BYTES_MIN && handler_->large_kind().value_field && connection.thread.door.turn.takes_uploads()) {
        large_ = std::make_unique<LargeMessage>(*this, size, handler_->large_kind());
        return true;
    } else {
        return begin_whole(size);
    }
    return false;
}

bool Call::begin_whole(u64 size) {
    const u64 size_max = connection.config().message_bytes_max;
    if (size > size_max) {
        refuse_message({RESOURCE_EXHAUSTED, large_message_text(size, size_max), NOT_EXECUTED});
    } else {
        message_ = Message::admitted(connection.account, REQUESTS, size);
        if (message_.is_there()) return true;
        refuse_message({RESOURCE_EXHAUSTED, memory_text(connection.account, size), MEMORY_FULL});
    }
    return false;
}

void Call::open_window() {
    if (!handler_ || !is_asked_ || ends_) return;
    u64 left = prefix_have_ == PREFIX_BYTES ? message_.size() - message_have_ : 0;
    if (large_) {
        if (large_->state() == LargeMessage::WAITING) return;
        left = large_->state() == LargeMessage::TAKING ? large_->left() : 0;  // the rest may have to find room whole
    }
    if (connection.window(*this) < std::max(left, WINDOW_BYTES / 2))
        connection.open_window(*this, std::max(left, WINDOW_BYTES));
}

// The first of them, up to a window, are charged with the call. A client that has not heard of the window may send more.
void Call::keep_unread(const u8* data, u64 size) {
    if (is_deaf_) return;
    const u64 before = unread_.size(), after = before + size;
    const u64 more = after > WINDOW_BYTES ? after - std::max(before, WINDOW_BYTES) : 0;
    if (more && !connection.account.admit(REQUESTS, more)) {
        refuse_message({RESOURCE_EXHAUSTED, memory_text(connection.account, more), MEMORY_FULL});
        return;
    }
    unread_charged_ += more;
    unread_.append((const char*)data, size);
}

void Call::drop_input() {
    connection.account.give(REQUESTS, std::exchange(unread_charged_, 0));
    std::string().swap(unread_);
    message_ = Message();
    if (large_) LargeMessage::end(std::move(large_));
}

bool Call::keeps_lent() const {
    return std::any_of(responses_.begin(), responses_.end(), [](const Response& response) { return response.message.has_lent(); });
}

// The client did not take them in time.
void Call::drop_responses() {
    connection.reset(*this);
    responses_.clear();
    unsent_bytes_ = sent_ = 0;
}

void Call::wake() {
    if (std::exchange(is_deferred_, false)) connection.resume(*this);
    connection.want_fill();
}

}  // namespace door
