// The blobs of an engine that stands on nothing: values that are lent, and that come in pieces. A reader has a copy of its own,
// so that sanitizers see who reads what was given back.
#pragma once
#include <atomic>
#include <cassert>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "../../../door/base/types.hpp"
#include "../../../gpkvs/kernels/engine_batch.h"

namespace door {

class ToyBlobs {
  public:
    using Value = std::shared_ptr<std::string>;

    // A value with this byte is damaged there.
    static constexpr char DAMAGED = '\xda';
    // Whether there is room for a value, and whether it is to be made first.
    static bool is_lacking(u64 bytes) { return bytes % 8 == 5; }
    static bool is_left(u64 bytes) { return bytes % 8 == 3; }

    ToyBlobs() = default;
    ToyBlobs(const ToyBlobs&) = delete;
    ~ToyBlobs() { assert(is_idle()); }

    // Nobody has any of it.
    bool is_idle() const { return !pins_ && !views_ && !uploads_; }
    u64 ever_lent() const { return ever_lent_; }
    u64 ever_reserved() const { return ever_reserved_; }

    EngineBlob lend(const Value& value, u64 operation, u64 number) {
        pins_++;
        ever_lent_++;
        return {&blobs_, operation, number, value->size(), (u64) new Value(value), 1, 0, -1};
    }

    EngineUpload reserve(u64 bytes) {
        uploads_++;
        ever_reserved_++;
        return {&functions_, new Upload{*this, std::make_shared<std::string>(bytes, 0)}};
    }

    // What came in pieces.
    static Value value_of(const EngineUpload& upload) {
        const Upload& whole = *(const Upload*)upload.self;
        assert(whole.have == whole.value->size());
        return whole.value;
    }

  private:
    static constexpr u64 PIECE_BYTES = 64 << 10;

    struct Upload {
        ToyBlobs& blobs;
        const Value value;
        u64 have = 0;
    };

    static const Value& value_of(const EngineBlob* blob) { return *(const Value*)blob->first_page; }

    static const u8* view(const EngineBlob* blob) {
        const std::string& value = *value_of(blob);
        u8* const copy = (u8*)malloc(value.size());
        if (!copy) return nullptr;
        memcpy(copy, value.data(), value.size());
        ((ToyBlobs*)blob->blobs->self)->views_++;
        return copy;
    }

    static bool is_sound(const EngineBlob* blob, const u8* view, u64 from, u64 bytes) {
        assert(bytes && from % PIECE_BYTES == 0 && from + bytes <= blob->bytes);
        assert(bytes % PIECE_BYTES == 0 || from + bytes == blob->bytes);
        return !memchr(view + from, DAMAGED, bytes);
    }

    static void give_back(const EngineBlob* blob, const u8* view) {
        ToyBlobs& blobs = *(ToyBlobs*)blob->blobs->self;
        free((void*)view);
        delete &value_of(blob);
        if (view) blobs.views_--;
        blobs.pins_--;
    }

    static void append(const EngineUpload* upload, const u8* data, u64 bytes) {
        Upload& to = *(Upload*)upload->self;
        assert(bytes <= to.value->size() - to.have);
        memcpy(&(*to.value)[to.have], data, bytes);
        to.have += bytes;
    }

    static const u8* value(const EngineUpload* upload) { return (const u8*)value_of(*upload)->data(); }

    static void end(const EngineUpload* upload) {
        ToyBlobs& blobs = ((Upload*)upload->self)->blobs;
        delete (Upload*)upload->self;
        blobs.uploads_--;
    }

    const EngineBlobs blobs_ = {this, view, is_sound, give_back};
    const EngineUploads functions_ = {append, value, end};
    std::atomic<u64> pins_{0}, views_{0}, uploads_{0}, ever_lent_{0}, ever_reserved_{0};
};

}  // namespace door
