// The native engine: one call plans a batch, hands its results over and commits it, without Python. Python gives it turns, and
// between them does what runs beside batches. A batch that lacks something is left, until Python has done that.
#pragma once
#include <algorithm>

#include "commit/changes.hpp"
#include "commit/commit.hpp"
#include "base/counted_time.hpp"
#include "engine_batch.h"
#include "plan/kept_resolver.hpp"
#include "plan/kinds.hpp"
#include "space/late_slots.hpp"
#include "plan/native_planner.hpp"
#include "plan/native_resolve.hpp"

// A table, as it is for a turn. `earliest`: when a key of each of its `ranges` expires first; null: none may expire yet.
// `late`: of the mirror that a GPU has of the index; null: there is none. `row_element`: of a table of rows (RowElement), else 0.
#define ENGINE_TABLE_FIELDS(F)                                                              \
    F(u64, id) F(u64, generation) F(u64, entry_bytes) F(void*, index) F(u64, index_file) GEOMETRY_ARGS(F) \
    F(u64*, marks) F(Held*, held) F(LateSlots*, late) F(u64, row_element) F(u64, looks_at) F(u64, gained) F(u64, ranges) F(u64*, earliest)

struct EngineTable {
    ENGINE_TABLE_FIELDS(GPKVS_FIELD)
};

// `tables`: by id. A turn ends at `ends_at_ns`, when the records of a table are more than its `looks_at`, or when so many
// units of the heap were taken, or another segment. `leaves`: why no batch of it runs (EngineLeft), or 0. `ahead_us`: the word
// of the time that counts (counted_time.hpp), where some key may expire. `held_ms`: the time that counts for the next batch that runs; 0: the clock's.
// `closed`: a bit for each reason (EngineLeft) for which Python can do nothing now: who lacks that is refused. `log_ops_max`: the
// operations of the largest batch that is not of GETs alone. `device_ops`: from how many operations
// on a batch is left for a GPU: a row for tables with records, one for tables of numbers, each with a number for each Mix; null:
// none is. `taken`: what batches took which a GPU could run as well: such rows, with `taken_sizes` sums for each Mix, by the bits of
// the operations; null: nobody asks. `gathered_max`: of a batch with more operations only the first messages run.
// `short_value_bytes`: so much of each value does not count among what a batch may bring. `gone`: why DELETEs remove keys (ChangeKind).
#define NATIVE_ENGINE_FIELDS(F)                                                             \
    F(EngineTable*, tables) F(u64, table_count) F(u64, leaves) F(u64, ops_max_bytes) F(u64, ops_max_u64)   \
    F(int64_t*, ahead_us) F(u64, held_ms) F(u64, ends_at_ns) F(u64, heap_units_max) F(u64, closed) F(u64, log_ops_max) F(const u64*, device_ops) \
    F(Taken*, taken) F(u64, taken_sizes) F(u64, gathered_max) F(u64, short_value_bytes) F(u64, gone) \
    F(u64, commits) F(u64, heap_units)                                                      \
    F(const Committer*, committer) F(Commit*, commit) F(u64*, meter) F(Failpoint*, failpoint) F(const u64*, heap_state) \
    F(PlannerBytes*, planner_bytes) F(PlannerU64*, planner_u64) F(u64, result_bytes_max) \
    F(u64, value_bytes_max) F(u64, made_bytes_max) F(ChangeLog*, changes)

struct Taken {
    u64 batches, operations, ns;
};

static const u64 NO_BOUND = ~0ull;

struct NativeEngine {
    NATIVE_ENGINE_FIELDS(GPKVS_FIELD)
};

static EngineTable* find_table(const NativeEngine& e, u64 id) {
    EngineTable* end = e.tables + e.table_count;
    EngineTable* found =
        std::lower_bound(e.tables, end, id, [](const EngineTable& table, u64 wanted) { return table.id < wanted; });
    return found != end && found->id == id ? found : nullptr;
}

