// Clients that speak something else than their port, as their first bytes show.
#pragma once
#include <string_view>

namespace door {

// "GET /metrics HTTP/1.1": the line is whole.
inline bool is_http1_request(std::string_view first) {
    const std::string_view line = first.substr(0, first.find("\r\n"));
    const size_t method_end = line.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), version = line.rfind(" HTTP/1.");
    return line.size() < first.size() && method_end > 0 && method_end < line.size() && line[method_end] == ' ' &&
           version != line.npos && version > method_end;
}

inline bool is_tls_hello(std::string_view first) { return first.substr(0, 2) == "\x16\x03"; }

constexpr std::string_view HTTP1_ANSWER =
    "HTTP/1.1 400 Bad Request\r\n"
    "Content-Type: text/plain; charset=utf-8\r\n"
    "Content-Length: 83\r\n"
    "Connection: close\r\n"
    "\r\n"
    "this port speaks gRPC (HTTP/2); metrics are on another port, which --metrics names\n";

}  // namespace door
