// The messages of the KV service: whether a request is plain, its columns, and the response to it.
//
// Plain is what the door may do by itself: all operations that a table has, within all limits. What is not plain is handed to Python, which also finds the words for what is wrong with it.
// So nothing that Python's server would refuse is ever plain.
#pragma once
#include <string_view>

#include "base/operations.hpp"
#include "request/request.hpp"
#include "grpc/message_writer.hpp"
#include "request/tables.hpp"

namespace door {

// What messages have room for in a response, for each operation, beside values (server/calls/codec.py).
constexpr u64 RESPONSE_BYTES_PER_OP = 16;

// Of a message that names none.
constexpr const char* DEFAULT_TABLE = "default";

// What a message says beside the columns of its request.
struct Said {
    std::string_view table;  // empty: the default one
    u64 id = 0;              // to be echoed
    bool numbers = false;    // the table must be one of numbers
    std::string_view layout;  // that the table must have; empty: any
    // Of the only operation: its expiry, in milliseconds since 1970, or a time to live; its condition.
    u64 expiry = 0, expected = 0;
    u64 delta = 0;  // what it adds
    u8 condition = condition::NONE;
    bool looks_first = false;   // what some operation does depends on what is there
    bool needs_record = false;  // some operation is none of a table of numbers
};

// Each of these points a request's columns into a message. It returns false if the message is not plain, as far as it alone
// can tell.
bool parse_get(const u8* message, u64 size, Said* said, Request* request);
bool parse_set(const u8* message, u64 size, Said* said, Request* request);
bool parse_delete(const u8* message, u64 size, Said* said, Request* request);
bool parse_increment(const u8* message, u64 size, Said* said, Request* request);
// Counts the keys; their columns take so many bytes, and are made there.
bool parse_multi_get(const u8* message, u64 size, Said* said, Request* request);
u64 multi_get_bytes(const Request& request);
void take_multi_get(const u8* message, u64 size, u8* to, Request* request);
bool parse_batch(const u8* message, u64 size, Said* said, Request* request);

// Whether a table is what a message takes it for, and may have such operations. The engine refuses others, in Python's words.
bool is_of_layout(const Said& said, const Request& request, const Table& table);
// Whether the columns of a request keep the table's limits and add up.
bool keeps_limits(const Said& said, const Request& request, const Table& table);

// Whether a record that a request wanted to read fails its checksum.
bool is_corrupt(const Request& request);

// The response to a request that is done. Its parts lie in the request's results, which must stay as long.
void respond_get(Request& request, MessageWriter* response);
void respond_set(const Request& request, MessageWriter* response);
void respond_delete(const Request& request, MessageWriter* response);
void respond_increment(const Request& request, MessageWriter* response);
// With a part for each key, in one piece. std::bad_alloc.
u64 multi_get_response_bytes(Request& request);
Message respond_multi_get(Request& request, ConnectionAccount& account);
void respond_batch(const Request& request, u64 id, MessageWriter* response);
// Of several requests, of which checks stopped some. std::bad_alloc.
Message respond_several(Request& request, u64 id, ConnectionAccount& account);
// Has values that are lent stand in the response that was written. std::bad_alloc.
void insert_lent(const MessageWriter& writer, Request& request, Message* response);

// The response in a stream to a request that failed. It holds pointers to the texts.
void respond_failed(u64 id, const Refusal& refusal, MessageWriter* response);

}  // namespace door
