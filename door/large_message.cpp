#include "large_message.hpp"

#include <algorithm>

#include "call.hpp"
#include "door.hpp"
#include "http2.hpp"
#include "message_reader.hpp"
#include "messages.hpp"

namespace door {

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

LargeMessage::~LargeMessage() {
    if (is_charged_) Upload::give(account_, value_bytes_);
}

void LargeMessage::end(std::unique_ptr<LargeMessage> message) {
    if (!message->is_asking_) return;
    message->call_ = nullptr;
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
        const u64 part = std::min(size, value_left_);
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
    const bool is_one = !kind_.ops_field || (std::count_if(ops.begin(), ops.end(), [](char op) { return has_value((u8)op); }) == 1);
    if (bytes < Upload::BYTES_MIN || !is_one || size_ - bytes > HEAD_BYTES_MAX || !ask(std::string(table), bytes)) {
        state_ = NONE;
        return;
    }
    value_ = std::make_unique<LargeValue>();
    value_->at = reader.field_begin;
    value_->head = small_.substr(reader.field_begin, reader.bytes_begin - reader.field_begin);
    have_ -= small_.size() - reader.bytes_begin;
    small_.resize(reader.field_begin);
    value_bytes_ = value_left_ = bytes;
    state_ = WAITING;
}

// Asks the engine for room. False: the message is to come whole.
bool LargeMessage::ask(const std::string& table_name, u64 bytes) {
    Thread& thread = call_->connection.thread;
    const Table* const table = thread.door.is_open ? thread.tables().find(table_name.empty() ? DEFAULT_TABLE : table_name) : nullptr;
    if (!table || table->holds_numbers || bytes > table->value_bytes_max) return false;
    if (thread.door.asks_for_logins && (!call_->caller || call_->caller->is_gone || !call_->caller->may(table->id, MAY_WRITE)))
        return false;
    if (!Upload::admit(account_, bytes)) return false;
    reservation_.table_id = table->id;
    reservation_.reserve_bytes = bytes;
    is_asking_ = is_charged_ = call_->connection.submit(&reservation_);
    if (!is_asking_) Upload::give(account_, bytes);
    return is_asking_;
}

void LargeMessage::reserved(Request* request) {
    LargeMessage& message = *(LargeMessage*)request->call;
    const std::unique_ptr<LargeMessage> self(message.call_ ? nullptr : &message);
    message.is_asking_ = false;
    if (request->reserved.uploads) {
        message.value_->upload = std::make_unique<Upload>(request->reserved, message.value_bytes_, message.account_);
        message.is_charged_ = false;
    } else {
        const std::shared_ptr<const Refusal>& no_memory = request->connection->thread.door.no_memory;
        message.value_->refusal = request->outcome == REFUSED ? request->refusal : no_memory;
    }
    message.state_ = TAKING;
    if (!self) message.call_->room_decided();
}

}  // namespace door
