#include "resp_answer.hpp"

#include <algorithm>
#include <cstring>

#include "connection.hpp"
#include "operations.hpp"
#include "texts.hpp"

namespace door {

namespace {

const char* const ERRORS[STATS_RESP_ERRORS] = {"ERR ", "OOM ", "EXECABORT "};

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

// The results of operations that no answer has yet.
struct Rest {
    const u8* status;
    const u32* lengths;  // of values that were read
    const u8* values;
};

template <class To>
void append_values(u64 n, u32 protocol, Rest& rest, To& to) {
    for (u64 i = 0; i < n; i++) {
        const u32 bytes = *rest.lengths++;
        if (rest.status[i] == status::OK) append_bulk(rest.values, bytes, to);
        else append_text(protocol == 2 ? "$-1\r\n" : "_\r\n", to);
        rest.values += bytes;
    }
}

template <class To>
void append_part(const RespAnswer& answer, const RespPart& part, Rest& rest, To& to) {
    const bool is_read = part.command->op == op::GET;
    if (memchr(rest.status, status::CORRUPT, part.n)) {
        const char* const text = "ERR the record fails its checksum, so no value is returned: run gpkvs check";
        append_text(error_line(text, answer.stats), to);
        for (u64 i = 0; is_read && i < part.n; i++) rest.values += *rest.lengths++;
    } else if (is_read) {
        if (part.command->answer == Answer::VALUES) append_text("*" + std::to_string(part.n) + "\r\n", to);
        append_values(part.n, answer.protocol, rest, to);
    } else if (part.command->answer == Answer::COUNT) {
        append_text(":" + std::to_string(std::count(rest.status, rest.status + part.n, status::OK)) + "\r\n", to);
    } else {
        append_text("+OK\r\n", to);
    }
    rest.status += part.n;
}

template <class To>
void append_to(const RespAnswer& answer, To& to) {
    const Request& request = answer.request;
    if (request.outcome != DONE) {
        const std::string because = answer.is_transaction ? "EXECABORT Transaction discarded because of: " : "";
        return append_text(error_line(because + error_of(request), answer.stats), to);
    }
    if (answer.is_transaction) append_text("*" + std::to_string(answer.count) + "\r\n", to);
    Rest rest = {request.status(), request.result_value_lengths(), request.result_values()};
    for (const RespPart* part = answer.parts; part < answer.parts + answer.count; part++)
        append_part(answer, *part, rest, to);
}

}  // namespace

std::string error_line(std::string text, RespStats& stats) {
    for (u64 kind = 0; kind < STATS_RESP_ERRORS; kind++)
        if (!text.compare(0, strlen(ERRORS[kind]), ERRORS[kind])) stats.errors[kind].add();
    for (char& letter : text)
        if (letter == '\r' || letter == '\n') letter = ' ';
    return "-" + text + "\r\n";
}

std::string answer_without_engine(const RespCommand& command, const std::vector<Word>& words) {
    return command.answer == Answer::PONG && words.size() == 1 ? "+PONG\r\n" : bulk(words[1]);
}

void RespAnswer::append(Output& to) const { append_to(*this, to); }
void RespAnswer::append(std::string& to) const { append_to(*this, to); }

}  // namespace door
