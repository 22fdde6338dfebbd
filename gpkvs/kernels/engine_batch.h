// What a door and an engine know of each other: whole requests go in as columns, results come back into room that the door
// gives. Plain C, with nothing of either side in it. Neither of the functions throws.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// A struct whose fields are a list, F(type, name): in C, and as text, from which Python has it (gpkvs/structs.py).
#define STRUCT(name, FIELDS) typedef struct name { FIELDS(STRUCT_FIELD) } name
#define STRUCT_FIELD(type, name) type name;
#define STRUCT_TEXT(name, FIELDS) #name "{" FIELDS(STRUCT_FIELD_TEXT) "}"
#define STRUCT_FIELD_TEXT(type, name) STRUCT_QUOTED(type name) ";"
#define STRUCT_QUOTED(...) #__VA_ARGS__

// A value that is lent counts as its bytes, up to so many.
#define ENGINE_LENT_BYTES (1u << 20)

struct EngineUpload;

// Whole requests on one table, in arrival order. Lengths have a step: 1, or 0 where one number stands for all. Values are of
// the operations that bring one (protocol.cuh). Expiries are of the operations; what they say of those that give
// none counts for nothing. Columns of bytes may be unaligned. A column without an item may be null.
#define ENGINE_BATCH_FIELDS(F)                                                                                               \
    F(uint64_t, n)                        /* operations */                                                                   \
    F(const uint8_t*, ops)                                                                                                   \
    F(const uint8_t*, keys)                                                                                                  \
    F(const uint32_t*, key_lengths)                                                                                          \
    F(uint64_t, key_length_step)                                                                                             \
    F(const uint8_t*, values)                                                                                                \
    F(const uint32_t*, value_lengths)                                                                                        \
    F(uint64_t, value_length_step)                                                                                           \
    F(const uint64_t*, expiries)          /* milliseconds since 1970, 0: never; null: no key expires by these operations */  \
    F(const uint8_t*, conditions)         /* of the operations (resolve.hpp); null: none has one */                          \
    F(const uint64_t*, expected)          /* what conditions compare with, or where a SETRANGE begins; null: none asks */    \
    F(const uint32_t*, request_ops)       /* operations of each request */                                                   \
    F(uint64_t, requests)                                                                                                    \
    F(const uint32_t*, message_requests)  /* requests of each message */                                                     \
    F(uint64_t, messages)                                                                                                    \
    /* Of the values that GETs return, with ENGINE_LENT_BYTES of each that is lent, and of those that are made of others;    \
       the first message may have more if it is one request. */                                                              \
    F(uint64_t, value_bytes_max)                                                                                             \
    F(uint32_t, table_id)                                                                                                    \
    /* where GETs of numbers, the only operations, leave what they find, or null; they may be the result */                  \
    F(uint64_t*, found_words)                                                                                                \
    F(uint64_t, lends_blobs)              /* whether values in blobs are lent (EngineBlob), and not copied */                \
    /* null, or the value of the only SET of the only request: `values` is where it lies */                                  \
    F(const struct EngineUpload*, upload)                                                                                    \
    F(const uint64_t*, versions)          /* that SETs give their keys, of a store in the making; null: new ones */
STRUCT(EngineBatch, ENGINE_BATCH_FIELDS);

struct EngineBlob;

// The file of a store's blobs; it is there as long as the store is open. Any thread.
typedef struct EngineBlobs {
    void* self;
    // Maps a value that was lent; null where the system does not. Until it is given back it stays as it is, whatever becomes
    // of its key.
    const uint8_t* (*view)(const struct EngineBlob* blob);
    // Whether a part of it is as it was written: from a piece on (64 KiB), up to so many bytes.
    bool (*is_sound)(const struct EngineBlob* blob, const uint8_t* view, uint64_t from, uint64_t bytes);
    void (*give_back)(const struct EngineBlob* blob, const uint8_t* view);  // `view` may be null
} EngineBlobs;

// A value in a blob that a GET found: it is not among the values, and its length there is 0. Nobody has looked yet whether it
// is as it was written.
typedef struct EngineBlob {
    const EngineBlobs* blobs;  // null: there is none, or it was given back
    uint64_t operation;        // its GET, among those that were done
    uint64_t value;            // its number, among the values that operations return
    uint64_t bytes;
    uint64_t first_page, pages;
    uint64_t crc;
    int file;
} EngineBlob;

// Of a value that comes in pieces, straight to where it will lie. One thread at a time.
typedef struct EngineUploads {
    void (*append)(const struct EngineUpload* upload, const uint8_t* data, uint64_t bytes);  // no more than are missing
    const uint8_t* (*value)(const struct EngineUpload* upload);  // where it is, when it is whole
    void (*end)(const struct EngineUpload* upload);              // what no batch has stored is gone
} EngineUploads;

typedef struct EngineUpload {
    const EngineUploads* uploads;  // null: there is none
    void* self;
} EngineUpload;

// A request that was not done: it lacks what cannot be had, or a check of it does not hold.
#define ENGINE_REFUSAL_FIELDS(F)                                                                  \
    F(uint64_t, request)      /* its number in the batch */                                       \
    F(uint32_t, lacks)        /* why (EngineLeft); 0: a check, of which the rest tells */         \
    F(uint32_t, failed_check) /* the number of the operation in its request */                    \
    F(uint32_t, is_there)     /* the key is */                                                    \
    F(uint64_t, found)        /* the version that it has, or in a table of numbers its number */
STRUCT(EngineRefusal, ENGINE_REFUSAL_FIELDS);

