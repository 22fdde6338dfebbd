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

// A moment must be so far ahead: what has passed when the engine comes to it removes the key, and Python does that.
constexpr u64 AHEAD_MS = 10000;

// Of a sum, as text.
constexpr u64 NUMBER_BYTES_MAX = 20;

Word value_of(const RespCommand& command, const std::vector<Word>& words, u64 key, u8 op, const RespOptions& options) {
    if (op == op::INCREMENT) return {(const u8*)&options.number, sizeof options.number};
    return words[key + command.value_distance()];
}

}  // namespace

bool RespColumns::measure(const RespCommand& command, const std::vector<Word>& words) {
    const RespOptions options = *command.options(words);
    const u64 keys = command.keys(words);
    n_ += keys * command.operations_per_key();
    if (table_.holds_numbers || n_ > table_.request_ops_max) return false;
    if (command.op == op::INCREMENT && table_.value_bytes_max < NUMBER_BYTES_MAX) return false;
    has_ttls_ |= options.ttl_ms != 0;
    has_expiries_ |= options.expiry_ms != 0;
    // Of a request all say how long, or all say when.
    if (has_ttls_ && has_expiries_) return false;
    if (options.expiry_ms && options.expiry_ms < turn_.time_ms() + AHEAD_MS) return false;
    has_conditions_ |= options.condition != condition::NONE;
    for (u64 number = 0, key = 1; number < keys; number++, key += command.key_distance()) {
        if (!words[key].size || words[key].size > table_.key_bytes_max) return false;
        for (const u8 op : {command.op, command.then}) {
            if (!op) continue;
            key_bytes_ += words[key].size;
            returning_ += returns_value(op);
            if (!has_value(op)) continue;
            const u64 size = value_of(command, words, key, op, options).size;
            if (size > table_.value_bytes_max) return false;
            value_bytes_ += size;
            with_value_++;
        }
    }
    return true;
}

void RespColumns::place(u8* memory, Request& request) {
    request.table_id = table_.id;
    request.n = n_;
    request.returning = returning_;
    request.with_value = with_value_;
    request.key_bytes = key_bytes_;
    request.value_bytes = value_bytes_;
    if (has_ttls_ || has_expiries_) {
        (has_ttls_ ? request.ttls : request.expiries) = times_ = memory;
        memory += 8 * n_;
    }
    // One key, or one value, has no column of lengths: then those of a whole batch may need none.
    if (n_ > 1) request.key_lengths = key_lengths_ = memory;
    else request.key_size = (u32)key_bytes_;
    memory += key_lengths_ ? 4 * n_ : 0;
    if (with_value_ > 1) request.value_lengths = value_lengths_ = memory;
    else request.value_size = (u32)value_bytes_;
    memory += value_lengths_ ? 4 * with_value_ : 0;
    request.ops = ops_ = memory;
    memory += n_;
    if (has_conditions_) {
        request.conditions = conditions_ = memory;
        memory += n_;
    }
    request.keys = keys_ = memory;
    request.values = values_ = keys_ + key_bytes_;
}

void RespColumns::write(const RespCommand& command, const std::vector<Word>& words) {
    const RespOptions options = *command.options(words);
    const u64 keys = command.keys(words);
    for (u64 number = 0, key = 1; number < keys; number++, key += command.key_distance()) {
        for (const u8 op : {command.op, command.then}) {
            if (!op) continue;
            *ops_++ = op;
            write_number(has_ttls_ ? options.ttl_ms : options.expiry_ms, times_);
            write_number(only_reads(op) ? condition::NONE : options.condition, conditions_);
            write_number((u32)words[key].size, key_lengths_);
            write_bytes(words[key], keys_);
            if (!has_value(op)) continue;
            const Word value = value_of(command, words, key, op, options);
            write_number((u32)value.size, value_lengths_);
            write_bytes(value, values_);
        }
    }
}

}  // namespace door
