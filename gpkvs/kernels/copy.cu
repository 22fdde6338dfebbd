// What a copy into another store runs over records and numbers (recovery/copy).
#include "hash.cuh"
#include "record.cuh"

// digest_records: of what each record says, the same in every format. A sum of digests is the same in any order of the
// records.
#define DIGEST_RECORDS_ARGS(F) F(const u64*, reference) F(const u8*, heap) F(u64, record_format) F(u64*, digest)

GPKVS_KERNEL(digest_records, DIGEST_RECORDS_ARGS) {
    const Record record = read_record(a.heap + reference_offset(a.reference[i]) * UNIT_BYTES, a.record_format);
    u64 digest = mix64(record.value_bytes + 1);
    digest = mix64(digest ^ ((u64)record.table_id << 32 | record.key_bytes));
    digest = mix64(mix64(digest ^ record.version) ^ record.expiry_ms);
    const u64 bytes = record.key_bytes + record.value_bytes;
    u64 at = 0, rest = 0;
    for (; at + 8 <= bytes; at += 8) digest = mix64(digest ^ load_unaligned(record.key + at));
    for (u32 shift = 0; at < bytes; at++, shift += 8) rest |= (u64)record.key[at] << shift;
    a.digest[i] = mix64(digest ^ rest);
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
    else a.units[i] = record_units(a.new_format, record.expiry_ms != 0, record.key_bytes, record.value_bytes);
}

// convert_records: records in another format, or as they are if it is the same, each to its own offset.
#define CONVERT_RECORDS_ARGS(F)                                                             \
    F(const u64*, reference) F(const u8*, heap) F(u64, record_format) F(u64, new_format) F(const u64*, offset) F(u8*, out)

GPKVS_KERNEL(convert_records, CONVERT_RECORDS_ARGS) {
    const u64 reference = a.reference[i];
    const u8* from = a.heap + reference_offset(reference) * UNIT_BYTES;
    u8* const to = a.out + a.offset[i];
    if (a.record_format == a.new_format) return copy_bytes(to, from, reference_length(reference) * UNIT_BYTES);
    const Record record = read_record(from, a.record_format);
    const u64 units = record_units(a.new_format, record.expiry_ms != 0, record.key_bytes, record.value_bytes);
    write_record((u64*)to, a.new_format, units, record.table_id, record.version, record.expiry_ms, record.key,
                 record.key_bytes, record_value(record), record.value_bytes);
}
