// Kernels that stream the whole index, at start-up and for `gpkvs check`.
#include "hash.cuh"
#include "probe.cuh"
#include "record.cuh"

// recount: live bytes of each heap segment and the number of records. One item a block.
#define RECOUNT_ARGS(F)                                                                     \
    F(const Slot*, index) F(u64, segment_units) F(u64, segments) F(u64*, live_units) F(u32*, records)

GPKVS_KERNEL(recount, RECOUNT_ARGS) {
    const Slot* slot = a.index + i * (BLOCK_BUCKETS * WAYS);
    u32 records = 0;
    for (u32 s = 0; s < BLOCK_BUCKETS * WAYS; s++, slot++) {
        if (slot_kind(slot->meta) != KIND_RECORD) continue;
        records++;
        const u64 segment = reference_offset(slot->reference) / a.segment_units;
        if (segment < a.segments) atomic_add(&a.live_units[segment], reference_length(slot->reference));
    }
    a.records[i] = records;
}

// audit: the first invariant that a slot breaks, by its number; 0 if none (gpkvs/check.py names them). One item a slot.
enum Audit {
    AUDIT_OK = 0,
    AUDIT_KIND = 1,
    AUDIT_BUCKET = 2,
    AUDIT_DUPLICATE = 3,
    AUDIT_REFERENCE = 4,
    AUDIT_CHECKSUM = 5,
    AUDIT_TABLE = 6,
    AUDIT_KEY = 7,
    AUDIT_VERSION = 8,
};

#define AUDIT_ARGS(F)                                                                       \
    F(const Bucket*, index) F(u64, buckets) F(const u8*, heap) F(u64, heap_bytes) F(u64, segment_units) \
    F(u64, hash_key0) F(u64, hash_key1) F(u64, table_id) F(u64, next_sequence) F(u8*, broken)

template <class Args>
GPKVS_DEVICE u8 audit_slot(const Args& a, u64 i) {
    const Slot& slot = a.index[i / WAYS].ways[i % WAYS];
    if (slot_kind(slot.meta) == KIND_EMPTY)
        return slot.fingerprint0 | slot.fingerprint1 | slot.reference | slot.meta ? AUDIT_KIND : AUDIT_OK;
    if (slot_kind(slot.meta) != KIND_RECORD) return AUDIT_KIND;

    const Candidates at = candidate_buckets(slot.fingerprint0, slot.fingerprint1, a.buckets);
    if (i / WAYS != at.bucket0 && i / WAYS != at.bucket1) return AUDIT_BUCKET;
    u32 copies = 0;
    for (u32 way = 0; way < WAYS; way++) {
        const Slot& first = a.index[at.bucket0].ways[way];
        const Slot& second = a.index[at.bucket1].ways[way];
        copies += first.fingerprint0 == slot.fingerprint0 && first.fingerprint1 == slot.fingerprint1 && first.meta;
        copies += second.fingerprint0 == slot.fingerprint0 && second.fingerprint1 == slot.fingerprint1 && second.meta;
    }
    if (copies != 1) return AUDIT_DUPLICATE;

    const u64 offset = reference_offset(slot.reference), units = reference_length(slot.reference);
    if (units < 2 || (offset + units) * UNIT_BYTES > a.heap_bytes ||
        offset / a.segment_units != (offset + units - 1) / a.segment_units)
        return AUDIT_REFERENCE;
    const RecordHeader* record = checked_record(a.heap, a.heap_bytes, slot.reference);
    if (!record) return AUDIT_CHECKSUM;
    if (record->table_id != a.table_id) return AUDIT_TABLE;
    const Hash128 hash = siphash128(a.hash_key0, a.hash_key1, record_key(record), record->key_bytes);
    if (hash.low != slot.fingerprint0 || hash.high != slot.fingerprint1) return AUDIT_KEY;
    if (record->version != slot_version(slot.meta) || record->version >= a.next_sequence) return AUDIT_VERSION;
    return AUDIT_OK;
}

GPKVS_KERNEL(audit, AUDIT_ARGS) { a.broken[i] = audit_slot(a, i); }
