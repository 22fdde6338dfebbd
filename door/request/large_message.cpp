#include "request/large_message.hpp"

#include <algorithm>

#include "grpc/call.hpp"
#include "door.hpp"
#include "grpc/http2.hpp"
#include "grpc/message_reader.hpp"
#include "grpc/messages.hpp"
#include "base/texts.hpp"

namespace door {

namespace {

// Whether the only record that these operations make is that of a SET.
bool make_one_record(std::string_view ops) {
    const auto sets = std::count(ops.begin(), ops.end(), (char)op::SET);
    const auto is_other = [](char op) { return op != op::SET && op != op::DELETE && !only_reads((u8)op); };
    return sets == 1 && std::none_of(ops.begin(), ops.end(), is_other);
}

std::shared_ptr<const Refusal> why_not_reserved(const Request& request) {
    if (request.outcome == REFUSED) return request.refusal;
    if (request.outcome == GONE)
        return std::make_shared<const Refusal>(Refusal{NOT_FOUND, "table: the table was dropped meanwhile", "", true});
    return std::make_shared<const Refusal>(Refusal{UNAVAILABLE, NO_ROOM_NOW_TEXT, "", true});
}

}  // namespace

Message LargeValue::whole(const Message& message, ConnectionAccount& account) const {
    if (!upload) return {};
    Message made = Message::admitted(account, REQUESTS, message.size() + head.size() + upload->size());
    if (!made.is_there()) return made;
    u8* to = std::copy_n(message.data(), at, made.data());
    to = std::copy(head.begin(), head.end(), to);
    to = std::copy_n(upload->data(), upload->size(), to);
    std::copy_n(message.data() + at, message.size() - at, to);
    return made;
}

LargeMessage::LargeMessage(Call& call, u64 size, Kind kind)
    : call_(&call), account_(call.account()), size_(size), kind_(kind) {
    reservation_.call = this;
}

void LargeMessage::end(std::unique_ptr<LargeMessage> message) {
    if (!message->is_asking_) return;
    message->call_ = nullptr;
    message->reservation_.is_cancelled = true;
    (void)message.release();  // it goes when it is back
}

u64 LargeMessage::take(const u8* data, u64 size) {
    const u64 before = have_;
    if (state_ == LOOKING) {
        const u64 part = std::min({size, size_ - have_, HEAD_BYTES_MAX - small_.size()});
        small_.append((const char*)data, part);
        have_ += part;
        look();
        if (state_ == LOOKING && (have_ == size_ || small_.size() == HEAD_BYTES_MAX)) state_ = NONE;
    } else if (state_ == TAKING) {
        const u64 part = std::min({size, value_left_, size_ - have_});
        if (value_->upload) value_->upload->append(data, part);
        value_left_ -= part;
        const u64 rest = std::min(size - part, size_ - have_ - part);
        small_.append((const char*)data + part, rest);
        have_ += part + rest;
        if (have_ == size_) state_ = WHOLE;
    }
    return have_ - before;
}

// Whether the value's field has begun. Its bytes are taken later: what came of them is not.
void LargeMessage::look() {
    MessageReader reader((const u8*)small_.data(), small_.size());
    std::string_view table, ops;
    while (reader.next()) {
        if (reader.tag == field(1, BYTES)) table = reader.bytes;
        if (kind_.ops_field && reader.tag == field(kind_.ops_field, BYTES)) ops = reader.bytes;
    }
    const u64 bytes = reader.missing_bytes;
    if (!bytes) return;
    if (reader.tag != field(kind_.value_field, BYTES)) {
        if (bytes > HEAD_BYTES_MAX) state_ = NONE;
        return;
    }
    const bool fits = reader.bytes_begin + bytes <= size_ && size_ - bytes <= HEAD_BYTES_MAX;
    const bool is_one = !kind_.ops_field || make_one_record(ops);
    if (bytes < Upload::BYTES_MIN || !fits || !is_one || !ask(std::string(table), reader, bytes)) {
        state_ = NONE;
        return;
    }
    have_ -= small_.size() - reader.bytes_begin;
    small_.resize(reader.field_begin);
    value_left_ = bytes;
    state_ = WAITING;
}

// Asks the engine for room. False: the message is to come whole.
bool LargeMessage::ask(const std::string& table_name, const MessageReader& reader, u64 bytes) {
    Thread& thread = call_->connection.thread;
    const Table* const table = thread.door.is_open ? thread.tables().find(table_name.empty() ? DEFAULT_TABLE : table_name) : nullptr;
    if (!table || bytes < table->value_bytes_min || bytes > table->value_bytes_max) return false;
    if (thread.door.asks_for_logins && !call_->caller->may(table->id, MAY_WRITE)) return false;
    value_ = std::make_unique<LargeValue>();
    value_->upload = std::make_unique<Upload>(bytes, account_);
    value_->at = reader.field_begin;
    value_->head = small_.substr(reader.field_begin, reader.bytes_begin - reader.field_begin);
    reservation_.table_id = table->id;
    reservation_.reserve_bytes = bytes;
    is_asking_ = value_->upload->is_admitted() && call_->connection.submit(&reservation_);
    if (!is_asking_) value_.reset();
    return is_asking_;
}

void LargeMessage::reserved(Request* request) {
    LargeMessage& message = *(LargeMessage*)request->call;
    const std::unique_ptr<LargeMessage> self(message.call_ ? nullptr : &message);
    request->release_results();
    message.is_asking_ = false;
    if (request->reserved.uploads) {
        message.value_->upload->begin(request->reserved);
    } else {
        message.value_->upload.reset();
        message.value_->refusal = why_not_reserved(*request);
    }
    const Thread& thread = request->connection->thread;
    message.ends_ns_ = thread.now() + Upload::time_ns(request->reserve_bytes, thread.door.patience, thread.door.config.receive_seconds_max);
    message.state_ = TAKING;
    if (!self) message.call_->room_decided();
}

}  // namespace door
