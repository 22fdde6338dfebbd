// The commands of Redis that the door executes by itself.
#pragma once
#include <optional>
#include <string_view>
#include <vector>

#include "resp_parser.hpp"
#include "types.hpp"

namespace door {

enum class Answer { PONG, ECHO, VALUE, VALUES, RANGE, LENGTH, SIZE, TYPE, OK, COUNT, NUMBER, TIME_LEFT, TIME, QUEUE, RESULTS, DISCARDED };

// What words say beside keys and values.
struct RespOptions {
    u64 ttl_ms = 0;     // how long the keys live; 0: for ever
    u64 expiry_ms = 0;  // or when they expire, since 1970
    u8 condition = 0;
    i64 number = 0;  // that is added
    i32 first = 0, last = 0;  // bytes of a value that are asked for; below 0: counted from its end
};

struct RespCommand {
    std::string_view name;
    u8 op;  // what it does with each key; 0: it has none
    Answer answer;
    u64 words_min, words_max;
    u8 rights;         // which the caller must have on the table
    u64 unit_ms = 0;   // of the time that a word says, or the answer
    u8 then = 0;       // what it does with the key after that
    u8 condition = 0;  // of the operation, if no word says another one
    i64 sign = 0;      // of the number that is added
    bool says_when = false;  // the time is a moment

    u64 keys(const std::vector<Word>& words) const;
    u64 operations_per_key() const { return then ? 2 : 1; }
    // From one key to the next one, and from a key to its value.
    u64 key_distance() const;
    u64 value_distance() const;
    // Nothing: Python executes it, or says what is wrong.
    std::optional<RespOptions> options(const std::vector<Word>& words) const;
    // Which rights these words ask for.
    u8 rights_for(const std::vector<Word>& words) const;
    // Whether these are words of its own. Most options are Python's.
    bool takes(const std::vector<Word>& words) const;
    // Which of them it is, counted from 0.
    u64 number() const;
};

// Whether these are of a browser that somebody made speak HTTP to this port: the rest of them would be commands, too.
bool is_attack(const std::vector<Word>& words);

// Null if Python executes what these words say.
const RespCommand* command_of(const std::vector<Word>& words);

// Whether the answer to what these words say is short. Such a command goes along with one before it that Python executes, also
// if the door could execute it by itself: where both kinds alternate, each would wait for the other.
bool is_answered_shortly(const std::vector<Word>& words);

}  // namespace door
