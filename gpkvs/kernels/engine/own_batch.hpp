// A batch of the process that has the store open, as columns: it goes through the native engine as a door's batches do
// (gpkvs/engine/host/own_batch.py). Python gives the columns of results whose length it knows. The rest is taken when a batch is
// planned, and belongs to Python's results.
#pragma once
#include <sys/mman.h>

#include <cstdlib>
#include <new>

#include "engine/native_engine.hpp"
#include "engine/own_request.hpp"

// Python reads the words. Results are of the first `requests`, without those that were refused: these are in `data`, and
// the values that operations return behind them.
#define OWN_BATCH_FIELDS(F)                                                                      \
    F(u64, requests) F(u64, gate) F(u64, operations) F(u64, returning) F(u64, value_bytes) F(u64, refusals) F(u8*, data)

struct OwnBatch {
    OWN_BATCH_FIELDS(GPKVS_FIELD)
};

struct OwnBatchRoom {
    OwnBatch& own;
    EngineRoom columns;
    u64 value_bytes_max;
    u8* found_words;

    bool give(u64 operations, u64 returning, u64 value_bytes, u64 refusals, EngineRoom& out) {
        if (value_bytes > value_bytes_max) return false;
        const bool are_words = found_words && !refusals && value_bytes == operations * sizeof(u64);
        u8* const theirs = are_words ? found_words : columns.values;  // Python's memory, or the caller's
        const u64 refusal_bytes = refusals * sizeof(EngineRefusal), bytes = refusal_bytes + (theirs ? 0 : value_bytes);
        free(own.data);  // of the same batch, when it was left
        own.data = bytes ? take(bytes) : nullptr;
        if (bytes && !own.data) return false;
        own.operations = operations;
        own.returning = returning;
        own.value_bytes = value_bytes;
        own.refusals = refusals;
        out = columns;
        out.refusals = (EngineRefusal*)own.data;
        out.values = theirs ? theirs : own.data + refusal_bytes;
        return true;
    }

  private:
    static constexpr u64 HUGE_FROM = 4 << 20, PAGE_BYTES = 4096;

    // Memory in large pages where it is large, as NumPy has it: page faults would cost as much as the values.
    static u8* take(u64 bytes) {
        u8* const data = (u8*)malloc(bytes);
        if (!data || bytes < HUGE_FROM) return data;
        const u64 skipped = -(u64)data % PAGE_BYTES;
        madvise(data + skipped, bytes - skipped, MADV_HUGEPAGE);
        return data;
    }
};

// `PyCapsule_GetPointer`: this library is not linked with Python.
static void* (*capsule_pointer)(void* capsule, const char* name);

extern "C" {

const char* gpkvs_own_batch_fields() { return OWN_BATCH_FIELDS(GPKVS_NAME); }
OwnBatch* gpkvs_own_batch_new() { return new (std::nothrow) OwnBatch{}; }
void gpkvs_own_batch_set_python(void* get_pointer) { capsule_pointer = (decltype(capsule_pointer))get_pointer; }

// The destructor of a capsule of Python's that has an OwnBatch.
void gpkvs_own_batch_delete(void* capsule) {
    OwnBatch* own = (OwnBatch*)capsule_pointer(capsule, nullptr);
    free(own->data);
    delete own;
}

// Runs a batch; returns how (`EngineRan`). `is_short`: it keeps Python's lock, so it is left if it returns long values. `values`
// with `places` and `place_bytes`: memory of the caller's for the values (`EngineRoom`); null: native code takes it.
int gpkvs_run_own_batch(void* engine, const EngineBatch* batch, OwnBatch* own, u8* status, u64* versions, u32* value_lengths,
                        u8* values, const u64* places, const u64* place_bytes, u64 is_short) {
    const EngineRoom columns = {status, (uint64_t*)versions, value_lengths, values, nullptr, (const uint64_t*)places,
                                (const uint64_t*)place_bytes, nullptr, 0};
    OwnBatchRoom room = {*own, columns, is_short ? OWN_BYTES_MAX : NO_BOUND, (u8*)batch->found_words};
    const EngineGivesRoom gives = [](void* sink, uint64_t operations, uint64_t returning, uint64_t value_bytes,
                                     uint64_t refusals, EngineRoom* out) {
        return ((OwnBatchRoom*)sink)->give(operations, returning, value_bytes, refusals, *out);
    };
    u64 has_versions = 0;
    return run_batch(*(NativeEngine*)engine, *batch, gives, &room, own->requests, own->gate, has_versions);
}

}  // extern "C"
