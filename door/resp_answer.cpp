#include "resp_answer.hpp"

#include <algorithm>
#include <cstring>

#include "connection.hpp"
#include "operations.hpp"
#include "texts.hpp"

namespace door {

namespace {

// To an Output or a string.
template <class To>
void append_text(const std::string& text, To& to) {
    to.append(text.data(), text.size());
}

template <class To>
void append_bulk(const u8* data, u64 size, To& to) {
    append_text("$" + std::to_string(size) + "\r\n", to);
    to.append((const char*)data, size);
    append_text("\r\n", to);
}

std::string bulk(const Word& word) {
    std::string text;
    append_bulk(word.data, word.size, text);
    return text;
}

std::string error_of(const Request& request) {
    switch (request.outcome) {
        case REFUSED: return (request.refusal->full.empty() ? "ERR " : "OOM ") + request.refusal->text;
        case NO_ROOM: return "OOM " + memory_text(request.connection->account, 0);
        case GONE: return "ERR DB index is out of range";
        default: return "ERR not executed";
    }
}

// The values that a command has read.
template <class To>
void append_values(const Request& request, u32 protocol, To& to) {
    const u8* const results = request.status();
    const u8* value = request.result_values();
    for (u64 i = 0; i < request.n; i++) {
        if (results[i] == status::OK) append_bulk(value, request.result_value_lengths()[i], to);
        else append_text(protocol == 2 ? "$-1\r\n" : "_\r\n", to);
        value += request.result_value_lengths()[i];
    }
}

template <class To>
void append(const RespCommand& command, const Request& request, u32 protocol, To& to) {
    if (request.outcome != DONE) return append_text(error_line(error_of(request)), to);
    const u8* const results = request.status();
    if (memchr(results, status::CORRUPT, request.n))
        return append_text(error_line("ERR the record fails its checksum, so no value is returned: run gpkvs check"), to);
    switch (command.answer) {
        case Answer::VALUES:
            append_text("*" + std::to_string(request.n) + "\r\n", to);
            return append_values(request, protocol, to);
        case Answer::VALUE: return append_values(request, protocol, to);
        case Answer::COUNT:
            return append_text(":" + std::to_string(std::count(results, results + request.n, status::OK)) + "\r\n", to);
        default: append_text("+OK\r\n", to);
    }
}

}  // namespace

std::string error_line(std::string text) {
    for (char& letter : text)
        if (letter == '\r' || letter == '\n') letter = ' ';
    return "-" + text + "\r\n";
}

std::string answer_without_engine(const RespCommand& command, const std::vector<Word>& words) {
    return command.answer == Answer::PONG && words.size() == 1 ? "+PONG\r\n" : bulk(words[1]);
}

void append_answer(const RespCommand& command, const Request& request, u32 protocol, Output& to) {
    append(command, request, protocol, to);
}

void append_answer(const RespCommand& command, const Request& request, u32 protocol, std::string& to) {
    append(command, request, protocol, to);
}

}  // namespace door
