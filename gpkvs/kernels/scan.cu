// Kernels that stream a whole index: at creation, at start-up and for `gpkvs check`.
#include "heap.cuh"
#include "probe.cuh"
#include "record.cuh"

// recount_bytes: live units of each heap segment and the number of records. One item a block, from `first_block` on.
#define RECOUNT_BYTES_ARGS(F) F(const BytesBucket*, index) F(u64, first_block) SEGMENTS_ARGS(F) F(u32*, records)

GPKVS_KERNEL(recount_bytes, RECOUNT_BYTES_ARGS) {
    const u32 in_block = BytesBucket::IN_BLOCK * WAYS;
    const BytesSlot* slot = a.index[(a.first_block + i) * BytesBucket::IN_BLOCK].ways;
    u32 records = 0;
    for (u32 s = 0; s < in_block; s++, slot++) {
        // Whatever is not empty counts, also what is damaged: `find` sees it, and its removal is subtracted.
        if (slot_kind(slot->meta) == KIND_EMPTY) continue;
        records++;
        count_reference(a, slot->reference);
    }
    a.records[i] = records;
}

// count_units: the units of references on a GPU. One item a reference.
#define COUNT_UNITS_ARGS(F) F(const u64*, reference) SEGMENTS_ARGS(F)

GPKVS_KERNEL(count_units, COUNT_UNITS_ARGS) { count_reference(a, a.reference[i]); }

// recount_u64: the number of records. One item a block.
#define RECOUNT_U64_ARGS(F)                                                                 \
    F(const U64Bucket*, index) F(u64, buckets) F(u64, hash_key0) F(u64, hash_key1) F(u32*, records)

GPKVS_GROUP_KERNEL(recount_u64, RECOUNT_U64_ARGS) {
    const TableKey table = table_key<U64Slot>(a.buckets, a.hash_key0, a.hash_key1);
    u32 records = 0;
    for (u64 b = i * U64Bucket::IN_BLOCK; b < (i + 1) * U64Bucket::IN_BLOCK; b++)
        records += WAYS - count_bits(empty8(table, a.index, b));
    if (leader()) a.records[i] = records;
}

// audit: the first invariant that a slot breaks, by its number; 0 if none. One item a slot. The names are those of
// gpkvs/media/layout.py; the host asks the library for this list.
#define AUDITS(F)                                                                           \
    F(KIND, "slot-kind") F(BUCKET, "slot-bucket") F(DUPLICATE, "slot-unique") F(REFERENCE, "slot-reference") \
    F(CHECKSUM, "record-checksum") F(TABLE, "record-table") F(KEY, "record-key") F(VERSION, "record-version")
#define AUDIT_NUMBER(code, name) AUDIT_##code,
enum Audit { AUDIT_OK, AUDITS(AUDIT_NUMBER) };

template <class Slot>
GPKVS_DEVICE u32 copies_of(const Bucket<Slot>* index, const Candidates& at, const Slot& key) {
    return count_bits(match8(index[at.bucket0], key)) + count_bits(match8(index[at.bucket1], key));
}

#define AUDIT_BYTES_ARGS(F)                                                                 \
    F(const BytesBucket*, index) F(u64, buckets) F(const u8*, heap) F(u64, heap_bytes) F(u64, segment_units) \
    F(u64, hash_key0) F(u64, hash_key1) F(u64, table_id) F(u64, next_sequence) F(u8*, broken)

template <class Args>
GPKVS_DEVICE u8 audit_bytes_slot(const Args& a, u64 i) {
    const BytesSlot& slot = a.index[i / WAYS].ways[i % WAYS];
    if (slot_kind(slot.meta) == KIND_EMPTY)
        return slot.fingerprint0 | slot.fingerprint1 | slot.reference | slot.meta ? AUDIT_KIND : AUDIT_OK;
    if (slot_kind(slot.meta) != KIND_RECORD) return AUDIT_KIND;

    const Hash128 fingerprint = {slot.fingerprint0, slot.fingerprint1};
    const Candidates at = candidate_buckets<BytesSlot>(fingerprint, a.buckets);
    if (i / WAYS != at.bucket0 && i / WAYS != at.bucket1) return AUDIT_BUCKET;
    if (copies_of(a.index, at, slot) != 1) return AUDIT_DUPLICATE;

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

GPKVS_GROUP_KERNEL(audit_bytes, AUDIT_BYTES_ARGS) {
    const u8 broken = audit_bytes_slot(a, i);
    if (leader()) a.broken[i] = broken;
}

#define AUDIT_U64_ARGS(F) F(const U64Bucket*, index) F(u64, buckets) F(u64, hash_key0) F(u64, hash_key1) F(u8*, broken)

template <class Args>
GPKVS_DEVICE u8 audit_u64_slot(const Args& a, u64 i) {
    const TableKey table = table_key<U64Slot>(a.buckets, a.hash_key0, a.hash_key1);
    const U64Slot& slot = a.index[i / WAYS].ways[i % WAYS];
    if (slot.key == empty_marker(table, i / WAYS)) return slot.value ? AUDIT_KIND : AUDIT_OK;
    const Candidates at = candidate_buckets<U64Slot>(hash_number(table, slot.key), a.buckets);
    if (i / WAYS != at.bucket0 && i / WAYS != at.bucket1) return AUDIT_BUCKET;
    return copies_of(a.index, at, slot) == 1 ? AUDIT_OK : AUDIT_DUPLICATE;
}

GPKVS_GROUP_KERNEL(audit_u64, AUDIT_U64_ARGS) {
    const u8 broken = audit_u64_slot(a, i);
    if (leader()) a.broken[i] = broken;
}

// mark_empty: the empty markers of a new u64 index, whose bytes are zero. One item a bucket, of those that hold 0.
#define MARK_EMPTY_ARGS(F)                                                                  \
    F(U64Bucket*, index) F(u64, buckets) F(u64, hash_key0) F(u64, hash_key1)

GPKVS_PM_KERNEL(mark_empty, MARK_EMPTY_ARGS) {
    const TableKey table = table_key<U64Slot>(a.buckets, a.hash_key0, a.hash_key1);
    const u64 bucket = i == 0 ? table.of_zero.bucket0 : table.of_zero.bucket1;
    for (u32 way = 0; way < WAYS; way++) pm_store(&a.index[bucket].ways[way].key, empty_marker(table, bucket));
}
