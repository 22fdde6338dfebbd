#include "grpc/kv.hpp"

#include "door.hpp"
#include "grpc/http2.hpp"
#include "grpc/kv_request.hpp"
#include "grpc/login.hpp"
#include "grpc/pipeline.hpp"

namespace door {

namespace {

// A call of one message and one response. It frees itself when the call has ended and its request is back.
class UnaryCall final : public Handler {
  public:
    // Serves a call from now on.
    static void open(Call& call, Method method) {
        call.set_handler(new UnaryCall(call, method));
        call.expect_one();
        call.ask();
    }

    void message(Message&& message) override {
        if (request_.take(*call_, method_, message)) lend();
        else hand_on(std::move(message));
    }

    LargeMessage::Kind large_kind() const override {
        if (method_ == Method::SET) return {3, 0};
        return method_ == Method::BATCH ? LargeMessage::Kind{6, 2} : LargeMessage::Kind{};
    }

    void large_message(Message&& message, std::unique_ptr<LargeValue> value) override {
        if (request_.take(*call_, method_, message, value.get())) return lend();
        if (Message whole = request_.whole(message, *value); whole.is_there()) return hand_on(std::move(whole));
        refuse(request_.why_not_whole(message, *value));
    }

    void half_closed() override {
        if (!is_lent_) hand_on({});  // Python says that a message is missing
    }

    void sent() override {}

    void stop_waiting() override {
        if (!is_lent_) hand_on({});  // Python refuses it
    }

    void over() override {
        call_ = nullptr;
        request_.is_cancelled = true;
        if (is_lent_) request_.leave_call();
        else delete this;
    }

    void answered(Request*) override {
        is_lent_ = false;
        // Python finds the words for what it alone knows: the tables that are there, the key of a damaged record; and
        // where values of many keys are too long for a message.
        if (!call_) delete this;
        else if (!request_.upload && (request_.outcome == GONE || is_for_python())) hand_on(request_.take_back());
        else if (const std::optional<Refusal> refusal = request_.why_not_done()) refuse(*refusal);
        else respond();
    }

  private:
    UnaryCall(Call& call, Method method) : call_(&call), method_(method), request_(call, *this) {}

    bool is_for_python() {
        if (request_.outcome != DONE || request_.damaged_values()) return false;
        switch (method_) {
            case Method::GET:
            case Method::INCREMENT: return is_corrupt(request_);
            case Method::MULTI_GET: return is_corrupt(request_) || !request_.fits_message();
            default: return false;
        }
    }

    void lend() {
        request_.deadline_ns = call_->deadline_ns;
        if (const std::optional<Refusal> refusal = request_.lend()) return refuse(*refusal);
        is_lent_ = true;
    }

    void respond() {
        call_->respond(request_.make_response());
        const std::unique_ptr<UnaryCall> self(this);
        call_->finish({});
    }

    void refuse(const Refusal& refusal) {
        const std::string trailers = trailers_of(refusal);
        const std::unique_ptr<UnaryCall> self(this);
        call_->finish({refusal.code, refusal.text, trailers});
    }

    void hand_on(Message&& message) {
        const std::unique_ptr<UnaryCall> self(this);
        call_->forward(std::move(message));
    }

    Call* call_;  // null: it has ended
    const Method method_;
    KvRequest request_;
    bool is_lent_ = false;
};

std::optional<Method> method_of(std::string_view path) {
    if (path == "/gpkvs.v1.KV/Get") return Method::GET;
    if (path == "/gpkvs.v1.KV/Set") return Method::SET;
    if (path == "/gpkvs.v1.KV/Delete") return Method::DELETE;
    if (path == "/gpkvs.v1.KV/Increment") return Method::INCREMENT;
    if (path == "/gpkvs.v1.KV/MultiGet") return Method::MULTI_GET;
    if (path == "/gpkvs.v1.KV/Batch") return Method::BATCH;
    if (path == "/gpkvs.v1.KV/Pipeline") return Method::PIPELINE;
    return std::nullopt;
}

}  // namespace

bool KvService::open(Call& call) {
    Thread& thread = call.connection.thread;
    const std::optional<Method> method = method_of(call.path);
    if (!method || !thread.door.is_open) return false;
    // A call comes again when its login is known.
    if (!call.is_counted()) call.count_in(thread.stats.methods[(int)*method]);
    if (!knows_caller(call.connection, call)) Login::open(call);
    else if (*method == Method::PIPELINE) Pipeline::open(call);
    else UnaryCall::open(call, *method);
    return true;
}

}  // namespace door
