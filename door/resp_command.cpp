#include "resp_command.hpp"

#include <strings.h>

#include <algorithm>
#include <iterator>

#include "access.hpp"
#include "operations.hpp"
#include "stats.hpp"

namespace door {

namespace {

// A count of the keys that were deleted tells of them, as reading does.
constexpr u8 MAY_BOTH = MAY_READ | MAY_WRITE;

const RespCommand COMMANDS[] = {
    {"get", op::GET, Answer::VALUE, 2, 2, MAY_READ, 0},
    {"set", op::SET, Answer::OK, 3, 5, MAY_WRITE, 0},
    {"setex", op::SET, Answer::OK, 4, 4, MAY_WRITE, 1000},
    {"psetex", op::SET, Answer::OK, 4, 4, MAY_WRITE, 1},
    {"mget", op::GET, Answer::VALUES, 2, NEVER, MAY_READ, 0},
    {"mset", op::SET, Answer::OK, 3, NEVER, MAY_WRITE, 0},
    {"del", op::DELETE, Answer::COUNT, 2, NEVER, MAY_BOTH, 0},
    {"unlink", op::DELETE, Answer::COUNT, 2, NEVER, MAY_BOTH, 0},
    {"exists", op::EXISTS, Answer::COUNT, 2, NEVER, MAY_READ, 0},
    {"touch", op::EXISTS, Answer::COUNT, 2, NEVER, MAY_READ, 0},
    {"ping", 0, Answer::PONG, 1, 2, 0, 0},
    {"echo", 0, Answer::ECHO, 2, 2, 0, 0},
    {"multi", 0, Answer::QUEUE, 1, 1, 0, 0},
    {"exec", 0, Answer::RESULTS, 1, 1, 0, 0},
    {"discard", 0, Answer::DISCARDED, 1, 1, 0, 0},
};

const char* const SHORTLY_ANSWERED[] = {
    "append",   "decr",      "decrby",      "expire", "expireat", "expiretime", "incr",     "incrby", "incrbyfloat", "persist",
    "pexpire",  "pexpireat", "pexpiretime", "psetex", "pttl",     "setex",      "setnx",    "setrange", "strlen",    "ttl",
};

static_assert(sizeof COMMANDS / sizeof *COMMANDS == RESP_COMMANDS);

// In small letters or others.
bool is_name(const Word& word, const char* name) {
    return strlen(name) == word.size && !strncasecmp(name, (const char*)word.data, word.size);
}

// A number of units above 0 as Redis reads it, in milliseconds. What has more digits is Python's: it knows the limits.
std::optional<u64> parse_ttl(const Word& word, u64 unit_ms) {
    constexpr u64 DIGITS_MAX = 12;
    if (!word.size || word.size > DIGITS_MAX || *word.data == '0') return std::nullopt;
    u64 number = 0;
    for (u64 i = 0; i < word.size; i++) {
        if (word.data[i] < '0' || word.data[i] > '9') return std::nullopt;
        number = 10 * number + (word.data[i] - '0');
    }
    return number * unit_ms;
}

}  // namespace

bool is_attack(const std::vector<Word>& words) {
    return is_name(words.front(), "post") || is_name(words.front(), "host:");
}

u64 RespCommand::value_distance() const {
    if (op != op::SET) return 0;
    return ttl_unit_ms ? 2 : 1;
}

u64 RespCommand::keys(const std::vector<Word>& words) const {
    if (!op) return 0;
    return words_max == NEVER ? (words.size() - 1) / (value_distance() + 1) : 1;
}

std::optional<u64> RespCommand::ttl_ms(const std::vector<Word>& words) const {
    if (ttl_unit_ms) return parse_ttl(words[2], ttl_unit_ms);
    if (op != op::SET || words_max == NEVER || words.size() == words_min) return 0;
    if (words.size() == 5 && is_name(words[3], "ex")) return parse_ttl(words[4], 1000);
    if (words.size() == 5 && is_name(words[3], "px")) return parse_ttl(words[4], 1);
    return std::nullopt;
}

bool RespCommand::takes(const std::vector<Word>& words) const {
    if (words.size() < words_min || words.size() > words_max) return false;
    if (words_max == NEVER && value_distance() && words.size() % 2 == 0) return false;
    return ttl_ms(words).has_value();
}

u64 RespCommand::number() const { return (u64)(this - COMMANDS); }

const RespCommand* command_of(const std::vector<Word>& words) {
    for (const RespCommand& command : COMMANDS)
        if (is_name(words.front(), command.name)) return command.takes(words) ? &command : nullptr;
    return nullptr;
}

bool is_answered_shortly(const std::vector<Word>& words) {
    const auto is = [](const char* name) { return [name](const Word& word) { return is_name(word, name); }; };
    if (is("set")(words.front())) return words.size() > 3 && std::none_of(words.begin() + 3, words.end(), is("get"));
    return std::any_of(std::begin(SHORTLY_ANSWERED), std::end(SHORTLY_ANSWERED),
                       [&](const char* name) { return is_name(words.front(), name); });
}

}  // namespace door
