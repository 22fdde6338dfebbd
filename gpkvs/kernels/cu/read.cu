// The values that GETs return. One item a GET.
#include "base/record.cuh"

// `get_op` may be missing (0) where all operations are GETs, `source_op` where none sees a write of the batch.
template <class Args>
GPKVS_DEVICE u32 op_of(const Args& a, u64 i) {
    return a.get_op ? a.get_op[i] : (u32)i;
}

template <class Args>
GPKVS_DEVICE u32 writer_of(const Args& a, u32 op) {
    return a.source_op ? a.source_op[op] : NO_OP;
}

// What is behind it a processor reads ahead by itself.
static const u64 SOON_BYTES = 256;

template <class Args>
GPKVS_DEVICE void record_soon(const Args& a, u64 i) {
    const u64 reference = a.source_word[op_of(a, i)], bytes = reference_length(reference) * UNIT_BYTES;
    const u8* record = a.heap + reference_offset(reference) * UNIT_BYTES;
    for (u64 at = 0; at < bytes && at < SOON_BYTES; at += 64) prefetch(record + at);
}

// result_bound: how much of the heap each value takes at most, by its reference alone: up to 15 bytes too much, since
// records are whole units; 23 in format 4, where a kind that is not read here says whether the header is longer. A value of
// the same batch takes nothing there. A reference that leaves its segment, or is that of a long record and does not begin
// one, is damaged, and no value is returned for it. How long a blob is its record says, which is read in a store with any:
// `blobs` is missing (0) elsewhere, and of a value that is lent it takes nothing, either.
#define RESULT_BOUND_ARGS(F)                                                                 \
    F(const u32*, get_op) F(const u64*, source_word) F(const u32*, source_op)               \
    F(const u32*, key_lengths) F(u64, segment_units) F(const u8*, heap) F(u64, heap_bytes) F(u64, record_format) \
    BLOB_FILE_ARGS(F) F(u64, lends_blobs) F(u32*, length)

GPKVS_KERNEL(result_bound, RESULT_BOUND_ARGS) {
    const u32 op = op_of(a, i);
    const u64 reference = a.source_word[op];
    const u64 held = reference_length(reference) * UNIT_BYTES;
    const u64 other = record_header_bytes(a.record_format, false) + a.key_lengths[op];
    const u64 in_segment = reference_offset(reference) % a.segment_units;
    const bool is_record = writer_of(a, op) == NO_OP && reference != NO_RECORD && held > other &&
                           is_in_segments(in_segment, reference_length(reference), a.segment_units);
    const u64 in_blob = is_record && !a.lends_blobs ? blob_bytes(a, reference) : 0;
    a.length[i] = in_blob ? (u32)in_blob : is_record ? (u32)(held - other) : 0;
}

// measure: how long each value is, after checking the record it comes from. What lies in a blob nobody has looked at yet.
#define MEASURE_ARGS(F)                                                                     \
    F(const u32*, get_op) F(const u64*, source_word) F(const u32*, source_op) F(const u32*, value_lengths) \
    F(const u8*, keys) F(const u64*, key_offsets) F(const u32*, key_lengths) F(const u8*, heap) F(u64, heap_bytes) \
    F(u64, record_format) BLOB_FILE_ARGS(F) F(u64, table_id) F(u8*, status) F(u64*, versions) F(u32*, length)

GPKVS_KERNEL_SOON(measure, MEASURE_ARGS, record_soon) {
    const u32 op = op_of(a, i);
    const u32 writer = writer_of(a, op);
    const u64 reference = a.source_word[op];
    u32 length = 0;
    if (writer != NO_OP) length = a.value_lengths[writer];
    else if (reference != NO_RECORD) {
        const Record record = checked_record(a.heap, a.heap_bytes, a.record_format, reference);
        const bool good = record.words && record.table_id == a.table_id && record.key_bytes == a.key_lengths[op] &&
                          record.version == a.versions[op] &&
                          same_bytes(record.key, a.keys + a.key_offsets[op], record.key_bytes) &&
                          is_blob_placed(record, blob_file_of(a));
        if (good) length = (u32)value_bytes_of(record);
        else {
            a.status[op] = STATUS_CORRUPT;
            a.versions[op] = 0;
        }
    }
    a.length[i] = length;
}

// gather_bytes: the values, one after the other.
#define GATHER_BYTES_ARGS(F)                                                                      \
    F(const u32*, get_op) F(const u64*, source_word) F(const u32*, source_op) F(const u8*, values) \
    F(const u64*, value_offsets) F(const u8*, heap) F(u64, record_format) BLOB_FILE_ARGS(F) F(const u32*, length) F(const u64*, offset) \
    F(u8*, out)

GPKVS_KERNEL_SOON(gather_bytes, GATHER_BYTES_ARGS, record_soon) {
    if (a.length[i] == 0) return;
    const u32 op = op_of(a, i);
    const u32 writer = writer_of(a, op);
    const u8* from;
    if (writer != NO_OP) from = a.values + a.value_offsets[writer];
    else from = record_value(read_record(a.heap + reference_offset(a.source_word[op]) * UNIT_BYTES, a.record_format), blob_file_of(a));
    copy_bytes(a.out + a.offset[i], from, a.length[i]);
}

// gather_u64: the values of a u64 table, found ones only, one after the other.
#define GATHER_U64_ARGS(F)                                                                  \
    F(const u32*, get_op) F(const u64*, source_word) F(const u32*, source_op) F(const u8*, values) \
    F(const u64*, value_offsets) F(const u32*, length) F(const u64*, offset) F(u8*, out)

GPKVS_KERNEL(gather_u64, GATHER_U64_ARGS) {
    if (a.length[i] == 0) return;
    const u32 op = op_of(a, i);
    const u32 writer = writer_of(a, op);
    const u64 value = writer == NO_OP ? a.source_word[op] : load_unaligned(a.values + a.value_offsets[writer]);
    store_unaligned(a.out + a.offset[i], value);
}

// The same for a large batch, of which few operations were ordered. own_values: a GET that sees a SET of its own batch gets
// that one's value as its source. One item a position in sorted order.
#define OWN_VALUES_ARGS(F) \
    F(const u32*, order) F(const u32*, source_op) F(const u8*, values) F(const u64*, value_offsets) F(u64*, source_word)

GPKVS_KERNEL(own_values, OWN_VALUES_ARGS) {
    const u32 op = a.order[i], writer = a.source_op[op];
    if (writer != NO_OP) a.source_word[op] = load_unaligned(a.values + a.value_offsets[writer]);
}
