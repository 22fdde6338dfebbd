// The native engine's batches that look first (resolve.hpp): they become plain ones before they are planned, and their results
// those of the operations that were asked for.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "engine_batch.h"
#include "plan/native_planner.hpp"
#include "plan/resolve.hpp"

// What an operation returns besides a GET's value: a number of 8 bytes.
static bool returns_number(u32 op) { return op == OP_INCREMENT || op == OP_EXPIRY || op == OP_LENGTH; }

// Whether a table's layout has an operation of a batch. Of a table of rows it is known that values have the right length.
static bool is_of_layout(const EngineBatch& batch, u64 op, bool has_records, u64 row_element) {
    const u8 kind = batch.ops[op];
    if (has_records && !row_element) return kind != OP_ADD;
    if (has_records) return kind != OP_INCREMENT && kind != OP_APPEND && kind < OP_SETRANGE;
    const bool may_expire = kind == OP_SET || kind == OP_INCREMENT;
    return kind != OP_APPEND && kind < OP_EXPIRE && !(may_expire && batch.expiries && batch.expiries[op]);
}

// Refuses the requests of a batch that a table cannot do; returns whether there are any.
static bool refuse_other_layouts(const EngineBatch& batch, bool has_records, u64 row_element, std::vector<u8>& refused) {
    bool is_any = false;
    for (u64 request = 0, op = 0; request < batch.requests; request++)
        for (const u64 end = op + batch.request_ops[request]; op < end; op++) {
            if (is_of_layout(batch, op, has_records, row_element)) continue;
            refused.resize(batch.requests);
            refused[request] = LEFT_LAYOUT;
            is_any = true;
        }
    return is_any;
}

static bool makes_at_once(const EngineBatch& batch) {
    return std::any_of(batch.ops, batch.ops + batch.n, [](u8 op) { return is_made_at_once(op); });
}

// What sums make in a table of rows, if no key is there twice.
static u64 sums_bytes(const EngineBatch& batch, u64 sums) {
    return sums ? sums * *batch.value_lengths : 0;  // one length is that of all
}

static bool looks_first(const EngineBatch& batch) {
    if (batch.conditions) return true;
    u8 highest = 0;  // without a way out of the loop, many at a time are compared
    for (u64 op = 0; op < batch.n; op++) highest = std::max(highest, batch.ops[op]);
    return highest > OP_EXISTS;
}

static void run_resolver(const ResolveArgs& r, bool adds_later) {
    Resolver<ResolveArgs> resolver(r, adds_later);
    if (!r.row_element) return resolver.run();
    const UsualFloats floats;
    resolver.run();
}

static const u64 KEYS_AT_ONCE = 64, OPS_AT_ONCE = 256;

// Looks at the records of all keys, which sums begin with: threads share that, since each is read whole.
template <class Planner>
static void look_at_records(const Planner& a, const ResolveArgs& r) {
    const Resolver<ResolveArgs> resolver(r);
    const u64 chains = a.planned[PLANNED_CHAINS];
    a.pool->run_parts((chains + KEYS_AT_ONCE - 1) / KEYS_AT_ONCE, [&](u64 part) {
        const u64 end = std::min(chains, (part + 1) * KEYS_AT_ONCE);
        for (u64 chain = part * KEYS_AT_ONCE; chain < end; chain++) {
            if (chain + SOON < end) prefetch(a.heap + reference_offset(a.old_word[chain + SOON]) * UNIT_BYTES);
            resolver.look_at_record(a.order[a.chain_start[chain]]);
        }
    });
}

// Adds up the rows of all keys: each on its own, so threads share that.
template <class Planner>
static void add_rows(const Planner& a, const ResolveArgs& r) {
    const Resolver<ResolveArgs> resolver(r);
    const u64 chains = a.planned[PLANNED_CHAINS];
    a.pool->run_parts((chains + KEYS_AT_ONCE - 1) / KEYS_AT_ONCE, [&](u64 part) {
        const UsualFloats floats;
        const u64 end = std::min(chains, (part + 1) * KEYS_AT_ONCE);
        for (u64 chain = part * KEYS_AT_ONCE; chain < end; chain++) {
            const u32 first = a.chain_start[chain];
            resolver.add_rows_of(a.order + first, a.chain_start[chain + 1] - first);
        }
    });
}

