#include "resp_columns.hpp"

#include <algorithm>
#include <cstring>

#include "operations.hpp"

namespace door {

namespace {

template <class Number>
void write_number(Number number, u8*& to) {
    if (!to) return;
    memcpy(to, &number, sizeof number);
    to += sizeof number;
}

void write_bytes(const Word& word, u8*& to) { to = std::copy_n(word.data, word.size, to); }

}  // namespace

bool RespColumns::measure(const RespCommand& command, const std::vector<Word>& words) {
    const u64 keys = command.keys(words), to_value = command.value_distance();
    n_ += keys;
    gets_ += command.op == op::GET ? keys : 0;
    sets_ += to_value ? keys : 0;
    if (table_.holds_numbers || n_ > table_.request_ops_max) return false;
    expire_ |= keys && command.ttl_ms(words).value_or(0);
    for (u64 key = 0, at = 1; key < keys; key++, at += to_value + 1) {
        if (!words[at].size || words[at].size > table_.key_bytes_max) return false;
        key_bytes_ += words[at].size;
        if (!to_value) continue;
        if (words[at + to_value].size > table_.value_bytes_max) return false;
        value_bytes_ += words[at + to_value].size;
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
    if (expire_) {
        request.ttls = ttls_ = memory;
        memory += 8 * n_;
    }
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
    const u64 keys = command.keys(words), to_value = command.value_distance();
    const u64 ttl_ms = expire_ ? command.ttl_ms(words).value_or(0) : 0;
    ops_ = std::fill_n(ops_, keys, command.op);
    for (u64 key = 0, at = 1; key < keys; key++, at += to_value + 1) {
        write_number(ttl_ms, ttls_);
        write_number((u32)words[at].size, key_lengths_);
        write_bytes(words[at], keys_);
        if (!to_value) continue;
        write_number((u32)words[at + to_value].size, value_lengths_);
        write_bytes(words[at + to_value], values_);
    }
}

}  // namespace door
