// A command as Python gets it: how many words it has, their lengths (u32 each), and they themselves.
#pragma once
#include <vector>

#include "resp/resp_parser.hpp"
#include "resp/resp_watched.hpp"
#include "base/types.hpp"

namespace door {

u64 message_bytes(const std::vector<Word>& words);
void write_message(const std::vector<Word>& words, u8* to);
// The words that were written; they lie in the message.
void read_message(const u8* message, std::vector<Word>& words);

// The same of what a client watches, as Python gets it before commands: keys, with a version of 8 bytes behind each. The highest
// bit of the count says that it is that.
u64 message_bytes(const WatchedKeys& watched);
void write_message(const WatchedKeys& watched, u8* to);

}  // namespace door
