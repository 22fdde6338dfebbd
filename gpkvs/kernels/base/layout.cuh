// The bytes on media that kernels touch. docs/format.md describes them; tests hold the same numbers from Python.
#pragma once
#include "base/platform.cuh"
#include "base/protocol.cuh"

static const u32 WAYS = 8;
static const u32 BLOCK_BYTES = 65536;  // the unit of placement, growth, scan and sharding
static const u64 NO_SLOT = ~0ull;
static const u32 NO_OP = ~0u;
static const u64 NO_RECORD = 0;  // a record has at least RECORD_UNITS_MIN units, so no reference is 0

#define OPERATION(name, number, ...) OP_##name = number,
#define STATUS(name, number) STATUS_##name = number,
enum Operation { PROTOCOL_OPERATIONS(OPERATION) };
enum StatusCode { PROTOCOL_STATUSES(STATUS) };
GPKVS_DEVICE bool has_value(u32 op) { return false PROTOCOL_OPERATIONS(BRINGS_VALUE); }
GPKVS_DEVICE bool is_write(u32 op) { return op == OP_SET || op == OP_DELETE; }
enum Change { CHANGE_NONE = 0, CHANGE_PUT = 1, CHANGE_REMOVE = 2 };

template <class Slot>
struct Bucket {
    Slot ways[WAYS];
    static const u32 IN_BLOCK = BLOCK_BYTES / (WAYS * sizeof(Slot));
};

// A slot of the `bytes` layout. An empty slot is four zero words.
struct BytesSlot {
    u64 fingerprint0, fingerprint1;  // keyed, 128 bits: the identity of a key
    u64 reference;                   // u40 offset | u24 length, in units of 16 bytes of the heap
    u64 meta;                        // u4 kind | u60 version
};
typedef Bucket<BytesSlot> BytesBucket;
static_assert(sizeof(BytesSlot) == 32, "a slot of the bytes layout is 32 bytes");
static_assert(sizeof(BytesBucket) == 256, "its bucket is 256 bytes, the internal block of PM devices");

// A slot of the `u64` layout. An empty one holds the bucket's empty marker, a key that cannot live in that bucket.
struct U64Slot {
    u64 key, value;
};
typedef Bucket<U64Slot> U64Bucket;
static_assert(sizeof(U64Slot) == 16, "a slot of the u64 layout is 16 bytes");
static_assert(sizeof(U64Bucket) == 128, "its bucket is 128 bytes, a line of a GPU");

// 3 is kept for inline numbers. A record expires, or has a blob, if and only if its slot says so: writers of other keys
// never read it. No bit that rots makes one of these another.
enum Kind { KIND_EMPTY = 0, KIND_RECORD = 1, KIND_EXPIRING = 2, KIND_BLOB = 4, KIND_EXPIRING_BLOB = 7 };

GPKVS_DEVICE u64 slot_kind(u64 meta) { return meta >> 60; }
GPKVS_DEVICE u64 slot_version(u64 meta) { return meta & ((1ull << 60) - 1); }
GPKVS_DEVICE bool has_expiry(u64 meta) { return slot_kind(meta) == KIND_EXPIRING || slot_kind(meta) == KIND_EXPIRING_BLOB; }
GPKVS_DEVICE bool has_blob(u64 meta) { return slot_kind(meta) == KIND_BLOB || slot_kind(meta) == KIND_EXPIRING_BLOB; }
GPKVS_DEVICE u64 record_meta(u64 version, u64 expiry_ms, bool is_blob) {
    const u64 kind = is_blob ? (expiry_ms ? KIND_EXPIRING_BLOB : KIND_BLOB) : (expiry_ms ? KIND_EXPIRING : KIND_RECORD);
    return kind << 60 | version;
}
// What a SET of a batch gives its key: a version of its own, or the one that came with it.
template <class Args>
GPKVS_DEVICE u64 version_of(const Args& a, u64 op) {
    return a.given_versions ? a.given_versions[op] : a.first_sequence + op;
}

static const u32 UNIT_BYTES = 16;
static const u32 REFERENCE_LENGTH_BITS = 24;
GPKVS_DEVICE u64 reference_offset(u64 reference) { return reference >> REFERENCE_LENGTH_BITS; }  // units
GPKVS_DEVICE u64 reference_length(u64 reference) { return reference & ((1ull << REFERENCE_LENGTH_BITS) - 1); }  // units
GPKVS_DEVICE u64 make_reference(u64 offset, u64 length) { return offset << REFERENCE_LENGTH_BITS | length; }

// Whether a record lies where it may: inside a segment; if it is longer than one, from the beginning of one on.
static const u64 LONGEST_RECORD_UNITS = (32u << 20) / UNIT_BYTES;
GPKVS_DEVICE bool is_in_segments(u64 in_segment, u64 units, u64 segment_units) {
    return in_segment + units <= segment_units || (in_segment == 0 && units <= LONGEST_RECORD_UNITS);
}

