// A value that comes in pieces, straight to where it will lie in the store: it counts as little as one that is lent.
#pragma once
#include <algorithm>

#include "../../gpkvs/kernels/engine_batch.h"
#include "base/account.hpp"
#include "base/lent_value.hpp"
#include "base/patience.hpp"

namespace door {

class Upload {
  public:
    // Values from so many bytes on come in pieces.
    static constexpr u64 BYTES_MIN = 1 << 20;

    // `is_admitted`: the connection may hold it. It is charged as long as it is there.
    Upload(u64 bytes, ConnectionAccount& account)
        : bytes_(bytes), account_(account), is_admitted_(account.admit(REQUESTS, LentValue::counted(bytes))) {}
    Upload(const Upload&) = delete;
    ~Upload() {
        if (upload_.uploads) upload_.uploads->end(&upload_);
        if (is_admitted_) account_.give(REQUESTS, LentValue::counted(bytes_));
    }

    bool is_admitted() const { return is_admitted_; }
    // Takes over what the engine has reserved.
    void begin(const EngineUpload& reserved) { upload_ = reserved; }
    // How long so many bytes may take to come.
    static u64 time_ns(u64 bytes, const Patience& patience, double seconds_max) {
        return (u64)(1e9 * seconds_max) + (bytes >> 20) * patience.mebibyte_ns;
    }

    // Takes the next bytes, as many as are missing; returns how many.
    u64 append(const u8* data, u64 size) {
        const u64 part = std::min(size, bytes_ - have_);
        upload_.uploads->append(&upload_, data, part);
        have_ += part;
        return part;
    }
    u64 have() const { return have_; }
    bool is_whole() const { return have_ == bytes_; }
    u64 size() const { return bytes_; }
    const u8* data() const { return upload_.uploads->value(&upload_); }
    const EngineUpload* engines() const { return &upload_; }

  private:
    EngineUpload upload_ = {};
    const u64 bytes_;
    ConnectionAccount& account_;
    const bool is_admitted_;
    u64 have_ = 0;
};

}  // namespace door