// Gives a batch to a planner.
template <class Planner>
static void give_batch(Planner& a, const EngineBatch& batch, const EngineTable& table) {
    a.n = batch.n;
    a.given_ops = batch.ops;
    a.op_step = 1;
    a.keys = batch.keys;
    a.values = batch.values;
    a.given_key_lengths = batch.key_lengths;
    a.key_length_step = batch.key_length_step;
    a.given_value_lengths = batch.value_lengths;
    a.value_length_step = batch.value_length_step;
    a.table_id = table.id;
    a.index = (decltype(a.index))table.index;
    a.blocks = table.blocks;
    a.unmoved = table.unmoved;
    a.expiries = (const u64*)batch.expiries;
    a.given_versions = (const u64*)batch.versions;
    a.kept = nullptr;
    a.requests = batch.requests;
    a.request_ops = batch.request_ops;
    a.found_words = (u64*)batch.found_words;
    a.lends_blobs = batch.lends_blobs && a.blob_plan;
    if (!a.blob_plan) return;
    a.blob_plan->offer(batch.upload);
    a.blobs = a.blob_plan->base();
    a.blob_file_pages = a.blob_plan->pages();
}

// Whether no request reads more than one may; where such are refused, it says which.
template <class Planner>
static bool may_read(const NativeEngine& e, const Planner& a, const EngineBatch& batch) {
    if (a.planned[PLANNED_RESULT_BYTES] <= e.result_bytes_max) return true;
    bool may = true;
    u64 op = 0, get = 0;
    for (u64 request = 0; request < batch.requests; request++) {
        u64 bytes = 0;
        for (const u64 end = op + batch.request_ops[request]; op < end; op++)
            if (a.ops[op] == OP_GET) bytes += length_of(a, get++);
        if (bytes <= e.result_bytes_max) continue;
        if (a.refused) a.refused[request] = LEFT_LARGE_READS;
        may = false;
    }
    return may;
}

template <class Planner>
static u64 lent_count(const Planner& a) { return a.lends_blobs ? a.blob_plan->lent().size() : 0; }

// What a value that is lent counts as.
template <class Planner>
static u64 lent_bytes(const Planner& a, u64 lent) { return std::min<u64>(a.blob_plan->lent()[lent].bytes, ENGINE_LENT_BYTES); }

// How many bytes a planned batch returns.
template <class Planner>
static u64 returned_bytes(const Planner& a) {
    u64 bytes = a.planned[PLANNED_RESULT_BYTES];
    for (u64 lent = 0; lent < lent_count(a); lent++) bytes += lent_bytes(a, lent);
    return bytes;
}

// The first messages of a batch, as long as the next one fits: `fits` is given what there is so far, and the requests of that
// message and where its operations end.
template <class Fits>
static EngineBatch first_messages(const EngineBatch& batch, Fits fits) {
    EngineBatch first = batch;
    first.n = first.requests = first.messages = 0;
    for (; first.messages < batch.messages; first.messages++) {
        const u64 requests = batch.message_requests[first.messages];
        u64 end = first.n;
        for (u64 request = 0; request < requests; request++) end += batch.request_ops[first.requests + request];
        if (!fits(first, requests, end)) break;
        first.n = end;
        first.requests += requests;
    }
    return first;
}

// Those of a planned batch that bring no more values than they may: a lone request may, or none.
template <class Planner>
static EngineBatch cut_to_values(const NativeEngine& e, const Planner& a, const EngineBatch& batch) {
    u64 bytes = 0, get = 0, lent = 0;
    return first_messages(batch, [&](const EngineBatch& first, u64 requests, u64 end) {
        for (u64 op = first.n; op < end; op++) {
            if (a.ops[op] != OP_GET) continue;
            const u64 length = length_of(a, get);
            bytes += length - std::min(length, e.short_value_bytes);
            if (lent < lent_count(a) && a.blob_plan->lent()[lent].value == get) bytes += lent_bytes(a, lent++);
            get++;
        }
        return bytes <= batch.value_bytes_max || (!first.messages && requests == 1);
    });
}

static EngineBatch half_of(const EngineBatch& batch) {
    return first_messages(batch, [&](const EngineBatch& first, u64, u64) { return first.messages < batch.messages / 2; });
}

// Those that have no more operations than they may, or the first one.
static EngineBatch cut_to_operations(const EngineBatch& batch, u64 operations_max) {
    return first_messages(batch, [&](const EngineBatch& first, u64, u64 end) { return end <= operations_max || !first.messages; });
}

