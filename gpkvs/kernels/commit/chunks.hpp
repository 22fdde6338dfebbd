// The slots that a GPU planned, logged and stored in chunks, after the flag says ACTIVE:
//
//     of each chunk: entries -> (durable) -> marker, twice -> (durable) -> slots
//
// The entries of the next chunk cross the link while the host's threads store the last slots of each chunk, which have left for
// the host. The GPU stores its own when all of these have, and all entries: its many small stores would hold them up, so that
// the threads would wait (docs/gpu.md). The mirror gets its slots at once, for the next plan: what they were is copied before.
#pragma once
#include <chrono>

#include "base/launcher.hpp"

// `queue` is where the plan was made, and where the next one is. `launcher` launches, and `waiter` waits, perhaps in another
// thread. `slots`, in chunks of `chunk_slots`; of each chunk the host's threads store `host_part`, in 65,536ths, from `host_slot`
// and `host_contents`. `first`: the entry of the first slot. `image`: where slots are read, to `old`; `mirror`: where they are
// stored as well, or null. Each chunk has an event in `marked` and one in `left`, and a word in `totals`. Of all steps with all
// chunks: how long both stored slots, and waited or did other things.
#define STORE_CHUNKS_FIELDS(F)                                                              \
    F(Launcher*, launcher) F(Launcher*, waiter) F(Pool*, pool)                                                   \
    F(void*, queue) F(void*, log_queue) F(void*, slot_queue) F(void*, host_queue) \
    F(void*, planned) F(void**, marked) F(void**, left) F(void*, before) F(void*, stored) \
    F(u64, has_records) F(u64, slots) F(u64, chunk_slots) F(u64, host_part) F(u64, first)   \
    F(u64, processor) F(u64, epoch) F(u64, table) F(u64, first_word) F(u64*, log) F(u8*, markers0) F(u8*, markers1) \
    F(const u64*, changed_slot) F(const u64*, contents) F(const void*, image) F(void*, index) F(void*, mirror) \
    F(u64*, old) F(u64*, digest) F(u64*, totals) F(u64*, tiles) F(u64*, host_slot) F(u64*, host_contents) \
    F(u64, chunks_max) F(u64, host_ns) F(u64, host_waited_ns) F(u64, gpu_ns) F(u64, gpu_waited_ns)

// `CHUNKS_WAIT`: until the stores are complete that were launched, by this call or before.
enum ChunkSteps : u64 { CHUNKS_LEAVE = 1, CHUNKS_LOG = 2, CHUNKS_STORE = 4, CHUNKS_STORE_ON_HOST = 8, CHUNKS_WAIT = 16 };

struct StoreChunks {
    STORE_CHUNKS_FIELDS(GPKVS_FIELD)

    // Some steps of the chunks `from` to `to - 1`.
    void run(u64 steps, u64 from, u64 to) {
        if (steps & (CHUNKS_LEAVE | CHUNKS_LOG | CHUNKS_STORE)) {
            launcher->use(queue);
            launcher->record(planned);
        }
        if (steps & CHUNKS_LEAVE) leave(from, to);
        if (steps & (CHUNKS_LOG | CHUNKS_STORE)) {
            launch(steps, from, to);
            if (launcher->has_failed()) return;  // then a chunk may have no marker
        }
        if (steps & CHUNKS_STORE_ON_HOST) store_on_host(from, to);
        if (!(steps & CHUNKS_WAIT)) return;
        for (void* each : {marked_of(to - 1), stored}) waiter->settle(each);
        if (!(steps & CHUNKS_STORE_ON_HOST)) return;
        gpu_ns = waiter->ns_between(before, stored);
        gpu_waited_ns = waiter->ns_between(planned, before);
    }

    // The first error of the driver in a call with these steps, or 0. Another thread's waiting is that thread's.
    int error(u64 steps) {
        const int error = launcher->error();
        return error || !(steps & (CHUNKS_STORE_ON_HOST | CHUNKS_WAIT)) ? error : waiter->error();
    }

  private:
    u64 words() const { return has_records ? sizeof(BytesSlot) / 8 : sizeof(U64Slot) / 8; }
    u64 slots_of(u64 chunk) const { return std::min(chunk_slots, slots - chunk * chunk_slots); }
    u64 of_host(u64 chunk) const { return slots_of(chunk) * host_part >> 16; }
    u64 of_gpu(u64 chunk) const { return slots_of(chunk) - of_host(chunk); }
    // The first slot of the host's part of a chunk, and where that part lies on the host.
    u64 host_from(u64 chunk) const { return chunk * chunk_slots + of_gpu(chunk); }
    u64 host_at(u64 chunk) const { return chunk * (chunk_slots * host_part >> 16); }
    void* marked_of(u64 chunk) const { return marked ? marked[chunk] : nullptr; }
    void* left_of(u64 chunk) const { return left ? left[chunk] : nullptr; }

