#include "resp/resp_answer.hpp"

#include <algorithm>
#include <cstring>

#include "net/connection.hpp"
#include "base/operations.hpp"
#include "base/texts.hpp"

namespace door {

namespace {

const char* const ERRORS[STATS_RESP_ERRORS] = {"ERR ", "OOM ", "EXECABORT "};

void append_text(const std::string& text, Output& to) { to.append(text.data(), text.size()); }

std::string bulk_head(u64 size) { return "$" + std::to_string(size) + "\r\n"; }

// A part of a value.
void append_bulk(const Values::Value& value, const Word& part, Output& to) {
    append_text(bulk_head(part.size), to);
    if (value.lent) to.append(std::move(*value.lent), (u64)(part.data - value.data), part.size);
    else to.append(part.data, part.size);
    append_text("\r\n", to);
}

void append_bulk(const Values::Value& value, Output& to) { append_bulk(value, {value.data, value.size}, to); }

std::string bulk(const Word& word) {
    return bulk_head(word.size) + std::string((const char*)word.data, word.size) + "\r\n";
}

// The results of operations that no answer has yet.
struct Rest {
    const u8 *ops, *status;
    Values values;
};

i64 next_number(Rest& rest) {
    const Values::Value value = rest.values.next();
    i64 number = 0;
    if (value.size == sizeof number) memcpy(&number, value.data, sizeof number);
    return number;
}

const char* nothing(u32 protocol) { return protocol == 2 ? "$-1\r\n" : "_\r\n"; }

void append_values(u64 n, u32 protocol, Rest& rest, Output& to) {
    for (u64 i = 0; i < n; i++) {
        const Values::Value value = rest.values.next();
        if (rest.status[i] == status::OK) append_bulk(value, to);
        else append_text(nothing(protocol), to);
    }
}

// The bytes from one to another, both of them, as far as there are so many.
Word part_of(const Values::Value& value, i64 first, i64 last) {
    const i64 size = (i64)value.size;
    if (first < 0 && last < 0 && first > last) return {value.data, 0};
    first = std::max<i64>(first < 0 ? first + size : first, 0);
    last = std::min(last < 0 ? std::max<i64>(last + size, 0) : last, size - 1);
    return first > last ? Word{value.data, 0} : Word{value.data + first, (u64)(last - first + 1)};
}

std::string number_line(i64 number) { return ":" + std::to_string(number) + "\r\n"; }

std::string sum_line(u8 status, i64 sum, RespStats& stats) {
    if (status == status::NOT_A_NUMBER) return error_line("ERR value is not an integer or out of range", stats);
    if (status == status::OVERFLOW) return error_line("ERR increment or decrement would overflow", stats);
    return number_line(sum);
}

void append_decimal(u8 status, const Values::Value& sum, RespStats& stats, Output& to) {
    if (status == status::NOT_A_NUMBER) append_text(error_line("ERR value is not a valid float", stats), to);
    else if (status == status::OVERFLOW) append_text(error_line("ERR increment would produce NaN or Infinity", stats), to);
    else append_bulk(sum, to);
}

std::string size_line(u8 status, i64 size, RespStats& stats) {
    if (status == status::OVERFLOW)
        return error_line(VALUE_TOO_LONG_ERROR, stats);
    return number_line(size);
}

// How many operations were done that do something.
i64 done_of(const Rest& rest, u64 n) {
    i64 done = 0;
    for (u64 i = 0; i < n; i++) done += rest.ops[i] != op::REQUIRE && rest.status[i] == status::OK;
    return done;
}

// The key to move is looked at last before it is moved.
std::string moved_line(const RespCommand& command, const Rest& rest, RespStats& stats) {
    const u64 copy = command.answer == Answer::MOVED ? 2 : 1;
    if (rest.status[copy - 1] != status::OK) return error_line("ERR no such key", stats);
    if (command.answer == Answer::MOVED_OK) return "+OK\r\n";
    return number_line(rest.status[copy] == status::OK);
}

// As of `since_ms`, rounded to whole units.
std::string time_line(u8 status, u64 expiry_ms, u64 since_ms, u64 unit_ms) {
    constexpr i64 NO_KEY = -2, NO_EXPIRY = -1;
    if (status != status::OK) return number_line(NO_KEY);
    if (!expiry_ms) return number_line(NO_EXPIRY);
    const u64 ms = std::max(expiry_ms, since_ms) - since_ms;
    return ":" + std::to_string(ms / unit_ms + (ms % unit_ms >= unit_ms / 2 + unit_ms % 2)) + "\r\n";
}

void append_part(const RespAnswer& answer, const RespPart& part, Rest& rest, Output& to) {
    const RespCommand& command = *part.command;
    const u8 first = *rest.status, last = rest.status[part.n - 1];
    if (memchr(rest.status, status::CORRUPT, part.n)) {
        const char* const text = "ERR the record fails its checksum, so no value is returned: run gpkvs check";
        append_text(error_line(with_request_id(text, answer.id.text()), answer.stats), to);
        for (u64 i = 0; i < part.n; i++)
            if (returns_value(rest.ops[i])) rest.values.next();
    } else {
        switch (command.answer) {
            case Answer::VALUES:
                append_text("*" + std::to_string(part.n) + "\r\n", to);
                append_values(part.n, answer.protocol, rest, to);
                break;
            case Answer::VALUE: append_values(1, answer.protocol, rest, to); break;
            case Answer::RANGE: {
                const Values::Value value = rest.values.next();
                append_bulk(value, part_of(value, part.first_byte, part.last_byte), to);
                break;
            }
            case Answer::LENGTH: append_text(number_line((i64)rest.values.next().size), to); break;
            case Answer::TYPE: append_text(first == status::OK ? "+string\r\n" : "+none\r\n", to); break;
            case Answer::SIZE: append_text(size_line(first, next_number(rest), answer.stats), to); break;
            case Answer::NUMBER: append_text(sum_line(first, next_number(rest), answer.stats), to); break;
            case Answer::DECIMAL: append_decimal(first, rest.values.next(), answer.stats, to); break;
            case Answer::TIME: append_text(time_line(first, (u64)next_number(rest), 0, command.unit_ms), to); break;
            case Answer::TIME_LEFT: {
                const u64 now_ms = answer.request.results->now_ms;
                append_text(time_line(first, (u64)next_number(rest), now_ms, command.unit_ms), to);
                break;
            }
            case Answer::COUNT: append_text(number_line(done_of(rest, part.n)), to); break;
            case Answer::LAST: append_text(number_line(last == status::OK), to); break;
            case Answer::MOVED:
            case Answer::MOVED_OK: append_text(moved_line(command, rest, answer.stats), to); break;
            case Answer::WATCHED: append_text("+OK\r\n", to); break;
            default: append_text(first == status::OK ? "+OK\r\n" : nothing(answer.protocol), to);
        }
    }
    rest.ops += part.n;
    rest.status += part.n;
}

void append_to(const RespAnswer& answer, Output& to) {
    Request& request = answer.request;
    if (request.outcome == REFUSED && request.refusal->conflict)  // a watched key has changed
        return append_text(answer.protocol == 2 ? "*-1\r\n" : nothing(answer.protocol), to);
    if (request.outcome != DONE) {
        const std::string because = answer.is_transaction ? "EXECABORT Transaction discarded because of: " : "";
        return append_text(error_line(because + error_of(request, answer.id), answer.stats), to);
    }
    if (answer.is_transaction) append_text("*" + std::to_string(answer.count) + "\r\n", to);
    u64 checks = request.n;  // of what is watched
    for (const RespPart* part = answer.parts; part < answer.parts + answer.count; part++) checks -= part->n;
    Rest rest = {request.ops + checks, request.status() + checks, Values(request)};
    for (const RespPart* part = answer.parts; part < answer.parts + answer.count; part++)
        append_part(answer, *part, rest, to);
}

}  // namespace

std::string full_error(const std::string& why, const std::string& request_id) {
    return with_request_id("OOM " + why, request_id);
}

std::string error_of(const Request& request, LateRequestId& id) {
    switch (request.outcome) {
        case REFUSED: {
            const Refusal& refusal = *request.refusal;
            if (!refusal.full.empty()) return full_error(refusal.text, id.text());
            // What failed for a whole batch has an id in its text, by which the log names it.
            const std::string text = "ERR " + refusal.text;
            return refusal.is_refusal ? with_request_id(text, id.text()) : text;
        }
        case NO_ROOM: return full_error(memory_text(request.connection->account, 0), id.text());
        case GONE: return "ERR DB index is out of range";
        default: return "ERR not executed";
    }
}

bool is_told_with_id(const Request& request) {
    if (request.outcome != DONE) return request.outcome == REFUSED || request.outcome == NO_ROOM;
    return memchr(request.status(), status::CORRUPT, request.n);
}

std::string error_line(std::string text, RespStats& stats) {
    for (u64 kind = 0; kind < STATS_RESP_ERRORS; kind++)
        if (!text.compare(0, strlen(ERRORS[kind]), ERRORS[kind])) stats.errors[kind].add();
    for (char& letter : text)
        if (letter == '\r' || letter == '\n') letter = ' ';
    return "-" + text + "\r\n";
}

std::string answer_without_engine(const RespCommand& command, const std::vector<Word>& words) {
    if (command.answer == Answer::UNWATCHED) return "+OK\r\n";
    return command.answer == Answer::PONG && words.size() == 1 ? "+PONG\r\n" : bulk(words[1]);
}

void RespAnswer::append(Output& to) const { append_to(*this, to); }

}  // namespace door
