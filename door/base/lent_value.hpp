// A value that lies in the store's file, lent to a request: it is looked at and sent where it is.
#pragma once
#include <algorithm>
#include <utility>

#include "../../gpkvs/kernels/engine_batch.h"
#include "base/account.hpp"

namespace door {

class LentValue {
  public:
    // What is lent counts as its size, up to this: its bytes are the system's, which has them anyway.
    static u64 counted(u64 bytes) { return std::min<u64>(bytes, ENGINE_LENT_BYTES); }

    // Takes it over, which is charged already; it is there if the system maps it.
    LentValue(EngineBlob& blob, ConnectionAccount& account) : account_(&account), blob_(blob) {
        blob.blobs = nullptr;
        account.lent_values++;
        view_ = blob_.blobs->view(&blob_);
    }
    LentValue(LentValue&& other) noexcept { *this = std::move(other); }
    LentValue& operator=(LentValue&& other) noexcept {
        std::swap(account_, other.account_);
        std::swap(blob_, other.blob_);
        std::swap(view_, other.view_);
        std::swap(looked_, other.looked_);
        return *this;
    }
    ~LentValue() {
        if (!blob_.blobs) return;
        blob_.blobs->give_back(&blob_, view_);
        account_->give(ANSWERS, counted(blob_.bytes));
        account_->lent_values--;
    }

    bool is_there() const { return view_; }
    // Looks whether the next pieces are as they were written, about so many bytes, and takes these off; false: they are not.
    bool look(u64& bytes) {
        const u64 whole = (bytes + PIECE_BYTES - 1) / PIECE_BYTES * PIECE_BYTES, part = std::min(whole, blob_.bytes - looked_);
        if (!blob_.blobs->is_sound(&blob_, view_, looked_, part)) return false;
        looked_ += part;
        bytes -= std::min(bytes, part);
        return true;
    }
    bool is_looked_at() const { return looked_ == blob_.bytes; }

    // Its numbers in the batch, as EngineBlob has them.
    u64 operation() const { return blob_.operation; }
    u64 value() const { return blob_.value; }
    const u8* data() const { return view_; }
    u64 size() const { return blob_.bytes; }

  private:
    static constexpr u64 PIECE_BYTES = 64 << 10;  // of EngineBlobs::is_sound

    ConnectionAccount* account_ = nullptr;
    EngineBlob blob_ = {};
    const u8* view_ = nullptr;
    u64 looked_ = 0;
};

}  // namespace door
