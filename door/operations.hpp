// The numbers of the protocol that the door knows (gpkvs/batch.py).
#pragma once
#include "types.hpp"

namespace door {

// No client may send those from LENGTH on (gpkvs/batch.py says what they do).
namespace op {
constexpr u8 GET = 1, SET = 2, DELETE = 3, EXISTS = 4, INCREMENT = 5, APPEND = 6, CHECK = 7, EXPIRE = 8, EXPIRY = 9, ADD = 10,
             LENGTH = 11, REQUIRE = 12, COPY = 13, SETRANGE = 14, INCREMENT_DECIMAL = 15;
}

constexpr bool has_value(u8 op) {
    return op == op::SET || op == op::INCREMENT || op == op::APPEND || op == op::ADD || op == op::REQUIRE ||
           op == op::SETRANGE || op == op::INCREMENT_DECIMAL;
}
constexpr bool only_reads(u8 op) {
    return op == op::GET || op == op::EXISTS || op == op::CHECK || op == op::EXPIRY || op == op::LENGTH ||
           op == op::REQUIRE;
}
constexpr bool returns_value(u8 op) {
    return op == op::GET || op == op::INCREMENT || op == op::EXPIRY || op == op::LENGTH;
}

// What an operation asks of its key (gpkvs/kernels/resolve.hpp). No client may ask what comes from SOUND on.
namespace condition {
constexpr u8 NONE = 0, ABSENT = 1, PRESENT = 2, EQUALS = 3, SOUND = 4, EXPIRES = 5, READABLE = 6, LASTS = 7, LATER = 8, SOONER = 9,
             HOLDS = 10, REQUIRED = 11, KEEPS = 12, PROLONGS = 13;
}

// What became of an operation.
namespace status {
constexpr u8 OK = 0, NOT_FOUND = 1, CORRUPT = 2, CONDITION_FAILED = 3, OVERFLOW = 4, NOT_A_NUMBER = 5;
}

}  // namespace door
