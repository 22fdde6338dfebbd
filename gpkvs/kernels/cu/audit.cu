// Checking an index, slot by slot, for `gpkvs check`, for salvage and for a copy.
#include "base/probe.cuh"
#include "base/record.cuh"

// audit: the first invariant that a slot breaks, by its number; 0 if none. One item a slot, from `first` on. The names are
// those of gpkvs/media/layout.py; the host asks the library for this list.
#define AUDITS(F)                                                                           \
    F(KIND, "slot-kind") F(BUCKET, "slot-bucket") F(DUPLICATE, "slot-unique") F(REFERENCE, "slot-reference") \
    F(CHECKSUM, "record-checksum") F(TABLE, "record-table") F(KEY, "record-key") F(VERSION, "record-version") \
    F(EXPIRY, "slot-expiry") F(BLOB, "slot-blob") F(BLOB_CHECKSUM, "blob-checksum") F(ROW, "row-size")
#define AUDIT_NUMBER(code, name) AUDIT_##code,
enum Audit { AUDIT_OK, AUDITS(AUDIT_NUMBER) };

static const u32 ROW_KEY_BYTES = 8;

template <class Slot>
GPKVS_DEVICE u32 copies_of(const Bucket<Slot>* index, const Candidates& at, const Slot& key) {
    return count_bits(match8(index[at.bucket0], key)) + count_bits(match8(index[at.bucket1], key));
}

// `row_bytes`: of a table of rows; else 0.
#define AUDIT_BYTES_ARGS(F)                                                                 \
    F(const BytesBucket*, index) GEOMETRY_ARGS(F) F(u64, first) F(const u8*, heap) F(u64, heap_bytes) \
    F(u64, segment_units) F(u64, hash_key0) F(u64, hash_key1) F(u64, table_id) F(u64, next_sequence) \
    F(u64, may_expire) F(u64, row_bytes) F(u64, record_format) BLOB_FILE_ARGS(F) F(u8*, broken)

template <class Args>
GPKVS_DEVICE u8 audit_bytes_slot(const Args& a, u64 i) {
    const BytesSlot& slot = a.index[i / WAYS].ways[i % WAYS];
    if (slot_kind(slot.meta) == KIND_EMPTY)
        return slot.fingerprint0 | slot.fingerprint1 | slot.reference | slot.meta ? AUDIT_KIND : AUDIT_OK;
    const bool expires = has_expiry(slot.meta), is_blob = has_blob(slot.meta);
    if (!expires && !is_blob && slot_kind(slot.meta) != KIND_RECORD) return AUDIT_KIND;
    if ((expires && !a.may_expire) || (is_blob && a.record_format == RECORDS_3)) return AUDIT_KIND;

    const Hash128 fingerprint = {slot.fingerprint0, slot.fingerprint1};
    const Candidates at = candidate_buckets<BytesSlot>(fingerprint, geometry_of(a));
    if (i / WAYS != at.bucket0 && i / WAYS != at.bucket1) return AUDIT_BUCKET;
    if (copies_of(a.index, at, slot) != 1) return AUDIT_DUPLICATE;

    const u64 offset = reference_offset(slot.reference), units = reference_length(slot.reference);
    if (units < RECORD_UNITS_MIN || (offset + units) * UNIT_BYTES > a.heap_bytes ||
        !is_in_segments(offset % a.segment_units, units, a.segment_units))
        return AUDIT_REFERENCE;
    const Record record = checked_record(a.heap, a.heap_bytes, a.record_format, slot.reference);
    if (!record.words) return AUDIT_CHECKSUM;
    if (record.table_id != a.table_id) return AUDIT_TABLE;
    const Hash128 hash = siphash128(a.hash_key0, a.hash_key1, record.key, record.key_bytes);
    if (hash.low != slot.fingerprint0 || hash.high != slot.fingerprint1) return AUDIT_KEY;
    if (record.version != slot_version(slot.meta) || record.version >= a.next_sequence) return AUDIT_VERSION;
    if (expires != (record.expiry_ms != 0)) return AUDIT_EXPIRY;
    if (is_blob != (record.blob != nullptr)) return AUDIT_BLOB;
    if (!is_blob_sound(record, blob_file_of(a))) return AUDIT_BLOB_CHECKSUM;
    if (a.row_bytes && (record.key_bytes != ROW_KEY_BYTES || value_bytes_of(record) != a.row_bytes)) return AUDIT_ROW;
    return AUDIT_OK;
}

GPKVS_GROUP_KERNEL(audit_bytes, AUDIT_BYTES_ARGS) {
    const u8 broken = audit_bytes_slot(a, a.first + i);
    if (leader()) a.broken[i] = broken;
}

#define AUDIT_U64_ARGS(F)                                                                   \
    F(const U64Bucket*, index) GEOMETRY_ARGS(F) F(u64, first) F(u64, hash_key0) F(u64, hash_key1) F(u8*, broken)

template <class Args>
GPKVS_DEVICE u8 audit_u64_slot(const Args& a, u64 i) {
    const TableKey table = table_key<U64Slot>(a.hash_key0, a.hash_key1);
    const U64Slot& slot = a.index[i / WAYS].ways[i % WAYS];
    if (slot.key == empty_marker(table, i / WAYS)) return slot.value ? AUDIT_KIND : AUDIT_OK;
    const Candidates at = candidate_buckets<U64Slot>(hash_number(table, slot.key), geometry_of(a));
    if (i / WAYS != at.bucket0 && i / WAYS != at.bucket1) return AUDIT_BUCKET;
    return copies_of(a.index, at, slot) == 1 ? AUDIT_OK : AUDIT_DUPLICATE;
}

GPKVS_GROUP_KERNEL(audit_u64, AUDIT_U64_ARGS) {
    const u8 broken = audit_u64_slot(a, a.first + i);
    if (leader()) a.broken[i] = broken;
}
