// What a copy into another store runs over records and numbers (recovery/copy).
#include "base/hash.cuh"
#include "base/record.cuh"

// digest_records: of what each record says, the same in every format. A sum of digests is the same in any order of the
// records.
#define DIGEST_RECORDS_ARGS(F) F(const u64*, reference) F(const u8*, heap) F(u64, record_format) BLOB_FILE_ARGS(F) F(u64*, digest)

GPKVS_KERNEL(digest_records, DIGEST_RECORDS_ARGS) {
    const Record record = read_record(a.heap + reference_offset(a.reference[i]) * UNIT_BYTES, a.record_format);
    const u64 value_bytes = value_bytes_of(record);
    const u8* const value = record_value(record, blob_file_of(a));
    u64 digest = mix64(value_bytes + 1);
    digest = mix64(digest ^ ((u64)record.table_id << 32 | record.key_bytes));
    digest = mix64(mix64(digest ^ record.version) ^ record.expiry_ms);
    // Key and value one behind the other, wherever they lie.
    const u64 bytes = record.key_bytes + value_bytes;
    u64 at = 0;
    for (; at + 8 <= record.key_bytes; at += 8) digest = mix64(digest ^ load_unaligned(record.key + at));
    u64 word = 0;
    u32 shift = 0;
    for (; at < bytes && (at < record.key_bytes || shift); at++) {
        word |= (u64)(at < record.key_bytes ? record.key[at] : value[at - record.key_bytes]) << shift;
        shift = (shift + 8) % 64;
        if (shift) continue;
        digest = mix64(digest ^ word);
        word = 0;
    }
    for (; at + 8 <= bytes; at += 8) digest = mix64(digest ^ load_unaligned(value + (at - record.key_bytes)));
    for (; at < bytes; at++, shift += 8) word |= (u64)value[at - record.key_bytes] << shift;
    a.digest[i] = mix64(digest ^ word);
}

// digest_numbers: the same for the slots of a u64 table.
#define DIGEST_NUMBERS_ARGS(F) F(const U64Slot*, slots) F(u64, table_id) F(u64*, digest)

GPKVS_KERNEL(digest_numbers, DIGEST_NUMBERS_ARGS) {
    a.digest[i] = mix64(mix64(mix64(a.table_id + 1) ^ a.slots[i].key) ^ a.slots[i].value);
}

// converted_units: how long each record is in another format; 0 if that has no place for its key. A damaged one is as long
// as its reference says: nobody has checked it yet.
#define CONVERTED_UNITS_ARGS(F) \
    F(const u64*, reference) F(const u8*, heap) F(u64, heap_bytes) F(u64, record_format) F(u64, new_format) F(u64, table_id) \
    F(u64, key_bytes_max) F(u64*, units)

GPKVS_KERNEL(converted_units, CONVERTED_UNITS_ARGS) {
    const u64 units = reference_length(a.reference[i]);
    const Record record = record_at(a.heap, a.heap_bytes, a.record_format, a.reference[i]);
    const bool is_long = record.key_bytes > a.key_bytes_max;
    if (record.units != units || record.table_id != a.table_id) a.units[i] = units;
    else if (is_long && !checked_record(a.heap, a.heap_bytes, a.record_format, a.reference[i]).words) a.units[i] = units;
    else if (is_long) a.units[i] = 0;
    else a.units[i] = record_units(a.new_format, record.expiry_ms != 0, record.key_bytes, value_bytes_of(record));
}

// blob_values: where the value of each record is that has a blob in the new format, and how long it is; 0 of the others.
#define BLOB_VALUES_ARGS(F) \
    F(const u64*, reference) F(const u8*, heap) F(u64, record_format) BLOB_FILE_ARGS(F) F(u64, new_format) F(u64*, value) \
    F(u64*, value_bytes)

GPKVS_KERNEL(blob_values, BLOB_VALUES_ARGS) {
    const Record record = read_record(a.heap + reference_offset(a.reference[i]) * UNIT_BYTES, a.record_format);
    const u64 bytes = value_bytes_of(record);
    const bool is_any = is_in_blob(a.new_format, record.key_bytes, bytes);
    a.value_bytes[i] = is_any ? bytes : 0;
    a.value[i] = is_any ? (u64)record_value(record, blob_file_of(a)) : 0;
}

// convert_records: records in another format, or as they are if it is the same, each to its own offset. `new_blobs`: what
// each says of its blob in the new file (BlobWords), or a reference 0; null: none has one.
#define CONVERT_RECORDS_ARGS(F)                                                             \
    F(const u64*, reference) F(const u8*, heap) F(u64, record_format) BLOB_FILE_ARGS(F) F(u64, new_format) \
    F(const u64*, new_blobs) F(const u64*, offset) F(u8*, out)

GPKVS_KERNEL(convert_records, CONVERT_RECORDS_ARGS) {
    const u64 reference = a.reference[i];
    const u8* from = a.heap + reference_offset(reference) * UNIT_BYTES;
    u8* const to = a.out + a.offset[i];
    const u64* const words = a.new_blobs ? a.new_blobs + i * (BLOB_WORDS_BYTES / 8) : nullptr;
    const u64* const blob = words && words[0] ? words : nullptr;
    if (a.record_format == a.new_format && !blob) return copy_bytes(to, from, reference_length(reference) * UNIT_BYTES);
    const Record record = read_record(from, a.record_format);
    const u64 value_bytes = value_bytes_of(record);
    const u64 units = record_units(a.new_format, record.expiry_ms != 0, record.key_bytes, value_bytes);
    write_record((u64*)to, a.new_format, units, record.table_id, record.version, record.expiry_ms, record.key,
                 record.key_bytes, record_value(record, blob_file_of(a)), value_bytes, blob);
}
