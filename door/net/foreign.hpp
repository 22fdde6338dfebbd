// Clients that speak something else than their port, as their first bytes show, and whoever gets no connection: a word for them
// in their own protocol.
#pragma once
#include <string>
#include <string_view>

#include "base/stats.hpp"

namespace door {

enum class Language { HTTP1, HTTP2, TLS, LINES };

// "GET /metrics HTTP/1.1": the line is whole.
inline bool is_http1_request(std::string_view first) {
    const std::string_view line = first.substr(0, first.find("\r\n"));
    const size_t method_end = line.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), version = line.rfind(" HTTP/1.");
    return line.size() < first.size() && method_end > 0 && method_end < line.size() && line[method_end] == ' ' &&
           version != line.npos && version > method_end;
}

inline Language language_of(std::string_view first) {
    constexpr std::string_view TLS_HELLO = "\x16\x03", HTTP2_PREFACE = "PRI * HTTP/2";
    if (first.substr(0, TLS_HELLO.size()) == TLS_HELLO) return Language::TLS;
    if (first.substr(0, HTTP2_PREFACE.size()) == HTTP2_PREFACE) return Language::HTTP2;
    return is_http1_request(first) ? Language::HTTP1 : Language::LINES;
}

// The whole answer of a server of HTTP/2 that serves nobody: GOAWAY with this text. A server's first frame is SETTINGS (RFC
// 9113, section 3.4), which says that it serves: gRPC's clients would come back at once, and again, until the deadline of
// their call. Without it they count the connection as failed, tell the caller, and wait before the next one.
inline std::string goaway_of(std::string_view text) {
    constexpr unsigned char GOAWAY = 7, ENHANCE_YOUR_CALM = 11;
    const size_t size = 8 + text.size();
    const unsigned char frames[] = {(unsigned char)(size >> 16), (unsigned char)(size >> 8), (unsigned char)size, GOAWAY, 0,
                                    0, 0, 0, 0,  // of the connection
                                    0, 0, 0, 0, 0, 0, 0, ENHANCE_YOUR_CALM};
    return std::string((const char*)frames, sizeof frames).append(text);
}

inline std::string http1_answer_of(std::string_view text) {
    return "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: " +
           std::to_string(text.size() + 1) + "\r\nConnection: close\r\n\r\n" + std::string(text) + "\n";
}

// Says a text to a client that speaks so. Libraries of TLS do not show it, but those of HTTP know that it is none of TLS.
inline std::string in_words_of(Language language, std::string_view text) {
    switch (language) {
        case Language::HTTP2: return goaway_of(text);
        case Language::LINES: return "-ERR " + std::string(text) + "\r\n";
        default: return http1_answer_of(text);
    }
}

// All that a client of TLS can be told before a handshake: the alert internal_error (RFC 8446, section 6.2). At an end without
// a word, clients think of their certificates, or of a network that fails.
constexpr std::string_view NO_HANDSHAKE("\x15\x03\x03\x00\x02\x02\x50", 7);

// How such a client is counted.
inline StatsConnection stats_of(Language language) {
    switch (language) {
        case Language::HTTP1: return STATS_HTTP1;
        case Language::TLS: return STATS_TLS;
        default: return STATS_FOREIGN;
    }
}

}  // namespace door
