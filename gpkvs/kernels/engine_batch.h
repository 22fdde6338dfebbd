// What a door and an engine know of each other: whole requests go in as columns, results come back into room that the door
// gives. Plain C, with nothing of either side in it. Neither of the functions throws.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Whole requests on one table, in arrival order. Lengths have a step: 1, or 0 where one number stands for all. Values are of
// the operations that bring one: SET, INCREMENT, APPEND. Expiries are of the operations; what they say of those that give none
// counts for nothing. Columns of bytes may be unaligned.
typedef struct EngineBatch {
    uint64_t n;  // operations
    const uint8_t* ops;
    const uint8_t* keys;
    const uint32_t* key_lengths;
    uint64_t key_length_step;
    const uint8_t* values;
    const uint32_t* value_lengths;
    uint64_t value_length_step;
    const uint64_t* expiries;  // milliseconds since 1970, 0: never; null: no key expires by these operations
    const uint8_t* conditions;  // of the operations (gpkvs/batch.py); null: none has one
    const uint64_t* expected;   // what conditions compare with; null: none compares
    const uint32_t* request_ops;  // operations of each request
    uint64_t requests;
    const uint32_t* message_requests;  // requests of each message
    uint64_t messages;
    // Of the values that GETs return, and of those that are made of others; the first message may have more if it is one request.
    uint64_t value_bytes_max;
    uint32_t table_id;
} EngineBatch;

// Where results go.
typedef struct EngineRoom {
    uint8_t* status;          // one for each operation
    uint64_t* versions;       // the same; all 0 where the table has none
    uint32_t* value_lengths;  // one for each operation that returns a value: GET, INCREMENT, EXPIRY
    uint8_t* values;
} EngineRoom;

typedef bool (*EngineGivesRoom)(void* sink, uint64_t operations, uint64_t returning, uint64_t value_bytes, EngineRoom* out);

enum EngineRan {
    ENGINE_DONE,  // results are in the room; nobody may see them before their gate is durable
    ENGINE_LEFT,  // nothing has happened: the engine's Python side must run this batch
    ENGINE_DUE    // done, and the turn must end: Python has work to do
};

// A door has one; in its tests it may be anything.
typedef struct Engine {
    void* self;
    // Runs as many of the first messages as keep `value_bytes_max`, and says how many requests they are. Asks for room when it knows how much;
    // without room, the batch is left. `has_versions` says whether the table has any.
    int (*run)(void* self, const EngineBatch* batch, EngineGivesRoom room, void* sink, uint64_t* requests, uint64_t* gate,
               uint64_t* has_versions);
    uint64_t (*durable)(void* self);             // the newest durable gate, from any thread; gates rise, 0 is always durable
    void (*wait)(void* self, uint64_t gate);     // returns when it is durable; from a thread of the door's own
    uint64_t operations_max;  // a batch with more is left; it changes between turns
    bool never_waits;         // `run` waits for no disk: any thread may run a small batch
} Engine;

#ifdef __cplusplus
}
#endif