// Whether a batch that is not of GETs alone may have more operations than undo log or journal have entries for.
static bool exceeds_log(const NativeEngine& e, const EngineBatch& batch) {
    return batch.n > e.log_ops_max && std::any_of(batch.ops, batch.ops + batch.n, [](u8 op) { return op != OP_GET; });
}

// The gate of a planned batch that changes nothing.
template <class Planner>
static u64 read_gate(const NativeEngine& e, Planner& a, const EngineTable& table) {
    u64 stable_sequence;
    const u64 newest = e.committer->read_gate(*e.commit, stable_sequence);
    if (stable_sequence == ALL_STABLE) return newest;
    a.marks = table.marks;
    a.stable_sequence = stable_sequence;
    gate_run<Planner>(&a, 0, 1);
    return std::min(newest, a.planned[PLANNED_GATE]);
}

// Whether every value that GETs return fits its place, and none is damaged.
template <class Planner>
static bool fits_places(const Planner& a, const EngineRoom& room) {
    for (u64 get = 0; get < a.planned[PLANNED_GETS]; get++)
        if (length_of(a, get) > room.place_bytes[get]) return false;
    return !memchr(a.status, STATUS_CORRUPT, a.n);
}

// Gives the values that are lent: each is its taker's at once, whatever comes of the batch. std::bad_alloc.
template <class Planner>
static void give_blobs(Planner& a, NativeResolver* resolver, const EngineRoom& room) {
    for (u64 lent = 0; lent < room.blob_count; lent++) {
        EngineBlob blob = a.blob_plan->lent()[lent];
        const u64 get = blob.value;
        if (resolver) resolver->place_blob(get, blob);
        else blob.operation = op_of(a, get);
        a.blob_plan->pin(blob);
        room.blobs[lent] = blob;
    }
}

// Gives the results of a planned batch. Without room for them, false.
template <class Planner>
static bool give_results(Planner& a, NativeResolver* resolver, EngineGivesRoom give_room, void* sink) try {
    EngineRoom room = {};
    room.blob_count = lent_count(a);
    if (resolver) {
        resolver->place_results(a);
        const NativeResolver& r = *resolver;
        if (!give_room(sink, r.operations(), r.returning(), r.value_bytes(), r.refusals(), &room)) return false;
        r.give_results(a, room);
    } else {
        if (!give_room(sink, a.n, a.planned[PLANNED_GETS], a.planned[PLANNED_RESULT_BYTES], 0, &room)) return false;
        memcpy(room.status, a.status, a.n);
        for (u64 get = 0; room.value_lengths && get < a.planned[PLANNED_GETS]; get++) room.value_lengths[get] = length_of(a, get);
        if (has_records<typename Planner::Slot>) memcpy(room.versions, a.versions, a.n * sizeof *room.versions);
        else if (room.versions) memset(room.versions, 0, a.n * sizeof *room.versions);
    }
    if (a.lends_blobs) give_blobs(a, resolver, room);
    if (!a.planned[PLANNED_RESULT_BYTES]) return true;
    if (room.places) {
        if (!fits_places(a, room)) return true;
        memcpy(a.offset, room.places, a.planned[PLANNED_GETS] * sizeof *a.offset);
    }
    a.out = room.values;
    values_run<Planner>(&a, 0, 1);
    return true;
} catch (const std::bad_alloc&) {
    return false;
}

// Commits a planned batch that changes something, or gives versions; returns its gate, or NO_GATE.
template <class Planner>
static u64 commit_planned(NativeEngine& e, Planner& a, EngineTable& table) {
    TableWrites& w = *a.writes;
    w.held = table.held;
    w.generation = table.generation;
    w.entry_bytes = table.entry_bytes;
    w.index_file = table.index_file;
    w.marks = table.marks;
    Commit& c = *e.commit;
    c.tables[0] = &w;
    c.table_count = 1;
    c.operations = a.n;
    c.tail_segment = a.planned[PLANNED_TAIL_SEGMENT];
    c.tail_units = a.planned[PLANNED_TAIL_UNITS];
    e.committer->commit(c);
    if (c.gate == NO_GATE) return NO_GATE;
    e.commits++;
    e.heap_units += w.heap_units;
    table.gained += w.new_keys;
    if (table.late) note_late(*table.late, w.changed_slot, w.slots);
    if (e.changes->is_on()) e.changes->tell(a, c.gate, (ChangeKind)e.gone);
    return c.gate;
}

