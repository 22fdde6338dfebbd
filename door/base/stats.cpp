// What Python reads of the door's counters.
#include "base/stats.hpp"

#include "door.hpp"

namespace door {

namespace {

template <u64 BOUNDS>
void add(DoorHistogram& sums, const Histogram<BOUNDS>& own) {
    for (u64 place = 0; place <= BOUNDS; place++) sums.counts[place] += own.counts[place].value();
    sums.sum += own.sum.value();
}

void add(DoorMethodStats& sums, const MethodStats& own) {
    sums.started += own.started.value();
    for (u64 code = 0; code < CODES; code++) sums.handled[code] += own.handled[code].value();
    add(sums.ns, own.ns);
}

void add(DoorRespStats& sums, const RespStats& own) {
    for (u64 command = 0; command < DOOR_REDIS_COMMANDS; command++) sums.commands[command] += own.commands[command].value();
    for (u64 kind = 0; kind < STATS_RESP_ERRORS; kind++) sums.errors[kind] += own.errors[kind].value();
    sums.opened += own.opened.value();
    sums.closed += own.closed.value();
}

void add(uint64_t (&sums)[OPS][STATUSES], const TableStats& own) {
    for (u64 op = 0; op < OPS; op++)
        for (u64 status = 0; status < STATUSES; status++) sums[op][status] += own.operations[op][status].value();
}

}  // namespace

}  // namespace door

using namespace door;

void gpkvs_door_stats(Door* door, DoorStats* stats) {
    *stats = {};
    u64 damaged = 0;
    for (const auto& thread : door->threads) {
        for (u64 method = 0; method < STATS_METHODS; method++) add(stats->methods[method], thread->stats.methods[method]);
        for (u64 why = 0; why < STATS_REFUSALS; why++) stats->refused[why] += thread->stats.refused[why].value();
        for (u64 why = 0; why < STATS_CONNECTIONS; why++)
            stats->connections_refused[why] += thread->stats.connections_refused[why].value();
        add(stats->resp, thread->stats.resp);
        stats->slow += thread->stats.slow.value();
        stats->slow_unnoted += thread->stats.slow_unnoted.value();
        damaged += thread->stats.damaged_values.value();
    }
    stats->resp.messages = door->subscribers.messages.value();
    const EngineStats& engine = door->engine_stats;
    stats->cancelled = engine.cancelled.value();
    stats->expired = engine.expired.value();
    stats->conflicts = engine.conflicts.value();
    std::lock_guard<std::mutex> guard(door->tables_mutex);
    add(stats->operations, door->dropped_tables);
    add(stats->operations, door->gone_tables);
    for (const auto& [id, table] : door->tables.value()->all_stats()) add(stats->operations, *table);
    stats->operations[op::GET][status::CORRUPT] += damaged;  // beside those that the engine itself has found
    add(stats->batch_operations, engine.batch_operations);
    add(stats->batch_requests, engine.batch_requests);
    add(stats->batch_ns, engine.batch_ns);
}

u64 gpkvs_door_table_stats(Door* door, DoorTableStats* tables, u64 room) {
    std::lock_guard<std::mutex> guard(door->tables_mutex);
    u64 count = 0;
    for (const auto& [id, own] : door->tables.value()->all_stats()) {
        if (count < room) {
            DoorTableStats& table = tables[count] = {};
            table.id = id;
            add(table.operations, *own);
            table.bytes_in = own->bytes_in.value();
            table.bytes_out = own->bytes_out.value();
        }
        count++;
    }
    return count;
}