    void leave(u64 from, u64 to) {
        load(from * chunk_slots, std::min(to * chunk_slots, slots) - from * chunk_slots);
        if (!host_part) return;
        launcher->use(host_queue);
        launcher->wait(planned);
        for (u64 chunk = from; chunk < to; chunk++) {
            const u64 count = of_host(chunk), at = host_at(chunk), first_slot = host_from(chunk);
            launcher->bring(host_slot + at, changed_slot + first_slot, count * 8);
            launcher->bring(host_contents + at * words(), contents + first_slot * words(), count * words() * 8);
            launcher->record(left_of(chunk));
        }
    }

    // Copies what slots are now.
    void load(u64 at, u64 count) {
        if (has_records) {
            const load_slots_bytes_args args = {changed_slot + at, (const BytesSlot*)image, (BytesSlot*)(old + at * words())};
            launcher->launch(LAUNCH_load_slots_bytes, &args, count, nullptr);
        } else {
            const load_slots_u64_args args = {changed_slot + at, (const U64Slot*)image, (U64Slot*)(old + at * words())};
            launcher->launch(LAUNCH_load_slots_u64, &args, count, nullptr);
        }
    }

    void launch(u64 steps, u64 from, u64 to) {
        for (void* each : {log_queue, slot_queue}) {
            launcher->use(each);
            launcher->wait(planned);
        }
        if (steps & CHUNKS_LOG)
            for (u64 chunk = from; chunk < to; chunk++) log_and_mark(chunk);
        if (!(steps & CHUNKS_STORE)) return;
        follow(from, to);
        launcher->use(slot_queue, true);
        launcher->wait(marked_of(to - 1));  // which comes after the others
        if (host_part) launcher->wait(left_of(to - 1));
        launcher->record(before);
        for (u64 chunk = from; chunk < to; chunk++)
            apply(index, changed_slot + chunk * chunk_slots, contents + chunk * chunk_slots * words(), of_gpu(chunk));
        launcher->record(stored);
    }

    // The next plan reads the mirror, and need not wait for the rest.
    void follow(u64 from, u64 to) {
        launcher->use(queue);
        if (mirror)
            apply(mirror, changed_slot + from * chunk_slots, contents + from * chunk_slots * words(),
                  std::min(to * chunk_slots, slots) - from * chunk_slots);
    }

    void log_and_mark(u64 chunk) {
        launcher->use(log_queue, true);
        const u64 at = chunk * chunk_slots, count = slots_of(chunk);
        if (has_records)
            log_in<BytesSlot, log_chunk_bytes_args>(LAUNCH_log_chunk_bytes, at, count);
        else
            log_in<U64Slot, log_chunk_u64_args>(LAUNCH_log_chunk_u64, at, count);
        launcher->scan({digest + at, nullptr, tiles, totals + chunk}, count, nullptr);
        const u64 place = (processor * chunks_max + chunk) * sizeof(ChunkMarker);
        const mark_chunk_args mark = {epoch, processor << 32 | chunk, first + at, count, totals + chunk, first_word, table,
                                      (u64*)(markers0 + place), (u64*)(markers1 + place)};
        launcher->launch(LAUNCH_mark_chunk, &mark, 2, nullptr);
        launcher->record(marked_of(chunk));
    }

    template <class Slot, class Args>
    void log_in(Launch kernel, u64 at, u64 count) {
        const Args args = {changed_slot + at, (const Slot*)(contents + at * words()), (const Slot*)(old + at * words()), epoch,
                           first + at, log, digest + at};
        launcher->launch(kernel, &args, count, nullptr);
    }

    void apply(void* to, const u64* slot, const u64* content, u64 count) {
        if (has_records) {
            const apply_bytes_args args = {slot, (const BytesSlot*)content, (BytesSlot*)to};
            launcher->launch(LAUNCH_apply_bytes, &args, count, nullptr);
        } else {
            const apply_u64_args args = {slot, (const U64Slot*)content, (U64Slot*)to};
            launcher->launch(LAUNCH_apply_u64, &args, count, nullptr);
        }
    }

    void store_on_host(u64 from, u64 to) {
        using Clock = std::chrono::steady_clock;
        host_ns = host_waited_ns = 0;
        if (!host_part) return;
        HostLauncher threads(pool);
        auto end = Clock::now();
        for (u64 chunk = from; chunk < to; chunk++) {
            waiter->settle(marked_of(chunk));
            waiter->settle(left_of(chunk));
            if (waiter->has_failed()) return;  // then the chunk may have no marker
            const auto begin = Clock::now();
            host_waited_ns += ns_of(begin - end);
            const u64 *slot = host_slot + host_at(chunk), *content = host_contents + host_at(chunk) * words(), count = of_host(chunk);
            if (has_records) {
                const apply_bytes_args args = {slot, (const BytesSlot*)content, (BytesSlot*)index};
                threads.launch(LAUNCH_apply_bytes, &args, count, nullptr);
            } else {
                const apply_u64_args args = {slot, (const U64Slot*)content, (U64Slot*)index};
                threads.launch(LAUNCH_apply_u64, &args, count, nullptr);
            }
            end = Clock::now();
            host_ns += ns_of(end - begin);
        }
    }

    static u64 ns_of(std::chrono::steady_clock::duration time) { return (u64)std::chrono::nanoseconds(time).count(); }
};
