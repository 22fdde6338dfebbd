// A value that comes in pieces, straight into its blob: nobody sees it before a batch stores it, and without one its pages are
// given back. Whoever has it writes it, in a thread of their own.
#pragma once
#include <vector>

#include "space/blobs.hpp"

class BlobUpload {
  public:
    // Of a blob that was taken (`Blobs::reserve`). std::bad_alloc.
    BlobUpload(Blobs& blobs, u64 first_page, u64 value_bytes)
        : blobs_(blobs), file_(blobs.file()), writes_(blobs.writes()), first_page_(first_page), bytes_(value_bytes),
          piece_(BLOB_PIECE_BYTES), checksums_((blob_pieces(value_bytes) + 1) / 2) {}
    BlobUpload(const BlobUpload&) = delete;
    ~BlobUpload() {
        if (!is_stored_) blobs_.give_back(first_page_, blob_pages(bytes_));
    }

    // The next bytes; no more than there are.
    void append(const u8* data, u64 bytes) {
        if (!bytes) return;
        while (bytes) {
            const u64 in_piece = have_ % BLOB_PIECE_BYTES, wanted = std::min(BLOB_PIECE_BYTES - in_piece, bytes_ - have_);
            const u64 part = std::min(wanted, bytes);
            if (part < wanted || in_piece) memcpy(piece_.data() + in_piece, data, part);
            have_ += part;
            if (part == wanted) write_piece(in_piece ? piece_.data() : data, in_piece + part);
            data += part;
            bytes -= part;
        }
        if (have_ == bytes_) end();
    }

    bool is_whole() const { return have_ == bytes_; }
    bool is_of(const Blobs& blobs) const { return &blobs_ == &blobs; }
    u64 bytes() const { return bytes_; }
    u64 reference() const { return make_reference(first_page_, blob_pages(bytes_)); }
    u32 crc() const { return crc_; }
    // Where it lies, as long as the store is open.
    const u8* value() const { return blobs_.fixed_base() + at(0); }
    // A batch has committed it.
    void set_stored() { is_stored_ = true; }

  private:
    static const u64 BEGUN_AT_ONCE = 1 << 20;

    // The disk begins at once, so the flush of the batch has less to wait for.
    void begin_flush() {
        sync_file_range(file_, (off64_t)at(begun_), (off64_t)(have_ - begun_), SYNC_FILE_RANGE_WRITE);
        begun_ = have_;
    }

    u64 at(u64 byte) const { return first_page_ * BLOB_PAGE_BYTES + byte; }

    void write_piece(const u8* piece, u64 bytes) {
        const u64 number = (have_ - 1) / BLOB_PIECE_BYTES, first = number * BLOB_PIECE_BYTES;
        u32* const checksum = (u32*)checksums_.data() + number;
        if (writes_) {
            *checksum = piece_crc(piece, bytes);
            write_whole(file_, piece, bytes, at(first));
            if (have_ - begun_ >= BEGUN_AT_ONCE) begin_flush();
        } else {
            const store_pieces_args taken = {piece, bytes, blobs_.place(at(first)), checksum};
            gpkvs_kernel_store_pieces.run(&taken, 0, 1);
        }
    }

    // The checksums, and zeros around them.
    void end() {
        const u64 checksums_at = blob_checksums_at(bytes_), bytes = checksums_.size() * 8;
        crc_ = checksums_crc((const u8*)checksums_.data(), blob_pieces(bytes_));
        if (writes_) {
            std::vector<u8> rest(blob_pages(bytes_) * BLOB_PAGE_BYTES - bytes_);
            memcpy(rest.data() + checksums_at - bytes_, checksums_.data(), bytes);
            write_whole(file_, rest.data(), rest.size(), at(bytes_));
            begin_flush();
        } else {
            const store_words_args words = {checksums_.data(), (u64*)blobs_.place(at(checksums_at))};
            gpkvs_kernel_store_words.run(&words, 0, checksums_.size());
        }
    }

    Blobs& blobs_;
    const int file_;
    const bool writes_;
    const u64 first_page_, bytes_;
    u64 have_ = 0, begun_ = 0;
    std::vector<u8> piece_;  // that is not whole
    std::vector<u64> checksums_;
    u32 crc_ = 0;
    bool is_stored_ = false;
};

// Whether the only record that a batch makes is that of what came in pieces. In any other batch it is a value like others.
static bool stores_upload(const EngineBatch& batch) {
    const BlobUpload& upload = *(const BlobUpload*)batch.upload->self;
    u64 sets = 0;
    for (u64 op = 0; op < batch.n; op++) {
        switch (batch.ops[op]) {
            case OP_SET: sets++; break;
            case OP_GET:
            case OP_DELETE:
            case OP_EXISTS:
            case OP_CHECK:
            case OP_EXPIRY:
            case OP_LENGTH: break;
            default: return false;
        }
    }
    return batch.requests == 1 && sets == 1 && upload.is_whole() && *batch.value_lengths == upload.bytes();
}

inline bool Blobs::is_offered(u64 value_bytes) const {
    return offered_ && offered_->is_of(*this) && offered_->is_whole() && offered_->bytes() == value_bytes;
}

inline void Blobs::adopt(u64* words) {
    adopted_ = offered_;
    words[BLOB_REFERENCE] = adopted_->reference();
    words[BLOB_VALUE_BYTES] = adopted_->bytes();
    words[BLOB_CRC] = adopted_->crc();
}

inline void Blobs::keep_adopted() {
    space_.commit(blob_pages(adopted_->bytes()));
    adopted_->set_stored();
}

static void append_upload(const EngineUpload* upload, const uint8_t* data, uint64_t bytes) {
    ((BlobUpload*)upload->self)->append(data, bytes);
}
static const uint8_t* uploaded_value(const EngineUpload* upload) { return ((const BlobUpload*)upload->self)->value(); }
static void end_upload(const EngineUpload* upload) { delete (BlobUpload*)upload->self; }
static const EngineUploads BLOB_UPLOADS = {append_upload, uploaded_value, end_upload};
