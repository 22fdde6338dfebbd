// The numbers of the protocol that the door knows.
#pragma once
#include "../../gpkvs/kernels/base/protocol.cuh"
#include "base/types.hpp"

namespace door {

#define DOOR_NUMBER(name, number, ...) constexpr u8 name = number;
namespace op {
PROTOCOL_OPERATIONS(DOOR_NUMBER)
}
namespace condition {
PROTOCOL_CONDITIONS(DOOR_NUMBER)
}
namespace status {
PROTOCOL_STATUSES(DOOR_NUMBER)
}
#undef DOOR_NUMBER
static_assert(op::INCREMENT_DECIMAL + 1 == OPERATION_NUMBERS && status::NOT_A_NUMBER + 1 == STATUS_NUMBERS);

constexpr bool has_value(u8 op) { return false PROTOCOL_OPERATIONS(BRINGS_VALUE); }
constexpr bool only_reads(u8 op) { return false PROTOCOL_OPERATIONS(ONLY_READS); }
constexpr bool returns_value(u8 op) { return false PROTOCOL_OPERATIONS(RETURNS_VALUE); }

}  // namespace door
