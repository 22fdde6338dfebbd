#include "resp_columns.hpp"

#include <algorithm>
#include <cstring>

#include "operations.hpp"

namespace door {

namespace {

void write_length(const Word& word, u8*& to) {
    if (!to) return;
    const u32 size = (u32)word.size;
    memcpy(to, &size, 4);
    to += 4;
}

void write_bytes(const Word& word, u8*& to) { to = std::copy_n(word.data, word.size, to); }

}  // namespace

bool RespColumns::measure(const RespCommand& command, const std::vector<Word>& words) {
    const u64 keys = command.keys(words.size()), step = command.has_values() ? 2 : 1;
    n_ += keys;
    gets_ += command.op == op::GET ? keys : 0;
    sets_ += command.has_values() ? keys : 0;
    if (table_.holds_numbers || n_ > table_.request_ops_max) return false;
    for (u64 at = 1; at < words.size(); at += step) {
        if (!words[at].size || words[at].size > table_.key_bytes_max) return false;
        key_bytes_ += words[at].size;
        if (step == 1) continue;
        if (words[at + 1].size > table_.value_bytes_max) return false;
        value_bytes_ += words[at + 1].size;
    }
    return true;
}

void RespColumns::place(u8* memory, Request& request) {
    request.table_id = table_.id;
    request.n = n_;
    request.gets = gets_;
    request.sets = sets_;
    request.key_bytes = key_bytes_;
    request.value_bytes = value_bytes_;
    // One key, or one value, has no column of lengths: then those of a whole batch may need none.
    if (n_ > 1) request.key_lengths = key_lengths_ = memory;
    else request.key_size = (u32)key_bytes_;
    memory += key_lengths_ ? 4 * n_ : 0;
    if (sets_ > 1) request.value_lengths = value_lengths_ = memory;
    else request.value_size = (u32)value_bytes_;
    memory += value_lengths_ ? 4 * sets_ : 0;
    request.ops = ops_ = memory;
    request.keys = keys_ = ops_ + n_;
    request.values = values_ = keys_ + key_bytes_;
}

void RespColumns::write(const RespCommand& command, const std::vector<Word>& words) {
    ops_ = std::fill_n(ops_, command.keys(words.size()), command.op);
    for (u64 at = 1; at < words.size(); at++) {
        write_length(words[at], key_lengths_);
        write_bytes(words[at], keys_);
        if (!command.has_values()) continue;
        write_length(words[++at], value_lengths_);
        write_bytes(words[at], values_);
    }
}

}  // namespace door
