// What tests look at inside the door, through ctypes. The server calls none of it.
#pragma once
#include "door.h"

#ifdef __cplusplus
extern "C" {
#endif

enum DoorMethod { METHOD_GET, METHOD_SET, METHOD_DELETE, METHOD_INCREMENT, METHOD_MULTI_GET, METHOD_BATCH };

typedef struct DoorBytes {
    const uint8_t* at;
    uint64_t size;
} DoorBytes;

// What a message asks for. All of it lies in the message, or for a method of one operation elsewhere until the next call.
typedef struct DoorParsed {
    uint64_t id, n, returning, with_value, key_size, value_size;
    DoorBytes table, ops, keys, key_lengths, values, value_lengths, request_ops, expiries, ttls, conditions, expected;
} DoorParsed;

// Returns whether a message is plain for a table.
DOOR_EXPORT bool gpkvs_door_parse(int method, const uint8_t* message, uint64_t size, const DoorTable* table,
                                  DoorParsed* parsed);

// Results of one request. Without a table's versions, `versions` is null.
typedef struct DoorResults {
    uint64_t n, returning, value_bytes;
    const uint8_t* status;
    const uint64_t* versions;
    const uint32_t* value_lengths;
    const uint8_t* values;
} DoorResults;

// Writes the response; returns its size, or 0 if there is no room for it.
DOOR_EXPORT uint64_t gpkvs_door_response(int method, uint64_t id, const DoorResults* results, uint8_t* to, uint64_t room);
DOOR_EXPORT uint64_t gpkvs_door_failed_response(uint64_t id, const DoorRefusal* refusal, uint8_t* to, uint64_t room);

// Decodes the headers that a connection has sent, blocks one after another. Writes them as lines, "name: value" each, an empty
// line after each block, and a zero. False: they are damaged, or there is no room for them.
DOOR_EXPORT bool gpkvs_door_headers(const DoorBytes* blocks, uint64_t n, char* to, uint64_t room);

// The door waits so many times shorter for clients than it does for those of a server.
DOOR_EXPORT void gpkvs_door_hurry(Door* door, uint64_t times);

#ifdef __cplusplus
}
#endif