// Whether a plain batch would have a key expire.
template <class Planner>
static bool gives_expiry(const Planner& a) {
    for (u64 op = 0; op < a.n; op++)
        if (a.ops[op] == OP_SET && a.expiries[op]) return true;
    return false;
}

// Takes note of the expiries of a batch that is committed (`Expiry.committed`).
template <class Planner>
static void note_expiries(const Planner& a, const EngineTable& table) {
    if constexpr (has_records<typename Planner::Slot>) {
        const note_expiries_args taken = {a.contents, a.writes->slots, a.heap, a.heap_bytes, a.record_format, table.ranges, table.earliest};
        a.pool->run(&gpkvs_kernel_note_expiries, &taken, 1, 1);
    }
}

// Makes plain operations of those that look first, on keys that the planner finds; returns why the batch is left.
template <class Planner>
static EngineLeft resolve_batch(NativeEngine& e, Planner& a, const EngineTable& table, NativeResolver& resolver,
                                const EngineBatch& batch) try {
    locate_run<Planner>(&a, 0, 1);
    if (a.planned[PLANNED_LEFT]) return (EngineLeft)a.planned[PLANNED_LEFT];
    if (a.now && meets_expired(a, a.planned[PLANNED_CHAINS])) return LEFT_EXPIRED;
    const u64 together = batch.messages > 1 ? batch.value_bytes_max : NO_BOUND;
    const EngineLeft left = resolver.resolve(a, batch, table.row_element, e.value_bytes_max, std::min(e.made_bytes_max, together));
    if (!left) end_phase(e.meter, PHASE_RESOLVE);
    return left;
} catch (const std::bad_alloc&) {
    return LEFT_MEMORY;
}

static bool is_closed(const NativeEngine& e, u64 reason) { return e.closed >> reason & 1; }

// When keys count as expired; 0: none may, or what looks so is only damaged.
static u64 time_of(const NativeEngine& e) {
    if (!e.ahead_us || is_closed(e, LEFT_EXPIRED)) return 0;
    return e.held_ms ? e.held_ms : counted_ms(e.ahead_us);
}

// Plans a batch, which becomes plain first where there is a resolver for it; returns why not all of it fits.
template <class Planner>
static EngineLeft plan_given(NativeEngine& e, Planner& a, const EngineTable& table, const EngineBatch& batch, NativeResolver* resolver) {
    if (a.blob_plan && !a.blob_plan->is_mapped()) return LEFT_GROW_BLOBS;
    give_batch(a, batch, table);
    a.first_sequence = e.committer->next_sequence(*e.commit);
    a.now = time_of(e);
    e.commit->time_ms = std::max(e.commit->time_ms, a.now);
    a.is_located = 0;
    a.planned[PLANNED_RESULT_BYTES] = 0;
    if (resolver) {
        if (const EngineLeft left = resolve_batch(e, a, table, *resolver, batch)) return left;
        give_batch(a, resolver->plain(), table);
        a.kept = resolver->kept();
        a.is_located = 1;
        a.now = 0;  // it met no expired key
    }
    plan_run<Planner>(&a, 0, 1);
    return (EngineLeft)a.planned[PLANNED_LEFT];
}

template <class Planner>
static bool writes_any(const Planner& a) {
    return a.writes->slots || a.planned[PLANNED_SETS];  // a SET has a version, even if its key is deleted after
}

