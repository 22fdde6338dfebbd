// One request of the process that has the store open: it goes through the native engine as a door's batches do, and its results
// lie here until the next one (gpkvs/engine/host/own_turn.py).
#pragma once
#include <new>
#include <vector>

#include "engine/native_engine.hpp"

// Python reads the words. Results have so many operations as were asked for, and so many of them return a value; none if the
// request was refused, or a check stopped it: then `refusal` is not null.
#define OWN_RESULTS_FIELDS(F)                                                               \
    F(u64, gate) F(u64, is_durable) F(u64, returning) F(u64, value_bytes)                   \
    F(u8*, status) F(u64*, versions) F(u32*, value_lengths) F(u8*, values) F(u64, first_status) F(u64, first_version) \
    F(EngineRefusal*, refusal)

struct OwnResults {
    OWN_RESULTS_FIELDS(GPKVS_FIELD)
};

// One may read so many bytes of values: Python's lock is kept meanwhile. Their room is kept for the next one: to give it back
// and take it again costs many times what a value of a megabyte does.
static constexpr u64 OWN_BYTES_MAX = 4 << 20;

class OwnRoom {
  public:
    OwnResults results = {};
    EngineRoom theirs = {};  // of it `places` and `values`: the caller's memory, for values of the request that runs; or none

    bool give(u64 operations, u64 returning, u64 value_bytes, u64 refusals, EngineRoom& out) try {
        if (value_bytes > OWN_BYTES_MAX) return false;
        // Each has an address.
        status_.resize(operations + 1);
        versions_.resize(operations + 1);
        lengths_.resize(returning + 1);
        if (!theirs.places && values_.size() <= value_bytes) values_.resize(value_bytes + 1);
        out = {status_.data(), (uint64_t*)versions_.data(), lengths_.data(), theirs.places ? theirs.values : values_.data(),
               &refusal_, theirs.places, theirs.place_bytes, nullptr, 0};
        results.refusal = refusals ? &refusal_ : nullptr;
        results.returning = returning;
        results.value_bytes = value_bytes;
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }

    void take() {
        results.status = status_.data();
        results.versions = versions_.data();
        results.value_lengths = lengths_.data();
        results.values = values_.data();
        results.first_status = status_[0];
        results.first_version = versions_[0];
    }

  private:
    std::vector<u8> status_, values_;
    std::vector<u64> versions_;
    std::vector<u32> lengths_;
    EngineRefusal refusal_;
};

// Runs a batch of one request, which has the columns of operations; `theirs` is as in `OwnRoom`.
static int run_own(NativeEngine& e, OwnRoom& own, EngineBatch batch, const EngineRoom& theirs) {
    const u32 operations = (u32)batch.n, requests = 1;
    batch.request_ops = &operations;
    batch.message_requests = &requests;
    batch.requests = batch.messages = 1;
    batch.value_bytes_max = NO_BOUND;
    own.theirs = theirs;
    const EngineGivesRoom gives = [](void* sink, uint64_t operations, uint64_t returning, uint64_t value_bytes,
                                     uint64_t refusals, EngineRoom* out) {
        return ((OwnRoom*)sink)->give(operations, returning, value_bytes, refusals, *out);
    };
    u64 run_requests = 0, has_versions = 0;
    const EngineRan ran = run_batch(e, batch, gives, &own, run_requests, own.results.gate, has_versions);
    if (ran == ENGINE_LEFT) return ran;
    own.take();
    own.results.is_durable = own.results.gate <= e.committer->durable(*e.commit);
    if (own.results.is_durable) e.failpoint->hit("before_reply");
    return ran;
}

extern "C" {

void* gpkvs_own_room_new() { return new (std::nothrow) OwnRoom; }
void gpkvs_own_room_delete(void* room) { delete (OwnRoom*)room; }
OwnResults* gpkvs_own_results(void* room) { return &((OwnRoom*)room)->results; }
const char* gpkvs_own_results_fields() { return OWN_RESULTS_FIELDS(GPKVS_NAME); }

// Runs a request of one table; returns how (`EngineRan`). Columns without an item may be null.
int gpkvs_run_own(void* engine, void* room, u64 table_id, u32 n, const u8* ops, const u8* keys, const u32* key_lengths,
                  const u8* values, const u32* value_lengths, const u64* expiries, const u8* conditions, const u64* expected) {
    EngineBatch batch = {};
    batch.n = n;
    batch.ops = ops;
    batch.keys = keys;
    batch.key_lengths = key_lengths;
    batch.values = values;
    batch.value_lengths = value_lengths;
    batch.key_length_step = batch.value_length_step = 1;
    batch.expiries = (const uint64_t*)expiries;
    batch.conditions = conditions;
    batch.expected = (const uint64_t*)expected;
    batch.table_id = (uint32_t)table_id;
    return run_own(*(NativeEngine*)engine, *(OwnRoom*)room, batch, {});
}

// Runs a request of GETs on a table with records, whose values go into the caller's memory (`EngineRoom`).
int gpkvs_run_own_into(void* engine, void* room, u64 table_id, u32 n, const u8* ops, const u8* keys, const u32* key_lengths,
                       u8* values, const u64* places, const u64* place_bytes) {
    EngineBatch batch = {};
    batch.n = n;
    batch.ops = ops;
    batch.keys = keys;
    batch.key_lengths = key_lengths;
    batch.key_length_step = 1;
    batch.table_id = (uint32_t)table_id;
    const EngineRoom theirs = {nullptr, nullptr, nullptr, values, nullptr, (const uint64_t*)places, (const uint64_t*)place_bytes,
                               nullptr, 0};
    return run_own(*(NativeEngine*)engine, *(OwnRoom*)room, batch, theirs);
}

}  // extern "C"
