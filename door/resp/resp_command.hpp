// The commands of Redis that the door executes by itself.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "request/access.hpp"
#include "base/operations.hpp"
#include "resp/resp_parser.hpp"
#include "resp/scripts.hpp"
#include "base/types.hpp"

namespace door {

enum class Answer {
    PONG, ECHO, VALUE, VALUES, RANGE, LENGTH, SIZE, TYPE, OK, COUNT, LAST, MOVED, MOVED_OK, NUMBER, DECIMAL, TIME_LEFT, TIME,
    QUEUE, RESULTS, DISCARDED, WATCHED, UNWATCHED
};

// In which order a command does what it does with its keys.
enum class Order : u8 {
    KEY_BY_KEY,
    ALL_FIRST,  // one thing with all of them, then the other one
    TO_ANOTHER,  // the first key's value goes to the second one
    PROLONG      // a key that holds something, and expires, does so later
};

// What words say beside keys and values.
struct RespOptions {
    u64 ttl_ms = 0;     // how long the keys live; 0: for ever
    u64 expiry_ms = 0;  // or when they expire, since 1970
    u8 condition = 0;
    i64 number = 0;  // that is added, also to a time, or where a part begins
    i32 first = 0, last = 0;  // bytes of a value that are asked for; below 0: counted from its end
    Word token = {};          // what all keys must hold, or are given
    u64 keys = 0;             // how many there are, where a word says that
};

// One operation of a command.
struct RespOperation {
    u8 op, condition;
    Word key, value;
    u64 expected = 0;
};

struct RespCommand {
    std::string_view name;
    u8 op;  // what it does with each key; 0: it has none
    Answer answer;
    u64 words_min, words_max;
    u8 rights;         // which the caller must have on the table
    u64 unit_ms = 0;   // of the time that a word says, or the answer
    u8 then = 0;       // what it does with the key after that
    u8 condition = 0;  // of the first operation that asks for one, if no word says another one
    i64 sign = 0;      // of the number that is added
    bool says_when = false;  // the time is a moment
    Order order = Order::KEY_BY_KEY;
    Program program = Program::NONE;

    // Gives away the operations of words that it takes, in their order.
    template <class Take>
    void operations(const RespOptions& options, const std::vector<Word>& words, Take take) const;
    // Of as many words as it has. Nothing: Python executes it, or says what is wrong.
    std::optional<RespOptions> options(const std::vector<Word>& words) const;
    // Which rights words with these options ask for.
    u8 rights_for(const RespOptions& options) const {
        const bool tells = op == op::SET && options.condition && options.condition != condition::KEEPS;
        return tells ? u8(MAY_READ | MAY_WRITE) : rights;
    }
    // Whether these are as many words as it has.
    bool may_take(const std::vector<Word>& words) const;
    // Which of them it is, counted from 0.
    u64 number() const;

  private:
    u64 keys(const RespOptions& options, const std::vector<Word>& words) const;
    u64 first_key() const { return program == Program::NONE ? 1 : 3; }
    // From one key to the next one, and from a key to its value.
    u64 key_distance() const { return op == op::SET || (words_max == NEVER && then == op::SET && program == Program::NONE) ? 2 : 1; }
    u64 value_distance() const { return op == op::SETRANGE || (op == op::SET && unit_ms) ? 2 : 1; }
    std::optional<RespOptions> script_options(const std::vector<Word>& words) const;
    RespOperation operation(u8 op, u64 key, const RespOptions& options, const std::vector<Word>& words) const;
};

// What asks for others first does nothing else, and they ask whether it holds.
inline RespOperation RespCommand::operation(u8 kind, u64 key, const RespOptions& options, const std::vector<Word>& words) const {
    u8 asks = options.condition;
    Word value = {};
    if (only_reads(kind) && kind != op::REQUIRE) asks = condition::NONE;
    else if (op == op::REQUIRE && kind != op) asks = condition::REQUIRED;
    if (kind == op::INCREMENT) value = {(const u8*)&options.number, sizeof options.number};
    else if (kind == op::REQUIRE && asks != condition::HOLDS) value = {};
    else if (program != Program::NONE) value = options.token;
    else if (has_value(kind)) value = words[key + value_distance()];
    return {kind, asks, words[key], value, kind == op::SETRANGE ? (u64)options.number : 0};
}

inline u64 RespCommand::keys(const RespOptions& options, const std::vector<Word>& words) const {
    if (!op) return 0;
    if (program != Program::NONE) return options.keys;
    return words_max == NEVER ? (words.size() - 1) / key_distance() : 1;
}

template <class Take>
void RespCommand::operations(const RespOptions& options, const std::vector<Word>& words, Take take) const {
    if (order == Order::TO_ANOTHER) {
        if (options.condition) take({op::REQUIRE, options.condition, words[2], {}});
        take({op::REQUIRE, condition::READABLE, words[1], {}});
        take({op::COPY, condition::REQUIRED, words[2], {}});
        if (then) take({then, condition::REQUIRED, words[1], {}});
        return;
    }
    if (order == Order::PROLONG) {
        const Word& key = words[first_key()];
        take({op::REQUIRE, condition::HOLDS, key, options.token});
        take({op::REQUIRE, condition::EXPIRES, key, {}});
        take({then, options.number ? condition::PROLONGS : condition::REQUIRED, key, {}, (u64)options.number});
        return;
    }
    const u64 first = first_key(), end = first + keys(options, words) * key_distance();
    for (u64 key = first; key < end; key += key_distance()) {
        take(operation(op, key, options, words));
        if (then && order == Order::KEY_BY_KEY) take(operation(then, key, options, words));
    }
    if (order != Order::ALL_FIRST) return;
    for (u64 key = first; key < end; key += key_distance()) take(operation(then, key, options, words));
}

// Whether these are of a browser that somebody made speak HTTP to this port: the rest of them would be commands, too.
bool is_attack(const std::vector<Word>& words);

// Whether the next word is the value of a command that has one, and no other large ones.
bool brings_value(const std::vector<Word>& words);

// Null if Python executes what these words say; else their options, too.
const RespCommand* command_of(const std::vector<Word>& words, const Scripts& scripts, RespOptions& options);

// Of all of them, with a space behind each.
std::string command_names();

// Whether these words ask to be told something from then on.
bool subscribes(const std::vector<Word>& words);

// Whether the answer to what these words say is short. Such a command goes along with one before it that Python executes, also
// if the door could execute it by itself: where both kinds alternate, each would wait for the other.
bool is_answered_shortly(const std::vector<Word>& words);

}  // namespace door
