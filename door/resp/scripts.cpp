#include "resp/scripts.hpp"

#include <openssl/evp.h>

#include <cctype>

namespace door {

namespace {

constexpr u64 NAME_LETTERS = 40;
// Of longer texts none is known.
constexpr u64 TEXT_BYTES_MAX = 8 << 10;

std::string small(const Word& word) {
    std::string letters((const char*)word.data, word.size);
    for (char& letter : letters) letter = (char)tolower((unsigned char)letter);
    return letters;
}

std::string sha1_of(const Word& text) {
    u8 digest[EVP_MAX_MD_SIZE];
    unsigned bytes = 0;
    if (!EVP_Digest(text.data, text.size, digest, &bytes, EVP_sha1(), nullptr)) return {};
    std::string name;
    for (unsigned i = 0; i < bytes; i++)
        for (const u8 half : {digest[i] >> 4, digest[i] & 15}) name += "0123456789abcdef"[half];
    return name;
}

}  // namespace

Program Scripts::program_of(const std::vector<Word>& words) const {
    constexpr u64 TEXT = 1, COUNT = 2, WORDS_MIN = 4;
    if (known_.empty() || words.size() < WORDS_MIN || words[TEXT].size > TEXT_BYTES_MAX) return Program::NONE;
    const bool is_name = small(words.front()) == "evalsha";
    if (is_name && words[TEXT].size != NAME_LETTERS) return Program::NONE;
    const auto found = known_.find(is_name ? small(words[TEXT]) : sha1_of(words[TEXT]));
    if (found == known_.end()) return Program::NONE;
    const bool has_one = words[COUNT].size == 1 && *words[COUNT].data == '1';
    return found->second.keys == 1 && !has_one ? Program::NONE : found->second.program;
}

}  // namespace door
