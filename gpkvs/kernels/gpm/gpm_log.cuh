// Logs of a user's transactions, as kernels see them (gpkvs/gpm/coalesced_log.py, partitioned_log.py).
//
// CoalescedLog: every thread has room for `depth` entries of its own, so nobody waits for a lock. The words of the entries
// of 32 neighbours lie side by side: what they store together fills whole lines (hierarchical coalesced logging, GPM,
// ASPLOS '22, section 5.2, figures 4 and 5).
// PartitionedLog: entries of any length, one behind the other in a partition, under its lock: the conventional log.
//
// An entry is durable before the tail that counts it. A tail is (epoch << 32 | count); one of another epoch counts nothing.
#pragma once
#include "base/platform.cuh"

static const u64 GPM_LANES = 32;

// Why an entry was not inserted (`_REFUSALS` in gpkvs/gpm/log.py).
enum GpmRefusal : u64 { GPM_FULL = 1, GPM_NO_SUCH_THREAD, GPM_NO_SUCH_PARTITION, GPM_OTHER_SIZE, GPM_DAMAGED };

struct GpmLog {
    u64* tails;  // one for each thread
    u64* entries;
    u64* counts;   // the tails again, in memory that is near
    u64* refusal;  // becomes a GpmRefusal
    u64 threads, depth, words;  // of an entry
    u64 epoch;
};

struct GpmPartitions {
    u64* tails;  // one for each partition; they count words
    u64* entries;
    u64* counts;
    u64* refusal;
    u64* locks;
    u64 partitions, words;  // of a partition
    u64 epoch;
};

template <class Log>
GPKVS_DEVICE u64 gpm_tail(const Log* log, u64 count) {
    return log->epoch << 32 | count;
}

GPKVS_DEVICE bool gpm_refuse(u64* refusal, GpmRefusal why) {
    *(volatile u64*)refusal = why;
    return false;
}

// Whether entries of a kernel's own type are as long as those of the log. Words are taken as they come.
template <class Entry>
GPKVS_DEVICE bool gpm_is_entry(const GpmLog* log, const Entry*) {
    static_assert(sizeof(Entry) % 8 == 0, "an entry has whole words of 8 bytes");
    return sizeof(Entry) == 8 * log->words;
}
GPKVS_DEVICE bool gpm_is_entry(const GpmLog*, const u64*) { return true; }

// How many entries a thread has.
GPKVS_DEVICE u64 gpm_log_count(const GpmLog* log, u64 thread) {
    if (thread >= log->threads) return 0;
    const u64 tail = log->counts[thread];
    return tail >> 32 == log->epoch ? (u32)tail : 0;
}

GPKVS_DEVICE u64* gpm_log_word(const GpmLog* log, u64 thread, u64 number, u64 word) {
    return log->entries + ((thread / GPM_LANES * log->depth + number) * log->words + word) * GPM_LANES + thread % GPM_LANES;
}

GPKVS_DEVICE void gpm_log_set_count(const GpmLog* log, u64 thread, u64 count) {
    log->counts[thread] = gpm_tail(log, count);
    pm_store(log->tails + thread, gpm_tail(log, count));
    pm_persist();
}

// Adds several entries, which lie one behind the other, durably and all at once: they share the two fences of one. False,
// and nothing is stored, if the thread has no room for all, or their type has another size than the log's entries.
template <class Entry>
GPKVS_DEVICE bool gpm_log_insert_several(const GpmLog* log, u64 thread, const Entry* entries, u64 several) {
    if (!gpm_is_entry(log, entries)) return gpm_refuse(log->refusal, GPM_OTHER_SIZE);
    if (thread >= log->threads) return gpm_refuse(log->refusal, GPM_NO_SUCH_THREAD);
    const u64 count = gpm_log_count(log, thread);
    if (several > log->depth - count) return gpm_refuse(log->refusal, GPM_FULL);
    const u64* word = (const u64*)entries;
    for (u64 number = count; number < count + several; number++)
        for (u64 w = 0; w < log->words; w++) pm_store(gpm_log_word(log, thread, number, w), *word++);
    pm_persist();
    gpm_log_set_count(log, thread, count + several);
    return true;
}