// A record: its header, the key, the value, zeros up to a whole unit. Which header it has, the root says (record.cuh).
enum RecordFormat { RECORDS_3 = 3, RECORDS_4 = 4 };
static const u32 RECORD_HEADER_BYTES = 32;        // of format 3; of format 4 with an expiry
static const u32 SHORT_RECORD_HEADER_BYTES = 24;  // of format 4 without
static const u64 RECORD_UNITS_MIN = 2;

GPKVS_DEVICE u64 record_header_bytes(u64 format, bool expires) {
    return format == RECORDS_3 || expires ? RECORD_HEADER_BYTES : SHORT_RECORD_HEADER_BYTES;
}

// A record of format 4 that would be longer than this has its value in a blob: pages of the file of blobs, which nothing
// else lies in. What it says of the blob lies between its header and its key; a value that is no longer stays there.
static const u64 HEAP_RECORD_BYTES = 64 << 10;
static const u64 BLOB_WORDS_BYTES = 24;
GPKVS_DEVICE bool is_in_blob(u64 format, u64 key_bytes, u64 value_bytes) {
    return format == RECORDS_4 && value_bytes > BLOB_WORDS_BYTES &&
           RECORD_HEADER_BYTES + key_bytes + value_bytes > HEAP_RECORD_BYTES;
}

GPKVS_DEVICE u64 record_units(u64 format, bool expires, u64 key_bytes, u64 value_bytes) {
    const u64 held = is_in_blob(format, key_bytes, value_bytes) ? BLOB_WORDS_BYTES : value_bytes;
    return (record_header_bytes(format, expires) + key_bytes + held + UNIT_BYTES - 1) / UNIT_BYTES;
}

// A blob: the value, zeros up to a whole word, and the CRC32C of each piece of the value, in 4 bytes. It begins at a page.
// Its reference has the first page (upper 40 bits) and how many they are, as that of a record has units.
static const u64 BLOB_PAGE_BYTES = 4096, BLOB_PIECE_BYTES = 64 << 10;
GPKVS_DEVICE u64 blob_pieces(u64 value_bytes) { return (value_bytes + BLOB_PIECE_BYTES - 1) / BLOB_PIECE_BYTES; }
GPKVS_DEVICE u64 blob_checksums_at(u64 value_bytes) { return (value_bytes + 7) / 8 * 8; }
GPKVS_DEVICE u64 blob_pages(u64 value_bytes) {
    return (blob_checksums_at(value_bytes) + 4 * blob_pieces(value_bytes) + BLOB_PAGE_BYTES - 1) / BLOB_PAGE_BYTES;
}

// Of a batch's operation that leaves a record.
template <class Args>
GPKVS_DEVICE u64 units_of_op(const Args& a, u64 op) {
    const bool expires = a.expiries && a.expiries[op];
    return record_units(a.record_format, expires, a.key_lengths[op], a.value_lengths[op]);
}

// Entries are striped by 32, so that a warp's store of one word each fills whole 128-byte lines (GPM, ASPLOS '22, section 5.2
// and figure 5): word `word` of an entry that has so many.
static const u32 STRIPE_ENTRIES = 32;
GPKVS_DEVICE u64 striped_word_at(u64 entry, u32 word, u32 entry_words) {
    return (entry / STRIPE_ENTRIES * entry_words + word) * STRIPE_ENTRIES + entry % STRIPE_ENTRIES;
}

// An entry: the slot's number, the epoch, the slot's words.
static const u32 ENTRY_HEADER_WORDS = 2;
template <class Slot>
GPKVS_DEVICE u64 entry_word_at(u64 entry, u32 word) {
    return striped_word_at(entry, word, ENTRY_HEADER_WORDS + sizeof(Slot) / 8);
}

// An entry of a chunk: the slot's number, with KEY_CHANGES where the slot gets another key; the words of the slot that are not
// its key's; the words of its key, which are there only with KEY_CHANGES.
static const u64 KEY_CHANGES = 1ull << 63;
template <class Slot>
static constexpr u32 KEY_WORDS = sizeof(Slot) / 16;
template <class Slot>
static constexpr u32 CHUNK_ENTRY_WORDS = 1 + sizeof(Slot) / 8;

// What says that a chunk's entries are durable: twice in the log, behind each descriptor. `checksum` is the CRC32C of the rest.
struct ChunkMarker {
    u64 epoch;
    u64 number;        // of the processor that planned it (upper half), and of the chunk among that one's
    u64 first, count;  // entries of the run
    u64 digest;        // the sum of theirs
    u64 first_word;    // of the run
    u64 table;         // generation (upper half) and id
    u64 checksum;
};
static const u64 CHUNK_MARKERS_OFFSET = 1024;  // in the page of a descriptor
static const u64 CHUNK_MARKERS = 48;
static_assert(CHUNK_MARKERS_OFFSET + CHUNK_MARKERS * sizeof(ChunkMarker) == 4096, "they fill the page");
