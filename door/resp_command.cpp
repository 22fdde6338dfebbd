#include "resp_command.hpp"

#include <strings.h>

#include "access.hpp"
#include "operations.hpp"

namespace door {

namespace {

// A count of the keys that were deleted tells of them, as reading does.
constexpr u8 MAY_BOTH = MAY_READ | MAY_WRITE;

const RespCommand COMMANDS[] = {
    {"get", op::GET, Answer::VALUE, 2, 2, MAY_READ},
    {"set", op::SET, Answer::OK, 3, 3, MAY_WRITE},
    {"mget", op::GET, Answer::VALUES, 2, NEVER, MAY_READ},
    {"mset", op::SET, Answer::OK, 3, NEVER, MAY_WRITE},
    {"del", op::DELETE, Answer::COUNT, 2, NEVER, MAY_BOTH},
    {"unlink", op::DELETE, Answer::COUNT, 2, NEVER, MAY_BOTH},
    {"exists", op::EXISTS, Answer::COUNT, 2, NEVER, MAY_READ},
    {"touch", op::EXISTS, Answer::COUNT, 2, NEVER, MAY_READ},
    {"ping", 0, Answer::PONG, 1, 2, 0},
    {"echo", 0, Answer::ECHO, 2, 2, 0},
};

// In small letters or others.
bool is_name(const Word& word, const char* name) {
    return strlen(name) == word.size && !strncasecmp(name, (const char*)word.data, word.size);
}

}  // namespace

bool is_attack(const std::vector<Word>& words) {
    return is_name(words.front(), "post") || is_name(words.front(), "host:");
}

bool RespCommand::has_values() const { return op == op::SET; }

bool RespCommand::takes(u64 words) const {
    return words >= words_min && words <= words_max && (!has_values() || words % 2);
}

const RespCommand* command_of(const std::vector<Word>& words) {
    for (const RespCommand& command : COMMANDS)
        if (is_name(words.front(), command.name)) return command.takes(words.size()) ? &command : nullptr;
    return nullptr;
}

}  // namespace door
