// The blobs of a store: values too long for the heap, in pages of a file of their own (layout.cuh).
//
// A plan takes pages for the blobs of its records. Nobody else sees them before the commit; without one, the next plan gives
// them back. The committer writes them before the records that name them. A blob whose record is removed or replaced is free
// when a record would be (I7, W6). Nothing on media says which pages are free: an opening finds that from the records.
//
// Where only the expiry of a key changes, its new record names the blob of the old one. The plan neither takes nor drops that
// blob: it is live before the commit and after it, and durable already, or will be before the frame that keeps it is.
//
// GETs may be lent a blob (EngineBlob): its pages are pinned, and not free before it is given back.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <vector>

#include "space/blob_space.hpp"
#include "engine_batch.h"
#include "base/fatal_line.hpp"
#include "base/pool.hpp"
#include "base/record.cuh"

class BlobUpload;

class Blobs {
  public:
    // `reads_disk`: the file is none of memory.
    Blobs(BlobSpace& space, bool reads_disk) : space_(space), reads_disk_(reads_disk) {}
    Blobs(const Blobs&) = delete;

    // Where the file lies in memory; `writes`: values are written to the file, which the mapping shows at once.
    void map(u8* base, u64 pages, int file, bool writes) {
        base_ = base;
        pages_ = pages;
        file_ = file;
        writes_ = writes;
    }

    // The file stays there when it grows.
    void stay() { fixed_base_ = base_; }

    // The mapping is about to change: until `map`, no batch is planned.
    void unmap() { base_ = nullptr; }
    bool is_mapped() const { return base_; }
    const u8* base() const { return base_; }
    u64 pages() const { return pages_; }

    // Begins a plan, and gives back what the last one took in vain.
    void begin_plan() {
        for (const u64 reference : taken_) space_.give_back(reference_offset(reference), reference_length(reference));
        forget();
        lacking_pages_ = 0;
        lent_.clear();
    }

    // The only value of the next plan may be one that came in pieces; null: it is none.
    void offer(const EngineUpload* upload) {
        offered_ = upload ? (BlobUpload*)upload->self : nullptr;
        lent_.clear();
    }
    bool is_any() const { return space_.counts().live; }

    // A GET of the plan, by its number, is lent the blob that a record names (BlobWords). std::bad_alloc.
    void lend(u64 get, const u64* blob) {
        const u64 reference = blob[BLOB_REFERENCE];
        lent_.push_back({&lender_, 0, get, blob[BLOB_VALUE_BYTES], reference_offset(reference), reference_length(reference),
                         blob[BLOB_CRC], file_});
    }
    const std::vector<EngineBlob>& lent() const { return lent_; }
    // What is pinned is given back by whoever gets it. std::bad_alloc.
    void pin(const EngineBlob& blob) { space_.pin(blob.first_page); }

    // Takes a blob for the record with this number of a plan; false where no free pages are side by side.
    bool take(u64 record, u64 value_bytes) {
        const u64 pages = blob_pages(value_bytes);
        if (taken_.size() == taken_.capacity()) taken_.reserve(2 * taken_.size() + 8);
        words_.resize((record + 1) * WORDS);
        // What a commit needs, which cannot be left.
        checksums_.reserve((blob_pieces(value_bytes) + 1) / 2);
        last_pages_.reserve(blob_pages(value_bytes) * BLOB_PAGE_BYTES - value_bytes / BLOB_PAGE_BYTES * BLOB_PAGE_BYTES);
        if (is_offered(value_bytes)) {
            adopt(words_.data() + record * WORDS);
            return true;
        }
        const u64 first = space_.take(pages);
        if (first == NO_BLOB) {
            lacking_pages_ = pages;
            return false;
        }
        taken_.push_back(make_reference(first, pages));
        u64* const words = words_.data() + record * WORDS;
        words[BLOB_REFERENCE] = taken_.back();
        words[BLOB_VALUE_BYTES] = value_bytes;
        return true;
    }
    u64 lacking_pages() const { return lacking_pages_; }  // of the last plan

    // The record with this number of a plan names the blob that the key's old one names (BlobWords).
    void keep(u64 record, const u64* blob) {
        words_.resize((record + 1) * WORDS);
        u64* const words = words_.data() + record * WORDS;
        std::copy_n(blob, WORDS, words);
        words[BLOB_CRC] |= BLOB_IS_KEPT;
    }

    // The plan removes or replaces the record of a blob, and no record of it keeps the blob.
    void drop(u64 reference) { dropped_.push_back(reference); }

    // What the records of the plan say of their blobs, from the one with this number on (BlobWords); null: none has one.
    const u64* words_from(u64 record) {
        if (words_.empty()) return nullptr;
        return words_.data() + record * WORDS;
    }

