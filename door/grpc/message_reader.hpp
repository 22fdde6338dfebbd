// The fields of a protobuf message, read as strictly as Python's protobuf (upb) reads them. A library that takes a tag or a
// length of more than 32 bits for a shorter one would find other fields than Python's handlers do.
#pragma once
#include <cstring>
#include <string_view>

#include "base/types.hpp"

namespace door {

enum WireType { VARINT = 0, FIXED64 = 1, BYTES = 2, GROUP_BEGIN = 3, GROUP_END = 4, FIXED32 = 5 };

// Returns what a field's tag and type are on the wire.
constexpr u32 field(u32 number, WireType type) { return number << 3 | type; }

class MessageReader {
  public:
    MessageReader(const u8* message, u64 size) : begin_(message), at_(message), end_(message + size) {}

    u32 tag = 0;             // of the field that was read: `field`
    u64 number = 0;          // its value, if it is one
    std::string_view bytes;  // or this
    u64 field_begin = 0;     // where it is in the message
    // Of a field of bytes that ends beyond the message, which is broken so far, and is in no group: how long it is, and where
    // they begin.
    u64 missing_bytes = 0, bytes_begin = 0;

    // Reads the next field that belongs to no group. Returns false if there is none, or if the bytes are broken.
    bool next() {
        u32 groups[GROUPS_MAX], depth = 0;  // the fields of the groups that are open
        while (at_ < end_ && !is_broken_) {
            if (!read_field()) {
                if (depth) missing_bytes = 0;
                return false;
            }
            if ((tag & 7) == GROUP_BEGIN) {
                if (depth == GROUPS_MAX) return fail();
                groups[depth++] = tag >> 3;
            } else if ((tag & 7) == GROUP_END) {
                if (!depth || groups[--depth] != tag >> 3) return fail();
            } else if (!depth) {
                return true;
            }
        }
        return depth ? fail() : false;
    }

    // Whether what `next` has come to is no sound field: groups nested deeper than any real message has them count as such.
    bool is_broken() const { return is_broken_; }

  private:
    static constexpr u32 GROUPS_MAX = 16;

    bool read_field() {
        u64 value;
        field_begin = (u64)(at_ - begin_);
        if (!read_varint(TAG_BYTES_MAX, &value) || value > 0xffffffff || value < 8) return fail();
        tag = (u32)value;
        switch (tag & 7) {
            case VARINT: return read_varint(VARINT_BYTES_MAX, &number) || fail();
            case FIXED64: return read_fixed(8) || fail();
            case FIXED32: return read_fixed(4) || fail();
            case BYTES:
                if (!read_varint(TAG_BYTES_MAX, &value)) return fail();
                if (value > (u64)(end_ - at_)) return miss(value);
                bytes = {(const char*)at_, value};
                at_ += value;
                return true;
            case GROUP_BEGIN:
            case GROUP_END: return true;
        }
        return fail();
    }

    bool read_varint(u32 bytes_max, u64* value) {
        *value = 0;
        for (u32 n = 0; n < bytes_max && at_ < end_; n++) {
            const u8 byte = *at_++;
            *value |= (u64)(byte & 0x7f) << (7 * n);
            if (byte < 0x80) return true;
        }
        return false;
    }

    bool read_fixed(u32 size) {
        if (end_ - at_ < (long)size) return false;
        number = 0;
        memcpy(&number, at_, size);
        at_ += size;
        return true;
    }

    bool miss(u64 bytes_missed) {
        missing_bytes = bytes_missed;
        bytes_begin = (u64)(at_ - begin_);
        return fail();
    }

    bool fail() {
        is_broken_ = true;
        return false;
    }

    // Of tags and lengths, and of numbers.
    static constexpr u32 TAG_BYTES_MAX = 5, VARINT_BYTES_MAX = 10;

    const u8* const begin_;
    const u8* at_;
    const u8* const end_;
    bool is_broken_ = false;
};

}  // namespace door
