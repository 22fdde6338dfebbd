// A command as Python gets it: how many words it has, their lengths (u32 each), and they themselves.
#pragma once
#include <vector>

#include "resp_parser.hpp"
#include "types.hpp"

namespace door {

u64 message_bytes(const std::vector<Word>& words);
void write_message(const std::vector<Word>& words, u8* to);
// The words that were written; they lie in the message.
void read_message(const u8* message, std::vector<Word>& words);

}  // namespace door