// What a batch that looks first becomes. The plain batch and its columns lie here.
class NativeResolver {
  public:
    // Refuses requests, of each of which `refused` says what it lacks (EngineLeft), or 0: batches become plain without them.
    // Null: all are done.
    void refuse(const u8* refused) { refused_ = refused; }

    // Returns why the batch is left. The planner has found its keys, and none of them looks expired. std::bad_alloc.
    template <class Planner>
    EngineLeft resolve(const Planner& a, const EngineBatch& batch, u64 row_element, u64 value_bytes_max, u64 made_bytes_max) {
        asked_ = batch.ops;
        made_bytes_ = 0;
        u64 resolved[RESOLVED_COUNT];
        ResolveArgs r;
        const u64 sums = row_element ? (u64)std::count(batch.ops, batch.ops + batch.n, (u8)OP_ADD) : 0;
        const bool are_sums = sums == batch.n && sums && !batch.upload;
        // Few but sums of rows make much at once. Who does needs a second pass, or some.
        u64 room = makes_at_once(batch) ? std::min(made_bytes_max, std::max(ROOM_BYTES, sums_bytes(batch, sums))) : 0;
        for (;;) {
            made_.reset();
            made_.reset(room ? new u8[room] : nullptr);
            make_columns(a, batch);
            r = args_of(a, batch);
            r.row_element = row_element;
            r.value_bytes_max = value_bytes_max;
            r.made = made_.get();
            r.made_bytes = room;
            r.work_bytes_max = made_bytes_max;
            r.resolved = resolved;
            if (are_sums) look_at_records(a, r);
            run_resolver(r, are_sums);
            made_bytes_ = resolved[RESOLVED_MADE_BYTES];
            if (made_bytes_ > made_bytes_max) return LEFT_LARGE_VALUES;
            if (resolved[RESOLVED_ROOM_BYTES] <= room) break;
            room = std::min(made_bytes_max, 4 * resolved[RESOLVED_ROOM_BYTES]);
        }
        keeps_ = resolved[RESOLVED_KEPT];
        take_refusals(batch);
        if (are_sums) {
            add_rows(a, r);
            plain_values_ = place_rows(a, r, *batch.value_lengths);
        } else if (!batch.upload) {
            values_.resize(resolved[RESOLVED_VALUE_BYTES] + 1);  // there is one, so it has an address
            make_values(r, values_.data());
            plain_values_ = values_.data();
        }
        make_plain(batch);
        return LEFT_NOT;
    }

    const EngineBatch& plain() const { return plain_; }
    // Of its operations, the records whose blobs they keep; null: none does.
    const u64* kept() const { return keeps_ ? kept_.data() : nullptr; }

    // Of values that are made of others, also where that was too much.
    u64 made_bytes() const { return made_bytes_; }

    // Counts what the operations return, once the plain ones are planned, and has the values of the GETs stand among it.
    template <class Planner>
    void place_results(const Planner& a) {
        returning_ = value_bytes_ = 0;
        u64 get = 0;
        place_ = {};
        for (u64 op = 0; op < a.n; op++) {
            if (is_stopped(op)) continue;
            if (asked_[op] == OP_GET) {
                a.offset[get] = value_bytes_;
                value_bytes_ += length_of(a, get++);
            } else if (returns_number(asked_[op])) {
                value_bytes_ += number_bytes(a, op);
            } else continue;
            returning_++;
        }
    }
    // Says which operation a GET is, and which value it returns. Of several GETs the first comes first.
    void place_blob(u64 get, EngineBlob& blob) {
        for (;; place_.op++) {
            if (is_stopped(place_.op)) continue;
            const bool is_get = asked_[place_.op] == OP_GET, returns = is_get || returns_number(asked_[place_.op]);
            if (is_get && place_.get == get) break;
            place_.get += is_get;
            place_.value += returns;
            place_.done++;
        }
        blob.operation = place_.done;
        blob.value = place_.value;
    }
    u64 operations() const { return operations_; }
    u64 returning() const { return returning_; }
    u64 value_bytes() const { return value_bytes_; }
    u64 refusals() const { return refusals_.size(); }