// Where results go: of all requests that were done. `values` may be unaligned. A column without an item may be null.
#define ENGINE_ROOM_FIELDS(F)                                                                                              \
    F(uint8_t*, status)         /* one for each operation */                                                               \
    F(uint64_t*, versions)      /* the same; all 0 where the table has none, and null where nobody wants these zeros */    \
    /* One for each operation that returns a value: GET, INCREMENT, EXPIRY, LENGTH. Null where nobody wants those of GETs  \
       of numbers, the only operations of a batch. */                                                                      \
    F(uint32_t*, value_lengths)                                                                                            \
    F(uint8_t*, values)                                                                                                    \
    F(EngineRefusal*, refusals) /* in the order of their requests */                                                       \
    /* Of a batch of GETs alone on a table with records: where in `values` each value begins, and how long it may be. If   \
       one is longer, or a record is damaged, no value is given. Null: they lie one after the other. */                    \
    F(const uint64_t*, places)                                                                                             \
    F(const uint64_t*, place_bytes)                                                                                        \
    /* Values that are lent. How many there are is told before there is room for them. Whoever has the room gives each     \
       back. */                                                                                                            \
    F(EngineBlob*, blobs)                                                                                                  \
    F(uint64_t, blob_count)
STRUCT(EngineRoom, ENGINE_ROOM_FIELDS);

typedef bool (*EngineGivesRoom)(void* sink, uint64_t operations, uint64_t returning, uint64_t value_bytes, uint64_t refusals,
                                EngineRoom* out);

// Why a batch is left, until Python has done what it lacks: the list (gpkvs/engine/left.py).
#define ENGINE_LEFT_REASONS(F)                                                                                                 \
    F(TURN)         /* Python wants the engine: no turn has begun, or what is due beside batches failed */                     \
    F(TABLE)        /* nobody knows it in this turn */                                                                         \
    F(COLUMNS)      /* more operations than there are columns for, or so few that they need not have so many */                \
    F(LAYOUT)       /* operations, or expiries, that the table's layout does not have */                                       \
    F(LARGE_READS)  /* a request reads more than one may, or a message more than others may wait for */                        \
    F(LARGE_VALUES) /* more values are made of others than one transaction may make */                                         \
    F(EXPIRED)      /* it meets keys that look expired */                                                                      \
    F(EXPIRY)       /* a table's first: the root must say first that keys may expire */                                        \
    F(GROW_INDEX)   /* a new key finds no way */                                                                               \
    F(FREE_HEAP)    /* records find too few free segments */                                                                   \
    F(GROW_HEAP)    /* records would be charged more than the heap may hold */                                                 \
    F(GROW_BLOBS)   /* the file of blobs has too few free pages side by side */                                                \
    F(GROW_LOG)     /* more words of entries than undo log or journal take */                                                  \
    F(RENEW)        /* the last epoch of an incarnation */                                                                     \
    F(MEMORY)       /* none for the plan, the results or the frame */                                                          \
    F(DEVICE)       /* a GPU may take less time for it, or runs it */

#define ENGINE_LEFT_REASON(name) LEFT_##name,
enum EngineLeft { LEFT_NOT, ENGINE_LEFT_REASONS(ENGINE_LEFT_REASON) LEFT_COUNT };

enum EngineRan {
    ENGINE_DONE,  // results are in the room; nobody may see them before their gate is durable
    ENGINE_LEFT,  // nothing has happened: Python must do what the batch lacks (EngineLeft), and give it again
    ENGINE_DUE    // done, and the turn must end: Python has work to do
};

// Runs as many of the first messages as keep `value_bytes_max`, and says how many requests they are. Asks for room when it knows
// how much; without room, the batch is left. `has_versions` says whether the table has any.
typedef int EngineRun(void* self, const EngineBatch* batch, EngineGivesRoom room, void* sink, uint64_t* requests, uint64_t* gate,
                      uint64_t* has_versions);
typedef uint64_t EngineDurable(void* self);          // the newest durable gate, from any thread; gates rise, 0 is always durable
typedef void EngineWait(void* self, uint64_t gate);  // returns when it is durable; from a thread of the door's own
// Has room for a value of so many bytes, which will come in pieces. Without room, it is left as a batch is, or `lacks` says
// what cannot be had.
typedef int EngineReserve(void* self, uint64_t value_bytes, EngineUpload* out, uint64_t* lacks);

// A door has one; in its tests it may be anything.
#define ENGINE_FIELDS(F)                                                                                                      \
    F(void*, self)                                                                                                            \
    F(EngineRun*, run)                                                                                                        \
    F(EngineDurable*, durable)                                                                                                \
    F(EngineWait*, wait)                                                                                                      \
    F(EngineReserve*, reserve)     /* null: values come whole */                                                              \
    F(uint64_t, operations_max)    /* a batch with more is left; it changes between turns */                                  \
    F(bool, never_waits)           /* `run` waits for no disk: any thread may run a small batch */                            \
    F(const uint64_t*, planned_ns) /* when the last batch was planned (CLOCK_MONOTONIC): what comes then makes it durable */
STRUCT(Engine, ENGINE_FIELDS);

// Those of them that Python shares.
#define ENGINE_STRUCTS(S)                                                                                         \
    S(EngineBatch, ENGINE_BATCH_FIELDS) S(EngineRefusal, ENGINE_REFUSAL_FIELDS) S(EngineRoom, ENGINE_ROOM_FIELDS) \
    S(Engine, ENGINE_FIELDS)

#ifdef __cplusplus
}
#endif
