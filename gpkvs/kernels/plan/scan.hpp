// A step of a scan: the keys of some blocks, in the order of fingerprint0, which neither growth nor a restart changes.
//
// S1: a step returns all keys with fingerprint0 from its cursor on up to the next one, ties together, and no others.
// A block holds a range of fingerprints, and the live blocks in their order hold all of them in order, also while the
// table grows. What a GET would not find is not returned: slots in a wrong place, records that are not their slot's.
//
// Only the host's threads run these, whatever the backend: they read records.
#pragma once
#include <algorithm>

#include "base/probe.cuh"
#include "base/record.cuh"

// What became of a slot. Planners take an expired record as one that is there.
enum Scanned { SCANNED_OTHER = 0, SCANNED_FOUND = 1, SCANNED_DAMAGED = 2, SCANNED_EXPIRED = 3 };

struct Placed {
    u64 fingerprint0, fingerprint1, slot;
    bool operator<(const Placed& other) const {
        if (fingerprint0 != other.fingerprint0) return fingerprint0 < other.fingerprint0;
        return fingerprint1 < other.fingerprint1;
    }
    bool is_key_of(const Placed& other) const {
        return fingerprint0 == other.fingerprint0 && fingerprint1 == other.fingerprint1;
    }
};

// The live block with this number, counted in the order of the fingerprints.
static inline u64 live_block(u64 number, const Geometry& geometry) {
    return number < geometry.unmoved ? number : number + geometry.unmoved;
}

// Sorts the keys of a block. Fingerprints are as good as random, so that their next bits are almost their places.
template <class Slot>
static inline void sort_block(const Placed* from, u64 n, u64 block, const Geometry& geometry, Placed* to) {
    const u64 slots = Bucket<Slot>::IN_BLOCK * WAYS;
    const u64 places = slots * (block < geometry.unmoved ? geometry.blocks : 2 * geometry.blocks);
    u32 ends[Bucket<Slot>::IN_BLOCK * WAYS] = {};
    for (u64 i = 0; i < n; i++) ends[mul_high(from[i].fingerprint0, places) - block * slots]++;
    for (u64 place = 1; place < slots; place++) ends[place] += ends[place - 1];
    for (u64 i = n; i-- > 0;) to[--ends[mul_high(from[i].fingerprint0, places) - block * slots]] = from[i];
    for (u64 i = 1; i < n; i++) {
        const Placed placed = to[i];
        u64 at = i;
        for (; at && placed < to[at - 1]; at--) to[at] = to[at - 1];
        to[at] = placed;
    }
}

static inline u64 word_of(const BytesSlot& slot) { return slot.reference; }
static inline u64 word_of(const U64Slot& slot) { return slot.value; }

// scan: of each block the slots that hold a key with fingerprint0 >= `begin`, sorted, with reference or value; how
// many there are; and how many are no place of their key. One item a live block, from the number `first` on.
#define SCAN_ARGS(F, Buckets)                                                            \
    F(const Buckets*, index) GEOMETRY_ARGS(F) F(u64, first) F(u64, begin) F(u64, hash_key0) F(u64, hash_key1) \
    F(u64*, fingerprint0) F(u64*, slot) F(u64*, word) F(u64*, count) F(u64*, misplaced)
#define SCAN_BYTES_ARGS(F) SCAN_ARGS(F, BytesBucket)
#define SCAN_U64_ARGS(F) SCAN_ARGS(F, U64Bucket)

template <class Slot, class Args>
static inline void scan_block(const Args& a, u64 i) {
    const u64 in_block = Bucket<Slot>::IN_BLOCK, slots = in_block * WAYS;
    const Geometry geometry = geometry_of(a);
    const u64 block = live_block(a.first + i, geometry);
    const TableKey table = table_key<Slot>(a.hash_key0, a.hash_key1);
    Placed unsorted[Bucket<Slot>::IN_BLOCK * WAYS], placed[Bucket<Slot>::IN_BLOCK * WAYS];
    u64 found = 0, misplaced = 0;
    for (u64 at = 0; at < in_block; at++) {
        const u64 bucket = block * in_block + at;
        const Slot empty = empty_slot(table, bucket, (const Slot*)nullptr);
        const Slot* ways = a.index[bucket].ways;
        Hash128 fingerprints[WAYS];  // in a loop of their own, of which a compiler makes vectors
        for (u32 way = 0; way < WAYS; way++) fingerprints[way] = fingerprint_of(table, ways[way]);
        for (u32 way = 0; way < WAYS; way++) {
            if (is_empty(ways[way], empty)) continue;
            const Candidates own = candidates_in_block<Slot>(fingerprints[way]);
            const bool is_in_bucket = own.bucket0 == at || own.bucket1 == at;
            if (!is_in_bucket || block_of(fingerprints[way], geometry) != block) misplaced++;
            else if (fingerprints[way].low >= a.begin)
                unsorted[found++] = {fingerprints[way].low, fingerprints[way].high, bucket * WAYS + way};
        }
    }
    sort_block<Slot>(unsorted, found, block, geometry, placed);
    u64 kept = 0;
    for (u64 n = 0; n < found; n++) {
        if (n && placed[n].is_key_of(placed[n - 1])) {  // rot has made two of one
            misplaced++;
            continue;
        }
        a.fingerprint0[slots * i + kept] = placed[n].fingerprint0;
        a.slot[slots * i + kept] = placed[n].slot;
        a.word[slots * i + kept++] = word_of(a.index[placed[n].slot / WAYS].ways[placed[n].slot % WAYS]);
    }
    a.count[i] = kept;
    a.misplaced[i] = misplaced;
}