    // Before words of all records are asked for.
    void end_plan(u64 records) {
        if (!words_.empty()) words_.resize(records * WORDS);
    }

    // Writes the values for which the plan has taken blobs; `value_of` says where the value of a record is. std::bad_alloc.
    template <class ValueOf>
    void write(Pool& pool, u64 records, ValueOf value_of) {
        u64 written = 0;  // blobs were taken in the order of the records
        for (u64 record = 0; record < records && written < taken_.size(); record++) {
            u64* const words = words_.data() + record * WORDS;
            if (words[BLOB_REFERENCE] != taken_[written]) continue;  // none, kept, or adopted
            written++;
            const u64 at = reference_offset(words[BLOB_REFERENCE]) * BLOB_PAGE_BYTES;
            words[BLOB_CRC] = writes_ ? write_file(value_of(record), words[BLOB_VALUE_BYTES], at)
                                      : store(pool, value_of(record), words[BLOB_VALUE_BYTES], base_ + at);
        }
    }

    // Whether the commit must make blobs durable: those that are kept are, or wait in a frame before.
    bool has_taken() const { return !taken_.empty() || adopted_; }
    int file() const { return file_; }
    bool writes() const { return writes_; }
    const u8* fixed_base() const { return fixed_base_; }
    // Of a file that stays, and is stored to.
    u8* place(u64 at) { return fixed_base_ + at; }

    // Takes a place for a value that will come in pieces; NO_BLOB where no free pages are side by side. Python's next step has
    // as many side by side.
    u64 reserve(u64 value_bytes) {
        const u64 pages = blob_pages(value_bytes), first = space_.take(pages);
        if (first == NO_BLOB) lacking_pages_ = pages;
        return first;
    }
    void give_back(u64 first, u64 pages) { space_.give_back(first, pages); }

    // The plan is committed, by a batch of this epoch of a journal, or 0.
    void committed(u64 epoch) {
        for (const u64 reference : taken_) space_.commit(reference_length(reference));
        if (adopted_) keep_adopted();
        for (const u64 reference : dropped_) free(epoch, reference);
        forget();
    }
    void free(u64 epoch, u64 reference) { space_.free_after(epoch, reference_offset(reference), reference_length(reference)); }
    void release(u64 covered) { space_.release(covered); }

    // Writes a value to the file, in whole pages; returns the CRC of its checksums.
    u32 write_file(const u8* value, u64 bytes, u64 at) {
        const u64 pieces = blob_pieces(bytes), whole = bytes / BLOB_PAGE_BYTES * BLOB_PAGE_BYTES;
        last_pages_.assign(blob_pages(bytes) * BLOB_PAGE_BYTES - whole, 0);
        memcpy(last_pages_.data(), value + whole, bytes - whole);
        u8* const checksums = last_pages_.data() + blob_checksums_at(bytes) - whole;
        for (u64 first = 0; first < bytes; first += WRITTEN_AT_ONCE) {
            const u64 end = std::min(first + WRITTEN_AT_ONCE, bytes);
            for (u64 from = first; from < end; from += BLOB_PIECE_BYTES)
                ((u32*)checksums)[from / BLOB_PIECE_BYTES] = piece_crc(value + from, std::min(BLOB_PIECE_BYTES, bytes - from));
            const u64 written = std::min(end, whole);
            if (written > first) put(value + first, written - first, at + first);
        }
        put(last_pages_.data(), last_pages_.size(), at + whole);
        return checksums_crc(checksums, pieces);
    }

  private:
    static const u64 WORDS = BLOB_WORDS_BYTES / 8;
    static const u64 WRITTEN_AT_ONCE = 1 << 20;  // whole pieces: it stays in a cache between checksum and write

    static const Blobs& of(const EngineBlob* blob) { return *(const Blobs*)blob->blobs->self; }

    // Where the file may move when it grows, a blob that is lent has a mapping of its own: that takes five times as long as to
    // look at it (docs/decisions/format.md).
    static const uint8_t* view(const EngineBlob* blob) {
        if (of(blob).fixed_base_) return of(blob).fixed_base_ + blob->first_page * BLOB_PAGE_BYTES;
        void* const at = mmap(nullptr, blob->pages * BLOB_PAGE_BYTES, PROT_READ, MAP_SHARED, blob->file,
                              (off_t)(blob->first_page * BLOB_PAGE_BYTES));
        return at == MAP_FAILED ? nullptr : (const uint8_t*)at;
    }

    // What the disk does not give is not sound. Older systems do not know the advice, and give each page when it is read.
    static bool is_readable(const u8* from, u64 bytes) {
        constexpr int POPULATE_READ = 22;  // of Linux 5.14; not in all headers
        const u64 skipped = (u64)from % BLOB_PAGE_BYTES;
        return !madvise((void*)(from - skipped), bytes + skipped, POPULATE_READ) || (errno != EFAULT && errno != EHWPOISON);
    }

