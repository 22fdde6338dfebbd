#include "resp/subscriptions.hpp"

#include <algorithm>

#include "resp/resp_message.hpp"

namespace door {

namespace {

// Whether a letter is one of a set, whose text begins at `at`; `at` is behind the set then. One that is not closed ends with
// the pattern.
bool is_in_set(std::string_view pattern, u64& at, u8 letter) {
    const bool is_negated = at < pattern.size() && pattern[at] == '^';
    at += is_negated;
    bool is_in = false;
    for (; at < pattern.size() && pattern[at] != ']'; at++) {
        if (pattern[at] == '\\' && at + 1 < pattern.size()) {
            is_in |= (u8)pattern[++at] == letter;
        } else if (at + 2 < pattern.size() && pattern[at + 1] == '-') {
            const auto [low, high] = std::minmax({(u8)pattern[at], (u8)pattern[at + 2]});
            is_in |= low <= letter && letter <= high;
            at += 2;
        } else {
            is_in |= (u8)pattern[at] == letter;
        }
    }
    at = std::min(at + 1, (u64)pattern.size());
    return is_in != is_negated;
}

// Whether a letter is as the pattern says at `at`, which is no star; `at` is behind that then.
bool fits_letter(std::string_view pattern, u64& at, u8 letter) {
    const char says = pattern[at++];
    if (says == '?') return true;
    if (says == '[') return is_in_set(pattern, at, letter);
    if (says == '\\' && at < pattern.size()) return (u8)pattern[at++] == letter;
    return (u8)says == letter;
}

}  // namespace

// What stands between two stars has a fixed length, so its first place is as good as any: only the last star is tried again.
bool fits(std::string_view pattern, std::string_view text) {
    constexpr u64 NONE = ~0ull;
    u64 at = 0, behind_star = NONE, star_ends = 0;
    for (u64 letter = 0; letter < text.size();) {
        if (at < pattern.size() && pattern[at] == '*') {
            behind_star = ++at;
            star_ends = letter;
            if (at == pattern.size()) return true;
        } else if (at < pattern.size() && fits_letter(pattern, at, (u8)text[letter])) {
            letter++;
        } else if (behind_star != NONE) {
            at = behind_star;
            letter = ++star_ends;
        } else {
            return false;
        }
    }
    return std::all_of(pattern.begin() + (long)at, pattern.end(), [](char says) { return says == '*'; });
}

Subscriptions::Subscriptions(u32 protocol, const u8* message) : protocol(protocol) {
    std::vector<Word> words;
    read_message(message, words);
    for (const Word& word : words) channels_.emplace((const char*)word.data, word.size);
    read_message(message + message_bytes(words), words);
    for (const Word& word : words) patterns_.emplace_back((const char*)word.data, word.size);
}

void Subscriptions::find(const std::string& channel, Found& found) const {
    found.by_channel = !channels_.empty() && channels_.count(channel);
    found.by_patterns.clear();
    for (const std::string& pattern : patterns_)
        if (fits(pattern, channel)) found.by_patterns.push_back(&pattern);
}

}  // namespace door
