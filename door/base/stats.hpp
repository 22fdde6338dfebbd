// What the door counts. One thread writes each of these, so an increment needs no lock and no exchange; Python reads.
#pragma once
#include <atomic>

#include "door.h"
#include "base/types.hpp"

namespace door {

class Counter {
  public:
    void add(u64 more = 1) { value_.store(value() + more, std::memory_order_relaxed); }
    u64 value() const { return value_.load(std::memory_order_relaxed); }

  private:
    std::atomic<u64> value_{0};
};

// Counts by upper bounds, and in the last place what is above all of them.
template <u64 BOUNDS>
class Histogram {
  public:
    explicit Histogram(const u64 (&bounds)[BOUNDS]) : bounds_(bounds) {}

    void observe(u64 value) {
        u64 place = 0;
        while (place < BOUNDS && value > bounds_[place]) place++;
        counts[place].add();
        sum.add(value);
    }

    Counter counts[BOUNDS + 1];
    Counter sum;

  private:
    const u64 (&bounds_)[BOUNDS];
};

// The buckets of server/signs/exporter.py.
constexpr u64 NANOSECONDS_BOUNDS[] = {
    100000,     250000,     500000,      1000000,     2500000,     5000000,      10000000,     25000000,
    50000000,   100000000,  250000000,   500000000,   1000000000,  2500000000,   5000000000,   10000000000,
};
constexpr u64 OPERATIONS_BOUNDS[] = {1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576};

using Nanoseconds = Histogram<sizeof NANOSECONDS_BOUNDS / sizeof *NANOSECONDS_BOUNDS>;
using Operations = Histogram<sizeof OPERATIONS_BOUNDS / sizeof *OPERATIONS_BOUNDS>;

constexpr u64 OPS = OPERATION_NUMBERS, STATUSES = STATUS_NUMBERS;

// Of the engine's thread.
struct EngineStats {
    Counter cancelled, expired;  // requests that were dropped
    Counter conflicts;           // requests that a check stopped
    Operations batch_operations{OPERATIONS_BOUNDS}, batch_requests{OPERATIONS_BOUNDS};
    Nanoseconds batch_ns{NANOSECONDS_BOUNDS};
};

constexpr u64 CODES = 17;  // of gRPC

// Of one method, in one thread of connections: the calls that no handler of Python's has seen end.
struct MethodStats {
    Counter started;  // also those that were forwarded later
    Counter handled[CODES];
    Nanoseconds ns{NANOSECONDS_BOUNDS};
};

enum StatsMethod { STATS_GET, STATS_SET, STATS_DELETE, STATS_INCREMENT, STATS_MULTI_GET, STATS_BATCH, STATS_PIPELINE, STATS_METHODS };

// Why the door itself refused a request, before it was executed.
enum StatsRefusal { STATS_MEMORY_FULL, STATS_QUEUE_FULL, STATS_UNSUPPORTED, STATS_SLOW, STATS_REFUSALS };

// Why the door refused a connection, or closed one: first, what ended it before it was of use.
enum StatsConnection {
    STATS_CONNECTIONS_FULL,
    STATS_FILES_FULL,
    STATS_CONNECTION_MEMORY_FULL,
    STATS_HTTP1,
    STATS_TLS,    // where none is spoken
    STATS_PLAIN,  // where TLS is spoken
    STATS_HANDSHAKE,
    STATS_FOREIGN,   // another protocol of ours
    STATS_GAVE_WAY,  // a stranger, for a newcomer
    STATS_SILENT,    // a stranger that stayed one for too long
    STATS_SLOW_HEADERS,  // the rest of a call's headers did not come
    STATS_FLOOD,         // too much that costs and brings nothing
    STATS_UNREACHABLE,   // no answer to a ping
    STATS_UNREAD,        // nobody read the last bytes
    STATS_NO_MEMORY,     // for what it asked for
    STATS_INVALID,       // what it sent breaks the rules of its protocol
    STATS_USER_GONE,
    STATS_BEHIND,  // it did not read the messages to which it had subscribed
    STATS_CONNECTIONS
};

// The first word of an error that the door answers with.
enum StatsRespError { STATS_ERR, STATS_OOM, STATS_EXECABORT, STATS_RESP_ERRORS };

// Of RESP.
struct RespStats {
    Counter commands[DOOR_REDIS_COMMANDS];
    Counter errors[STATS_RESP_ERRORS];
    Counter opened, closed;  // connections
};

// Of one thread of connections.
struct ThreadStats {
    MethodStats methods[STATS_METHODS];
    Counter refused[STATS_REFUSALS];
    Counter connections_refused[STATS_CONNECTIONS];
    Counter damaged_values;  // of those that were lent: the engine took their GETs for done
    Counter slow, slow_unnoted;  // calls that took long; of these, those that the slow log does not have
    RespStats resp;
};

}  // namespace door
