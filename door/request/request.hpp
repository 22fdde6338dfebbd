// A request that waits for the engine: operations on one table, as columns in its message. Or several requests of one
// message, which stay together.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "door.h"
#include "base/lent_value.hpp"
#include "base/operations.hpp"
#include "request/results.hpp"
#include "base/types.hpp"
#include "request/upload.hpp"

namespace door {

class Connection;
class PythonRequest;

// Why the engine's side did not execute a request: what Python says of it (server/calls/status.py). Requests of a batch may share
// one.
struct Refusal {
    int code;
    std::string text;
    std::string full;  // what is full, if that is the reason
    bool is_refusal;   // the request surely changed nothing
    std::optional<EngineRefusal> conflict = {};  // if a check of the request stopped it
};

inline Refusal refusal_of(const DoorRefusal& given) {
    return {given.code, given.text, given.full, given.is_refusal,
            given.conflict ? std::optional<EngineRefusal>(*given.conflict) : std::nullopt};
}

enum Outcome {
    DONE,
    CANCELLED,
    EXPIRED,  // the deadline passed while it waited
    NO_ROOM,  // of memory: its connection holds more than it may, and what it reads would come on top
    REFUSED,  // `refusal` says why
    GONE      // its table is: hand it on
};

// Made by the thread of a connection, lent to the queue by `Connection::submit`, and always given back to that thread
// (`Connection::answered`), which frees it. Whoever makes it charges it to the connection, and gives that back.
struct Request {
    Request* next = nullptr;  // of whoever has it now
    Connection* connection = nullptr;
    void* call = nullptr;  // the protocol's own
    // It is one that Python made, which counts why the whole of it was refused; null: it came from the client.
    PythonRequest* python = nullptr;
    u64 durable_ns = 0;    // when its answer might leave; 0: it was not executed
    std::atomic<bool> is_cancelled{false};
    u32 table_id = 0;
    u64 deadline_ns = NEVER;

    // Columns; they point into the message or live as long. Lengths may be unaligned; null: all are as long as `_size`.
    u64 n = 0, returning = 0, with_value = 0;  // operations; those that return a value; those that bring one
    const u8* ops = nullptr;
    const u8* keys = nullptr;
    u64 key_bytes = 0;
    const u8* key_lengths = nullptr;  // u32 for each operation
    u32 key_size = 0;
    const u8* values = nullptr;
    u64 value_bytes = 0;
    const u8* value_lengths = nullptr;  // u32 for each operation with a value
    u32 value_size = 0;
    // u64 for each operation, in milliseconds, 0: never: since 1970, or from then on when the engine takes it. One of the two, or
    // none.
    const u8* expiries = nullptr;
    const u8* ttls = nullptr;
    const u8* conditions = nullptr;  // one for each operation; null: none has one
    const u8* expected = nullptr;    // u64 for each operation: what its condition compares with; null: none compares
    const u8* request_ops = nullptr;  // u32 for each of several requests: its operations; null: it is one
    u64 requests = 1;
    u8* message = nullptr;
    u64 message_bytes = 0;
    // Its only value, which came in pieces: then `values` is there.
    std::unique_ptr<Upload> upload;
    // It has no operations: it asks for room for a value that will come in pieces.
    u64 reserve_bytes = 0;
    EngineUpload reserved = {};  // the room, if it is DONE; null: there is no memory

    // When it was lent, and when the engine began with its batch and had planned that; 0: it has not.
    u64 submitted_ns = 0, began_ns = 0, planned_ns = 0;

    // What became of it. Results that are DONE are held, and released by whoever frees the request.
    Outcome outcome = DONE;
    Results* results = nullptr;
    u64 first_op = 0, first_returning = 0, first_value = 0, result_value_bytes = 0;
    std::shared_ptr<const Refusal> refusal;
    // Values that are lent to it: first in the results, then its own, in the order of the operations.
    u64 first_blob = 0, blob_count = 0, lent_counted = 0;  // the last one: bytes
    std::vector<LentValue> lent_values;
    // Of several requests those that were not done, by their numbers in the message; they lie in the results, which have
    // nothing of their operations.
    u32 first_stopped = 0, stopped_count = 0, stopped = 0, stopped_returning = 0;  // the last two: operations

