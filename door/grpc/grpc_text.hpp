// What gRPC writes into headers: timeouts, and texts of any bytes.
#pragma once
#include <string>
#include <string_view>

#include "base/types.hpp"

namespace door {

// Returns the nanoseconds of a grpc-timeout (up to eight digits and a unit); NEVER for anything else, as gRPC does.
inline u64 timeout_ns(std::string_view text) {
    if (text.size() < 2 || text.size() > 9) return NEVER;
    u64 number = 0;
    for (char digit : text.substr(0, text.size() - 1)) {
        if (digit < '0' || digit > '9') return NEVER;
        number = number * 10 + (u64)(digit - '0');
    }
    switch (text.back()) {
        case 'n': return number;
        case 'u': return number * 1000;
        case 'm': return number * 1000 * 1000;
        case 'S': return number * 1000 * 1000 * 1000;
        // No sum with a time of the clock may overflow.
        case 'M': return number > 10 * 1000 * 1000 ? NEVER : number * 60 * 1000 * 1000 * 1000;
        case 'H': return number > 1000 * 1000 ? NEVER : number * 3600 * 1000 * 1000 * 1000;
        default: return NEVER;
    }
}

// Returns a text as grpc-message has it: what is no plain character becomes % and two digits.
inline std::string percent_encoded(std::string_view text) {
    static const char* DIGITS = "0123456789ABCDEF";
    std::string out;
    out.reserve(text.size());
    for (char c : text) {
        const u8 byte = (u8)c;
        if (byte >= 0x20 && byte < 0x7F && byte != '%') {
            out += c;
        } else {
            out += '%';
            out += DIGITS[byte >> 4];
            out += DIGITS[byte & 15];
        }
    }
    return out;
}

}  // namespace door