    // Gives back what a batch may have made; returns what the columns take.
    u64 kept_bytes() {
        made_.reset();
        placed_.reset();
        u64 bytes = refusals_.capacity() * sizeof(EngineRefusal);
        for (const auto* column : {&conditions_, &plain_ops_, &is_seen_, &status_, &verdict_, &values_, &is_stopped_})
            bytes += column->capacity();
        for (const auto* column : {&base_, &lengths_, &writer_, &failed_check_, &set_lengths_})
            bytes += column->capacity() * sizeof(u32);
        for (const auto* column : {&expiries_, &numbers_, &plain_expiries_, &versions_, &kept_})
            bytes += column->capacity() * sizeof(u64);
        return bytes;
    }

    // Gives all but the values of the GETs.
    template <class Planner>
    void give_results(const Planner& a, const EngineRoom& room) const {
        u8* value = room.values;
        u32* length = room.value_lengths;
        u64 done = 0;
        for (u64 op = 0, get = 0; op < a.n; op++) {
            if (is_stopped(op)) continue;
            room.status[done] = status_of(a, op);
            if (room.versions) room.versions[done] = version_of(a, op);
            done++;
            if (asked_[op] == OP_GET) {
                const u32 bytes = length_of(a, get++);
                value += bytes;
                if (length) *length++ = bytes;
            } else if (returns_number(asked_[op])) {
                copy_bytes(value, &numbers_[op], *length = number_bytes(a, op));
                value += *length++;
            }
        }
        std::copy(refusals_.begin(), refusals_.end(), room.refusals);
    }

  private:
    // Whether an operation belongs to a request that is not done: then it is a plain EXISTS, and nobody hears of it.
    bool is_stopped(u64 op) const { return !is_stopped_.empty() && is_stopped_[op]; }

    // Takes note of the requests that are refused, or that a check stops.
    void take_refusals(const EngineBatch& batch) {
        refusals_.clear();
        is_stopped_.clear();
        operations_ = batch.n;
        u64 first = 0;
        for (u64 request = 0; request < batch.requests; request++) {
            const u64 ops = batch.request_ops[request];
            const u32 lacks = refused_ ? refused_[request] : 0, failed = failed_check_[request];
            if (lacks) refusals_.push_back({request, lacks, 0, 0, 0});
            else if (failed != NO_OP) refusals_.push_back(conflict_of(request, failed, first));
            if (lacks || failed != NO_OP) {
                is_stopped_.resize(batch.n);
                std::fill_n(is_stopped_.begin() + (long)first, ops, 1);
                operations_ -= ops;
            }
            first += ops;
        }
    }

    EngineRefusal conflict_of(u64 request, u32 failed, u64 first) const {
        const u32 is_there = status_[failed] == STATUS_CONDITION_FAILED;
        return {request, 0, (u32)(failed - first), is_there, is_there ? numbers_[failed] : 0};
    }

    template <class Planner>
    u8 status_of(const Planner& a, u64 op) const { return status_[op] == AS_PLANNED ? a.status[op] : status_[op]; }
    // A table of numbers has no versions: where a condition fails, it tells the number that is there.
    template <class Planner>
    u64 version_of(const Planner& a, u64 op) const {
        if (has_records<typename Planner::Slot>) return a.versions[op];
        return status_of(a, op) == STATUS_CONDITION_FAILED ? numbers_[op] : 0;
    }
    template <class Planner>
    u32 number_bytes(const Planner& a, u64 op) const { return status_of(a, op) == STATUS_OK ? 8 : 0; }

    template <class Planner>
    void make_columns(const Planner& a, const EngineBatch& batch) {
        const u64 n = batch.n, chains = a.planned[PLANNED_CHAINS];
        if (!batch.conditions) conditions_.assign(n, CONDITION_NONE);
        if (!batch.expiries) expiries_.assign(n, 0);
        for (auto* column : {&plain_ops_, &is_seen_, &status_}) column->resize(n);
        for (auto* column : {&base_, &lengths_}) column->resize(n);
        for (auto* column : {&numbers_, &plain_expiries_, &versions_, &kept_}) column->resize(n);
        for (u64 op = 0; op < n; op++) versions_[op] = a.first_sequence + op;
        writer_.assign(chains, NO_OP);
        verdict_.assign(chains, NOT_LOOKED_AT);
        failed_check_.resize(batch.requests);
    }