    u64 operations_of(u64 number) const {
        u32 count;
        if (!request_ops) return n;
        memcpy(&count, request_ops + 4 * number, sizeof count);
        return count;
    }
    const EngineRefusal* stopped_first() const { return results->refusals + first_stopped; }
    u64 done() const { return n - stopped; }
    u64 done_returning() const { return returning - stopped_returning; }

    bool changes_nothing() const {
        return std::all_of(ops, ops + n, [](u8 op) { return only_reads(op); });
    }
    u64 payload_bytes() const { return key_bytes + (upload ? 0 : value_bytes); }
    // Of keys and values, however they came.
    u64 bytes_in() const { return key_bytes + (upload ? upload->size() : value_bytes); }
    // Whether it is a batch of its own.
    bool is_alone() const { return upload || reserve_bytes; }
    const u8* status() const { return results->status + first_op; }
    const u64* versions() const { return results->versions + first_op; }
    const u32* result_value_lengths() const { return results->value_lengths + first_returning; }
    const u8* result_values() const { return results->values + first_value; }

    // Takes over what is lent to it. False: the connection may not hold it, or there is no memory for it. What
    // was executed and changed something must be told, whatever it takes.
    bool take_lent(ConnectionAccount& account) try {
        lent_values.reserve(blob_count);
        const bool may_be_refused = changes_nothing();
        EngineBlob* const first = results->blobs + first_blob;
        for (EngineBlob* blob = first; blob < first + blob_count; blob++) {
            account.take_over(ANSWERS, LentValue::counted(blob->bytes));
            lent_values.emplace_back(*blob, account);
            if (!lent_values.back().is_there() || (may_be_refused && !account.has_room(0))) return false;
        }
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }

    // Looks at the next bytes of what is lent to it, up to so many; returns whether it has seen all. A value that is damaged is
    // no value.
    bool look_at_lent(u64 bytes) {
        while (looked_ < lent_values.size()) {
            LentValue& value = lent_values[looked_];
            if (!bytes) return false;
            if (!value.look(bytes)) {
                results->status[value.operation()] = status::CORRUPT;
                results->versions[value.operation()] = 0;
                lent_values.erase(lent_values.begin() + (long)looked_);
            } else if (value.is_looked_at()) {
                results->value_lengths[value.value()] = (u32)value.size();
                looked_++;
            }
        }
        return true;
    }
    // How many were damaged, once all were looked at.
    u64 damaged_values() const { return blob_count - lent_values.size(); }

    u64 lent_bytes() const {
        u64 bytes = 0;
        for (const LentValue& value : lent_values) bytes += value.size();
        return bytes;
    }

    void release_results() {
        if (results) results->release();
        results = nullptr;
        lent_values.clear();
    }

  private:
    u64 looked_ = 0;  // of the values that are lent
};

// The values of a request that is done, one after the other.
class Values {
  public:
    struct Value {
        const u8* data;
        u64 size;
        LentValue* lent;  // that it is; null: it lies in the results
    };

    explicit Values(Request& request) : request_(request) {}

    Value next() {
        const u32 size = request_.result_value_lengths()[number_];
        const u64 number = request_.first_returning + number_++;
        if (lent_ < request_.lent_values.size() && request_.lent_values[lent_].value() == number) {
            LentValue& value = request_.lent_values[lent_++];
            return {value.data(), value.size(), &value};
        }
        const u8* const data = request_.result_values() + bytes_;
        bytes_ += size;
        return {data, size, nullptr};
    }

    // Those of the next ones that lie in the results begin there among all that do.
    u64 bytes() const { return bytes_; }

  private:
    Request& request_;
    u64 number_ = 0, lent_ = 0, bytes_ = 0;
};

}  // namespace door
