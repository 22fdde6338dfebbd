// The commands of Redis that the door executes by itself.
#pragma once
#include <optional>
#include <vector>

#include "resp_parser.hpp"
#include "types.hpp"

namespace door {

enum class Answer { PONG, ECHO, VALUE, VALUES, OK, COUNT, QUEUE, RESULTS, DISCARDED };

struct RespCommand {
    const char* name;
    u8 op;  // what it does with each key; 0: it has none
    Answer answer;
    u64 words_min, words_max;
    u8 rights;  // which the caller must have on the table
    // The word between key and value says how long the key lives, in so many milliseconds; 0: there is no such word.
    u64 ttl_unit_ms;

    // So far behind each key there is a value.
    u64 value_distance() const;
    u64 keys(const std::vector<Word>& words) const;
    // How long the keys of these words live; 0: for ever. Nothing: Python executes it, or says what is wrong.
    std::optional<u64> ttl_ms(const std::vector<Word>& words) const;
    // Whether these are words of its own. Most options are Python's.
    bool takes(const std::vector<Word>& words) const;
    // Which of them it is, counted from 0.
    u64 number() const;
};

// Whether these are of a browser that somebody made speak HTTP to this port: the rest of them would be commands, too.
bool is_attack(const std::vector<Word>& words);

// Null if Python executes what these words say.
const RespCommand* command_of(const std::vector<Word>& words);

// Whether Python executes what these words say, and the answer is short.
bool is_answered_shortly(const std::vector<Word>& words);

}  // namespace door
