#include "python/probes.h"

#include <nghttp2/nghttp2.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "door.hpp"
#include "grpc/messages.hpp"

using namespace door;

static u64 write(const MessageWriter& response, u8* to, u64 room) {
    if (response.size() > room) return 0;
    response.write(to);
    return response.size();
}

bool gpkvs_door_parse(int method, const uint8_t* message, uint64_t size, const DoorTable* table, DoorParsed* parsed) {
    using Parse = bool (*)(const u8*, u64, Said*, Request*);
    static const Parse PARSES[] = {parse_get, parse_set, parse_delete, parse_increment, parse_multi_get, parse_batch};
    static thread_local Said said;
    said = {};
    Request request;
    const Table limits = table_of(*table);
    if (!PARSES[method](message, size, &said, &request)) return false;
    static thread_local std::vector<u8> columns;
    if (method == METHOD_MULTI_GET) {
        columns.resize(multi_get_bytes(request) + 1);
        take_multi_get(message, size, columns.data(), &request);
    }
    if (!is_of_layout(said, request, limits) || !keeps_limits(said, request, limits)) return false;
    const auto lengths_of = [](const u8* column, u64 count) { return DoorBytes{column, column ? 4 * count : 0}; };
    const auto numbers_of = [&](const u8* column) { return DoorBytes{column, column ? 8 * request.n : 0}; };
    *parsed = {said.id,
               request.n,
               request.returning,
               request.with_value,
               request.key_size,
               request.value_size,
               {(const u8*)said.table.data(), said.table.size()},
               {request.ops, request.n},
               {request.keys, request.key_bytes},
               lengths_of(request.key_lengths, request.n),
               {request.values, request.value_bytes},
               lengths_of(request.value_lengths, request.with_value),
               lengths_of(request.request_ops, request.requests),
               numbers_of(request.expiries),
               numbers_of(request.ttls),
               {request.conditions, request.conditions ? request.n : 0},
               numbers_of(request.expected)};
    return true;
}

uint64_t gpkvs_door_response(int method, uint64_t id, const DoorResults* results, uint8_t* to, uint64_t room) {
    Request request;
    Account account(NEVER);
    request.results = Results::make(account, results->n, results->returning, results->value_bytes);
    if (!request.results) return 0;
    memcpy(request.results->status, results->status, results->n);
    if (results->returning) memcpy(request.results->value_lengths, results->value_lengths, 4 * results->returning);
    if (results->value_bytes) memcpy(request.results->values, results->values, results->value_bytes);
    memset(request.results->versions, 0, 8 * results->n);
    if (results->versions) memcpy(request.results->versions, results->versions, 8 * results->n);
    request.results->has_versions = results->versions;
    request.n = results->n;
    request.returning = results->returning;
    request.result_value_bytes = results->value_bytes;
    MessageWriter response;
    switch (method) {
        case METHOD_GET: respond_get(request, &response); break;
        case METHOD_SET: respond_set(request, &response); break;
        case METHOD_DELETE: respond_delete(request, &response); break;
        case METHOD_INCREMENT: respond_increment(request, &response); break;
        case METHOD_MULTI_GET: {
            ConnectionAccount own(account);
            const Message made = respond_multi_get(request, own);
            if (made.size() <= room) memcpy(to, made.data(), made.size());
            request.release_results();
            return made.size() <= room ? made.size() : 0;
        }
        case METHOD_BATCH: respond_batch(request, id, &response); break;
    }
    const u64 written = write(response, to, room);
    request.release_results();
    return written;
}

uint64_t gpkvs_door_failed_response(uint64_t id, const DoorRefusal* refusal, uint8_t* to, uint64_t room) {
    MessageWriter response;
    const Refusal copy = refusal_of(*refusal);
    respond_failed(id, copy, &response);
    return write(response, to, room);
}

bool gpkvs_door_headers(const DoorBytes* blocks, uint64_t n, char* to, uint64_t room) {
    nghttp2_hd_inflater* made;
    if (nghttp2_hd_inflate_new(&made)) return false;
    const std::unique_ptr<nghttp2_hd_inflater, void (*)(nghttp2_hd_inflater*)> inflater(made, nghttp2_hd_inflate_del);
    std::string lines;
    for (const DoorBytes* block = blocks; block < blocks + n; block++) {
        const u8 *at = block->at, *end = at + block->size;
        for (int flags = 0; !(flags & NGHTTP2_HD_INFLATE_FINAL);) {
            nghttp2_nv header;
            flags = 0;
            const ssize_t taken = nghttp2_hd_inflate_hd2(made, &header, &flags, at, (size_t)(end - at), 1);
            if (taken < 0) return false;
            at += taken;
            if (flags & NGHTTP2_HD_INFLATE_EMIT)
                lines.append((char*)header.name, header.namelen).append(": ").append((char*)header.value, header.valuelen) += '\n';
        }
        nghttp2_hd_inflate_end_headers(made);
        lines += '\n';
    }
    if (lines.size() >= room) return false;
    memcpy(to, lines.c_str(), lines.size() + 1);
    return true;
}

void gpkvs_door_hurry(Door* door, uint64_t times) {
    Patience& patience = door->patience;
    for (u64* wait : {&patience.preface_ns, &patience.headers_ns, &patience.message_ns, &patience.keepalive_ns,
                      &patience.keepalive_answer_ns, &patience.drain_ns, &patience.login_ns, &patience.first_request_ns,
                      &patience.young_ns, &patience.mebibyte_ns, &patience.unread_ns, &patience.calm_ns})
        *wait /= times;
}
