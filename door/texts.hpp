// What clients are told of refusals that the door decides, in the words of server/memory.py and server/batcher.py.
#pragma once
#include <string>

#include "account.hpp"

namespace door {

// As Python's "{:,}" writes it.
inline std::string grouped(u64 number) {
    std::string digits = std::to_string(number);
    for (i64 place = (i64)digits.size() - 3; place > 0; place -= 3) digits.insert((u64)place, ",");
    return digits;
}

inline std::string memory_text(const ConnectionAccount& account, u64 bytes) {
    return "memory full: this connection holds " + grouped(account.bytes()) + " bytes and asks for " + grouped(bytes) + ", " +
           grouped(account.free_bytes()) +
           " are free for all (--memory-max): read the responses that wait, then try again";
}

inline std::string queue_text(u64 requests_max) {
    return "queue full: " + grouped(requests_max) +
           " requests wait, as many as queue_requests_max allows: try again later, or send fewer and larger batches";
}

// As gRPC's own libraries say it, whoever is the first to see it.
constexpr const char* DEADLINE_TEXT = "Deadline Exceeded";

}  // namespace door
