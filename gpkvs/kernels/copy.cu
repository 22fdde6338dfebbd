// What a copy into another store runs over records and numbers (recovery/copy).
#include "hash.cuh"
#include "record.cuh"

// digest_records: of all words of each record, its table and version among them. A sum of digests is the same in any
// order of the records.
#define DIGEST_RECORDS_ARGS(F) F(const u64*, reference) F(const u8*, heap) F(u64*, digest)

GPKVS_KERNEL(digest_records, DIGEST_RECORDS_ARGS) {
    const u64* words = (const u64*)(a.heap + reference_offset(a.reference[i]) * UNIT_BYTES);
    const u64 count = reference_length(a.reference[i]) * (UNIT_BYTES / 8);
    u64 digest = mix64(count);
    for (u64 w = 0; w < count; w++) digest = mix64(digest ^ words[w]);
    a.digest[i] = digest;
}

// digest_numbers: the same for the slots of a u64 table.
#define DIGEST_NUMBERS_ARGS(F) F(const U64Slot*, slots) F(u64, table_id) F(u64*, digest)

GPKVS_KERNEL(digest_numbers, DIGEST_NUMBERS_ARGS) {
    a.digest[i] = mix64(mix64(mix64(a.table_id + 1) ^ a.slots[i].key) ^ a.slots[i].value);
}

// copy_records: records as they are, each to its own offset.
#define COPY_RECORDS_ARGS(F) F(const u64*, reference) F(const u8*, heap) F(const u64*, offset) F(u8*, out)

GPKVS_KERNEL(copy_records, COPY_RECORDS_ARGS) {
    const u64 reference = a.reference[i];
    copy_bytes(a.out + a.offset[i], a.heap + reference_offset(reference) * UNIT_BYTES,
               reference_length(reference) * UNIT_BYTES);
}
