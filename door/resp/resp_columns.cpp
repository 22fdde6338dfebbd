#include "resp/resp_columns.hpp"

#include <algorithm>
#include <cstring>

#include "base/operations.hpp"

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
constexpr u64 NUMBER_BYTES_MAX = 20, DECIMAL_BYTES_MAX = 5 << 10;

}  // namespace

bool RespColumns::measure(const RespCommand& command, const RespOptions& options, const std::vector<Word>& words) {
    if (command.op == op::INCREMENT && table_.value_bytes_max < NUMBER_BYTES_MAX) return false;
    if (command.op == op::INCREMENT_DECIMAL && table_.value_bytes_max < DECIMAL_BYTES_MAX) return false;
    has_ttls_ |= options.ttl_ms != 0;
    has_expiries_ |= options.expiry_ms != 0;
    // Of a request all say how long, or all say when.
    if (table_.holds_numbers || (has_ttls_ && has_expiries_)) return false;
    if (options.expiry_ms && options.expiry_ms < turn_.time_ms() + AHEAD_MS) return false;
    bool fits = true;
    command.operations(options, words, [&](const RespOperation& operation) {
        n_++;
        key_bytes_ += operation.key.size;
        returning_ += returns_value(operation.op);
        has_conditions_ |= operation.condition != condition::NONE;
        has_expected_ |= operation.op == op::SETRANGE || operation.expected;
        fits = fits && operation.key.size && operation.key.size <= table_.key_bytes_max;
        if (!has_value(operation.op)) return;
        fits = fits && operation.value.size <= table_.value_bytes_max;
        value_bytes_ += operation.value.size;
        with_value_++;
    });
    return fits && n_ <= table_.request_ops_max && (!upload_ || with_value_ == 1);
}

bool RespColumns::measure(const WatchedKeys& watched) {
    n_ += watched.size();
    has_conditions_ = has_expected_ = !watched.empty();
    for (const auto& [key, version] : watched) key_bytes_ += key.size();
    return n_ <= table_.request_ops_max;
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
    if (has_expected_) {
        request.expected = expected_ = memory;
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
    request.values = values_ = upload_ ? nullptr : keys_ + key_bytes_;
    if (upload_) request.values = upload_->data();
}

u64 RespColumns::write(const RespCommand& command, const RespOptions& options, const std::vector<Word>& words) {
    const u8* const first = ops_;
    command.operations(options, words, [&](const RespOperation& operation) {
        *ops_++ = operation.op;
        write_number(has_ttls_ ? options.ttl_ms : options.expiry_ms, times_);
        write_number(operation.expected, expected_);
        write_number(operation.condition, conditions_);
        write_number((u32)operation.key.size, key_lengths_);
        write_bytes(operation.key, keys_);
        if (!has_value(operation.op)) return;
        write_number((u32)operation.value.size, value_lengths_);
        if (values_) write_bytes(operation.value, values_);
    });
    return (u64)(ops_ - first);
}

void RespColumns::write(const WatchedKeys& watched) {
    for (const auto& [key, version] : watched) {
        *ops_++ = op::CHECK;
        write_number((u64)0, times_);
        write_number(version, expected_);
        write_number(version ? condition::EQUALS : condition::ABSENT, conditions_);
        write_number((u32)key.size(), key_lengths_);
        write_bytes({(const u8*)key.data(), key.size()}, keys_);
    }
}

}  // namespace door
