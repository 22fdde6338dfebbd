// Keys that expire: whether a batch meets one that has, and which ones have. The host's threads look: they have the heap.
//
// A record's expiry may have rotted. Planners only say that a record looks expired. Whoever removes it checks all of it before.
#pragma once
#include <algorithm>

#include "base/hash.cuh"
#include "base/probe.cuh"
#include "base/record.cuh"

GPKVS_DEVICE bool looks_expired(const Record& record, u64 now) { return record.expiry_ms && record.expiry_ms <= now; }

// meet_expired: sets `met` if some record looks expired. One item a reference. `meta` of the slots; missing (0) in a batch
// that only reads: its GETs read all records anyway.
#define MEET_EXPIRED_ARGS(F)                                                                \
    F(const u64*, reference) F(const u64*, meta) F(const u8*, heap) F(u64, heap_bytes) F(u64, record_format) F(u64, now) F(u64*, met)

template <class Args>
GPKVS_DEVICE void expiry_soon(const Args& a, u64 i) {
    if (a.meta && !has_expiry(a.meta[i])) return;
    prefetch(a.heap + reference_offset(a.reference[i]) * UNIT_BYTES);
}

GPKVS_KERNEL_SOON(meet_expired, MEET_EXPIRED_ARGS, expiry_soon) {
    if (a.meta && !has_expiry(a.meta[i])) return;
    if (looks_expired(record_at(a.heap, a.heap_bytes, a.record_format, a.reference[i]), a.now)) atomic_max(a.met, 1);
}

// Of the slots of one table, the records that have expired. `found`: their number so far, and the earliest expiry of the
// others, both changed in place; and where a sweep goes on.
#define EXPIRY_ARGS(F)                                                                      \
    F(const BytesSlot*, index) F(const u8*, heap) F(u64, heap_bytes) F(u64, record_format) F(u64, table_id) \
    F(u64, hash_key0) F(u64, hash_key1) F(u64, now)                                         \
    F(u64*, reference) F(u64*, expiry) F(u64*, found)

enum Found { FOUND_COUNT, FOUND_NEXT, FOUND_AT, FOUND_WORDS };

// Takes a slot's record if it has expired. A damaged one stays: to remove a key for a rotten expiry would lose it.
template <class Args>
GPKVS_DEVICE void collect_slot(const Args& a, const BytesSlot& slot) {
    if (!has_expiry(slot.meta)) return;
    const Record unchecked = record_at(a.heap, a.heap_bytes, a.record_format, slot.reference);
    if (!unchecked.expiry_ms) return;
    if (!looks_expired(unchecked, a.now)) {
        a.found[FOUND_NEXT] = std::min(a.found[FOUND_NEXT], unchecked.expiry_ms);
        return;
    }
    const Record record = checked_record(a.heap, a.heap_bytes, a.record_format, slot.reference);
    if (!record.words || record.table_id != a.table_id || record.version != slot_version(slot.meta)) return;
    const Hash128 hash = siphash128(a.hash_key0, a.hash_key1, record.key, record.key_bytes);
    if (hash.low != slot.fingerprint0 || hash.high != slot.fingerprint1) return;
    const u64 i = a.found[FOUND_COUNT]++;
    a.reference[i] = slot.reference;
    a.expiry[i] = record.expiry_ms;
}

// collect_expired: among some slots, by their numbers.
#define COLLECT_EXPIRED_ARGS(F) EXPIRY_ARGS(F) F(const u64*, slot) F(u64, slots)

GPKVS_SERIAL_KERNEL(collect_expired, COLLECT_EXPIRED_ARGS) {
    if (i != 0) return;
    for (u64 s = 0; s < a.slots; s++)
        if (a.slot[s] != NO_SLOT) collect_slot(a, a.index[a.slot[s]]);
}

// sweep_expired: in the blocks `found[FOUND_AT]` to `end - 1` of those that the catalogue counts. It ends before a block for
// whose slots there may be no room: `room` records.
#define SWEEP_EXPIRED_ARGS(F) EXPIRY_ARGS(F) GEOMETRY_ARGS(F) F(u64, end) F(u64, room)

static const u64 SLOTS_IN_BLOCK = BLOCK_BYTES / sizeof(BytesSlot);
static const u64 SWEEP_SOON = 16;  // slots ahead whose records are asked for

template <class Args>
GPKVS_DEVICE void sweep_slots(const Args& a, u64 first, u64 last) {
    for (u64 slot = first; slot < last; slot++) {
        const u64 soon = slot + SWEEP_SOON;
        if (soon < last && has_expiry(a.index[soon].meta))
            prefetch(a.heap + reference_offset(a.index[soon].reference) * UNIT_BYTES);
        collect_slot(a, a.index[slot]);
    }
}

GPKVS_SERIAL_KERNEL(sweep_expired, SWEEP_EXPIRED_ARGS) {
    if (i != 0) return;
    u64& block = a.found[FOUND_AT];
    for (; block < a.end && a.found[FOUND_COUNT] + 2 * SLOTS_IN_BLOCK <= a.room; block++) {
        // A block that has moved is two.
        const bool has_moved = block >= a.unmoved;
        const u64 first = has_moved ? 2 * block : block;
        sweep_slots(a, first * SLOTS_IN_BLOCK, (first + 1 + has_moved) * SLOTS_IN_BLOCK);
    }
}

// record_keys: the keys of records, one after the other. One item a record. First, without `keys`, how long each is.
#define RECORD_KEYS_ARGS(F)                                                                 \
    F(const u64*, reference) F(const u8*, heap) F(u64, record_format) F(u32*, key_lengths) F(const u64*, key_offsets) F(u8*, keys)

GPKVS_KERNEL(record_keys, RECORD_KEYS_ARGS) {
    const Record record = read_record(a.heap + reference_offset(a.reference[i]) * UNIT_BYTES, a.record_format);
    if (!a.keys) a.key_lengths[i] = record.key_bytes;
    else copy_bytes(a.keys + a.key_offsets[i], record.key, record.key_bytes);
}

// note_expiries: of new slots and their records, the earliest expiry in each of `ranges` equal parts of all fingerprints.
#define NOTE_EXPIRIES_ARGS(F)                                                               \
    F(const BytesSlot*, contents) F(u64, slots) F(const u8*, heap) F(u64, heap_bytes) F(u64, record_format) F(u64, ranges) \
    F(u64*, earliest)

GPKVS_SERIAL_KERNEL(note_expiries, NOTE_EXPIRIES_ARGS) {
    if (i != 0) return;
    for (u64 s = 0; s < a.slots; s++) {
        const BytesSlot& slot = a.contents[s];
        if (!has_expiry(slot.meta)) continue;
        u64& earliest = a.earliest[mul_high(slot.fingerprint0, a.ranges)];
        earliest = std::min(earliest, record_at(a.heap, a.heap_bytes, a.record_format, slot.reference).expiry_ms);
    }
}
