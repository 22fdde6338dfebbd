// The kernels compiled for the CPU, with what a GPU brings by itself: threads, a sort, a scan.
//
// The host calls through ctypes, which releases Python's global lock for the length of a call, but for short ones of
// native_planner.hpp.
#include <sys/vfs.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "cu/audit.cu"
#include "cu/batch_plan.cu"
#include "cu/blob.cu"
#include "cu/change.cu"
#include "cu/chunk.cu"
#include "cu/copy.cu"
#include "cu/find.cu"
#include "cu/fold.cu"
#include "gpm/gpm_load.cu"
#include "gpm/gpm_log.cu"
#include "gpm/gpm_save.cu"
#include "cu/grow.cu"
#include "cu/mark_empty.cu"
#include "cu/pick.cu"
#include "cu/place.cu"
#include "cu/read.cu"
#include "cu/record.cu"
#include "cu/recount.cu"
#include "cu/redo.cu"
#include "cu/route.cu"
#include "cu/rows.cu"
#include "cu/split_slots.cu"

// After the kernels, which they run.
#include "plan/admit.hpp"
#include "plan/allocate.hpp"
#include "plan/batch_plan.hpp"
#include "commit/changes.hpp"
#include "commit/chunks.hpp"
#include "commit/commit_journal.hpp"
#include "commit/commit_undo.hpp"
#include "plan/compact.hpp"
#include "plan/expiry.hpp"
#include "commit/flight.hpp"
#include "gpm/gpm_save.hpp"
#include "commit/journal.hpp"
#include "plan/kinds.hpp"
#include "commit/launch_stores.hpp"
#include "plan/look_up.hpp"
#include "engine/native_engine.hpp"
#include "plan/native_planner.hpp"
#include "engine/own_batch.hpp"
#include "engine/own_request.hpp"
#include "plan/pack.hpp"
#include "plan/radix.hpp"
#include "plan/read_rows.hpp"
#include "plan/resolve.hpp"
#include "plan/scan.hpp"
#include "space/write_set.hpp"

