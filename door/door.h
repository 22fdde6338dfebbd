// The door as Python sees it: plain C. No function throws; each says in which thread it may be called.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "../gpkvs/kernels/engine_batch.h"
#include "../gpkvs/kernels/base/protocol.cuh"

#ifdef __cplusplus
extern "C" {
#endif

#define DOOR_EXPORT __attribute__((visibility("default")))

typedef struct Door Door;

// What the server grants its clients.
#define DOOR_CONFIG_FIELDS(F)                                                          \
    F(uint64_t, threads)        /* of connections; 0: as many as suit the machine */   \
    F(uint64_t, connections_max)                                                       \
    F(uint64_t, clients_bytes_max)                                                     \
    F(uint64_t, message_bytes_max)                                                     \
    F(uint64_t, message_requests_max)                                                  \
    F(uint64_t, stream_requests_max)                                                   \
    F(uint64_t, stream_bytes_max)                                                      \
    F(uint64_t, queue_requests_max)                                                    \
    F(uint64_t, batch_ops_max)                                                         \
    F(uint64_t, batch_bytes_max)                                                       \
    F(uint64_t, batch_result_bytes_max)                                                \
    F(uint64_t, engine_bytes)                                                          \
    F(uint64_t, slow_ns)        /* a call that takes so long is noted; ~0: none is */  \
    F(uint64_t, slow_calls_max) /* that are kept until Python takes them */            \
    F(double, receive_seconds_max)
STRUCT(DoorConfig, DOOR_CONFIG_FIELDS);

#define DOOR_TABLE_FIELDS(F)       \
    F(const char*, name)           \
    F(uint32_t, id)                \
    F(uint32_t, holds_numbers)     \
    F(const char*, layout)         \
    F(uint64_t, key_bytes_min)     \
    F(uint64_t, key_bytes_max)     \
    F(uint64_t, value_bytes_min)   \
    F(uint64_t, value_bytes_max)   \
    F(uint64_t, request_ops_max)   \
    F(uint64_t, result_bytes_max)
STRUCT(DoorTable, DOOR_TABLE_FIELDS);

// A script of Redis that the door executes: the SHA-1 of its text, in small letters, what it does (scripts.hpp), and how many keys
// it has; 0: any number.
#define DOOR_SCRIPT_FIELDS(F) \
    F(char, name[41])    \
    F(uint8_t, program)  \
    F(uint8_t, keys)
STRUCT(DoorScript, DOOR_SCRIPT_FIELDS);

// What a client is told of a request that was not executed.
#define DOOR_REFUSAL_FIELDS(F)                                                        \
    F(int, code)                      /* gRPC's */                                    \
    F(const char*, text)                                                              \
    F(const char*, full)              /* what is full, or "" */                       \
    F(bool, is_refusal)               /* the request surely changed nothing */        \
    F(const EngineRefusal*, conflict) /* null: no check of the request stopped it */
STRUCT(DoorRefusal, DOOR_REFUSAL_FIELDS);

// A call that took long, or a message of a stream, or a command of Redis. Its time is the sum of the four.
#define DOOR_SLOW_CALL_FIELDS(F)                                                                 \
    F(uint64_t, ended_us)     /* since 1970 */                                                   \
    F(uint64_t, waiting_ns)   /* until the engine ran it */                                      \
    F(uint64_t, executing_ns) /* until its results were there, and what it changes was known */  \
    F(uint64_t, durable_ns)   /* until that was durable, with the waiting for other batches */   \
    F(uint64_t, answering_ns) /* until its connection had the answer */                          \
    F(uint64_t, caller)       /* 0: nobody logs in, or the door does not know who it was */      \
    F(uint64_t, operations)                                                                      \
    F(uint64_t, bytes_in)     /* of keys and values */                                           \
    F(uint64_t, bytes_out)                                                                       \
    F(uint64_t, key_bytes)    /* of the first key; `key` has its beginning */                    \
    F(uint64_t, words)        /* of a command of Redis */                                        \
    F(uint32_t, table_id)                                                                        \
    F(uint32_t, protocol)     /* a DoorProtocol */                                               \
    F(char, command[24])                                                                         \
    F(char, peer[64])                                                                            \
    F(char, request_id[65])                                                                      \
    F(uint8_t, key[32])
STRUCT(DoorSlowCall, DOOR_SLOW_CALL_FIELDS);

enum DoorProtocol { DOOR_GRPC, DOOR_RESP };
enum DoorTurn { TURN_IDLE, TURN_INTERRUPTED, TURN_LEFT, TURN_DUE, TURN_STOPPED };

// What happens to a call that Python serves. It begins with OPEN. Of a call that the door is to serve, LOGIN asks who makes
// it: Python says so (`logged_in`) and finishes with OK, or with the status with which the call ends. Either ends with OVER,
// or when Python finishes it; events that were under way then still come.
enum DoorEventKind { EVENT_OPEN, EVENT_MESSAGE, EVENT_HALF_CLOSED, EVENT_SENT, EVENT_OVER, EVENT_LOGIN, EVENT_ANSWER };
#define DOOR_EVENT_FIELDS(F)                                                                                               \
    F(uint64_t, id)          /* a number that no other call ever has; of ANSWER the ticket of a request */                 \
    F(uint32_t, kind)                                                                                                      \
    F(uint32_t, is_counted)  /* of OPEN: the door has counted its start */                                                 \
    /* Of OPEN and LOGIN. Metadata are lines, "name: value" each; the names of the client's certificate are lines too. */  \
    F(uint64_t, connection)                                                                                                \
    F(uint64_t, deadline_ns) /* of CLOCK_MONOTONIC; ~0: none */                                                            \
    F(uint64_t, caller)      /* whom the door takes its caller for; 0 if it does not know */                               \
    F(const char*, path)                                                                                                   \
    F(const char*, metadata)                                                                                               \
    F(const char*, peer)                                                                                                   \
    F(const char*, names)                                                                                                  \
    /* Of MESSAGE, and of ANSWER: a BatchResponse. An ANSWER may have none: then `code` says why. */                       \
    F(const uint8_t*, data)                                                                                                \
    F(uint64_t, bytes)                                                                                                     \
    /* Of ANSWER. The times are of CLOCK_MONOTONIC; 0: it was not executed. */                                             \
    F(uint32_t, code)                                                                                                      \
    F(uint32_t, is_refusal)  /* the request surely changed nothing */                                                      \
    F(uint64_t, submitted_ns)                                                                                              \
    F(uint64_t, began_ns)                                                                                                  \
    F(uint64_t, planned_ns)                                                                                                \
    F(uint64_t, durable_ns)
STRUCT(DoorEvent, DOOR_EVENT_FIELDS);

// What the door has counted since its start; the buckets of histograms are those of server/signs/exporter.py and one for all above.
#define DOOR_HISTOGRAM_FIELDS(F)                        \
    F(uint64_t, counts[17]) /* the first ones count */  \
    F(uint64_t, sum)
STRUCT(DoorHistogram, DOOR_HISTOGRAM_FIELDS);
#define DOOR_METHOD_STATS_FIELDS(F)                \
    F(uint64_t, started)                           \
    F(uint64_t, handled[17]) /* by gRPC's code */  \
    F(DoorHistogram, ns)
STRUCT(DoorMethodStats, DOOR_METHOD_STATS_FIELDS);
// In so many ways the door executes commands of Redis.
#define DOOR_REDIS_COMMANDS 57
// Their names, with a space behind each; one may come several times. Null where there is no memory.
DOOR_EXPORT const char* gpkvs_door_redis_commands(void);
#define DOOR_RESP_STATS_FIELDS(F)                                                                         \
    F(uint64_t, commands[DOOR_REDIS_COMMANDS]) /* that the door executes, in the order of their names */  \
    F(uint64_t, errors[3])                     /* ERR, OOM, EXECABORT */                                  \
    F(uint64_t, opened) F(uint64_t, closed)    /* connections */                                          \
    F(uint64_t, messages)                      /* of keys that changed */
STRUCT(DoorRespStats, DOOR_RESP_STATS_FIELDS);
#define DOOR_STATS_FIELDS(F)                                                                                                 \
    /* Get, Set, Delete, Increment, MultiGet, Batch, Pipeline; those that were forwarded are counted as started only */      \
    F(DoorMethodStats, methods[7])                                                                                           \
    F(uint64_t, refused[4])                     /* memory_full, queue_full, unsupported, slow */                             \
    /* connections_full, files_full, memory_full, http1, tls, plain, handshake, foreign, gave_way, silent; then those        \
       that were closed: slow, flood, unreachable, unread, memory_full, invalid, user_gone, behind */                        \
    F(uint64_t, connections_refused[18])                                                                                     \
    F(uint64_t, cancelled) F(uint64_t, expired) F(uint64_t, conflicts)                                                       \
    F(uint64_t, operations[OPERATION_NUMBERS][STATUS_NUMBERS])                                                               \
    F(DoorHistogram, batch_operations) F(DoorHistogram, batch_requests) F(DoorHistogram, batch_ns)                           \
    F(DoorRespStats, resp)                                                                                                   \
    F(uint64_t, slow) F(uint64_t, slow_unnoted) /* calls that took long; of these, those that the slow log does not have */
STRUCT(DoorStats, DOOR_STATS_FIELDS);

// The same of each table that there is.
#define DOOR_TABLE_STATS_FIELDS(F)                                                                                     \
    F(uint32_t, id)                                                                                                    \
    F(uint64_t, operations[OPERATION_NUMBERS][STATUS_NUMBERS])                                                         \
    F(uint64_t, bytes_in) F(uint64_t, bytes_out) /* of keys and values that came, and of values that were returned */
STRUCT(DoorTableStats, DOOR_TABLE_STATS_FIELDS);

// All of these structs, for Python. Any thread, without a door.
#define DOOR_STRUCTS(S)                                                                                                        \
    S(DoorConfig, DOOR_CONFIG_FIELDS) S(DoorTable, DOOR_TABLE_FIELDS) S(DoorScript, DOOR_SCRIPT_FIELDS)                        \
    S(DoorRefusal, DOOR_REFUSAL_FIELDS) S(DoorSlowCall, DOOR_SLOW_CALL_FIELDS) S(DoorEvent, DOOR_EVENT_FIELDS)                 \
    S(DoorHistogram, DOOR_HISTOGRAM_FIELDS) S(DoorMethodStats, DOOR_METHOD_STATS_FIELDS)                                       \
    S(DoorRespStats, DOOR_RESP_STATS_FIELDS) S(DoorStats, DOOR_STATS_FIELDS) S(DoorTableStats, DOOR_TABLE_STATS_FIELDS)
DOOR_EXPORT const char* gpkvs_door_structs(void);

// For a thread of Python's that is to call the door later: what the door keeps for it is there then (loop.hpp).
DOOR_EXPORT void gpkvs_door_begin_thread(void);

// Null where there is no memory, or the system gives no more threads or files.
DOOR_EXPORT Door* gpkvs_door_new(const DoorConfig* config);
// Stops it first, and ends its threads. No other thread may be inside the door, nor come.
DOOR_EXPORT void gpkvs_door_delete(Door* door);
// Returns the port, or -errno. Any thread.
DOOR_EXPORT int gpkvs_door_listen(Door* door, const char* host, uint16_t port, int protocol);
// The tables as they are from now on. Any thread; a table's removal is told in the engine's thread, between turns.
DOOR_EXPORT int gpkvs_door_set_tables(Door* door, const DoorTable* tables, uint64_t n);  // 0, or -ENOMEM
// The scripts of Redis that are known from now on. Any thread.
DOOR_EXPORT int gpkvs_door_set_scripts(Door* door, const DoorScript* scripts, uint64_t n);  // 0, or -ENOMEM

// Requests are taken from now on. Before, and while the door is shut, all calls are forwarded. Any thread.
DOOR_EXPORT void gpkvs_door_open(Door* door);
// With a refusal, requests that wait are refused so, until the door is opened again; a turn does it. Any thread.
DOOR_EXPORT void gpkvs_door_shut(Door* door, const DoorRefusal* refusal);
// How many requests wait to get into a batch; how many are not answered. Any thread.
DOOR_EXPORT uint64_t gpkvs_door_waiting(Door* door);
DOOR_EXPORT uint64_t gpkvs_door_requests(Door* door);
// The bytes that clients make the server hold, of a Kind (account.hpp). Any thread.
DOOR_EXPORT uint64_t gpkvs_door_held(Door* door, int kind);
DOOR_EXPORT void gpkvs_door_stats(Door* door, DoorStats* stats);  // any thread
// Returns how many tables there are; writes those for which there is room. Any thread.
DOOR_EXPORT uint64_t gpkvs_door_table_stats(Door* door, DoorTableStats* tables, uint64_t room);
// Takes the calls that took long, the oldest first; returns how many. Any thread.
DOOR_EXPORT uint64_t gpkvs_door_slow_calls(Door* door, DoorSlowCall* calls, uint64_t room);
// No new connections; those that are there end when their clients have their answers. Any thread.
DOOR_EXPORT void gpkvs_door_drain(Door* door);
DOOR_EXPORT uint64_t gpkvs_door_connections(Door* door);
// Closes all connections; turns end with TURN_STOPPED. Any thread, between a turn and its answer too.
DOOR_EXPORT void gpkvs_door_stop(Door* door);

// The engine's thread. Without an engine every batch is left. Null takes the engine away.
DOOR_EXPORT void gpkvs_door_set_engine(Door* door, const Engine* engine);
// Where the store keeps the time that counted last, by which keys expire.
DOOR_EXPORT void gpkvs_door_set_clock(Door* door, int64_t* ahead_us);
// Runs batches until there is something to do for Python (a DoorTurn): nothing came for so long, an interruption, a batch that
// was left, maintenance that is due, the end.
DOOR_EXPORT int gpkvs_door_turn(Door* door, uint64_t timeout_ns);
// Ends the turn soon, or the next one at once. Any thread.
DOOR_EXPORT void gpkvs_door_interrupt(Door* door);
// The batch that the turn left; it stays until it is answered by `left_done` or `left_failed`, before the next turn.
DOOR_EXPORT const EngineBatch* gpkvs_door_left(Door* door);
// Says what requests of it hear that lack something (EngineLeft), before the engine runs it again.
DOOR_EXPORT void gpkvs_door_left_lacks(Door* door, uint32_t what, const DoorRefusal* refusal);
// Has the engine run it again, which may be able to now. True: it is answered.
DOOR_EXPORT bool gpkvs_door_run_left(Door* door);
// Returns how many requests have heard that; nobody will any more.
DOOR_EXPORT uint64_t gpkvs_door_left_without(Door* door, uint32_t what);
// The first `covered` requests were executed; the others come again. Columns are those of the requests that were covered,
// joined. `versions` is null where the table has none. Answers leave when `gate` is durable.
DOOR_EXPORT void gpkvs_door_left_done(Door* door, uint64_t covered, const uint8_t* status, const uint64_t* versions,
                                      const uint32_t* value_lengths, const uint8_t* values, uint64_t gate);
// None was executed. Returns how many requests hear that, but for those that Python counts itself.
DOOR_EXPORT uint64_t gpkvs_door_left_failed(Door* door, const DoorRefusal* refusal);
// Without an engine: everything up to this gate is durable. Any thread.
DOOR_EXPORT void gpkvs_door_durable(Door* door, uint64_t gate);

// Calls that Python serves, in its event loop's thread. The file can be read while there are events; nobody else reads it.
DOOR_EXPORT int gpkvs_door_events_file(Door* door);
// Takes up to `room` of them. What they point to is there until the next call.
DOOR_EXPORT uint64_t gpkvs_door_events(Door* door, DoorEvent* events, uint64_t room);
// Lets one message come: a MESSAGE, or the HALF_CLOSED that says that none comes.
DOOR_EXPORT int gpkvs_door_ask(Door* door, uint64_t call);  // this and the next four: 0, or -ENOMEM
// Sends a response; a SENT says that the connection has taken it.
DOOR_EXPORT int gpkvs_door_respond(Door* door, uint64_t call, const uint8_t* response, uint64_t bytes);
// Ends a call after its responses. Trailers are lines, "name: value" each. Anything later for this call is ignored.
DOOR_EXPORT int gpkvs_door_finish(Door* door, uint64_t call, int code, const char* text, const char* trailers);
// Makes a request of a BatchRequest on a table, over a connection, in that one's place in the queue. An ANSWER with the ticket comes
// in any case. It must keep the table's limits, and is one request.
DOOR_EXPORT int gpkvs_door_submit(Door* door, uint64_t connection, uint64_t ticket, uint32_t table_id, uint64_t deadline_ns,
                                  const uint8_t* message, uint64_t bytes);  // this and the next: 0, or -ENOMEM
// Nobody waits for it any more: it is not executed if it is in no batch yet. The ANSWER comes all the same.
DOOR_EXPORT int gpkvs_door_withdraw(Door* door, uint64_t connection, uint64_t ticket);
// A connection that speaks RESP is one call with the path "/redis": each command that the door does not execute by itself is a
// MESSAGE: how many words it has, their lengths (u32 each), and they themselves; more commands may stand behind it, up to 64
// in all. If the client watches keys, a MESSAGE with these comes before (resp_message.hpp), and they are Python's from then on.
// Python answers each message by one `respond`, which may be empty, and `finish` closes the connection behind the answers. No
// other command is taken until Python has answered and asks for the next one. No SENT comes. This says how the session goes on,
// before the answer: the table of commands on keys (an id that there is not: Python takes them), RESP2 or RESP3, whether Python
// takes all commands, and whether answers of the door are sent. It begins with table 0, RESP2, not all, and answers. Where logins
// are asked for, Python says with an answer who has logged in (`logged_in`).
DOOR_EXPORT int gpkvs_door_set_session(Door* door, uint64_t call, uint32_t table, uint32_t protocol, bool hands_all,
                                       bool is_silent);
// To what such a connection has subscribed when Python's next answer is sent: two messages (resp_message.hpp), the channels and
// the patterns. It is told what follows behind that answer, in RESP2 or RESP3.
DOOR_EXPORT int gpkvs_door_set_subscriptions(Door* door, uint64_t call, uint32_t protocol, const uint8_t* words);
// Tells those who have subscribed of keys of a database that changed: columns of gpkvs/changes.py. It waits for nobody: who does
// not read is cut off. One thread at a time. 0, or -ENOMEM: not all were told.
DOOR_EXPORT int gpkvs_door_tell(Door* door, uint64_t database, uint64_t n, const uint8_t* kinds, const uint8_t* keys,
                                const uint32_t* key_lengths);
// Counts what Python holds for a connection (a Kind), or for none (0), or holds no more where the number is negative.
DOOR_EXPORT int gpkvs_door_charge(Door* door, uint64_t connection, int kind, int64_t bytes);

// New connections shake hands by this from now on. PEM: the server's chain of certificates and its key, and the CAs of
// clients, of which every client must show a certificate, or none. A handshake may take `handshake_ns`. Returns 0, or -1
// with the reason in `error`. Any thread.
DOOR_EXPORT int gpkvs_door_set_tls(Door* door, const char* chain, uint64_t chain_bytes, const char* key,
                                   uint64_t key_bytes, const char* client_ca, uint64_t client_ca_bytes,
                                   uint64_t handshake_ns, char* error, uint64_t error_bytes);

// Python decides who calls from now on (access.hpp); before the first `listen`.
DOOR_EXPORT void gpkvs_door_ask_for_logins(Door* door);
// What a caller may do from now on: tables by ascending ids, 1 to read, 2 to write, 3 for both. Any thread. These return 0,
// or -ENOMEM.
DOOR_EXPORT int gpkvs_door_set_rights(Door* door, uint64_t caller, const uint32_t* tables, const uint8_t* rights,
                                      uint64_t n);
// Who showed what a call shows: until a moment (CLOCK_MONOTONIC), and while it is shown again within `idle_ns`.
DOOR_EXPORT int gpkvs_door_logged_in(Door* door, uint64_t call, uint64_t caller, uint64_t end_ns, uint64_t idle_ns);
// A caller's logins count no longer; its calls that wait for a message are forwarded.
DOOR_EXPORT int gpkvs_door_end_caller(Door* door, uint64_t caller);
// Whoever shows a certificate may be somebody else now.
DOOR_EXPORT int gpkvs_door_forget_certificates(Door* door);
// Closes a connection, by its name, as soon as its requests are answered.
DOOR_EXPORT int gpkvs_door_close_answered(Door* door, const char* peer);

// The libraries that the door has, for people. Any thread, without a door.
DOOR_EXPORT const char* gpkvs_door_versions(void);

#ifdef __cplusplus
}
#endif