GPKVS_KERNEL(scan_bytes, SCAN_BYTES_ARGS) { scan_block<BytesSlot>(a, i); }
GPKVS_KERNEL(scan_u64, SCAN_U64_ARGS) { scan_block<U64Slot>(a, i); }

// A slot's record, if it can be that: its length is that of the reference, and it lies in the heap.
template <class Args>
static inline Record fitting_record(const Args& a, u64 reference) {
    const Record record = record_at(a.heap, a.heap_bytes, a.record_format, reference);
    return record.units == reference_length(reference) ? record : no_record();
}

// peek: of each slot whether its key is to be returned (`Scanned`), and what is known without the value. The key's own
// fingerprint, 128 bits under a key, says as much as a checksum. An expiry is only believed with the record's CRC. One
// item a group of slots.
#define PEEK_ARGS(F)                                                                        \
    F(const BytesBucket*, index) F(const u64*, slot) F(u64, slots) F(const u8*, heap) F(u64, heap_bytes) F(u64, record_format) \
    F(u64, table_id) F(u64, hash_key0) F(u64, hash_key1) F(const u8*, prefix) F(u64, prefix_bytes) F(u64, now_ms) \
    F(u8*, scanned) F(u32*, key_lengths) F(u32*, value_lengths) F(u64*, versions) F(u64*, expiries)

template <class Args>
GPKVS_DEVICE const BytesSlot& slot_of(const Args& a, u64 i) {
    return a.index[a.slot[i] / WAYS].ways[a.slot[i] % WAYS];
}

// Runs a function on each slot of a group, whose records have all been asked for before: so many bytes of each. A
// processor looks up the pages of several records at once only if little stands between them, and a hash is long.
static const u64 SCAN_GROUP = 16;
template <class Args, class Function>
static inline void scan_group(const Args& a, u64 group, u64 bytes, Function function) {
    const u64 first = group * SCAN_GROUP, last = std::min(first + SCAN_GROUP, a.slots);
    for (u64 i = first; i < last; i++) {
        const u8* record = a.heap + reference_offset(slot_of(a, i).reference) * UNIT_BYTES;
        for (u64 at = 0; at < bytes; at += 64) prefetch(record + at);
        prefetch(record + bytes - 1);
    }
    for (u64 i = first; i < last; i++) function(i);
}
static const u64 HEAD_BYTES = RECORD_HEADER_BYTES + 16, RECORD_BYTES = 192;  // of a record with a short key, and value

template <class Args>
static inline u8 peek_at(const Args& a, u64 i) {
    const BytesSlot& slot = slot_of(a, i);
    const Record record = fitting_record(a, slot.reference);
    if (!record.words || record.table_id != a.table_id || record.version != slot_version(slot.meta)) return SCANNED_DAMAGED;
    const Hash128 own = siphash128(a.hash_key0, a.hash_key1, record.key, record.key_bytes);
    if (own.low != slot.fingerprint0 || own.high != slot.fingerprint1) return SCANNED_DAMAGED;
    const bool expires = has_expiry(slot.meta);
    if (expires && !checked_record(a.heap, a.heap_bytes, a.record_format, slot.reference).words) return SCANNED_DAMAGED;
    a.key_lengths[i] = record.key_bytes;
    a.value_lengths[i] = (u32)value_bytes_of(record);
    a.versions[i] = record.version;
    a.expiries[i] = expires ? record.expiry_ms : 0;
    if (expires && record.expiry_ms && record.expiry_ms <= a.now_ms) return SCANNED_EXPIRED;
    if (record.key_bytes < a.prefix_bytes) return SCANNED_OTHER;
    return same_bytes(record.key, a.prefix, a.prefix_bytes) ? SCANNED_FOUND : SCANNED_OTHER;
}

GPKVS_KERNEL(peek, PEEK_ARGS) {
    scan_group(a, i, HEAD_BYTES, [&](u64 slot) { a.scanned[slot] = peek_at(a, slot); });
}

// take_records: the keys, and the values if `with_values` is 1, of slots that were found; a record whose CRC is wrong
// is damaged, and nothing of it is stored. One item a group of slots.
#define TAKE_RECORDS_ARGS(F)                                                                \
    F(const BytesBucket*, index) F(const u64*, slot) F(u64, slots) F(const u8*, heap) F(u64, heap_bytes) F(u64, record_format) \
    BLOB_FILE_ARGS(F) F(u64, with_values) F(const u64*, key_offsets) F(const u64*, value_offsets) F(u8*, keys) F(u8*, values) F(u8*, scanned)

template <class Args>
static inline u8 take_record(const Args& a, u64 i) {
    const u64 reference = slot_of(a, i).reference;
    const Record record = a.with_values ? checked_record(a.heap, a.heap_bytes, a.record_format, reference)
                                        : fitting_record(a, reference);
    if (!record.words || (a.with_values && !is_blob_sound(record, blob_file_of(a)))) return SCANNED_DAMAGED;
    copy_bytes(a.keys + a.key_offsets[i], record.key, record.key_bytes);
    if (a.with_values) copy_bytes(a.values + a.value_offsets[i], record_value(record, blob_file_of(a)), value_bytes_of(record));
    return SCANNED_FOUND;
}

GPKVS_KERNEL(take_records, TAKE_RECORDS_ARGS) {
    scan_group(a, i, a.with_values ? RECORD_BYTES : HEAD_BYTES, [&](u64 slot) { a.scanned[slot] = take_record(a, slot); });
}

// take_numbers: the keys of slots of numbers. One item a slot.
#define TAKE_NUMBERS_ARGS(F) F(const U64Bucket*, index) F(const u64*, slot) F(u64*, keys)

GPKVS_KERNEL(take_numbers, TAKE_NUMBERS_ARGS) { a.keys[i] = a.index[a.slot[i] / WAYS].ways[a.slot[i] % WAYS].key; }
