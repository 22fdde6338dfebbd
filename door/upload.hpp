// A value that comes in pieces, straight to where it will lie in the store: it counts as little as one that is lent.
#pragma once
#include <utility>

#include "../gpkvs/kernels/engine_batch.h"
#include "account.hpp"
#include "lent_value.hpp"

namespace door {

class Upload {
  public:
    // Values from so many bytes on come in pieces.
    static constexpr u64 BYTES_MIN = 1 << 20;

    // Takes over what the engine has reserved; it is charged already (`admit`).
    Upload(const EngineUpload& upload, u64 bytes, ConnectionAccount& account) : upload_(upload), bytes_(bytes), account_(account) {}
    Upload(const Upload&) = delete;
    ~Upload() {
        upload_.uploads->end(&upload_);
        give(account_, bytes_);
    }

    static bool admit(ConnectionAccount& account, u64 bytes) { return account.admit(REQUESTS, LentValue::counted(bytes)); }
    static void give(ConnectionAccount& account, u64 bytes) { account.give(REQUESTS, LentValue::counted(bytes)); }

    // Takes the next bytes, as many as are missing; returns how many.
    u64 append(const u8* data, u64 size) {
        const u64 part = std::min(size, bytes_ - have_);
        upload_.uploads->append(&upload_, data, part);
        have_ += part;
        return part;
    }
    bool is_whole() const { return have_ == bytes_; }
    u64 size() const { return bytes_; }
    const u8* data() const { return upload_.uploads->value(&upload_); }
    const EngineUpload* engines() const { return &upload_; }

  private:
    const EngineUpload upload_;
    const u64 bytes_;
    ConnectionAccount& account_;
    u64 have_ = 0;
};

}  // namespace door