// Plans as many of the first messages as may run together; returns why they do not.
template <class Planner>
static EngineLeft plan_first(NativeEngine& e, Planner& a, const EngineTable& table, EngineBatch& batch, NativeResolver* resolver) {
    const bool is_refused = a.refused && batch.requests == 1 && *a.refused;  // then it writes nothing
    if (exceeds_log(e, batch) && !is_refused) return LEFT_GROW_LOG;
    EngineLeft left = plan_given(e, a, table, batch, resolver);
    // Others must not wait for what one makes of long values: they are read, checked and written anew.
    while (resolver && batch.messages > 1 && resolver->made_bytes() > std::min<u64>(e.made_bytes_max, batch.value_bytes_max)) {
        batch = half_of(batch);
        left = plan_given(e, a, table, batch, resolver);
    }
    if (batch.requests > 1 && returned_bytes(a) > batch.value_bytes_max) {
        const EngineBatch first = cut_to_values(e, a, batch);
        if (!first.messages) return LEFT_LARGE_READS;
        if (first.messages < batch.messages) left = plan_given(e, a, table, batch = first, resolver);
    }
    if (left) return left;
    if (!may_read(e, a, batch)) return LEFT_LARGE_READS;
    if (a.expiries && !table.earliest && gives_expiry(a)) return LEFT_EXPIRY;
    return writes_any(a) ? (EngineLeft)e.committer->lacks(*e.commit, run_words(a.writes->slots, table.entry_bytes)) : LEFT_NOT;
}

static u64 count_refused(const std::vector<u8>& refused) { return refused.size() - (u64)std::count(refused.begin(), refused.end(), 0); }

// Plans a batch that lacks what cannot be had: without the requests that lack it, or fewer messages. A plan itself refuses who
// finds no slot, or would be charged too much. Returns why the batch is left after all.
template <class Planner>
static EngineLeft plan_closed(NativeEngine& e, Planner& a, const EngineTable& table, EngineBatch& batch, NativeResolver& resolver,
                              std::vector<u8>& refused) try {
    refused.resize(batch.requests);
    resolver.refuse(refused.data());
    a.refused = refused.data();
    EngineLeft left;
    for (u64 before = count_refused(refused);; before = count_refused(refused)) {
        left = plan_first(e, a, table, batch, &resolver);
        if (!left || !is_closed(e, left)) break;
        const bool has_one = batch.messages == 1 && batch.requests == 1;
        if (count_refused(refused) > before) continue;
        if (has_one && !refused[0]) refused[0] = (u8)left;
        else if (batch.messages > 1) batch = exceeds_log(e, batch) ? cut_to_operations(batch, e.log_ops_max) : half_of(batch);
        else break;
    }
    a.refused = nullptr;
    return left;
} catch (const std::bad_alloc&) {
    a.refused = nullptr;
    return LEFT_MEMORY;
}

template <class Planner>
static EngineRan run_on(NativeEngine& e, Planner& a, EngineTable& table, EngineBatch batch, EngineGivesRoom give_room,
                        void* sink, u64& requests, u64& gate) {
    const bool may_shrink = a.outside_bytes && !is_closed(e, LEFT_COLUMNS);
    if (batch.upload && !stores_upload(batch)) batch.upload = nullptr;
    if (batch.n > a.ops_room || (may_shrink && batch.n <= a.ops_kept)) return leave(e.meter, LEFT_COLUMNS);
    KeptResolver kept;
    const bool looks = looks_first(batch);
    NativeResolver* resolver = looks ? kept.take() : nullptr;
    if (looks && !resolver) return leave(e.meter, LEFT_MEMORY);
    std::vector<u8> refused;  // of each request, what it lacks; empty: none lacks anything
    EngineLeft left = LEFT_NOT;
    const bool is_of_records = has_records<typename Planner::Slot>;
    if (looks || (!is_of_records && batch.expiries)) {
        if (refuse_other_layouts(batch, is_of_records, table.row_element, refused)) left = LEFT_LAYOUT;
        if (!is_of_records) batch.expiries = nullptr;
    }
    e.committer->land(*e.commit);
    const u64 segment = e.heap_state[HEAP_TAIL_SEGMENT];
    if (!left) left = plan_first(e, a, table, batch, resolver);
    if (left && is_closed(e, left)) {
        if (!resolver) resolver = kept.take();
        left = resolver ? plan_closed(e, a, table, batch, *resolver, refused) : LEFT_MEMORY;
    }
    requests = batch.requests;
    if (!left && !give_results(a, resolver, give_room, sink)) left = LEFT_MEMORY;
    if (left) return leave(e.meter, left);
    end_phase(e.meter, PHASE_PLAN);
    e.meter[METER_PLANNED] = e.meter[METER_LAST];
    const bool writes = writes_any(a);
    gate = writes ? commit_planned(e, a, table) : read_gate(e, a, table);
    if (gate == NO_GATE) return leave(e.meter, LEFT_MEMORY);
    e.meter[METER_TRANSACTIONS]++;
    if (a.expiries && table.earliest) note_expiries(a, table);
    if (!writes) return e.meter[METER_LAST] < e.ends_at_ns ? ENGINE_DONE : ENGINE_DUE;
    const bool is_due = e.meter[METER_LAST] >= e.ends_at_ns || e.heap_units >= e.heap_units_max ||
                        e.heap_state[HEAP_TAIL_SEGMENT] != segment ||
                        (a.writes->new_keys && table.held->records > table.looks_at);
    return is_due ? ENGINE_DUE : ENGINE_DONE;
}

