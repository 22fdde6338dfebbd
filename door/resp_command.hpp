// The commands of Redis that the door executes by itself.
#pragma once
#include <vector>

#include "resp_parser.hpp"
#include "types.hpp"

namespace door {

enum class Answer { PONG, ECHO, VALUE, VALUES, OK, COUNT };

struct RespCommand {
    const char* name;
    u8 op;  // what it does with each key; 0: it has none
    Answer answer;
    u64 words_min, words_max;
    u8 rights;  // which the caller must have on the table

    // Behind each key there is a value.
    bool has_values() const;
    u64 keys(u64 words) const { return op ? (words - 1) / (has_values() ? 2 : 1) : 0; }
    // Whether it may have so many words. Options are Python's.
    bool takes(u64 words) const;
};

// Whether these are of a browser that somebody made speak HTTP to this port: the rest of them would be commands, too.
bool is_attack(const std::vector<Word>& words);

// Null if Python executes what these words say.
const RespCommand* command_of(const std::vector<Word>& words);

}  // namespace door