    static bool is_sound(const EngineBlob* blob, const uint8_t* view, uint64_t from, uint64_t bytes) {
        const u64 end = std::min<u64>(from + bytes, blob->bytes), checksums = blob_checksums_at(blob->bytes);
        const bool reads_disk = of(blob).reads_disk_;
        if (reads_disk && !is_readable(view + from, end - from)) return false;
        if (!from && reads_disk && !is_readable(view + checksums, 4 * blob_pieces(blob->bytes))) return false;
        if (!from && !are_checksums_sound(view, blob->bytes, blob->crc)) return false;
        return are_pieces_sound(view, blob->bytes, from, end);
    }

    static void give_back(const EngineBlob* blob, const uint8_t* view) {
        if (view && !of(blob).fixed_base_) munmap((void*)view, blob->pages * BLOB_PAGE_BYTES);
        of(blob).space_.unpin(blob->first_page);
    }

    bool is_offered(u64 value_bytes) const;
    void adopt(u64* words);
    void keep_adopted();

    void forget() {
        adopted_ = nullptr;
        taken_.clear();
        dropped_.clear();
        words_.clear();
    }

    // Through the mapping, by all threads.
    u32 store(Pool& pool, const u8* value, u64 bytes, u8* blob) {
        const u64 pieces = blob_pieces(bytes);
        checksums_.assign((pieces + 1) / 2, 0);
        u32* const checksums = (u32*)checksums_.data();
        const store_pieces_args taken = {value, bytes, blob, checksums};
        pool.run(&gpkvs_kernel_store_pieces, &taken, pieces, BLOB_PIECE_BYTES / 64);
        const store_words_args words = {checksums_.data(), (u64*)(blob + blob_checksums_at(bytes))};
        pool.run(&gpkvs_kernel_store_words, &words, checksums_.size());
        return checksums_crc((const u8*)checksums, pieces);
    }

    // The disk begins at once, so the flush has less to wait for.
    void put(const u8* from, u64 bytes, u64 at) {
        write_whole(file_, from, bytes, at);
        sync_file_range(file_, (off64_t)at, (off64_t)bytes, SYNC_FILE_RANGE_WRITE);
    }

    BlobSpace& space_;
    const bool reads_disk_;
    u8* base_ = nullptr;
    u8* fixed_base_ = nullptr;  // null: the file may move
    u64 pages_ = 0;
    int file_ = -1;
    bool writes_ = false;
    std::vector<u64> taken_, dropped_;  // references of blobs
    std::vector<u64> words_;            // by record; the reference 0: it has none; empty: none has any
    u64 lacking_pages_ = 0;
    BlobUpload* offered_ = nullptr;  // the plan may take it
    BlobUpload* adopted_ = nullptr;  // the plan has taken it: its pages stay the upload's until the commit
    std::vector<EngineBlob> lent_;      // by the plan
    const EngineBlobs lender_ = {this, view, is_sound, give_back};
    std::vector<u64> checksums_;
    std::vector<u8> last_pages_;
};

extern "C" {

// nullptr where there is no memory for it.
void* gpkvs_blobs_new(void* space, u64 reads_disk) {
    try {
        return new Blobs(*(BlobSpace*)space, reads_disk);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}
void gpkvs_blobs_delete(void* blobs) { delete (Blobs*)blobs; }
void gpkvs_blobs_map(void* blobs, u8* base, u64 pages, u64 file, u64 writes) { ((Blobs*)blobs)->map(base, pages, (int)file, writes); }
void gpkvs_blobs_stay(void* blobs) { ((Blobs*)blobs)->stay(); }
void gpkvs_blobs_unmap(void* blobs) { ((Blobs*)blobs)->unmap(); }
u64 gpkvs_blobs_is_mapped(void* blobs) { return ((Blobs*)blobs)->is_mapped(); }
u64 gpkvs_blobs_lacking_pages(void* blobs) { return ((Blobs*)blobs)->lacking_pages(); }
void gpkvs_blobs_free(void* blobs, u64 epoch, const u64* references, u64 count) {
    for (u64 i = 0; i < count; i++) ((Blobs*)blobs)->free(epoch, references[i]);
}
void gpkvs_blobs_release(void* blobs, u64 covered) { ((Blobs*)blobs)->release(covered); }

// Writes a value to a file of blobs that nobody else uses; returns what BLOB_CRC is of it. std::bad_alloc ends the process.
u32 gpkvs_copied_blob(const u8* value, u64 value_bytes, u64 file, u64 first_page) {
    BlobSpace none(0);
    Blobs blobs(none, false);
    blobs.map(nullptr, 0, (int)file, true);
    return blobs.write_file(value, value_bytes, first_page * BLOB_PAGE_BYTES);
}

}  // extern "C"