// Refuses all requests of a batch, whose table is gone.
static EngineRan refuse_all(NativeEngine& e, const EngineBatch& batch, EngineGivesRoom give_room, void* sink, u64& requests, u64& gate) {
    EngineRoom room = {};
    if (!give_room(sink, 0, 0, 0, batch.requests, &room)) return leave(e.meter, LEFT_MEMORY);
    for (u64 request = 0; request < batch.requests; request++) room.refusals[request] = {request, LEFT_TABLE, 0, 0, 0};
    requests = batch.requests;
    gate = 0;
    return ENGINE_DONE;
}

// What a batch mostly does (`Mix` in gpkvs/backends/path_costs.py).
enum Mix { MIX_READS, MIX_FEW_WRITES, MIX_WRITES, MIXES };

static Mix mix_of(const EngineBatch& batch) {
    const u64 writes = batch.n - count_kinds(batch.ops, batch.n).gets;
    return !writes ? MIX_READS : 4 * writes < batch.n ? MIX_FEW_WRITES : MIX_WRITES;
}

// Whether a GPU could run a batch.
static bool is_for_any(const EngineBatch& batch, bool is_bytes) {
    return !looks_first(batch) && !batch.upload && (is_bytes || !batch.expiries);
}

// Whether a GPU may take less time for a batch than the host's threads do; Python decides that.
static bool may_be_for_device(const NativeEngine& e, const EngineBatch& batch, bool is_bytes) {
    if (!e.device_ops) return false;
    const u64* const least = e.device_ops + (is_bytes ? 0 : MIXES);
    if (batch.n < *std::min_element(least, least + MIXES)) return false;
    return is_for_any(batch, is_bytes) && batch.n >= least[mix_of(batch)];
}

// Takes note of what a batch took, from one time to the meter's last one.
static void note_taken(const NativeEngine& e, const EngineBatch& batch, bool is_bytes, u64 began_ns) {
    if (!e.taken || !is_for_any(batch, is_bytes)) return;
    const u64 bits = std::min<u64>(64 - (u64)__builtin_clzll(batch.n), e.taken_sizes - 1);
    Taken& taken = e.taken[((is_bytes ? 0 : MIXES) + mix_of(batch)) * e.taken_sizes + bits];
    taken.batches++;
    taken.operations += batch.n;
    taken.ns += e.meter[METER_LAST] - began_ns;
}

// Runs a batch; see `Engine` (engine_batch.h). Nobody has been told of it yet.
static EngineRan run_batch(NativeEngine& e, EngineBatch batch, EngineGivesRoom give_room, void* sink, u64& requests,
                           u64& gate, u64& has_versions) {
    EngineTable* table = find_table(e, batch.table_id);
    if (!table && e.leaves) return leave(e.meter, (EngineLeft)e.leaves);
    if (!table && is_closed(e, LEFT_TABLE)) return refuse_all(e, batch, give_room, sink, requests, gate);
    if (!table) return leave(e.meter, LEFT_TABLE);
    const bool is_bytes = table->entry_bytes == sizeof(Entry<BytesSlot>);
    has_versions = is_bytes;
    if (may_be_for_device(e, batch, is_bytes)) return leave(e.meter, LEFT_DEVICE);
    if (batch.n > e.gathered_max) batch = cut_to_operations(batch, e.gathered_max);
    if (batch.n > (is_bytes ? e.ops_max_bytes : e.ops_max_u64)) return leave(e.meter, LEFT_COLUMNS);
    const u64 began_ns = e.meter[METER_LAST] = monotonic_ns();
    const EngineRan ran = is_bytes ? run_on(e, *e.planner_bytes, *table, batch, give_room, sink, requests, gate)
                                   : run_on(e, *e.planner_u64, *table, batch, give_room, sink, requests, gate);
    if (ran == ENGINE_LEFT) return ran;  // Python looks at the columns
    e.held_ms = 0;
    if (requests == batch.requests) note_taken(e, batch, is_bytes, began_ns);
    if (is_bytes) lend_outside(*e.planner_bytes);
    else lend_outside(*e.planner_u64);
    return ran;
}

