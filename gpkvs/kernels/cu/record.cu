// record: the new records, appended to the heap. One item a record: the SET and the place of each. `expiries` is missing (0)
// where none expires, `blobs` where none has one, `given_versions` where versions are new ones.
#include "base/record.cuh"

#define RECORD_ARGS(F)                                                                      \
    F(const u32*, put_op) F(const u64*, reference) F(const u8*, keys) F(const u64*, key_offsets)  \
    F(const u32*, key_lengths) F(const u8*, values) F(const u64*, value_offsets) F(const u32*, value_lengths) \
    F(const u64*, expiries) F(u64, first_sequence) F(const u64*, given_versions) F(u64, table_id) F(u64, record_format) F(const u64*, blobs) F(u8*, heap)

GPKVS_PM_KERNEL(record, RECORD_ARGS) {
    const u32 op = a.put_op[i];
    const u64 reference = a.reference[i];
    const u64* const blob = a.blobs ? a.blobs + i * (BLOB_WORDS_BYTES / 8) : nullptr;
    write_record((u64*)(a.heap + reference_offset(reference) * UNIT_BYTES), a.record_format, reference_length(reference), a.table_id,
                 version_of(a, op), a.expiries ? a.expiries[op] : 0, a.keys + a.key_offsets[op], a.key_lengths[op],
                 a.values + a.value_offsets[op], a.value_lengths[op], blob && blob[BLOB_REFERENCE] ? blob : nullptr);
}

// move_record: records as they are, damaged ones too, from one place of the heap to another.
#define MOVE_RECORD_ARGS(F) F(const u64*, moved_from) F(const u64*, reference) F(const u8*, heap) F(u8*, to)

GPKVS_PM_KERNEL(move_record, MOVE_RECORD_ARGS) {
    const u64* from = (const u64*)(a.heap + reference_offset(a.moved_from[i]) * UNIT_BYTES);
    u64* to = (u64*)(a.to + reference_offset(a.reference[i]) * UNIT_BYTES);
    const u64 words = reference_length(a.reference[i]) * (UNIT_BYTES / 8);
    for (u64 w = 0; w < words; w++) pm_store(to + w, from[w]);
}
