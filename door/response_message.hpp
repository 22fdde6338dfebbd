// A protobuf message with gRPC's prefix, as parts: bytes of its own between columns that stay where they are.
#pragma once

#include "message_reader.hpp"
#include "types.hpp"

namespace door {

struct Part {
    const u8* at;
    u64 size;
};

// Fields are added in the order of their numbers, each once; those that are 0 or empty are left out, as Python's protobuf
// does. Only small numbers of fields, and few columns, fit.
class ResponseMessage {
  public:
    ResponseMessage() { add_part(own_, PREFIX_BYTES); }
    ResponseMessage(const ResponseMessage&) = delete;

    void add_number(u32 number, u64 value) {
        if (!value) return;
        add_varint(field(number, VARINT));
        add_varint(value);
    }

    // The bytes are not copied.
    void add_bytes(u32 number, const void* at, u64 size) {
        if (!size) return;
        add_varint(field(number, BYTES));
        add_varint(size);
        add_part((const u8*)at, size);
        add_part(own_ + own_bytes_, 0);
    }

    // Ends the message: its prefix says how long it is.
    void end() {
        const u64 message_bytes = bytes() - PREFIX_BYTES;
        own_[0] = 0;  // not compressed
        for (u32 i = 0; i < 4; i++) own_[1 + i] = (u8)(message_bytes >> (24 - 8 * i));
    }

    const Part* parts() const { return parts_; }
    u64 count() const { return count_; }
    // Of all parts.
    u64 bytes() const {
        u64 sum = 0;
        for (u64 i = 0; i < count_; i++) sum += parts_[i].size;
        return sum;
    }

  private:
    static constexpr u64 PREFIX_BYTES = 5, OWN_BYTES_MAX = 64, PARTS_MAX = 9;

    void add_varint(u64 value) {
        const u64 before = own_bytes_;
        for (; value >= 0x80; value >>= 7) own_[own_bytes_++] = (u8)(value | 0x80);
        own_[own_bytes_++] = (u8)value;
        parts_[count_ - 1].size += own_bytes_ - before;
    }

    void add_part(const u8* at, u64 size) { parts_[count_++] = {at, size}; }

    u8 own_[OWN_BYTES_MAX];
    u64 own_bytes_ = PREFIX_BYTES;
    Part parts_[PARTS_MAX];
    u64 count_ = 0;
};

}  // namespace door