// Has room for a value that will come in pieces; see `Engine`.
static EngineRan reserve(NativeEngine& e, u64 value_bytes, EngineUpload& out, u64& lacks) try {
    Blobs* const blobs = e.planner_bytes->blob_plan;
    if (e.leaves) return leave(e.meter, (EngineLeft)e.leaves);
    if (!blobs->is_mapped()) return leave(e.meter, LEFT_GROW_BLOBS);
    const u64 first = blobs->reserve(value_bytes);
    if (first == NO_BLOB && is_closed(e, LEFT_GROW_BLOBS)) {
        lacks = LEFT_GROW_BLOBS;
        return ENGINE_DONE;
    }
    if (first == NO_BLOB) return leave(e.meter, LEFT_GROW_BLOBS);
    try {
        out = {&BLOB_UPLOADS, new BlobUpload(*blobs, first, value_bytes)};
    } catch (const std::bad_alloc&) {
        blobs->give_back(first, blob_pages(value_bytes));
        throw;
    }
    return ENGINE_DONE;
} catch (const std::bad_alloc&) {
    return leave(e.meter, LEFT_MEMORY);
}

// The calls of `Engine` (engine_batch.h).
extern "C" {

int gpkvs_engine_reserve(void* self, uint64_t value_bytes, EngineUpload* out, uint64_t* lacks) {
    u64 lacking = 0;
    const EngineRan ran = reserve(*(NativeEngine*)self, value_bytes, *out, lacking);
    *lacks = lacking;
    return ran;
}

int gpkvs_engine_run(void* self, const EngineBatch* batch, EngineGivesRoom give_room, void* sink, uint64_t* requests,
                     uint64_t* gate, uint64_t* has_versions) {
    NativeEngine& e = *(NativeEngine*)self;
    u64 run_requests = 0, found_gate = 0, are_versions = 0;
    const EngineRan ran = run_batch(e, *batch, give_room, sink, run_requests, found_gate, are_versions);
    if (ran == ENGINE_LEFT) return ran;
    *requests = run_requests;
    *gate = found_gate;
    *has_versions = are_versions;
    if (found_gate <= e.committer->durable(*e.commit)) e.failpoint->hit("before_reply");
    return ran;
}

uint64_t gpkvs_engine_durable(void* self) {
    const NativeEngine& e = *(const NativeEngine*)self;
    return e.committer->durable(*e.commit);
}

void gpkvs_engine_wait(void* self, uint64_t gate) {
    const NativeEngine& e = *(const NativeEngine*)self;
    e.committer->wait(*e.commit, gate);
    e.failpoint->hit("before_reply");
}

uint64_t gpkvs_count_time(int64_t* ahead_us, int64_t wall_us, int64_t passed_us) {
    return count_time(ahead_us, wall_us, passed_us);
}

}  // extern "C"

// The names of EngineLeft behind LEFT_NOT, for Python.
#define ENGINE_LEFT_NAME(name) #name " "
extern "C" const char gpkvs_engine_left_reasons[] = ENGINE_LEFT_REASONS(ENGINE_LEFT_NAME);

// Begins to sum up a turn.
static void begin_turn_run(const void* args, u64, u64) {
    NativeEngine& e = *(NativeEngine*)args;
    e.commits = e.heap_units = 0;
    for (u64 t = 0; t < e.table_count; t++) e.tables[t].gained = 0;
}

GPKVS_STEP(begin_turn, NativeEngine, NATIVE_ENGINE_FIELDS, begin_turn_run, 0);
