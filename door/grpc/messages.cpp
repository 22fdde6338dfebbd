#include "grpc/messages.hpp"

#include <algorithm>
#include <cstring>

#include "grpc/call.hpp"
#include "grpc/message_reader.hpp"
#include "base/operations.hpp"
#include "base/texts.hpp"

namespace door {
namespace {

// With more, Python knows whether a time to live is past all time.
constexpr u64 TTL_MS_MAX = 1000000000000000;

// Python's handler takes no more keys at once, and says so.
constexpr u64 MULTI_GET_KEYS_MAX = 16384;

// What numbers have, as keys, as values, and as results.
constexpr u64 NUMBER_BYTES = 8;

// The columns of a response: status, version and value length (server/calls/codec.py).
constexpr u64 COLUMN_BYTES_PER_OP = 13;

// Takes a name. Nothing has a name that is not ASCII: Python says whether this one is UTF-8 at all.
bool take_name(std::string_view name, std::string_view* to) {
    *to = name;
    return std::all_of(name.begin(), name.end(), [](char byte) { return (u8)byte < 0x80; });
}

void take_keys(std::string_view keys, Request* request) {
    request->keys = (const u8*)keys.data();
    request->key_bytes = keys.size();
}

void take_values(std::string_view values, Request* request) {
    request->values = (const u8*)values.data();
    request->value_bytes = values.size();
}

// Makes a request of one operation. No message is so long that a size is no u32.
void take_single(const u8& kind, std::string_view key, std::string_view value, Request* request) {
    request->n = 1;
    request->returning = returns_value(kind);
    request->with_value = has_value(kind);
    request->ops = &kind;
    take_keys(key, request);
    request->key_size = (u32)key.size();
    take_values(value, request);
    request->value_size = (u32)value.size();
}

// How protobuf writes a signed number: small ones, of either sign, take few bytes.
u64 from_zigzag(u64 number) { return (number >> 1) ^ (0 - (number & 1)); }
u64 to_zigzag(u64 number) { return (number << 1) ^ (0 - (number >> 63)); }

// Counts the operations; returns false if one is not plain.
bool take_ops(std::string_view ops, Said* said, Request* request) {
    u64 gets = 0, sets = 0, others = 0;
    for (const char kind : ops) {
        gets += kind == op::GET;
        sets += kind == op::SET;
        others += kind == op::DELETE || kind == op::EXISTS;
    }
    request->n = ops.size();
    request->returning = gets;
    request->with_value = sets;
    request->ops = (const u8*)ops.data();
    if (gets + sets + others == ops.size()) return true;
    said->looks_first = true;
    for (const char kind : ops) {
        if ((u8)kind < op::GET || (u8)kind > op::ADD) return false;
        request->returning += kind != op::GET && returns_value((u8)kind);
        request->with_value += kind != op::SET && has_value((u8)kind);
        said->needs_record |= kind == op::APPEND || kind >= op::EXPIRE;
    }
    return true;
}

// Whether each number that is added has 8 bytes. The lengths are as many as they should be.
bool are_numbers(const Request& request) {
    for (u64 op = 0, value = 0; op < request.n; op++) {
        if (!has_value(request.ops[op])) continue;
        u32 length = request.value_size;
        if (request.value_lengths) memcpy(&length, request.value_lengths + 4 * value, sizeof length);
        if (request.ops[op] == op::INCREMENT && length != NUMBER_BYTES) return false;
        value++;
    }
    return true;
}

// Takes conditions, and what they compare with, or neither; zeros alone mean nothing. A check has one, other reads have none.
bool take_conditions(std::string_view conditions, std::string_view expected, Said* said, Request* request) {
    if (!conditions.empty() && conditions.size() != request->n) return false;
    if (!expected.empty() && expected.size() != 8 * request->n) return false;
    if (conditions.empty()) return !said->looks_first || !memchr(request->ops, op::CHECK, request->n);
    bool has_any = false;
    for (u64 op = 0; op < conditions.size(); op++) {
        const u8 condition = (u8)conditions[op];
        const bool is_check = request->ops[op] == op::CHECK;
        if (condition == condition::NONE && !is_check) continue;
        if (condition == condition::NONE || condition > condition::EQUALS) return false;
        if (only_reads(request->ops[op]) && !is_check) return false;
        if (condition == condition::EQUALS && expected.empty()) return false;
        has_any = true;
    }
    if (!has_any) return true;
    said->looks_first = true;
    request->conditions = (const u8*)conditions.data();
    if (!expected.empty()) request->expected = (const u8*)expected.data();
    return true;
}

// Takes the condition of a single operation.
bool take_condition(u64 condition, u64 expected, Said* said, Request* request) {
    if (condition > condition::EQUALS) return false;
    if (condition == condition::NONE) return true;
    said->looks_first = true;
    said->condition = (u8)condition;
    said->expected = expected;
    request->conditions = &said->condition;
    if (condition == condition::EQUALS) request->expected = (const u8*)&said->expected;
    return true;
}

// Takes so many lengths, or the size of all. Returns false if there are more or fewer, or both.
bool take_lengths(std::string_view lengths, u64 common_size, u64 count, const u8** column, u32* size) {
    *column = lengths.empty() ? nullptr : (const u8*)lengths.data();
    *size = (u32)common_size;
    return lengths.empty() || (!common_size && lengths.size() == 4 * count);
}

// Takes one column or none, and no zeros alone, which mean nothing; returns false if a time to live may be past all time.
bool take_expiries(std::string_view expiries, std::string_view ttls, Request* request) {
    if (!expiries.empty() && !ttls.empty()) return false;
    const std::string_view given = ttls.empty() ? expiries : ttls;
    if (given.empty()) return true;
    if (given.size() != 8 * request->n) return false;
    u64 longest = 0;
    for (u64 i = 0; i < request->n; i++) {
        u64 number;
        memcpy(&number, given.data() + 8 * i, sizeof number);
        longest = std::max(longest, number);
    }
    if (longest) (ttls.empty() ? request->expiries : request->ttls) = (const u8*)given.data();
    return ttls.empty() || longest <= TTL_MS_MAX;
}

// Takes the operations of each of several requests; returns false if they do not add up, or one has none, or a GET.
bool take_requests(std::string_view request_ops, Request* request) {
    if (request_ops.empty()) return true;
    request->request_ops = (const u8*)request_ops.data();
    request->requests = request_ops.size() / 4;
    u64 sum = 0;
    bool has_none = false;
    for (u64 i = 0; i < request->requests; i++) {
        u32 count;
        memcpy(&count, request->request_ops + 4 * i, sizeof count);
        sum += count;
        has_none |= !count;
    }
    return request_ops.size() % 4 == 0 && sum == request->n && !has_none && !memchr(request->ops, op::GET, request->n);
}

// Whether the response to GETs, and to others that return numbers, surely fits a message (server/calls/codec.py).
bool response_fits(const Request& request, const Table& table) {
    const u64 gets = (u64)std::count(request.ops, request.ops + request.n, op::GET);
    return !gets || COLUMN_BYTES_PER_OP * request.n + NUMBER_BYTES * (request.returning - gets) <=
                        RESPONSE_BYTES_PER_OP * table.request_ops_max;
}

// Whether so many lengths are within bounds, and add up to the bytes that there are.
bool lengths_fit(const u8* column, u32 size, u64 count, u64 bytes, u64 bytes_min, u64 bytes_max) {
    if (!column) return size * count == bytes && (!count || (size >= bytes_min && size <= bytes_max));
    u64 sum = 0;
    u32 lowest = ~0u, highest = 0;
    for (u64 i = 0; i < count; i++) {
        u32 length;
        memcpy(&length, column + 4 * i, sizeof length);
        sum += length;
        lowest = std::min(lowest, length);
        highest = std::max(highest, length);
    }
    return sum == bytes && lowest >= bytes_min && highest <= bytes_max;
}

}  // namespace

bool parse_get(const u8* message, u64 size, Said* said, Request* request) {
    std::string_view key;
    MessageReader reader(message, size);
    while (reader.next()) switch (reader.tag) {
            case field(1, BYTES):
                if (!take_name(reader.bytes, &said->table)) return false;
                break;
            case field(2, BYTES): key = reader.bytes; break;
        }
    take_single(op::GET, key, {}, request);
    return !reader.is_broken();
}

bool parse_set(const u8* message, u64 size, Said* said, Request* request) {
    std::string_view key, value;
    u64 condition = 0, expected = 0, ttl_ms = 0, expiry_ms = 0;
    MessageReader reader(message, size);
    while (reader.next()) switch (reader.tag) {
            case field(1, BYTES):
                if (!take_name(reader.bytes, &said->table)) return false;
                break;
            case field(2, BYTES): key = reader.bytes; break;
            case field(3, BYTES): value = reader.bytes; break;
            case field(4, VARINT): condition = reader.number; break;
            case field(5, VARINT): expected = reader.number; break;
            case field(6, VARINT): ttl_ms = reader.number; break;
            case field(7, VARINT): expiry_ms = reader.number; break;
        }
    take_single(op::SET, key, value, request);
    said->expiry = expiry_ms + ttl_ms;
    if (expiry_ms) request->expiries = (const u8*)&said->expiry;
    if (ttl_ms) request->ttls = (const u8*)&said->expiry;
    return !reader.is_broken() && take_condition(condition, expected, said, request) && !(expiry_ms && ttl_ms) &&
           ttl_ms <= TTL_MS_MAX;
}

bool parse_delete(const u8* message, u64 size, Said* said, Request* request) {
    std::string_view key;
    u64 condition = 0, expected = 0;
    MessageReader reader(message, size);
    while (reader.next()) switch (reader.tag) {
            case field(1, BYTES):
                if (!take_name(reader.bytes, &said->table)) return false;
                break;
            case field(2, BYTES): key = reader.bytes; break;
            case field(3, VARINT): condition = reader.number; break;
            case field(4, VARINT): expected = reader.number; break;
        }
    take_single(op::DELETE, key, {}, request);
    return !reader.is_broken() && take_condition(condition, expected, said, request);
}

bool parse_increment(const u8* message, u64 size, Said* said, Request* request) {
    std::string_view key;
    u64 delta = 0, ttl_ms = 0;
    MessageReader reader(message, size);
    while (reader.next()) switch (reader.tag) {
            case field(1, BYTES):
                if (!take_name(reader.bytes, &said->table)) return false;
                break;
            case field(2, BYTES): key = reader.bytes; break;
            case field(3, VARINT): delta = reader.number; break;
            case field(4, VARINT): ttl_ms = reader.number; break;
        }
    said->delta = from_zigzag(delta);
    said->looks_first = true;
    take_single(op::INCREMENT, key, {(const char*)&said->delta, sizeof said->delta}, request);
    said->expiry = ttl_ms;
    if (ttl_ms) request->ttls = (const u8*)&said->expiry;
    return !reader.is_broken() && ttl_ms <= TTL_MS_MAX;
}

bool parse_multi_get(const u8* message, u64 size, Said* said, Request* request) {
    MessageReader reader(message, size);
    while (reader.next()) switch (reader.tag) {
            case field(1, BYTES):
                if (!take_name(reader.bytes, &said->table)) return false;
                break;
            case field(2, BYTES):
                request->n++;
                request->key_bytes += reader.bytes.size();
                break;
        }
    request->returning = request->n;
    return !reader.is_broken() && request->n <= MULTI_GET_KEYS_MAX;
}

u64 multi_get_bytes(const Request& request) { return 5 * request.n + request.key_bytes; }

void take_multi_get(const u8* message, u64 size, u8* to, Request* request) {
    u8 *length = to, *const ops = to + 4 * request->n, *key = ops + request->n;
    memset(ops, op::GET, request->n);
    request->key_lengths = length;
    request->ops = ops;
    request->keys = key;
    MessageReader reader(message, size);
    while (reader.next()) {
        if (reader.tag != field(2, BYTES)) continue;
        const u32 bytes = (u32)reader.bytes.size();
        memcpy(length, &bytes, sizeof bytes);
        if (bytes) memcpy(key, reader.bytes.data(), bytes);
        length += sizeof bytes;
        key += bytes;
    }
}

bool parse_batch(const u8* message, u64 size, Said* said, Request* request) {
    std::string_view ops, keys, key_lengths, values, value_lengths, conditions, expected, expiries, ttls, request_ops;
    u64 key_size = 0, value_size = 0;
    MessageReader reader(message, size);
    while (reader.next()) switch (reader.tag) {
            case field(1, BYTES):
                if (!take_name(reader.bytes, &said->table)) return false;
                break;
            case field(2, BYTES): ops = reader.bytes; break;
            case field(3, BYTES): keys = reader.bytes; break;
            case field(4, BYTES): key_lengths = reader.bytes; break;
            case field(5, FIXED32): key_size = reader.number; break;
            case field(6, BYTES): values = reader.bytes; break;
            case field(7, BYTES): value_lengths = reader.bytes; break;
            case field(8, FIXED32): value_size = reader.number; break;
            case field(9, VARINT): said->id = reader.number; break;
            case field(10, BYTES): conditions = reader.bytes; break;
            case field(11, BYTES): expected = reader.bytes; break;
            case field(12, BYTES): expiries = reader.bytes; break;
            case field(13, BYTES): ttls = reader.bytes; break;
            case field(14, BYTES): request_ops = reader.bytes; break;
            case field(15, VARINT): said->numbers = reader.number; break;
            case field(16, BYTES):
                if (!take_name(reader.bytes, &said->layout)) return false;
                break;
        }
    take_keys(keys, request);
    take_values(values, request);
    return !reader.is_broken() && take_ops(ops, said, request) && take_requests(request_ops, request) &&
           take_conditions(conditions, expected, said, request) && take_expiries(expiries, ttls, request) &&
           take_lengths(key_lengths, key_size, request->n, &request->key_lengths, &request->key_size) &&
           take_lengths(value_lengths, value_size, request->with_value, &request->value_lengths, &request->value_size) &&
           (!said->looks_first || are_numbers(*request));
}

bool is_of_layout(const Said& said, const Request& request, const Table& table) {
    if (said.numbers && !table.holds_numbers) return false;
    if (!said.layout.empty() && said.layout != table.layout) return false;
    return !table.holds_numbers || !(request.expiries || request.ttls || said.needs_record);
}

bool keeps_limits(const Said& said, const Request& request, const Table& table) {
    if (said.looks_first && !response_fits(request, table)) return false;
    return request.n && request.n <= table.request_ops_max &&
           lengths_fit(request.key_lengths, request.key_size, request.n, request.key_bytes, table.key_bytes_min,
                       table.key_bytes_max) &&
           lengths_fit(request.value_lengths, request.value_size, request.with_value, request.value_bytes,
                       table.value_bytes_min, table.value_bytes_max);
}

bool is_corrupt(const Request& request) { return memchr(request.status(), status::CORRUPT, request.done()); }

namespace {

// The fields of a GetResponse.
void add_get(bool is_found, const Values::Value& value, u64 version, MessageWriter* response) {
    response->add_number(1, is_found);
    response->add_bytes(2, value.data, value.lent ? 0 : value.size, value.lent ? value.size : 0);
    response->add_number(3, version);
}

// Calls `add` with the response to each key, and what stands before it.
template <class Add>
void each_get(Request& request, Add add) {
    Values values(request);
    for (u64 key = 0; key < request.n; key++) {
        MessageWriter head, response;
        const Values::Value value = values.next();
        add_get(request.status()[key] == status::OK, value, request.versions()[key], &response);
        head.add_head(1, response.size() + (value.lent ? value.size : 0));
        add(head, response, value.lent);
    }
}

// Calls `add` with each RequestFailure, and what stands before it.
template <class Add>
void each_failure(const Request& request, Add add) {
    const EngineRefusal* const end = request.stopped_first() + request.stopped_count;
    for (const EngineRefusal* stopped = request.stopped_first(); stopped < end; stopped++) {
        const Refusal* const lacking = stopped->lacks ? request.results->lacking[stopped->lacks].get() : nullptr;
        const std::string text = lacking ? lacking->text : conflict_text(*stopped);
        MessageWriter head, failure;
        failure.add_number(1, stopped->request);
        failure.add_number(2, lacking ? (u64)lacking->code : (u64)ABORTED);
        failure.add_bytes(3, text.data(), text.size());
        if (lacking) failure.add_bytes(4, lacking->full.data(), lacking->full.size());
        else failure.add_optional(5, stopped->failed_check);
        if (stopped->is_there) failure.add_optional(6, stopped->found);
        head.add_head(11, failure.size());
        add(head, failure, nullptr);
    }
}

}  // namespace

void respond_get(Request& request, MessageWriter* response) {
    add_get(*request.status() == status::OK, Values(request).next(), *request.versions(), response);
}

void respond_set(const Request& request, MessageWriter* response) {
    response->add_number(1, *request.versions());
    response->add_number(2, *request.status());
}

void respond_delete(const Request& request, MessageWriter* response) {
    response->add_number(1, *request.status() == status::OK);
    response->add_number(2, *request.versions());
    response->add_number(3, *request.status());
}

void respond_increment(const Request& request, MessageWriter* response) {
    u64 sum;
    memcpy(&sum, request.result_values(), sizeof sum);
    response->add_number(1, to_zigzag(sum));
    response->add_number(2, *request.versions());
}

namespace {

template <class Each>
u64 bytes_of(Request& request, Each each) {
    u64 bytes = 0;
    each(request, [&](const MessageWriter& head, const MessageWriter& one, LentValue*) { bytes += head.size() + one.size(); });
    return bytes;
}

// A response of fields, and of messages that `each` gives away with what stands before them: once to measure, once to write.
template <class Each>
Message respond_with(const MessageWriter& fields, Request& request, Each each, ConnectionAccount& account) {
    Message response = Message::charged(account, ANSWERS, fields.size() + bytes_of(request, each));
    if (!response.is_there()) throw std::bad_alloc();
    u8* at = response.data();
    fields.write(at);
    at += fields.size();
    each(request, [&](const MessageWriter& head, const MessageWriter& one, LentValue* lent) {
        head.write(at);
        one.write(at + head.size());
        if (lent) response.insert((u64)(at - response.data()) + head.size() + one.lent_at(), std::move(*lent));
        at += head.size() + one.size();
    });
    return response;
}

constexpr auto EACH_GET = [](Request& request, const auto& add) { each_get(request, add); };
constexpr auto EACH_FAILURE = [](Request& request, const auto& add) { each_failure(request, add); };

}  // namespace

u64 multi_get_response_bytes(Request& request) { return bytes_of(request, EACH_GET); }

Message respond_multi_get(Request& request, ConnectionAccount& account) {
    return respond_with(MessageWriter(), request, EACH_GET, account);
}

void respond_batch(const Request& request, u64 id, MessageWriter* response) {
    const u64 n = request.done();
    response->add_number(1, id);
    response->add_bytes(2, request.status(), n);
    response->add_bytes(3, request.result_values(), request.result_value_bytes, request.lent_bytes());
    response->add_bytes(4, request.result_value_lengths(), 4 * request.done_returning());
    // A table of numbers has none: there a failed condition tells the number that is there.
    const bool tells_versions = request.results->has_versions || memchr(request.status(), status::CONDITION_FAILED, n);
    response->add_bytes(5, request.versions(), tells_versions ? 8 * n : 0);
}

Message respond_several(Request& request, u64 id, ConnectionAccount& account) {
    MessageWriter columns;
    respond_batch(request, id, &columns);
    Message response = respond_with(columns, request, EACH_FAILURE, account);
    insert_lent(columns, request, &response);
    return response;
}

void insert_lent(const MessageWriter& writer, Request& request, Message* response) {
    Values values(request);
    for (u64 left = request.lent_values.size(); left;) {
        const Values::Value value = values.next();
        if (!value.lent) continue;
        response->insert(writer.lent_at() + values.bytes(), std::move(*value.lent));
        left--;
    }
}

void respond_failed(u64 id, const Refusal& refusal, MessageWriter* response) {
    response->add_number(1, id);
    response->add_number(6, (u64)refusal.code);
    response->add_bytes(7, refusal.text.data(), refusal.text.size());
    response->add_bytes(8, refusal.full.data(), refusal.full.size());
    if (!refusal.conflict) return;
    response->add_optional(9, refusal.conflict->failed_check);
    if (refusal.conflict->is_there) response->add_optional(10, refusal.conflict->found);
}

}  // namespace door
