#include "resp_command.hpp"

#include <strings.h>

#include <algorithm>
#include <iterator>

#include "access.hpp"
#include "operations.hpp"
#include "stats.hpp"

namespace door {

namespace {

// What a write answers may tell of the key, as reading does.
constexpr u8 MAY_BOTH = MAY_READ | MAY_WRITE;

constexpr u64 SECOND_MS = 1000, MS = 1;

// Of several with one name the first counts that takes the words.
const RespCommand COMMANDS[] = {
    {"get", op::GET, Answer::VALUE, 2, 2, MAY_READ},
    {"set", op::SET, Answer::OK, 3, 6, MAY_WRITE},
    {"set", op::GET, Answer::VALUE, 4, 6, MAY_BOTH, 0, op::SET, condition::SOUND},
    {"getset", op::GET, Answer::VALUE, 3, 3, MAY_BOTH, 0, op::SET, condition::SOUND},
    {"getdel", op::GET, Answer::VALUE, 2, 2, MAY_BOTH, 0, op::DELETE, condition::SOUND},
    {"setex", op::SET, Answer::OK, 4, 4, MAY_WRITE, SECOND_MS},
    {"psetex", op::SET, Answer::OK, 4, 4, MAY_WRITE, MS},
    {"setnx", op::SET, Answer::COUNT, 3, 3, MAY_BOTH, 0, 0, condition::ABSENT},
    {"getex", op::GET, Answer::VALUE, 2, 2, MAY_BOTH},
    {"getex", op::GET, Answer::VALUE, 3, 3, MAY_BOTH, 0, op::EXPIRE, condition::EXPIRES},
    {"getex", op::GET, Answer::VALUE, 4, 4, MAY_BOTH, 0, op::EXPIRE},
    {"append", op::APPEND, Answer::SIZE, 3, 3, MAY_BOTH, 0, op::LENGTH},
    {"strlen", op::GET, Answer::LENGTH, 2, 2, MAY_READ},
    {"getrange", op::GET, Answer::RANGE, 4, 4, MAY_READ},
    {"substr", op::GET, Answer::RANGE, 4, 4, MAY_READ},
    {"mget", op::GET, Answer::VALUES, 2, NEVER, MAY_READ},
    {"mset", op::SET, Answer::OK, 3, NEVER, MAY_WRITE},
    {"incr", op::INCREMENT, Answer::NUMBER, 2, 2, MAY_BOTH, 0, 0, 0, 1},
    {"decr", op::INCREMENT, Answer::NUMBER, 2, 2, MAY_BOTH, 0, 0, 0, -1},
    {"incrby", op::INCREMENT, Answer::NUMBER, 3, 3, MAY_BOTH, 0, 0, 0, 1},
    {"decrby", op::INCREMENT, Answer::NUMBER, 3, 3, MAY_BOTH, 0, 0, 0, -1},
    {"expire", op::EXPIRE, Answer::COUNT, 3, 3, MAY_BOTH, SECOND_MS},
    {"pexpire", op::EXPIRE, Answer::COUNT, 3, 3, MAY_BOTH, MS},
    {"expireat", op::EXPIRE, Answer::COUNT, 3, 3, MAY_BOTH, SECOND_MS, 0, 0, 0, true},
    {"pexpireat", op::EXPIRE, Answer::COUNT, 3, 3, MAY_BOTH, MS, 0, 0, 0, true},
    {"persist", op::EXPIRE, Answer::COUNT, 2, 2, MAY_BOTH, 0, 0, condition::EXPIRES},
    {"ttl", op::EXPIRY, Answer::TIME_LEFT, 2, 2, MAY_READ, SECOND_MS},
    {"pttl", op::EXPIRY, Answer::TIME_LEFT, 2, 2, MAY_READ, MS},
    {"expiretime", op::EXPIRY, Answer::TIME, 2, 2, MAY_READ, SECOND_MS},
    {"pexpiretime", op::EXPIRY, Answer::TIME, 2, 2, MAY_READ, MS},
    {"del", op::DELETE, Answer::COUNT, 2, NEVER, MAY_BOTH},
    {"unlink", op::DELETE, Answer::COUNT, 2, NEVER, MAY_BOTH},
    {"exists", op::EXISTS, Answer::COUNT, 2, NEVER, MAY_READ},
    {"touch", op::EXISTS, Answer::COUNT, 2, NEVER, MAY_READ},
    {"type", op::EXISTS, Answer::TYPE, 2, 2, MAY_READ},
    {"ping", 0, Answer::PONG, 1, 2, 0},
    {"echo", 0, Answer::ECHO, 2, 2, 0},
    {"multi", 0, Answer::QUEUE, 1, 1, 0},
    {"exec", 0, Answer::RESULTS, 1, 1, 0},
    {"discard", 0, Answer::DISCARDED, 1, 1, 0},
};

const std::string_view SHORTLY_ANSWERED[] = {
    "append",   "decr",      "decrby",      "expire", "expireat", "expiretime", "incr",     "incrby", "incrbyfloat", "persist",
    "pexpire",  "pexpireat", "pexpiretime", "psetex", "pttl",     "setex",      "setnx",    "setrange", "strlen",    "ttl",
};

static_assert(sizeof COMMANDS / sizeof *COMMANDS == RESP_COMMANDS);

// In small letters or others.
bool is_name(const Word& word, std::string_view name) {
    return name.size() == word.size && !strncasecmp(name.data(), (const char*)word.data, word.size);
}

// A number of units above 0 as Redis reads it, in milliseconds. What has more digits is Python's: it knows the limits.
std::optional<u64> parse_time(const Word& word, u64 unit_ms) {
    const u64 digits_max = unit_ms == MS ? 15 : 12;
    if (!word.size || word.size > digits_max || *word.data == '0') return std::nullopt;
    u64 number = 0;
    for (u64 i = 0; i < word.size; i++) {
        if (word.data[i] < '0' || word.data[i] > '9') return std::nullopt;
        number = 10 * number + (word.data[i] - '0');
    }
    return number * unit_ms;
}

// A number as Redis reads it. What has more digits is Python's: it may be too large.
std::optional<i64> parse_number(const Word& word) {
    constexpr u64 DIGITS_MAX = 18;
    const bool is_negative = word.size && *word.data == '-';
    const u64 digits = word.size - is_negative;
    if (!digits || digits > DIGITS_MAX || (word.data[is_negative] == '0' && word.size > 1)) return std::nullopt;
    i64 number = 0;
    for (u64 i = is_negative; i < word.size; i++) {
        if (word.data[i] < '0' || word.data[i] > '9') return std::nullopt;
        number = 10 * number + (word.data[i] - '0');
    }
    return is_negative ? -number : number;
}

// NX or XX, and EX, PX, EXAT or PXAT with a time, in any order, and GET where the command asks for it; other options are Python's.
std::optional<RespOptions> parse_options(const std::vector<Word>& words, u64 at, bool needs_get = false) {
    RespOptions options;
    bool has_get = false;
    for (; at < words.size(); at++) {
        const bool is_absent = is_name(words[at], "nx");
        const bool is_ttl = is_name(words[at], "ex") || is_name(words[at], "px");
        if (needs_get && is_name(words[at], "get")) {
            has_get = true;
        } else if (is_absent || is_name(words[at], "xx")) {
            if (options.condition) return std::nullopt;
            options.condition = is_absent ? condition::ABSENT : condition::PRESENT;
        } else if (is_ttl || is_name(words[at], "exat") || is_name(words[at], "pxat")) {
            if (options.ttl_ms || options.expiry_ms || at + 1 == words.size()) return std::nullopt;
            const std::optional<u64> time_ms = parse_time(words[at + 1], (*words[at].data | ' ') == 'e' ? SECOND_MS : MS);
            if (!time_ms) return std::nullopt;
            (is_ttl ? options.ttl_ms : options.expiry_ms) = *time_ms;
            at++;
        } else {
            return std::nullopt;
        }
    }
    if (has_get != needs_get) return std::nullopt;
    return options;
}

}  // namespace

bool is_attack(const std::vector<Word>& words) {
    return is_name(words.front(), "post") || is_name(words.front(), "host:");
}

u64 RespCommand::key_distance() const { return op == op::SET ? 2 : 1; }

u64 RespCommand::value_distance() const { return op == op::SET && unit_ms ? 2 : 1; }

u64 RespCommand::keys(const std::vector<Word>& words) const {
    if (!op) return 0;
    return words_max == NEVER ? (words.size() - 1) / key_distance() : 1;
}

std::optional<RespOptions> RespCommand::options(const std::vector<Word>& words) const {
    RespOptions options;
    options.condition = condition;
    if (op == op::SET && words.size() > words_min && words_max != NEVER) return parse_options(words, words_min);
    if (condition == condition::EXPIRES && words.size() > 2 && !is_name(words[2], "persist")) return std::nullopt;
    if (then == op::EXPIRE && !condition) {
        const std::optional<RespOptions> given = parse_options(words, 2);
        return given && (given->ttl_ms || given->expiry_ms) && !given->condition ? given : std::nullopt;
    }
    if (then == op::SET && words_max > words_min) {
        std::optional<RespOptions> given = parse_options(words, 3, true);
        if (!given || given->condition) return std::nullopt;
        given->condition = condition;
        return given;
    }
    if (answer == Answer::RANGE) {
        const std::optional<i64> first = parse_number(words[2]), last = parse_number(words[3]);
        if (!first || !last) return std::nullopt;
        options.first = (i32)std::clamp<i64>(*first, INT32_MIN, INT32_MAX);  // no value is as long
        options.last = (i32)std::clamp<i64>(*last, INT32_MIN, INT32_MAX);
    }
    if (unit_ms && words_min > 2) {
        const std::optional<u64> time_ms = parse_time(words[2], unit_ms);
        if (!time_ms) return std::nullopt;
        (says_when ? options.expiry_ms : options.ttl_ms) = *time_ms;
    }
    if (op == op::INCREMENT) {
        const std::optional<i64> number = words.size() > 2 ? parse_number(words[2]) : 1;
        if (!number) return std::nullopt;
        options.number = sign * *number;
    }
    return options;
}

u8 RespCommand::rights_for(const std::vector<Word>& words) const {
    return op == op::SET && options(words)->condition ? MAY_BOTH : rights;
}

bool RespCommand::takes(const std::vector<Word>& words) const {
    if (words.size() < words_min || words.size() > words_max) return false;
    if (words_max == NEVER && key_distance() == 2 && words.size() % 2 == 0) return false;
    return options(words).has_value();
}

u64 RespCommand::number() const { return (u64)(this - COMMANDS); }

const RespCommand* command_of(const std::vector<Word>& words) {
    for (const RespCommand& command : COMMANDS)
        if (is_name(words.front(), command.name) && command.takes(words)) return &command;
    return nullptr;
}

bool is_answered_shortly(const std::vector<Word>& words) {
    const auto is = [](std::string_view name) { return [name](const Word& word) { return is_name(word, name); }; };
    if (is("set")(words.front())) return words.size() > 3 && std::none_of(words.begin() + 3, words.end(), is("get"));
    return std::any_of(std::begin(SHORTLY_ANSWERED), std::end(SHORTLY_ANSWERED),
                       [&](std::string_view name) { return is_name(words.front(), name); });
}

}  // namespace door
