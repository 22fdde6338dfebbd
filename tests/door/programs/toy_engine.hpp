// An engine for the native door that stands on nothing: a map. It lends its long values, and takes large ones in pieces.
#pragma once
#include <atomic>
#include <cstring>
#include <string>
#include <unistd.h>
#include <unordered_map>
#include <vector>

#include "../../../door/door.h"
#include "../../../door/base/operations.hpp"
#include "toy_blobs.hpp"

using namespace door;

const u64 MIB = 1 << 20;

inline DoorConfig config_of(u64 threads, u64 batch_ops_max = 65536) {
    DoorConfig config = {};
    config.threads = threads;
    config.connections_max = 1000;
    config.clients_bytes_max = 256 * MIB;
    config.message_bytes_max = 4 * MIB;
    config.message_requests_max = 1024;
    config.stream_requests_max = 1024;
    config.stream_bytes_max = 16 * MIB;
    config.queue_requests_max = 100000;
    config.batch_ops_max = batch_ops_max;
    config.batch_bytes_max = 16 * MIB;
    config.batch_result_bytes_max = 64 * MIB;
    config.engine_bytes = 1024 * MIB;
    config.receive_seconds_max = 10;
    config.slow_calls_max = 16;  // every call is slow
    return config;
}

// A map that looks at no condition and no time, whose batches are durable a while after they were executed. One thread at a time
// runs them.
class ToyEngine {
  public:
    explicit ToyEngine(u64 flush_us) : flush_us_(flush_us) {}

    // Values from so many bytes on are lent.
    static constexpr u64 LENT_BYTES_MIN = 10000;

    Engine engine() { return {this, run, newest_durable, wait, reserve, ~0ull, true, nullptr}; }

    const ToyBlobs& blobs() const { return blobs_; }

  private:
    static int run(void* self, const EngineBatch* batch, EngineGivesRoom room, void* sink, u64* requests, u64* gate,
                   u64* has_versions) {
        *requests = batch->requests;
        return ((ToyEngine*)self)->run(*batch, room, sink, gate, has_versions);
    }

    int run(const EngineBatch& batch, EngineGivesRoom room, void* sink, u64* gate, u64* has_versions) {
        status_.clear();
        lengths_.clear();
        found_.clear();
        lent_.clear();
        changed_.clear();
        const char* key = (const char*)batch.keys;
        const char* value = (const char*)batch.values;
        const u32* key_length = batch.key_lengths;
        const u32* value_length = batch.value_lengths;
        for (u64 i = 0; i < batch.n; i++, key_length += batch.key_length_step) {
            std::string name(key, *key_length);
            key += *key_length;
            const auto found = values_.find(name);
            const bool is_there = found != values_.end();
            if (!only_reads(batch.ops[i])) changed_.push_back({name, is_there ? found->second : nullptr});
            const bool is_made = batch.ops[i] == op::SET || batch.ops[i] == op::INCREMENT;
            status_.push_back(is_there || is_made ? status::OK : status::NOT_FOUND);
            if (batch.ops[i] == op::SET) {
                values_[name] = made(batch, value, *value_length);
                value += *value_length;
                value_length += batch.value_length_step;
            } else if (batch.ops[i] == op::GET) {
                const bool is_lent = is_there && batch.lends_blobs && found->second->size() >= LENT_BYTES_MIN;
                if (is_lent) lent_.push_back({found->second, i, lengths_.size()});
                lengths_.push_back(is_there && !is_lent ? (u32)found->second->size() : 0);
                if (is_there && !is_lent) found_ += *found->second;
            } else if (batch.ops[i] == op::DELETE && is_there) {
                values_.erase(found);
            } else if (batch.ops[i] == op::INCREMENT) {  // of 0, and forgets the sum
                lengths_.push_back(8);
                found_.append(value, 8);
                value += 8;
                value_length += batch.value_length_step;
            }
        }
        EngineRoom out = {};
        out.blob_count = lent_.size();
        if (!room(sink, batch.n, lengths_.size(), found_.size(), 0, &out)) {
            undo();
            return ENGINE_LEFT;
        }
        memcpy(out.status, status_.data(), batch.n);
        memset(out.versions, 0, 8 * batch.n);
        if (!lengths_.empty()) memcpy(out.value_lengths, lengths_.data(), 4 * lengths_.size());
        memcpy(out.values, found_.data(), found_.size());
        for (const Lent& lent : lent_) *out.blobs++ = blobs_.lend(lent.value, lent.operation, lent.number);
        *gate = flush_us_ ? ++newest_ : 0;
        *has_versions = 0;
        return batch.n % 7 ? ENGINE_DONE : ENGINE_DUE;
    }

    // Of a batch that is left nothing has happened.
    void undo() {
        for (; !changed_.empty(); changed_.pop_back())
            if (changed_.back().second) values_[changed_.back().first] = changed_.back().second;
            else values_.erase(changed_.back().first);
    }

    // What came in pieces is where it lies.
    static ToyBlobs::Value made(const EngineBatch& batch, const char* value, u64 bytes) {
        if (!batch.upload) return std::make_shared<std::string>(value, bytes);
        const ToyBlobs::Value uploaded = ToyBlobs::value_of(*batch.upload);
        assert(batch.requests == 1 && value == uploaded->data() && bytes == uploaded->size());
        return uploaded;
    }

    static int reserve(void* self, u64 bytes, EngineUpload* out, u64* lacks) {
        ToyEngine& engine = *(ToyEngine*)self;
        if (ToyBlobs::is_left(bytes) && (engine.has_left_ = !engine.has_left_)) return ENGINE_LEFT;
        if (ToyBlobs::is_lacking(bytes)) *lacks = LEFT_GROW_BLOBS;
        else *out = engine.blobs_.reserve(bytes);
        return ENGINE_DONE;
    }

    static u64 newest_durable(void* self) { return ((ToyEngine*)self)->durable_; }

    static void wait(void* self, u64 gate) {
        ToyEngine& engine = *(ToyEngine*)self;
        usleep((useconds_t)engine.flush_us_);
        if (gate > engine.durable_) engine.durable_ = gate;
    }

    struct Lent {
        ToyBlobs::Value value;
        u64 operation, number;
    };

    const u64 flush_us_;
    ToyBlobs blobs_;
    std::unordered_map<std::string, ToyBlobs::Value> values_;
    std::vector<Lent> lent_;
    std::vector<std::pair<std::string, ToyBlobs::Value>> changed_;  // what was there before
    bool has_left_ = false;
    std::vector<u8> status_;
    std::vector<u32> lengths_;
    std::string found_;
    u64 newest_ = 0;
    std::atomic<u64> durable_{0};
};
