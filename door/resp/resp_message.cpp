#include "resp/resp_message.hpp"

#include <algorithm>
#include <cstring>

namespace door {

namespace {

// In the place of a count.
constexpr u32 WATCHED = 1u << 31;

u8* write_number(u64 number, u8* to) {
    const u32 written = (u32)number;
    memcpy(to, &written, 4);
    return to + 4;
}

u32 read_number(const u8* from) {
    u32 number;
    memcpy(&number, from, 4);
    return number;
}

}  // namespace

u64 message_bytes(const std::vector<Word>& words) {
    u64 bytes = 4;
    for (const Word& word : words) bytes += 4 + word.size;
    return bytes;
}

void write_message(const std::vector<Word>& words, u8* to) {
    to = write_number(words.size(), to);
    for (const Word& word : words) to = write_number(word.size, to);
    for (const Word& word : words) to = std::copy_n(word.data, word.size, to);
}

u64 message_bytes(const WatchedKeys& watched) {
    u64 bytes = 4;
    for (const auto& [key, version] : watched) bytes += 4 + key.size() + 4 + sizeof version;
    return bytes;
}

void write_message(const WatchedKeys& watched, u8* to) {
    std::vector<Word> words;
    for (const auto& [key, version] : watched) {
        words.push_back({(const u8*)key.data(), key.size()});
        words.push_back({(const u8*)&version, sizeof version});
    }
    write_message(words, to);
    write_number(WATCHED | words.size(), to);
}

void read_message(const u8* message, std::vector<Word>& words) {
    words.resize(read_number(message));
    const u8* at = message + 4 + 4 * words.size();
    for (u64 i = 0; i < words.size(); i++) {
        words[i] = {at, read_number(message + 4 + 4 * i)};
        at += words[i].size;
    }
}

}  // namespace door
