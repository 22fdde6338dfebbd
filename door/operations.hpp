// The numbers of the protocol that the door knows (gpkvs/batch.py).
#pragma once
#include "types.hpp"

namespace door {

namespace op {
constexpr u8 GET = 1, SET = 2, DELETE = 3, EXISTS = 4;
}

// What became of an operation.
namespace status {
constexpr u8 OK = 0, NOT_FOUND = 1, CORRUPT = 2;
}

}  // namespace door