template <class Entry>
GPKVS_DEVICE bool gpm_log_insert(const GpmLog* log, u64 thread, const Entry* entry) {
    return gpm_log_insert_several(log, thread, entry, 1);
}

// Copies an entry, by its number from 0 on. False, and nothing is copied, if the thread has no such entry, or if its type
// has another size: do not undo anything then.
template <class Entry>
GPKVS_DEVICE bool gpm_log_read(const GpmLog* log, u64 thread, u64 number, Entry* entry) {
    if (!gpm_is_entry(log, (const Entry*)entry)) return gpm_refuse(log->refusal, GPM_OTHER_SIZE);
    if (number >= gpm_log_count(log, thread)) return false;
    for (u64 w = 0; w < log->words; w++) ((u64*)entry)[w] = *gpm_log_word(log, thread, number, w);
    return true;
}

// Takes the last entry off, durably: what it was for is durable.
GPKVS_DEVICE void gpm_log_remove(const GpmLog* log, u64 thread) {
    const u64 count = gpm_log_count(log, thread);
    if (count) gpm_log_set_count(log, thread, count - 1);
}

GPKVS_DEVICE void gpm_log_clear(const GpmLog* log, u64 thread) {
    if (gpm_log_count(log, thread)) gpm_log_set_count(log, thread, 0);
}

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
GPKVS_DEVICE void gpm_lock(u64* lock) {
    while (atomicCAS(lock, 0ull, 1ull)) {
    }
    __threadfence();
}
GPKVS_DEVICE void gpm_unlock(u64* lock) {
    __threadfence();
    atomicExch(lock, 0ull);
}
#else
GPKVS_DEVICE void gpm_lock(u64* lock) {
    while (__atomic_exchange_n(lock, 1ull, __ATOMIC_ACQUIRE)) {
    }
}
GPKVS_DEVICE void gpm_unlock(u64* lock) { __atomic_store_n(lock, 0ull, __ATOMIC_RELEASE); }
#endif

// How many words of a partition are in use.
GPKVS_DEVICE u64 gpm_part_words(const GpmPartitions* log, u64 partition) {
    const u64 tail = *(volatile u64*)(log->counts + partition);
    return tail >> 32 == log->epoch ? (u32)tail : 0;
}

GPKVS_DEVICE void gpm_part_set_words(const GpmPartitions* log, u64 partition, u64 words) {
    *(volatile u64*)(log->counts + partition) = gpm_tail(log, words);
    pm_store(log->tails + partition, gpm_tail(log, words));
    pm_persist();
}

// Adds an entry of so many words behind the others, durably: its words, then their number, so that it can be taken off again.
GPKVS_DEVICE bool gpm_part_insert(const GpmPartitions* log, u64 partition, const void* entry, u64 words) {
    if (partition >= log->partitions) return gpm_refuse(log->refusal, GPM_NO_SUCH_PARTITION);
    gpm_lock(log->locks + partition);
    const u64 used = gpm_part_words(log, partition);
    const bool fits = words < log->words && used + words + 1 <= log->words;
    if (fits) {
        u64* at = log->entries + partition * log->words + used;
        for (u64 w = 0; w < words; w++) pm_store(at + w, ((const u64*)entry)[w]);
        pm_store(at + words, words);
        pm_persist();
        gpm_part_set_words(log, partition, used + words + 1);
    } else {
        gpm_refuse(log->refusal, GPM_FULL);
    }
    gpm_unlock(log->locks + partition);
    return fits;
}

// Takes the last entry off, durably.
GPKVS_DEVICE void gpm_part_remove(const GpmPartitions* log, u64 partition) {
    gpm_lock(log->locks + partition);
    const u64 used = gpm_part_words(log, partition);
    if (used) {
        const u64 words = log->entries[partition * log->words + used - 1];
        if (words < used) gpm_part_set_words(log, partition, used - 1 - words);
        else gpm_refuse(log->refusal, GPM_DAMAGED);
    }
    gpm_unlock(log->locks + partition);
}

GPKVS_DEVICE void gpm_part_clear(const GpmPartitions* log, u64 partition) {
    gpm_lock(log->locks + partition);
    if (gpm_part_words(log, partition)) gpm_part_set_words(log, partition, 0);
    gpm_unlock(log->locks + partition);
}
