// Counting what a whole index holds: after a crash, and after a table was dropped.
#include "base/live_units.cuh"
#include "base/probe.cuh"

// recount_bytes: of each heap segment live units, what they are charged, and the end of the last record in units of the
// segment; the number of records, of those that have blobs, and of those that expire; and the units that the segments count of
// them. One item a block, from `first_block` on.
#define RECOUNT_BYTES_ARGS(F) \
    F(const BytesBucket*, index) F(u64, first_block) CHARGED_ARGS(F) F(u64*, ends) F(u32*, records) F(u32*, blobs) \
    F(u32*, expiring) F(u64*, units)

GPKVS_KERNEL(recount_bytes, RECOUNT_BYTES_ARGS) {
    const u32 in_block = BytesBucket::IN_BLOCK * WAYS;
    const BytesSlot* slot = a.index[(a.first_block + i) * BytesBucket::IN_BLOCK].ways;
    u32 records = 0, blobs = 0, expiring = 0;
    u64 units = 0;
    for (u32 s = 0; s < in_block; s++, slot++) {
        // Whatever is not empty counts, also what is damaged: `find` sees it, and its removal is subtracted.
        if (slot_kind(slot->meta) == KIND_EMPTY) continue;
        records++;
        blobs += has_blob(slot->meta);
        expiring += has_expiry(slot->meta);
        count_reference(a, slot->reference);
        const u64 parts = count_parts(a, slot->reference);
        for (u64 number = 0; number < parts; number++) {
            const RecordPart part = part_of(a, slot->reference, number);
            atomic_max(a.ends + part.segment, part.end);
            units += part.units;
        }
    }
    a.records[i] = records;
    a.blobs[i] = blobs;
    a.expiring[i] = expiring;
    a.units[i] = units;
}

// count_units: the units of references on a GPU, of which some may name no record. One item a reference.
#define COUNT_UNITS_ARGS(F) F(const u64*, reference) CHARGED_ARGS(F)

GPKVS_KERNEL(count_units, COUNT_UNITS_ARGS) {
    if (a.reference[i] != NO_RECORD) count_reference(a, a.reference[i]);
}

// recount_u64: the number of records. One item a block, from `first_block` on.
#define RECOUNT_U64_ARGS(F)                                                                 \
    F(const U64Bucket*, index) F(u64, first_block) F(u64, hash_key0) F(u64, hash_key1) F(u32*, records)

GPKVS_GROUP_KERNEL(recount_u64, RECOUNT_U64_ARGS) {
    const TableKey table = table_key<U64Slot>(a.hash_key0, a.hash_key1);
    u32 records = 0;
    const u64 first = (a.first_block + i) * U64Bucket::IN_BLOCK;
    for (u64 b = first; b < first + U64Bucket::IN_BLOCK; b++) records += WAYS - count_bits(empty8(table, a.index, b));
    if (leader()) a.records[i] = records;
}
