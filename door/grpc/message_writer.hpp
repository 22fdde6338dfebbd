// A protobuf message that is to be sent, as parts: a few bytes of its own between columns that stay where they are.
#pragma once
#include <algorithm>
#include <new>

#include "request/message.hpp"
#include "grpc/message_reader.hpp"
#include "base/types.hpp"

namespace door {

// Fields are added in the order of their numbers, each once; those that are 0 or empty are left out, as Python's protobuf
// does. Only small numbers of fields, and few columns, fit.
class MessageWriter {
  public:
    MessageWriter() { add_part(own_, 0); }
    MessageWriter(const MessageWriter&) = delete;

    void add_number(u32 number, u64 value) {
        if (value) add_optional(number, value);
    }

    // One that tells a 0 from nothing.
    void add_optional(u32 number, u64 value) {
        add_varint(field(number, VARINT));
        add_varint(value);
    }

    // What stands before so many bytes.
    void add_head(u32 number, u64 size) {
        add_varint(field(number, BYTES));
        add_varint(size);
    }

    // The bytes must stay until the message is written. Of a field with values that are lent these are so many more; where
    // they are to stand, `lent_at` says.
    void add_bytes(u32 number, const void* at, u64 size, u64 lent_bytes = 0) {
        if (!size && !lent_bytes) return;
        add_head(number, size + lent_bytes);
        if (lent_bytes) lent_at_ = size_;
        add_part((const u8*)at, size);
        add_part(own_ + own_bytes_, 0);
    }

    u64 size() const { return size_; }
    u64 lent_at() const { return lent_at_; }

    void write(u8* to) const { write_parts(parts_, parts_ + count_, to); }

    // Writes all but one part around that part, where there is so much room before it and behind it; returns the beginning of
    // the message, or null.
    u8* write_around(u8* at, u64 room) const {
        const Part* const end = parts_ + count_;
        const Part* const part = std::find_if(parts_, end, [at](const Part& one) { return one.at == at; });
        if (part == end) return nullptr;
        u64 before = 0;
        for (const Part* other = parts_; other < part; other++) before += other->size;
        if (before > room || size_ - before - part->size > room) return nullptr;
        write_parts(parts_, part, at - before);
        write_parts(part + 1, end, at + part->size);
        return at - before;
    }

    // Returns the message, charged as an answer that must be sent. std::bad_alloc.
    Message message(ConnectionAccount& account) const {
        Message made = Message::charged(account, ANSWERS, size_);
        if (!made.is_there()) throw std::bad_alloc();
        write(made.data());
        return made;
    }

  private:
    static constexpr u64 OWN_BYTES_MAX = 64, PARTS_MAX = 9;

    struct Part {
        const u8* at;
        u64 size;
    };

    static void write_parts(const Part* part, const Part* end, u8* to) {
        for (; part < end; to += part++->size) memcpy(to, part->at, part->size);
    }

    void add_varint(u64 value) {
        const u64 before = own_bytes_;
        for (; value >= 0x80; value >>= 7) own_[own_bytes_++] = (u8)(value | 0x80);
        own_[own_bytes_++] = (u8)value;
        parts_[count_ - 1].size += own_bytes_ - before;
        size_ += own_bytes_ - before;
    }

    void add_part(const u8* at, u64 size) {
        parts_[count_++] = {at, size};
        size_ += size;
    }

    u8 own_[OWN_BYTES_MAX];
    u64 own_bytes_ = 0;
    Part parts_[PARTS_MAX];
    u64 count_ = 0, size_ = 0, lent_at_ = 0;
};

}  // namespace door
