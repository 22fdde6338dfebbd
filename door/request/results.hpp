// The results of a batch: one block of memory, counted, that its requests share.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <sys/mman.h>
#include <utility>

#include "../../gpkvs/kernels/engine_batch.h"
#include "base/account.hpp"
#include "base/lent_value.hpp"

namespace door {

struct Refusal;

// Whoever holds one holds the whole block: copy what is small and release it. The server's account has its values until then:
// no connection may hold more answers, where those that are on their way take the room.
class Results {
  public:
    // The columns of a batch. Null where there is no memory. The maker holds it.
    static Results* make(Account& account, u64 n, u64 returning, u64 value_bytes, u64 refusal_count = 0, u64 blob_count = 0) {
        const u64 columns = sizeof(EngineBlob) * blob_count + sizeof(EngineRefusal) * refusal_count + 8 * n + 4 * returning + n;
        const u64 bytes = sizeof(Results) + columns + 2 * RESPONSE_ROOM + value_bytes;
        void* block = malloc(bytes);
        if (block && bytes >= POPULATED_BYTES_MIN) populate(block, bytes);
        return block ? new (block) Results(account, n, returning, value_bytes, refusal_count, blob_count) : nullptr;
    }

    void keep(u64 holders = 1) { holders_.fetch_add(holders, std::memory_order_relaxed); }

    void release() {
        if (holders_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
            this->~Results();
            free(this);
        }
    }

    // The server's account has what is lent, too, until somebody takes that over.
    void charge_blobs() {
        has_charged_blobs_ = true;
        for (const EngineBlob* blob = blobs; blob < blobs + blob_count; blob++)
            account_.change(ANSWERS, (i64)LentValue::counted(blob->bytes));
    }

    // The values are charged to somebody else from now on. For a lone holder.
    void leave_charge() { account_.change(ANSWERS, -(i64)std::exchange(charged_bytes_, 0)); }

    // Before the values and behind them: a lone holder may make a response of them where they are.
    static constexpr u64 RESPONSE_ROOM = 64;

    const u64 n, returning, value_bytes, refusal_count, blob_count;
    bool has_versions = false;
    EngineBlob* const blobs;  // values that are lent; whoever takes one leaves none in its place
    EngineRefusal* const refusals;
    std::array<std::shared_ptr<const Refusal>, LEFT_COUNT> lacking;  // what several requests of a message hear that lack it
    u64* const versions;       // n
    u32* const value_lengths;  // returning
    u64 now_ms = 0;            // as of when the operations looked at times, if any did
    u8* const status;          // n
    u8* const values;

  private:
    static constexpr u64 PAGE_BYTES = 4096, POPULATED_BYTES_MIN = 64 << 10;

    // All pages at once take half the time that one fault each does. Older systems refuse, and fault.
    static void populate(void* block, u64 bytes) {
        const u64 first = ((u64)block + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
        const u64 end = ((u64)block + bytes) / PAGE_BYTES * PAGE_BYTES;
        constexpr int POPULATE_WRITE = 23;  // of Linux 5.14; not in all headers
        madvise((void*)first, end - first, POPULATE_WRITE);
    }

    Results(Account& account, u64 n, u64 returning, u64 value_bytes, u64 refusal_count, u64 blob_count)
        : n(n), returning(returning), value_bytes(value_bytes), refusal_count(refusal_count), blob_count(blob_count),
          blobs((EngineBlob*)(this + 1)), refusals((EngineRefusal*)(blobs + blob_count)), versions((u64*)(refusals + refusal_count)), value_lengths((u32*)(versions + n)),
          status((u8*)(value_lengths + returning)), values(status + n + RESPONSE_ROOM), account_(account),
          charged_bytes_(value_bytes) {
        std::fill_n(blobs, blob_count, EngineBlob{});
        account_.change(ANSWERS, (i64)value_bytes);
    }
    ~Results() {
        for (const EngineBlob* blob = blobs; blob < blobs + blob_count; blob++)
            if (blob->blobs) give_back(*blob);
        leave_charge();
    }

    void give_back(const EngineBlob& blob) {
        if (has_charged_blobs_) account_.change(ANSWERS, -(i64)LentValue::counted(blob.bytes));
        blob.blobs->give_back(&blob, nullptr);
    }

    Account& account_;
    u64 charged_bytes_;
    bool has_charged_blobs_ = false;
    std::atomic<u64> holders_{1};
};

}  // namespace door
