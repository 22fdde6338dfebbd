// What clients are told of refusals that the door decides, in the words of server/account/memory.py.
#pragma once
#include <string>

#include "../../gpkvs/kernels/engine_batch.h"
#include "base/account.hpp"

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

// As Redis says it, of a value that comes and of one that is made (server/redis/execution/overlay.py).
constexpr const char* VALUE_TOO_LONG_ERROR = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";

constexpr const char* NO_ROOM_NOW_TEXT = "there is no room for the value now: send it again";

inline std::string large_message_text(u64 bytes, u64 bytes_max) {
    return "SERVER: Received message larger than max (" + std::to_string(bytes) + " vs. " + std::to_string(bytes_max) + ")";
}

inline std::string queue_text(u64 requests_max) {
    return "queue full: " + grouped(requests_max) +
           " requests wait, as many as queue_requests_max allows: try again later, or send fewer and larger batches";
}

// To strangers (places.hpp).
inline std::string gave_way_text(bool asks_for_logins) {
    return std::string("closed for a newer connection: ") +
           (asks_for_logins ? "nobody had logged in over this one" : "nothing was asked for over this one");
}

inline std::string silent_text(bool asks_for_logins, u64 ns) {
    return std::string("closed: ") + (asks_for_logins ? "nobody logged in" : "nothing was asked for") + " within " +
           std::to_string(ns / 1000000000) + " s";
}

constexpr const char* USER_GONE_TEXT = "closed: whoever has logged in over this connection may not any more";
constexpr const char* SLOW_HEADERS_TEXT = "closed: the headers of a call did not come in time";

// To newcomers.
constexpr const char* CONNECTIONS_FULL_TEXT = "max number of clients reached: as many are open as --memory-max has room for";
constexpr const char* FILES_FULL_TEXT = "the server has as many open files as it may (ulimit -n, LimitNOFILE)";
constexpr const char* CONNECTION_MEMORY_FULL_TEXT = "clients take all the memory that they may (--memory-max)";

// To clients that speak something else.
constexpr const char* NO_TLS_TEXT = "this port speaks no TLS: the server needs --tls-cert and --tls-key for that";
constexpr const char* TLS_PORT_TEXT =
    "this port speaks TLS: clients need its options, such as --tls of redis-cli and --tls-ca of gpkvs";
constexpr const char* GRPC_PORT_TEXT =
    "this port speaks gRPC (HTTP/2); the Redis protocol and metrics are on other ports, which --resp and --metrics name";
constexpr const char* RESP_PORT_TEXT =
    "this port speaks the Redis protocol; gRPC and metrics are on other ports, which --listen and --metrics name";

// Of a request that a check stopped (gpkvs/errors.py).
inline std::string conflict_text(const EngineRefusal& conflict) {
    return "the check of operation " + std::to_string(conflict.failed_check) + " does not hold: its key " +
           (conflict.is_there ? "has the version (or number) " + std::to_string(conflict.found) : "is not there") +
           "; nothing of the request was done";
}

// Of an INCREMENT (gpkvs/errors.py).
constexpr const char* NOT_A_NUMBER_TEXT = "the key's value is no decimal number of 64 bits; the increment was not done";
constexpr const char* OVERFLOW_TEXT = "the sum is no signed number of 64 bits; the increment was not done";

// As gRPC's own libraries say it, whoever is the first to see it.
constexpr const char* DEADLINE_TEXT = "Deadline Exceeded";

}  // namespace door
