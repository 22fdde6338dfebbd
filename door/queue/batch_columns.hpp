// The columns of requests, joined to those of a batch. A lone request's columns stay where they are.
//
// Counts and lengths were checked when a request came. They are checked again here, for a mistake would give one client's
// bytes to another: the process ends instead.
#pragma once
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "../../gpkvs/kernels/base/counted_time.hpp"
#include "../../gpkvs/kernels/engine_batch.h"
#include "../../gpkvs/kernels/base/fatal_line.hpp"
#include "base/operations.hpp"
#include "request/request.hpp"

namespace door {

[[noreturn]] inline void end_after_mismatch(const char* what, u64 expected, u64 found) {
    FatalLine line;
    line << "gpkvs: the columns of a batch do not fit: " << what << " are " << expected << ", found " << found
         << ". The process stops here; the store is recovered when it is next opened\n";
    line.end_process();
}

inline void require_equal(const char* what, u64 expected, u64 found) {
    if (expected != found) end_after_mismatch(what, expected, found);
}

class BatchColumns {
  public:
    const EngineBatch& batch() const { return batch_; }

    // Times to live count from now on: `ahead_us` is the word of the time that counts. std::bad_alloc where there is no memory.
    void join(const Request* first, u64 requests, u64 value_bytes_max, int64_t* ahead_us) {
        batch_ = {};
        batch_.requests = requests;
        batch_.lends_blobs = true;
        batch_.upload = first->upload ? first->upload->engines() : nullptr;
        if (first->upload) require_equal("bytes of a value in pieces", first->value_bytes, first->upload->have());
        batch_.value_bytes_max = value_bytes_max;
        batch_.table_id = first->table_id;
        u64 key_bytes = 0, value_bytes = 0, with_value = 0;
        request_ops_.clear();
        message_requests_.clear();
        asks_time_ = false;
        for (const Request* request = first; request; request = request->next) {
            check(*request);
            append_requests(*request);
            message_requests_.push_back((u32)request->requests);
            batch_.n += request->n;
            with_value += request->with_value;
            key_bytes += request->key_bytes;
            value_bytes += request->value_bytes;
        }
        require_equal("requests", requests, request_ops_.size());
        batch_.request_ops = request_ops_.data();
        batch_.message_requests = message_requests_.data();
        batch_.messages = message_requests_.size();
        batch_.ops = joined(ops_, first, batch_.n, &Request::ops, &Request::n);
        batch_.keys = joined(keys_, first, key_bytes, &Request::keys, &Request::key_bytes);
        batch_.values = joined(values_, first, value_bytes, &Request::values, &Request::value_bytes);
        batch_.key_lengths = lengths(key_lengths_, first, batch_.n, {&Request::n, &Request::key_lengths, &Request::key_size},
                                     batch_.key_length_step);
        batch_.value_lengths = lengths(value_lengths_, first, with_value,
                                       {&Request::with_value, &Request::value_lengths, &Request::value_size},
                                       batch_.value_length_step);
        batch_.expiries = joined_expiries(first, ahead_us);
        batch_.conditions = joined_options<u8>(conditions_, first, &Request::conditions);
        batch_.expected = joined_options<u64>(expected_, first, &Request::expected);
    }

    // What the operations take for now, if any asks.
    u64 now_ms() const { return now_ms_; }

  private:
    struct LengthsOf {
        u64 Request::*count;
        const u8* Request::*column;
        u32 Request::*size;
    };

    void append_requests(const Request& request) {
        if (!request.request_ops) return request_ops_.push_back((u32)request.n);
        const u64 first = request_ops_.size();
        request_ops_.resize(first + request.requests);
        memcpy(request_ops_.data() + first, request.request_ops, 4 * request.requests);
        require_equal("operations of requests", request.n,
                      std::accumulate(request_ops_.begin() + (i64)first, request_ops_.end(), (u64)0));
    }

