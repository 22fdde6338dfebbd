// Space of the heap that batches have freed and that may not be used again yet: a journal waits until a durable frame
// covers their epoch (W6).
#pragma once
#include <deque>
#include <mutex>
#include <vector>

#include "base/platform.cuh"

class WaitingSpace {
  public:
    // The units of each segment that wait for an epoch, which is not older than any noted: the caller adds to them, then
    // calls `end`. std::bad_alloc where there is no memory.
    u64* begin(u64 epoch, u64 segments) {
        std::lock_guard<std::mutex> guard(mutex_);
        if (notes_.empty() || notes_.back().epoch != epoch) notes_.push_back({epoch, std::vector<u64>(segments)});
        std::vector<u64>& units = notes_.back().units;
        if (units.size() < segments) units.resize(segments);  // the heap has grown
        return units.data();
    }

    // Forgets the last note if it is of nothing.
    void end() {
        std::lock_guard<std::mutex> guard(mutex_);
        if (notes_.empty()) return;
        for (const u64 units : notes_.back().units)
            if (units) return;
        notes_.pop_back();
    }

    // Frees what waits for the epochs up to one; returns whether there was something.
    bool release(u64 epoch, u64* live_units) {
        std::lock_guard<std::mutex> guard(mutex_);
        const u64 before = notes_.size();
        for (; !notes_.empty() && notes_.front().epoch <= epoch; notes_.pop_front()) {
            const std::vector<u64>& units = notes_.front().units;
            for (u64 segment = 0; segment < units.size(); segment++) live_units[segment] -= units[segment];
        }
        return notes_.size() < before;
    }

    // The newest epoch that space waits for; 0 if none does.
    u64 newest() const {
        std::lock_guard<std::mutex> guard(mutex_);
        return notes_.empty() ? 0 : notes_.back().epoch;
    }

    u64 notes() const {
        std::lock_guard<std::mutex> guard(mutex_);
        return notes_.size();
    }

    // All that waits.
    u64 units() const {
        std::lock_guard<std::mutex> guard(mutex_);
        u64 sum = 0;
        for (const Note& note : notes_)
            for (const u64 units : note.units) sum += units;
        return sum;
    }

  private:
    struct Note {
        u64 epoch;
        std::vector<u64> units;
    };

    mutable std::mutex mutex_;  // others ask how much waits
    std::deque<Note> notes_;
};

extern "C" {

// nullptr where there is no memory for it.
void* gpkvs_waiting_new() {
    try {
        return new WaitingSpace;
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}
void gpkvs_waiting_delete(void* waiting) { delete (WaitingSpace*)waiting; }
// Returns whether there was memory for it.
u64 gpkvs_waiting_add(void* waiting, u64 epoch, const u64* units, u64 segments) {
    try {
        u64* noted = ((WaitingSpace*)waiting)->begin(epoch, segments);
        for (u64 segment = 0; segment < segments; segment++) noted[segment] += units[segment];
    } catch (const std::bad_alloc&) {
        return false;
    }
    ((WaitingSpace*)waiting)->end();
    return true;
}
u64 gpkvs_waiting_release(void* waiting, u64 epoch, u64* live_units) {
    return ((WaitingSpace*)waiting)->release(epoch, live_units);
}
u64 gpkvs_waiting_newest(void* waiting) { return ((WaitingSpace*)waiting)->newest(); }
u64 gpkvs_waiting_notes(void* waiting) { return ((WaitingSpace*)waiting)->notes(); }
u64 gpkvs_waiting_units(void* waiting) { return ((WaitingSpace*)waiting)->units(); }

}  // extern "C"
