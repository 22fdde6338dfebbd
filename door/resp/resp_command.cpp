#include "resp/resp_command.hpp"

#include <strings.h>

#include <algorithm>
#include <iterator>

#include "base/operations.hpp"
#include "base/stats.hpp"

namespace door {

namespace {

// What a write answers may tell of the key, as reading does.
constexpr u8 MAY_BOTH = MAY_READ | MAY_WRITE;

constexpr u64 SECOND_MS = 1000, MS = 1;

// Of several with one name the first counts that takes the words.
const RespCommand COMMANDS[] = {
    {"get", op::GET, Answer::VALUE, 2, 2, MAY_READ},
    {"set", op::SET, Answer::OK, 3, 6, MAY_WRITE},
    {"set", op::GET, Answer::VALUE, 4, 7, MAY_BOTH, 0, op::SET, condition::SOUND},
    {"getset", op::GET, Answer::VALUE, 3, 3, MAY_BOTH, 0, op::SET, condition::SOUND},
    {"getdel", op::GET, Answer::VALUE, 2, 2, MAY_BOTH, 0, op::DELETE, condition::SOUND},
    {"setex", op::SET, Answer::OK, 4, 4, MAY_WRITE, SECOND_MS},
    {"psetex", op::SET, Answer::OK, 4, 4, MAY_WRITE, MS},
    {"msetnx", op::REQUIRE, Answer::LAST, 3, NEVER, MAY_BOTH, 0, op::SET, condition::ABSENT, 0, false, Order::ALL_FIRST},
    {"setnx", op::SET, Answer::COUNT, 3, 3, MAY_BOTH, 0, 0, condition::ABSENT},
    {"getex", op::GET, Answer::VALUE, 2, 2, MAY_BOTH},
    {"getex", op::GET, Answer::VALUE, 3, 3, MAY_BOTH, 0, op::EXPIRE, condition::EXPIRES},
    {"getex", op::GET, Answer::VALUE, 4, 4, MAY_BOTH, 0, op::EXPIRE},
    {"append", op::APPEND, Answer::SIZE, 3, 3, MAY_BOTH, 0, op::LENGTH},
    {"setrange", op::SETRANGE, Answer::SIZE, 4, 4, MAY_BOTH, 0, op::LENGTH},
    {"strlen", op::GET, Answer::LENGTH, 2, 2, MAY_READ},
    {"getrange", op::GET, Answer::RANGE, 4, 4, MAY_READ},
    {"substr", op::GET, Answer::RANGE, 4, 4, MAY_READ},
    {"mget", op::GET, Answer::VALUES, 2, NEVER, MAY_READ},
    {"mset", op::SET, Answer::OK, 3, NEVER, MAY_WRITE},
    {"incr", op::INCREMENT, Answer::NUMBER, 2, 2, MAY_BOTH, 0, 0, 0, 1},
    {"decr", op::INCREMENT, Answer::NUMBER, 2, 2, MAY_BOTH, 0, 0, 0, -1},
    {"incrby", op::INCREMENT, Answer::NUMBER, 3, 3, MAY_BOTH, 0, 0, 0, 1},
    {"decrby", op::INCREMENT, Answer::NUMBER, 3, 3, MAY_BOTH, 0, 0, 0, -1},
    {"incrbyfloat", op::INCREMENT_DECIMAL, Answer::DECIMAL, 3, 3, MAY_BOTH, 0, op::GET},
    {"expire", op::EXPIRE, Answer::COUNT, 3, 4, MAY_BOTH, SECOND_MS},
    {"pexpire", op::EXPIRE, Answer::COUNT, 3, 4, MAY_BOTH, MS},
    {"expireat", op::EXPIRE, Answer::COUNT, 3, 4, MAY_BOTH, SECOND_MS, 0, 0, 0, true},
    {"pexpireat", op::EXPIRE, Answer::COUNT, 3, 4, MAY_BOTH, MS, 0, 0, 0, true},
    {"persist", op::EXPIRE, Answer::COUNT, 2, 2, MAY_BOTH, 0, 0, condition::EXPIRES},
    {"ttl", op::EXPIRY, Answer::TIME_LEFT, 2, 2, MAY_READ, SECOND_MS},
    {"pttl", op::EXPIRY, Answer::TIME_LEFT, 2, 2, MAY_READ, MS},
    {"expiretime", op::EXPIRY, Answer::TIME, 2, 2, MAY_READ, SECOND_MS},
    {"pexpiretime", op::EXPIRY, Answer::TIME, 2, 2, MAY_READ, MS},
    {"del", op::DELETE, Answer::COUNT, 2, NEVER, MAY_BOTH},
    {"unlink", op::DELETE, Answer::COUNT, 2, NEVER, MAY_BOTH},
    {"rename", op::COPY, Answer::MOVED_OK, 3, 3, MAY_BOTH, 0, op::DELETE, 0, 0, false, Order::TO_ANOTHER},
    {"renamenx", op::COPY, Answer::MOVED, 3, 3, MAY_BOTH, 0, op::DELETE, condition::ABSENT, 0, false, Order::TO_ANOTHER},
    {"copy", op::COPY, Answer::LAST, 3, 3, MAY_BOTH, 0, 0, condition::ABSENT, 0, false, Order::TO_ANOTHER},
    {"copy", op::COPY, Answer::LAST, 4, 4, MAY_BOTH, 0, 0, 0, 0, false, Order::TO_ANOTHER},
    {"evalsha", op::REQUIRE, Answer::COUNT, 5, NEVER, MAY_BOTH, 0, op::DELETE, condition::HOLDS, 0, false, Order::KEY_BY_KEY, Program::RELEASE},
    {"evalsha", op::REQUIRE, Answer::COUNT, 6, NEVER, MAY_BOTH, MS, op::EXPIRE, condition::HOLDS, 0, false, Order::ALL_FIRST, Program::EXTEND},
    {"evalsha", op::REQUIRE, Answer::COUNT, 6, NEVER, MAY_BOTH, MS, op::SET, condition::ABSENT, 0, false, Order::ALL_FIRST, Program::ACQUIRE},
    {"evalsha", op::REQUIRE, Answer::COUNT, 7, NEVER, MAY_BOTH, MS, op::EXPIRE, condition::HOLDS, 0, false, Order::PROLONG, Program::PROLONG},
    {"eval", op::REQUIRE, Answer::COUNT, 7, NEVER, MAY_BOTH, MS, op::EXPIRE, condition::HOLDS, 0, false, Order::PROLONG, Program::PROLONG},
    {"eval", op::REQUIRE, Answer::COUNT, 5, NEVER, MAY_BOTH, 0, op::DELETE, condition::HOLDS, 0, false, Order::KEY_BY_KEY, Program::RELEASE},
    {"eval", op::REQUIRE, Answer::COUNT, 6, NEVER, MAY_BOTH, MS, op::EXPIRE, condition::HOLDS, 0, false, Order::ALL_FIRST, Program::EXTEND},
    {"eval", op::REQUIRE, Answer::COUNT, 6, NEVER, MAY_BOTH, MS, op::SET, condition::ABSENT, 0, false, Order::ALL_FIRST, Program::ACQUIRE},
    {"exists", op::EXISTS, Answer::COUNT, 2, NEVER, MAY_READ},
    {"touch", op::EXISTS, Answer::COUNT, 2, NEVER, MAY_READ},
    {"type", op::EXISTS, Answer::TYPE, 2, 2, MAY_READ},
    {"ping", 0, Answer::PONG, 1, 2, 0},
    {"echo", 0, Answer::ECHO, 2, 2, 0},
    {"multi", 0, Answer::QUEUE, 1, 1, 0},
    {"exec", 0, Answer::RESULTS, 1, 1, 0},
    {"discard", 0, Answer::DISCARDED, 1, 1, 0},
    {"watch", op::EXISTS, Answer::WATCHED, 2, NEVER, MAY_READ},
    {"unwatch", 0, Answer::UNWATCHED, 1, 1, 0},
};

const std::string_view SHORTLY_ANSWERED[] = {
    "append",   "decr",      "decrby",      "expire", "expireat", "expiretime", "incr",     "incrby", "incrbyfloat", "persist",
    "pexpire",  "pexpireat", "pexpiretime", "psetex", "pttl",     "setex",      "setnx",    "setrange", "strlen",    "ttl",
};

static_assert(sizeof COMMANDS / sizeof *COMMANDS == DOOR_REDIS_COMMANDS);

// What a key must be like whose expiry may change.
const struct {
    std::string_view name;
    u8 condition;
} EXPIRE_OPTIONS[] = {
    {"nx", condition::LASTS}, {"xx", condition::EXPIRES}, {"gt", condition::LATER}, {"lt", condition::SOONER}};

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

// NX or XX, and KEEPTTL, EX, PX, EXAT or PXAT with a time, in any order, and GET where the command asks for it; other options
// are Python's.
std::optional<RespOptions> parse_options(const std::vector<Word>& words, u64 at, bool needs_get = false) {
    RespOptions options;
    bool has_get = false, keeps = false;
    for (; at < words.size(); at++) {
        const bool is_absent = is_name(words[at], "nx");
        const bool is_ttl = is_name(words[at], "ex") || is_name(words[at], "px");
        if (needs_get && is_name(words[at], "get")) {
            has_get = true;
        } else if (!keeps && is_name(words[at], "keepttl")) {
            keeps = true;
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
    if (keeps) {
        // A key that is absent has none; of one that is there both cannot be asked at once.
        if (options.ttl_ms || options.expiry_ms || options.condition == condition::PRESENT) return std::nullopt;
        if (!options.condition) options.condition = condition::KEEPS;
    }
    return options;
}

}  // namespace

bool brings_value(const std::vector<Word>& words) {
    if (words.size() == 2) return is_name(words[0], "set") || is_name(words[0], "setnx") || is_name(words[0], "getset");
    return words.size() == 3 && (is_name(words[0], "setex") || is_name(words[0], "psetex"));
}

bool is_attack(const std::vector<Word>& words) {
    return is_name(words.front(), "post") || is_name(words.front(), "host:");
}

// How many keys, they themselves, a token, and how long if the script says that. What else is there counts for nothing.
std::optional<RespOptions> RespCommand::script_options(const std::vector<Word>& words) const {
    RespOptions options;
    options.condition = condition;
    const std::optional<i64> keys = parse_number(words[2]);
    const u64 wanted = program == Program::PROLONG ? 3 : unit_ms ? 2 : 1;
    if (!keys || *keys < 1 || (u64)*keys + first_key() + wanted > words.size()) return std::nullopt;
    // Of several keys some would be released though another one cannot be read.
    if (program == Program::RELEASE && *keys > 1) return std::nullopt;
    options.keys = (u64)*keys;
    options.token = words[first_key() + options.keys];
    if (!unit_ms) return options;
    const std::optional<u64> time_ms = parse_time(words[first_key() + options.keys + 1], unit_ms);
    if (!time_ms) return std::nullopt;
    const bool adds = program == Program::PROLONG && is_name(words[first_key() + options.keys + 2], "0");
    if (adds) options.number = (i64)*time_ms;
    else options.ttl_ms = *time_ms;
    return options;
}

std::optional<RespOptions> RespCommand::options(const std::vector<Word>& words) const {
    if (program != Program::NONE) return script_options(words);
    RespOptions options;
    options.condition = condition;
    if (op == op::SET && words.size() > words_min && words_max != NEVER) return parse_options(words, words_min);
    if (condition == condition::EXPIRES && words.size() > 2 && !is_name(words[2], "persist")) return std::nullopt;
    if (then == op::EXPIRE && !condition) {
        const std::optional<RespOptions> given = parse_options(words, 2);
        return given && (given->ttl_ms || given->expiry_ms) && !given->condition ? given : std::nullopt;
    }
    if (op == op::GET && then == op::SET && words_max > words_min) {
        std::optional<RespOptions> given = parse_options(words, 3, true);
        if (!given) return std::nullopt;
        if (!given->condition) given->condition = condition;
        if (given->condition == condition::PRESENT) given->condition = condition::READABLE;
        return given;
    }
    if (order == Order::TO_ANOTHER) {
        const bool is_same = words[1].size == words[2].size && std::equal(words[1].data, words[1].data + words[1].size, words[2].data);
        if (is_same || (words.size() > 3 && !is_name(words[3], "replace"))) return std::nullopt;
        return options;
    }
    if (op == op::EXPIRE && words.size() > 3) {
        const auto found = std::find_if(std::begin(EXPIRE_OPTIONS), std::end(EXPIRE_OPTIONS),
                                        [&](const auto& option) { return is_name(words[3], option.name); });
        if (found == std::end(EXPIRE_OPTIONS)) return std::nullopt;
        options.condition = found->condition;
    }
    if (op == op::SETRANGE) {
        const std::optional<i64> first = parse_number(words[2]);
        if (!first || *first < 0) return std::nullopt;
        options.number = *first;
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

bool RespCommand::may_take(const std::vector<Word>& words) const {
    if (words.size() < words_min || words.size() > words_max) return false;
    return words_max != NEVER || key_distance() == 1 || words.size() % 2;
}

u64 RespCommand::number() const { return (u64)(this - COMMANDS); }

const RespCommand* command_of(const std::vector<Word>& words, const Scripts& scripts, RespOptions& options) {
    std::optional<Program> program;  // of the words; to know it may take long
    for (const RespCommand& command : COMMANDS) {
        if (!is_name(words.front(), command.name) || !command.may_take(words)) continue;
        if (command.program != Program::NONE) {
            if (!program) program = scripts.program_of(words);
            if (command.program != program) continue;
        }
        const std::optional<RespOptions> found = command.options(words);
        if (!found) continue;
        options = *found;
        return &command;
    }
    return nullptr;
}

std::string command_names() {
    std::string names;
    for (const RespCommand& command : COMMANDS) names += std::string(command.name) + ' ';
    return names;
}

bool subscribes(const std::vector<Word>& words) {
    return is_name(words.front(), "subscribe") || is_name(words.front(), "psubscribe");
}

bool is_answered_shortly(const std::vector<Word>& words) {
    const auto is = [](std::string_view name) { return [name](const Word& word) { return is_name(word, name); }; };
    if (is("set")(words.front())) return words.size() > 3 && std::none_of(words.begin() + 3, words.end(), is("get"));
    return std::any_of(std::begin(SHORTLY_ANSWERED), std::end(SHORTLY_ANSWERED),
                       [&](std::string_view name) { return is_name(words.front(), name); });
}

}  // namespace door
