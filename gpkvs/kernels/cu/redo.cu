// The journal's part of the kernels: entries with the new contents of slots, and their replay.
//
// Pages of an index are 4 KiB. Each has a mark: the epoch of the last batch that stored to it. A mark only rises.
#include "base/entry.cuh"
#include "base/record.cuh"

static const u32 PAGE_BYTES = 4096;

template <class Slot>
GPKVS_DEVICE u64 page_of(u64 slot) {
    return slot * sizeof(Slot) / PAGE_BYTES;
}

// log_redo: one entry a changed slot, with its new contents.
#define LOG_REDO_ARGS(F, Slot)                                                              \
    F(const u64*, changed_slot) F(const Slot*, contents) F(u64, epoch) F(u64, first) F(u64*, log) F(u64*, digest)
#define LOG_REDO_BYTES_ARGS(F) LOG_REDO_ARGS(F, BytesSlot)
#define LOG_REDO_U64_ARGS(F) LOG_REDO_ARGS(F, U64Slot)

GPKVS_PM_KERNEL(log_redo_bytes, LOG_REDO_BYTES_ARGS) { store_entry(a, i, a.contents[i]); }
GPKVS_PM_KERNEL(log_redo_u64, LOG_REDO_U64_ARGS) { store_entry(a, i, a.contents[i]); }

// mark_pages: the pages that a batch stored to. Several items may store the same mark to one page. Marks lie in volatile
// memory: a store that counts as one to PM would be written back later, when they may be gone.
#define MARK_PAGES_ARGS(F) F(const u64*, changed_slot) F(u64, epoch) F(u64*, marks)

template <class Slot, class Args>
GPKVS_DEVICE void mark_page(const Args& a, u64 slot) {
    set_mark(a.marks + page_of<Slot>(slot), a.epoch);
}
GPKVS_KERNEL(mark_pages_bytes, MARK_PAGES_ARGS) { mark_page<BytesSlot>(a, a.changed_slot[i]); }
GPKVS_KERNEL(mark_pages_u64, MARK_PAGES_ARGS) { mark_page<U64Slot>(a, a.changed_slot[i]); }

// replay: the slots of a run as they were after its batch. Idempotent (W5).
#define REPLAY_ARGS(F, Slot) F(const u64*, log) F(u64, epoch) F(Slot*, index) F(u64*, marks)
#define REPLAY_BYTES_ARGS(F) REPLAY_ARGS(F, BytesSlot)
#define REPLAY_U64_ARGS(F) REPLAY_ARGS(F, U64Slot)

template <class Slot, class Args>
GPKVS_DEVICE void replay_entry(const Args& a, u64 i) {
    const Entry<Slot> entry = load_entry<Slot>(a.log, i);
    store_slot(a.index, entry.slot, entry.words);
    mark_page<Slot>(a, entry.slot);
}
GPKVS_PM_KERNEL(replay_bytes, REPLAY_BYTES_ARGS) { replay_entry<BytesSlot>(a, i); }
GPKVS_PM_KERNEL(replay_u64, REPLAY_U64_ARGS) { replay_entry<U64Slot>(a, i); }

// What a frame says of a record as it was written: where it lies, and its first word, which holds its CRC and table.
GPKVS_DEVICE u64 record_digest(u64 reference, u64 first_word) { return mix64(mix64(reference) ^ first_word); }

// The same of a record that was moved: of all its words, for a damaged one moves too, and fails its own check.
GPKVS_DEVICE u64 moved_digest(u64 reference, const u64* words) {
    const u32 crc = crc32c_words(~0u, (const u8*)words, reference_length(reference) * (UNIT_BYTES / 8));
    return mix64(mix64(reference) ^ (u32)~crc);
}

// verify_records: the digests of the records that a run's batch wrote to a part of the heap; `wrong` where one fails its own
// check. The other entries (removals, displaced occupants, records elsewhere) count nothing. `is_move`: the batch moved
// records, one for each entry, and gave no versions.
#define VERIFY_RECORDS_ARGS(F)                                                              \
    F(const u64*, log) F(u64, first_sequence) F(u64, is_move) F(const u8*, heap) F(u64, record_format) BLOB_FILE_ARGS(F) F(u64, first_byte) \
    F(u64, end_byte) F(u64*, digest) F(u8*, wrong)

// Whether a record's blob is there as its batch wrote it, if that did. One that is kept was durable before: if it rotted, the
// batch is durable all the same.
template <class Args>
GPKVS_DEVICE bool is_blob_there(const Args& a, const Record& record) {
    if (record.blob && record.blob[BLOB_CRC] & BLOB_IS_KEPT) return is_blob_placed(record, blob_file_of(a));
    return is_blob_sound(record, blob_file_of(a));
}

GPKVS_KERNEL(verify_records, VERIFY_RECORDS_ARGS) {
    const Entry<BytesSlot> entry = load_entry<BytesSlot>(a.log, i);
    const BytesSlot slot = {entry.words[0], entry.words[1], entry.words[2], entry.words[3]};
    a.digest[i] = 0;
    a.wrong[i] = 0;
    if (!a.is_move && (slot_kind(slot.meta) == KIND_EMPTY || slot_version(slot.meta) < a.first_sequence)) return;
    const u64 at = reference_offset(slot.reference) * UNIT_BYTES;
    if (at < a.first_byte || at >= a.end_byte) return;
    if (a.is_move) {
        if (at + reference_length(slot.reference) * UNIT_BYTES > a.end_byte) a.wrong[i] = 1;
        else a.digest[i] = moved_digest(slot.reference, (const u64*)(a.heap + at));
        return;
    }
    const Record record = checked_record(a.heap, a.end_byte, a.record_format, slot.reference);
    if (record.words && is_blob_there(a, record)) a.digest[i] = record_digest(slot.reference, record.words[0]);
    else a.wrong[i] = 1;
}