    template <class Planner>
    ResolveArgs args_of(const Planner& a, const EngineBatch& batch) {
        ResolveArgs r = {};
        r.n = batch.n;
        r.ops = batch.ops;
        r.values = batch.values;
        r.value_offsets = a.value_offsets;
        r.value_lengths = a.value_lengths;
        r.has_records = has_records<typename Planner::Slot>;
        r.chain = a.chain;
        r.old_word = a.old_word;
        r.heap = a.heap;
        r.plain_ops = plain_ops_.data();
        r.is_seen = is_seen_.data();
        r.base = base_.data();
        r.lengths = lengths_.data();
        r.numbers = numbers_.data();
        r.requests = batch.requests;
        r.request_ops = batch.request_ops;
        r.table_id = batch.table_id;
        r.refused = refused_;
        r.conditions = batch.conditions ? batch.conditions : conditions_.data();
        r.expected = (const u64*)batch.expected;
        r.expiries = batch.expiries ? (const u64*)batch.expiries : expiries_.data();
        r.versions = versions_.data();
        r.keys = batch.keys;
        r.key_offsets = a.key_offsets;
        r.key_lengths = a.key_lengths;
        r.slot = a.slot;
        r.old_meta = a.old_meta;
        r.heap_bytes = a.heap_bytes;
        r.record_format = a.record_format;
        r.blobs = a.blobs;
        r.blob_file_pages = a.blob_file_pages;
        r.writer = writer_.data();
        r.verdict = verdict_.data();
        r.plain_expiries = plain_expiries_.data();
        r.kept = kept_.data();
        r.status = status_.data();
        r.failed_check = failed_check_.data();
        return r;
    }

    void make_plain(const EngineBatch& batch) {
        set_lengths_.clear();
        bool expire = false;
        for (u64 op = 0; op < batch.n; op++) {
            if (plain_ops_[op] != OP_SET) continue;
            set_lengths_.push_back(lengths_[op]);
            expire |= plain_expiries_[op] != 0;
        }
        set_lengths_.push_back(0);  // as with the values
        plain_ = batch;
        plain_.ops = plain_ops_.data();
        if (!batch.upload) plain_.values = plain_values_;
        plain_.value_lengths = set_lengths_.data();
        plain_.value_length_step = 1;
        plain_.expiries = expire ? (const uint64_t*)plain_expiries_.data() : nullptr;
        plain_.conditions = nullptr;
    }

    // The rows that sums leave, one after the other, as the plain SETs bring them. Where no key is there twice, they lie so.
    template <class Planner>
    const u8* place_rows(const Planner& a, const ResolveArgs& r, u64 row_bytes) {
        std::vector<u64> first_row;  // of each part of the operations
        u64 rows = 0;
        bool lie_so = true;
        for (u64 op = 0; op < r.n; op++) {
            if (op % OPS_AT_ONCE == 0) first_row.push_back(rows);
            if (r.plain_ops[op] != OP_SET) continue;
            if (!r.is_seen[op]) {
                r.lengths[op] = 0;
                continue;
            }
            lie_so &= r.numbers[op] == rows++ * row_bytes;
        }
        if (lie_so) return made_.get();
        placed_.reset(new u8[rows * row_bytes]);
        a.pool->run_parts(first_row.size(), [&](u64 part) {
            u8* to = placed_.get() + first_row[part] * row_bytes;
            for (u64 op = part * OPS_AT_ONCE; op < std::min<u64>(r.n, (part + 1) * OPS_AT_ONCE); op++) {
                if (r.plain_ops[op] != OP_SET || !r.is_seen[op]) continue;
                memcpy(to, r.made + r.numbers[op], row_bytes);
                to += row_bytes;
            }
        });
        return placed_.get();
    }

    static constexpr u64 ROOM_BYTES = 64 << 10;

    const u8* asked_ = nullptr;
    EngineBatch plain_ = {};
    std::vector<u8> conditions_, plain_ops_, is_seen_, status_, verdict_, values_;
    std::vector<u32> base_, lengths_, writer_, failed_check_, set_lengths_;
    std::vector<u64> expiries_, numbers_, plain_expiries_, versions_, kept_;
    bool keeps_ = false;
    const u8* refused_ = nullptr;  // of each request; null: none is
    std::vector<u8> is_stopped_;   // of each operation; empty: all are done
    std::vector<EngineRefusal> refusals_;
    std::unique_ptr<u8[]> made_, placed_;
    const u8* plain_values_ = nullptr;
    u64 made_bytes_ = 0, operations_ = 0, returning_ = 0, value_bytes_ = 0;
    struct Place {
        u64 op = 0, get = 0, done = 0, value = 0;
    };
    Place place_;  // of `place_blob`
};
