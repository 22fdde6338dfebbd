#include "grpc/pipeline.hpp"

#include <algorithm>

#include "door.hpp"
#include "python/forward.hpp"
#include "grpc/http2.hpp"
#include "base/texts.hpp"

namespace door {

Pipeline::InFlight::InFlight(Call& call, Pipeline& pipeline, u64 message_bytes)
    : KvRequest(call, pipeline), message_bytes(message_bytes), room_bytes(message_bytes) {
    connection->account.charge(REQUESTS, sizeof *this);
}

Pipeline::InFlight::~InFlight() { connection->account.give(REQUESTS, sizeof *this); }

void Pipeline::open(Call& call) {
    Pipeline* const opened = new Pipeline(call);
    call.set_handler(opened);
    opened->advance();
}

void Pipeline::message(Message&& message) { take(std::move(message), nullptr); }

void Pipeline::large_message(Message&& message, std::unique_ptr<LargeValue> value) { take(std::move(message), value.get()); }

void Pipeline::take(Message&& message, LargeValue* value) {
    is_asked_ = false;
    if (status_.is_there) return;  // it was asked for before
    const u64 value_bytes = value && value->upload ? value->upload->size() : 0;
    InFlight& request = in_flight_.emplace_back(*call_, *this, message.size() + LentValue::counted(value_bytes));
    room_bytes_ += request.room_bytes;
    if (pythons_.empty() && request.take(*call_, Method::PIPELINE, message, value)) {
        submit(request);
    } else {
        if (value) request.look(Method::PIPELINE, message);
        held_ = value ? request.whole(message, *value) : std::move(message);
        if (!held_.is_there()) fail(request, request.why_not_whole(message, *value));
        else if (!lent_) give_python();
    }
    advance();
}

void Pipeline::half_closed() {
    is_half_closed_ = true;
    if (companion_ && !held_.is_there()) companion_->half_closed();
    advance();
}

void Pipeline::sent() {
    const Unsent unsent = unsent_.front();
    unsent_.pop_front();
    room_bytes_ -= unsent.room_bytes;
    if (unsent.is_pythons && companion_) companion_->sent();
    advance();
}

// Python ends its call. A stream of which nothing more comes ends by itself.
void Pipeline::stop_waiting() {
    if (is_half_closed_ || !may_open_companion() || open_companion()) return;
    call_->refuse({RESOURCE_EXHAUSTED, memory_text(call_->account(), call_->metadata.size()), MEMORY_FULL});
}

void Pipeline::over() {
    leave_call();
    if (!lent_) delete this;
}

void Pipeline::answered(Request* back) {
    lent_--;
    if (!call_) {
        if (!lent_) delete this;
        return;
    }
    InFlight& request = *static_cast<InFlight*>(back);
    if (const std::optional<Refusal> refusal = request.why_not_done()) {
        fail(request, *refusal);
    } else {
        learn(request);
        set_room(request, request.message_bytes + request.response_bytes() + request.result_value_bytes + request.lent_counted);
        request.response = request.make_response();
        request.drop();
    }
    if (!lent_ && held_.is_there()) give_python();
    advance();
}

Connection& Pipeline::responds_over() { return call_->connection; }

void Pipeline::respond(Message&& response) {
    if (pythons_.empty()) return end({INTERNAL, "internal error: a response to no message", "", false});
    InFlight& request = *pythons_.front();
    pythons_.pop_front();
    set_room(request, request.message_bytes + response.size());
    request.response = std::move(response);
    advance();
}

bool Pipeline::ends_with(const Status& status) {
    is_asked_ = false;
    if (!status_.is_there) plan_end(status);
    advance();
    return true;
}

void Pipeline::finish(const Status& status) {
    companion_ = nullptr;
    // What Python has not answered by now it never will.
    if (!pythons_.empty() || held_.is_there() || !status_.is_there) plan_end(status);
    if (held_.is_there()) in_flight_.pop_back();
    in_flight_.remove_if([](const InFlight& request) { return request.is_pythons && !request.response.is_there(); });
    pythons_.clear();
    held_ = Message();
    advance();
}

void Pipeline::plan_end(const Status& status) {
    status_ = {true, status.code, std::string(status.text), std::string(status.trailers)};
}

void Pipeline::submit(InFlight& request) {
    if (const std::optional<Refusal> refusal = request.lend()) return fail(request, *refusal);
    lent_++;
    set_room(request, request.message_bytes + request.response_bytes(value_bytes_));
}

// The response says what is wrong. When the server stops, the status does, and of those behind it none is answered.
void Pipeline::fail(InFlight& request, const Refusal& refusal) {
    if (refusal.code == UNAVAILABLE && refusal.is_refusal) {
        request.end = refusal;
    } else {
        MessageWriter writer;
        respond_failed(request.id(), refusal, &writer);
        request.response = writer.message(request.connection->account);
    }
    set_room(request, request.message_bytes);
    request.drop();
}

bool Pipeline::open_companion() {
    companion_ = call_->connection.thread.door.forward.open(*call_, *this);
    return companion_;
}

void Pipeline::give_python() {
    InFlight& request = in_flight_.back();
    if (!companion_ && !open_companion()) {
        held_ = Message();
        return fail(request, request.no_room(call_->metadata.size()));
    }
    request.is_pythons = true;
    pythons_.push_back(&request);
    companion_->message(std::move(held_));
    if (is_half_closed_) companion_->half_closed();
}

void Pipeline::set_room(InFlight& request, u64 bytes) {
    room_bytes_ += bytes - request.room_bytes;
    request.room_bytes = bytes;
}

void Pipeline::learn(const InFlight& request) {
    if (!request.returning) return;
    const u64 mean = (request.result_value_bytes + request.lent_counted + request.returning - 1) / request.returning;
    value_bytes_ = value_bytes_ == NEVER ? mean : std::max(value_bytes_, mean);
}

// Gives the call the responses whose turn it is; ends it, or reads on. After it the stream may be gone.
void Pipeline::advance() {
    for (; !in_flight_.empty(); in_flight_.pop_front()) {
        InFlight& first = in_flight_.front();
        if (first.end) return end(Refusal(*first.end));
        if (!first.response.is_there()) break;
        unsent_.push_back({first.room_bytes, first.is_pythons});
        call_->respond(std::move(first.response));
    }
    const bool is_over = status_.is_there || (is_half_closed_ && !companion_);
    if (is_over && in_flight_.empty()) {
        finish_call();
    } else if (may_read()) {
        is_asked_ = true;
        call_->ask();
    }
}

bool Pipeline::may_read() const {
    const DoorConfig& config = call_->connection.config();
    return !is_asked_ && !is_half_closed_ && !status_.is_there && !held_.is_there() &&
           in_flight_.size() + unsent_.size() < config.stream_requests_max && room_bytes_ < config.stream_bytes_max;
}

// Nobody waits for responses any more: requests that are not in a batch yet need not run.
void Pipeline::leave_call() {
    call_ = nullptr;
    if (Forwarded* companion = std::exchange(companion_, nullptr)) companion->over();
    for (InFlight& request : in_flight_) {
        request.is_cancelled = true;
        request.leave_call();
    }
}

void Pipeline::end(const Refusal& refusal) {
    const std::string trailers = trailers_of(refusal);
    Call& call = *call_;
    leave_call();
    const std::unique_ptr<Pipeline> self(lent_ ? nullptr : this);
    call.finish({refusal.code, refusal.text, trailers});
}

// By its status, or well where it has none.
void Pipeline::finish_call() {
    const std::unique_ptr<Pipeline> self(this);
    Call& call = *call_;
    leave_call();
    call.finish({status_.code, status_.text, status_.trailers});
}

}  // namespace door
