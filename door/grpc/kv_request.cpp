#include "grpc/kv_request.hpp"

#include <algorithm>

#include "door.hpp"
#include "grpc/http2.hpp"
#include "base/texts.hpp"

namespace door {

namespace {

// Room for a response beside what its operations take (server/account/message_limits.py).
constexpr u64 RESPONSE_BYTES = 64;
// Of each of several requests that a check stops: a text and some numbers.
constexpr u64 FAILURE_BYTES = 256;

constexpr u64 PROTOBUF_BYTES_MAX = (2ull << 30) - 1;

// Fewer bytes of values are copied.
constexpr u64 IN_PLACE_BYTES_MIN = 4 << 10;

std::string name_of(const Said& said) { return std::string(said.table.empty() ? DEFAULT_TABLE : said.table); }

bool parse(Method method, const Message& message, Said* said, Request* request) {
    switch (method) {
        case Method::GET: return parse_get(message.data(), message.size(), said, request);
        case Method::SET: return parse_set(message.data(), message.size(), said, request);
        case Method::DELETE: return parse_delete(message.data(), message.size(), said, request);
        case Method::INCREMENT: return parse_increment(message.data(), message.size(), said, request);
        case Method::MULTI_GET: return parse_multi_get(message.data(), message.size(), said, request);
        case Method::BATCH: return parse_batch(message.data(), message.size(), said, request);
        case Method::PIPELINE: break;
    }
    return parse_batch(message.data(), message.size(), said, request) && !request->request_ops;
}

// What an operation needs is in server/access/rights.py.
bool may(const Call& call, u32 table, const Request& request) {
    if (!call.connection.thread.door.asks_for_logins) return true;
    u8 needed = 0;
    for (u64 at = 0; at < request.n; at++) {
        const u8 op = request.ops[at];
        needed |= only_reads(op) ? MAY_READ : MAY_WRITE;
        // The answer tells what was there.
        if (op == op::INCREMENT || (request.conditions && request.conditions[at])) needed |= MAY_READ;
    }
    return call.caller->may(table, needed);
}

u64 caller_of(const Call& call) { return call.caller ? call.caller->id : 0; }

// The engine has run the request, and its only operation did nothing.
std::optional<Refusal> why_not_incremented(u8 status) {
    if (status == status::NOT_A_NUMBER) return Refusal{FAILED_PRECONDITION, NOT_A_NUMBER_TEXT, "", true};
    if (status == status::OVERFLOW) return Refusal{OUT_OF_RANGE, OVERFLOW_TEXT, "", true};
    return std::nullopt;
}

}  // namespace

KvRequest::KvRequest(Call& call, Handler& handler) : account_(call.account()), origin_(&call) {
    connection = &call.connection;
    Request::call = &handler;
}

KvRequest::KvRequest(Connection& over) : account_(over.account), origin_(nullptr) { connection = &over; }

KvRequest::~KvRequest() { drop(); }

void KvRequest::look(Method method, const Message& message) { parse(method, message, &said_, this); }

void KvRequest::describe(DoorSlowCall& slow) const {
    static constexpr const char* NAMES[] = {"Get", "Set", "Delete", "Increment", "MultiGet", "Batch", "Pipeline"};
    copy_text(slow.command, NAMES[(int)method_]);
    copy_text(slow.request_id, origin_ ? origin_->request_id() : left_id_);
    slow.caller = origin_ ? caller_of(*origin_) : left_caller_;
}

void KvRequest::leave_call() {
    Call& call = *std::exchange(origin_, nullptr);
    left_caller_ = caller_of(call);
    try {
        left_id_ = call.request_id();
    } catch (const std::bad_alloc&) {
    }
}

bool KvRequest::take(Call& call, Method method, Message& message, LargeValue* value) {
    Thread& thread = connection->thread;
    if (!thread.door.is_open || !parse(method, message, &said_, this)) return false;
    if (value && value->upload) {
        const bool has_another = values;  // the last one counts, also if it is empty
        if (request_ops || with_value != 1 || !memchr(ops, op::SET, n) || has_another || !value->upload->is_whole()) return false;
        values = value->upload->data();
        value_bytes = value->upload->size();
        if (method == Method::SET) value_size = (u32)value_bytes;
    }
    if (method == Method::MULTI_GET) {
        columns_ = Message::admitted(account_, REQUESTS, multi_get_bytes(*this));
        if (!columns_.is_there()) return false;
        take_multi_get(message.data(), message.size(), columns_.data(), this);
    }
    const Table* const table = thread.tables().find(name_of(said_));
    if (!table || !may(call, table->id, *this)) return false;
    const bool has_value = !value || value->upload;
    if (has_value && !(is_of_layout(said_, *this, *table) && keeps_limits(said_, *this, *table))) return false;
    if (requests > thread.door.config.message_requests_max) return false;
    table_id = table->id;
    table_ = *table;
    method_ = method;
    if (value) {
        upload = std::move(value->upload);
        no_room_ = value->refusal;
    }
    taken_ = std::move(message);
    return true;
}

bool KvRequest::take_batch(u32 id, Message& message) {
    if (!parse(Method::BATCH, message, &said_, this)) return false;
    if (const Table* const table = connection->thread.tables().find(id)) {
        table_ = *table;
        // A handler also deletes and moves what was stored before limits were lowered.
        if (table_.key_bytes_min < table_.key_bytes_max) table_.key_bytes_max = ~0u;
        if (table_.value_bytes_min < table_.value_bytes_max) table_.value_bytes_max = ~0u;
        if (!keeps_limits(said_, *this, table_)) return false;
    }
    table_id = id;
    taken_ = std::move(message);
    return true;
}

std::optional<Refusal> KvRequest::lend() {
    if (no_room_) return *no_room_;
    const u64 planned_bytes = response_bytes();
    if (!account_.admit(ANSWERS, planned_bytes)) return no_room(planned_bytes);
    planned_bytes_ = planned_bytes;
    if (connection->submit(this)) return std::nullopt;
    if (!python) connection->thread.stats.refused[STATS_QUEUE_FULL].add();
    const u64 most = connection->thread.door.config.queue_requests_max;
    return Refusal{RESOURCE_EXHAUSTED, queue_text(most), "queue", true};
}

std::optional<Refusal> KvRequest::why_not_done() const {
    switch (outcome) {
        case DONE:
            if (method_ == Method::INCREMENT) return why_not_incremented(*status());
            if ((method_ == Method::GET || method_ == Method::MULTI_GET) && damaged_values())
                return Refusal{DATA_LOSS, "a large value fails its checksum, so it is not returned: run gpkvs check", "", true};
            if (lent_bytes() > PROTOBUF_BYTES_MAX - connection->thread.door.config.message_bytes_max)
                return Refusal{RESOURCE_EXHAUSTED,
                               "the values have " + grouped(lent_bytes()) + " bytes, and a message of gRPC ends at 2 GiB: ask for fewer keys",
                               "", false};
            break;
        case CANCELLED: break;  // nobody asks
        case EXPIRED: return Refusal{DEADLINE_EXCEEDED, DEADLINE_TEXT, "", true};
        case NO_ROOM: return no_room(0);
        case REFUSED: return *refusal;
        case GONE: return Refusal{NOT_FOUND, "table: there is no table '" + name_of(said_) + "'", "", true};
    }
    return std::nullopt;
}

Message KvRequest::whole(const Message& message, const LargeValue& value) const {
    if (!value.upload) return {};
    const u64 bytes = message.size() + value.head.size() + value.upload->size();
    return bytes > connection->thread.door.config.message_bytes_max ? Message() : value.whole(message, account_);
}

Refusal KvRequest::why_not_whole(const Message& message, const LargeValue& value) const {
    if (value.refusal) return *value.refusal;
    const u64 bytes = message.size() + value.head.size() + value.upload->size();
    const u64 bytes_max = connection->thread.door.config.message_bytes_max;
    if (bytes > bytes_max) return {RESOURCE_EXHAUSTED, large_message_text(bytes, bytes_max), "", true};
    return no_room(bytes);
}

Refusal KvRequest::no_room(u64 bytes) const {
    if (!python) connection->thread.stats.refused[STATS_MEMORY_FULL].add();
    return {RESOURCE_EXHAUSTED, memory_text(account_, bytes), "memory", true};
}

Message KvRequest::make_response() {
    MessageWriter writer;
    switch (method_) {
        case Method::GET: respond_get(*this, &writer); break;
        case Method::SET: respond_set(*this, &writer); break;
        case Method::DELETE: respond_delete(*this, &writer); break;
        case Method::INCREMENT: respond_increment(*this, &writer); break;
        case Method::MULTI_GET: return respond_multi_get(*this, account_);
        case Method::BATCH:
        case Method::PIPELINE:
            if (stopped_count) return respond_several(*this, said_.id, account_);
            respond_batch(*this, said_.id, &writer);
            break;
    }
    if (Message made = response_in_place(writer); made.is_there()) return made;
    Message made = writer.message(account_);
    insert_lent(writer, *this, &made);
    return made;
}

// The response where its values are, if they are many and nobody else's: they take as long to copy as to read.
Message KvRequest::response_in_place(const MessageWriter& writer) {
    // Python frees the bytes of a response, and these are none of malloc.
    if (python || results->n != n || !lent_values.empty() || result_value_bytes < IN_PLACE_BYTES_MIN) return {};
    u8* const data = writer.write_around(results->values, Results::RESPONSE_ROOM);
    if (!data) return {};
    account_.charge(ANSWERS, writer.size());
    results->leave_charge();
    return {account_, ANSWERS, std::exchange(results, nullptr), data, writer.size()};
}

void KvRequest::drop() {
    release_results();
    account_.give(ANSWERS, std::exchange(planned_bytes_, 0));
    taken_ = Message();
    columns_ = Message();
    upload.reset();
}

bool KvRequest::fits_message() {
    return method_ != Method::MULTI_GET || multi_get_response_bytes(*this) <= connection->thread.door.config.message_bytes_max;
}

u64 KvRequest::response_bytes() const {
    const u64 failures = request_ops && conditions ? requests : 0;
    return RESPONSE_BYTES + RESPONSE_BYTES_PER_OP * n + FAILURE_BYTES * failures;
}

u64 KvRequest::response_bytes(u64 mean_value_bytes) const {
    const u64 value_bytes = std::min(mean_value_bytes, table_.value_bytes_max);
    return response_bytes() + std::min(returning * value_bytes, table_.result_bytes_max);
}

std::string trailers_of(const Refusal& refusal) {
    std::string trailers(refusal.is_refusal ? NOT_EXECUTED : "");
    if (!refusal.full.empty()) trailers += "gpkvs-full: " + refusal.full + "\n";
    if (!refusal.conflict) return trailers;
    trailers += "gpkvs-failed-check: " + std::to_string(refusal.conflict->failed_check) + "\n";
    if (refusal.conflict->is_there) trailers += "gpkvs-found: " + std::to_string(refusal.conflict->found) + "\n";
    return trailers;
}

}  // namespace door