    void check(const Request& request) {
        u64 counts[256] = {}, known = 0;
        for (u64 i = 0; i < request.n; i++) counts[request.ops[i]]++;
        for (u64 op = op::GET; op <= op::INCREMENT_DECIMAL; op++) known += counts[op];
        require_equal("operations", request.n, known);
        // A COPY is of the key before it; a SETRANGE says where.
        if (counts[op::COPY])
            for (u64 i = 0; i < request.n; i++)
                if (request.ops[i] == op::COPY) require_equal("operations before a COPY", op::REQUIRE, i ? request.ops[i - 1] : 0);
        if (counts[op::SETRANGE]) require_equal("columns of positions", 1, request.expected != nullptr);
        require_equal("values to return", request.returning,
                      counts[op::GET] + counts[op::INCREMENT] + counts[op::EXPIRY] + counts[op::LENGTH]);
        require_equal("values", request.with_value,
                      counts[op::SET] + counts[op::INCREMENT] + counts[op::APPEND] + counts[op::ADD] + counts[op::REQUIRE] +
                          counts[op::SETRANGE] + counts[op::INCREMENT_DECIMAL]);
        asks_time_ |= counts[op::EXPIRY] != 0;
        require_equal("bytes of keys", request.key_bytes, sum(request.key_lengths, request.n, request.key_size));
        require_equal("bytes of values", request.value_bytes, sum(request.value_lengths, request.with_value, request.value_size));
    }

    static u64 sum(const u8* lengths, u64 count, u32 size) {
        if (!lengths) return count * size;
        u64 total = 0;
        for (u64 i = 0; i < count; i++) {
            u32 length;
            memcpy(&length, lengths + 4 * i, 4);
            total += length;
        }
        return total;
    }

    static const u8* joined(std::vector<u8>& room, const Request* first, u64 bytes, const u8* Request::*column,
                            u64 Request::*size) {
        if (!first->next) return first->*column;
        reserve(room, bytes);
        u8* to = room.data();
        for (const Request* request = first; request; request = request->next) {
            if (request->*size) memcpy(to, request->*column, request->*size);
            to += request->*size;
        }
        return room.data();
    }

    // Null if no request has any.
    const u64* joined_expiries(const Request* first, int64_t* ahead_us) {
        bool expire = false, live = false;
        for (const Request* request = first; request; request = request->next) {
            expire |= request->expiries != nullptr;
            live |= request->ttls != nullptr;
        }
        now_ms_ = live || asks_time_ ? counted_ms(ahead_us) : 0;
        if (!expire && !live) return nullptr;
        reserve(expiries_, batch_.n);
        u64* to = expiries_.data();
        for (const Request* request = first; request; request = request->next) {
            u64* const end = to + request->n;
            const u8* const given = request->ttls ? request->ttls : request->expiries;
            if (given) memcpy(to, given, 8 * request->n);
            else std::fill(to, end, 0);
            if (request->ttls) std::for_each(to, end, [&](u64& ttl) { ttl += ttl ? now_ms_ : 0; });
            to = end;
        }
        return expiries_.data();
    }

    // Zeros are those of requests that have none; null if no request has any.
    template <class Item>
    const Item* joined_options(std::vector<Item>& room, const Request* first, const u8* Request::*column) {
        const Request* some = first;
        while (some && !(some->*column)) some = some->next;
        if (!some) return nullptr;
        reserve(room, batch_.n);
        Item* to = room.data();
        for (const Request* request = first; request; request = request->next) {
            if (request->*column) memcpy(to, request->*column, request->n * sizeof(Item));
            else memset(to, 0, request->n * sizeof(Item));
            to += request->n;
        }
        return room.data();
    }

    // One number if all are equally long.
    static const u32* lengths(std::vector<u32>& room, const Request* first, u64 count, LengthsOf of, u64& step) {
        const Request* some = first;
        while (some->next && !(some->*of.count)) some = some->next;
        step = 0;
        for (const Request* request = first; request; request = request->next)
            if (request->*of.count && (request->*of.column || request->*of.size != some->*of.size)) step = 1;
        if (!step) return &(some->*of.size);
        const u8* const lone = first->*of.column;
        if (!first->next && (uintptr_t)lone % alignof(u32) == 0) return (const u32*)lone;
        reserve(room, count);
        u32* to = room.data();
        for (const Request* request = first; request; request = request->next) {
            if (!(request->*of.count)) continue;
            if (request->*of.column)
                memcpy(to, request->*of.column, 4 * (request->*of.count));
            else
                std::fill(to, to + request->*of.count, request->*of.size);
            to += request->*of.count;
        }
        return room.data();
    }

    // Contents do not matter, so a larger room is not copied.
    template <class Item>
    static void reserve(std::vector<Item>& room, u64 count) {
        if (room.size() >= count) return;
        std::vector<Item>().swap(room);
        room.resize(count);
    }

    EngineBatch batch_ = {};
    std::vector<u8> ops_, keys_, values_, conditions_;
    std::vector<u32> key_lengths_, value_lengths_, request_ops_, message_requests_;
    std::vector<u64> expiries_, expected_;
    bool asks_time_ = false;
    u64 now_ms_ = 0;
};

}  // namespace door