extern "C" {

// nullptr where there is no memory for it.
void* gpkvs_pool_new(u32 threads, u64 awake_ns) {
    try {
        return new Pool(threads, awake_ns);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}
void gpkvs_pool_delete(void* pool) { delete (Pool*)pool; }

void gpkvs_run(void* pool, const Kernel* kernel, const void* args, u64 items, u64 keys_per_item) {
    ((Pool*)pool)->run(kernel, args, items, keys_per_item);
}

// Copies up to gpkvs_stage_max() bytes to pinned memory, and each piece from there to a GPU, by the driver's function.
typedef int CopyToGpu(u64 to, const void* from, size_t bytes, void* stream);
int gpkvs_stage(void* pool, void* pinned, const void* from, u64 bytes, u64 to, CopyToGpu* copy, void* stream) {
    return ((Pool*)pool)->copy_and_send((u8*)pinned, (const u8*)from, bytes, [=](u64 first, u64 last) {
        return copy(to + first, (u8*)pinned + first, last - first, stream);
    });
}
u64 gpkvs_stage_max() { return PIECES_MAX * SENT_AT_ONCE; }

// Whoever launches; nullptr where there is no memory for it.
void* gpkvs_host_launcher_new(void* pool) { return new (std::nothrow) HostLauncher((Pool*)pool); }
void* gpkvs_gpu_launcher_new(const Driver* driver, void* const* functions, void* context) {
    try {
        return new GpuLauncher(*driver, functions, context);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}
void gpkvs_launcher_delete(void* launcher) { delete (Launcher*)launcher; }

// The names of the kernels that it launches, each with a semicolon after it.
const char* gpkvs_launched() { return LAUNCHED(LAUNCH_NAME) LAUNCHED_ON_GPU(LAUNCH_NAME); }

// The sum of a column modulo 2^64, to where the host reads it once the queue has come so far; an error of the driver, or 0.
// Of `bytes`, if they are given, which become the column.
int gpkvs_launch_sum(void* launcher, void* queue, const u8* bytes, u64* column, u64 n, u64* tiles, u64* total) {
    Launcher& of = *(Launcher*)launcher;
    of.use(queue);
    const widen_args widened = {bytes, column};
    if (bytes) of.launch(LAUNCH_widen, &widened, n, nullptr);
    of.scan({column, nullptr, tiles, total}, n, nullptr);
    return of.error();
}
u64 gpkvs_tiles(u64 items) { return tiles_of(items); }

// Sorts a column by its bits from `first` on (radix.hpp); `spare` is as long, `counts` has `gpkvs_digit_counts`. An error of the
// driver, or 0.
int gpkvs_launch_sort(void* launcher, void* queue, u64* words, u64* spare, u32* counts, u64 n, u64 first) {
    Launcher& of = *(Launcher*)launcher;
    of.use(queue);
    RadixSort{words, spare, counts, first}.run(of, n, nullptr);
    return of.error();
}
u64 gpkvs_digit_counts(u64 items) { return digit_counts_of(items); }

// Launches a kernel that stores to PM, with what belongs to it (launch_stores.hpp); returns an error of the driver, or 0.
const char* gpkvs_launch_stores_fields() { return LAUNCH_STORES_FIELDS(GPKVS_NAME); }
int gpkvs_launch_stores(const LaunchStores* stores) {
    stores->run();
    return stores->launcher->error();
}

// Rows that a GPU has (read_rows.hpp); returns an error of the driver, or 0.
const char* gpkvs_read_rows_fields() { return READ_ROWS_FIELDS(GPKVS_NAME); }
int gpkvs_read_rows(const ReadRows* rows) {
    rows->run();
    return rows->launcher->error();
}

// GETs of numbers alone (look_up.hpp); returns an error of the driver, or 0.
const char* gpkvs_look_up_fields() { return LOOK_UP_FIELDS(GPKVS_NAME); }
int gpkvs_look_up(const LookUp* look_up) {
    look_up->run();
    return look_up->launcher->error();
}

// Some steps of chunks (chunks.hpp); returns an error of the driver, or 0.
const char* gpkvs_store_chunks_fields() { return STORE_CHUNKS_FIELDS(GPKVS_NAME); }
int gpkvs_store_chunks(StoreChunks* chunks, u64 steps, u64 first, u64 last) {
    chunks->run(steps, first, last);
    return chunks->error(steps);
}

// What ends transactions (flight.hpp); nullptr where there is no memory for it.
const char* gpkvs_landing_fields() { return LANDING_FIELDS(GPKVS_NAME); }
void* gpkvs_flight_new() { return new (std::nothrow) Flight; }
void gpkvs_flight_delete(void* flight) { delete (Flight*)flight; }
void gpkvs_flight_end(void* flight) { ((Flight*)flight)->end(); }
u64 gpkvs_flight_begin(void* flight, Landing* landing) { return ((Flight*)flight)->begin(landing); }
void gpkvs_flight_go_on(void* flight) { ((Flight*)flight)->go_on(); }
u64 gpkvs_flight_landed(const void* flight) { return ((const Flight*)flight)->landed(); }
void gpkvs_flight_wait(void* flight, u64 gate) { ((Flight*)flight)->wait(gate); }

// Steps of a plan, by their bits (batch_plan.hpp); what it returns is an error of the driver, or 0. `room` has as many bytes as the
// columns take.
const char* gpkvs_batch_plan_fields() { return BATCH_PLAN_FIELDS(GPKVS_NAME); }
const char* gpkvs_plan_counts() { return PLAN_COUNTS(PLAN_NAME); }
const char* gpkvs_plan_steps() { return PLAN_STEPS(PLAN_STEP_NAME); }
u64 gpkvs_batch_plan_room(BatchPlan* plan) {
    Room room = {0};
    take_columns(*plan, room);
    return room.at;
}
int gpkvs_batch_plan(BatchPlan* plan, u64 steps) {
    plan->launcher->use(plan->queue);
    BatchPlanner{*plan}.run(steps);
    return plan->launcher->error();
}

// Saves a group of a checkpoint (gpm_save.hpp). On the host it returns how many bytes differ; on a GPU an error of the driver,
// or 0.
const char* gpkvs_gpm_save_fields() { return GPM_SAVE_FIELDS(GPKVS_NAME); }
u64 gpkvs_gpm_save(void* pool, const GpmSave* save) { return save->run(*(Pool*)pool); }
int gpkvs_gpm_save_on_gpu(const GpmQueue* queue, const GpmSave* save, u64* bytes) { return save->run(*queue, *bytes); }

u64 gpkvs_sum(void* pool, const u64* column, u64 n) { return ((Pool*)pool)->sum(column, n); }
void gpkvs_count_kinds(const u8* ops, u64 n, Kinds* kinds) { *kinds = count_kinds(ops, n); }

static const u64 NO_MEMORY = ~0ull;

// order: fills order[n], chain_of[n] (by sorted position), chain_start[chains + 1], last_write[n]; returns the chains, or
// NO_MEMORY.
u64 gpkvs_order(void* pool, const u64* fingerprint0, const u64* fingerprint1, const u8* ops, u64 n, u32* order,
                u32* chain_of, u32* chain_start, u32* last_write) {
    try {
        return ((Pool*)pool)->order(fingerprint0, fingerprint1, ops, n, order, chain_of, chain_start, last_write);
    } catch (const std::bad_alloc&) {
        return NO_MEMORY;
    }
}

// The one way by which the host stores to PM: whole words, then a fence.
void gpkvs_pm_store(u64* to, const u64* from, u64 words) {
    for (u64 w = 0; w < words; w++) pm_store(to + w, from[w]);
    pm_persist();
}

// The best way of this processor to write a cache line back to memory; WRITE_BACK_NONE if it has none that is known.
u32 gpkvs_write_back_best() {
#if defined(__x86_64__)
    u32 a, b = 0, c, d = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        if (b >> 24 & 1) return WRITE_BACK_CLWB;
        if (b >> 23 & 1) return WRITE_BACK_CLFLUSHOPT;
    }
    if (__get_cpuid(1, &a, &b, &c, &d) && d >> 19 & 1) return WRITE_BACK_CLFLUSH;
#endif
    return WRITE_BACK_NONE;
}

// From now on, whatever a kernel or the host stores to PM is written back before the fence that follows.
void gpkvs_write_back_on(u32 how) { pm_write_back = how; }

// How, as `enum WriteBack` has it.
u32 gpkvs_write_back() { return pm_write_back; }

void gpkvs_persist_range(u64 address, u64 bytes) { pm_persist_range(address, bytes); }

#if defined(GPKVS_TRACE)
// The trace, for kernels of another library.
void* gpkvs_trace_state() { return trace; }
#endif

// How many cache lines were written back since the process began.
u64 gpkvs_lines_written_back() { return __atomic_load_n(&pm_lines_written_back, __ATOMIC_RELAXED); }

// The lists of protocol.cuh: of each line its name, its number, and what else it says.
#define PROTOCOL_TEXT(name, number, ...) #name " " #number " " #__VA_ARGS__ ";"
const char* gpkvs_operations() { return PROTOCOL_OPERATIONS(PROTOCOL_TEXT); }
const char* gpkvs_conditions() { return PROTOCOL_CONDITIONS(PROTOCOL_TEXT); }
const char* gpkvs_statuses() { return PROTOCOL_STATUSES(PROTOCOL_TEXT); }

// The names of the audits (audit.cu), in the order of their numbers from 1 on, each with a semicolon after it.
#define AUDIT_NAME(code, name) name ";"
const char* gpkvs_audits() { return AUDITS(AUDIT_NAME); }

// CRC32C of whole words, for the structures that the host writes.
u32 gpkvs_crc32c(const u8* data, u64 words) {
    return ~crc32c_words(~0u, data, words);
}

u64 gpkvs_pack_records(const u8* keys, const u32* key_lengths, const u8* values, const u32* value_lengths,
                       const u64* expiries, u64 n, u8* out) {
    return pack_records(keys, key_lengths, values, value_lengths, expiries, n, out);
}

const char* gpkvs_engine_structs() { return ENGINE_STRUCTS(STRUCT_TEXT); }
const char* gpkvs_engine_table_fields() { return ENGINE_TABLE_FIELDS(GPKVS_NAME); }

// The magic number of the file system a file is on (statfs), 0 if it cannot be told.
u64 gpkvs_filesystem(int file) {
    struct statfs found;
    return fstatfs(file, &found) == 0 ? (u64)found.f_type : 0;
}

}  // extern "C"

// Numbers that Python asks for, instead of having them too (`number` in gpkvs/native.py).
#define GPKVS_NUMBER(name) extern "C" const u64 gpkvs_##name = name;
static const u64 WALKED_WORDS = sizeof(Walked) / sizeof(u64);
GPKVS_NUMBER(CHARGED_AS_IT_IS)
GPKVS_NUMBER(GPM_LOADED_AT_ONCE)
GPKVS_NUMBER(HEAP_STATE_WORDS)
GPKVS_NUMBER(MOVES_WORDS)
GPKVS_NUMBER(OWN_BYTES_MAX)
GPKVS_NUMBER(PACKED_BYTES_MAX)
GPKVS_NUMBER(SCAN_GROUP)
GPKVS_NUMBER(SIDE_UPPER)
GPKVS_NUMBER(UNCOUNTED)
GPKVS_NUMBER(WALKED_WORDS)
