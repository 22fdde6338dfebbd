// What followers are told: the effects of each transaction by key, in one log in memory that all of them read. It keeps the
// newest entries, up to so many bytes: who falls behind them is told so. Nobody who writes waits for anybody who reads.
//
// Python makes it, and turns it on and off between two batches (gpkvs/engine/host/change_log.py).
#pragma once
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "plan/native_planner.hpp"

enum ChangeKind : u8 { CHANGED_SET = 1, CHANGED_DELETED = 2, CHANGED_EXPIRED = 3 };
enum ChangeEvent : u64 { EVENT_EFFECTS, EVENT_TABLE_MADE, EVENT_TABLE_DROPPED };

// Columns of effects, each of them one array of many keys. Python reads these words (gpkvs/engine/host/change_log.py): `number` is
// that of the last entry in it. `versions` and `expiries` are null where no key has one.
#define CHANGES_FIELDS(F)                                                                   \
    F(u64, number) F(u64, gate) F(u64, time_ms) F(u64, event) F(u64, table_id) F(u64, n) F(u64, key_bytes) F(u64, value_bytes) \
    F(u64*, versions) F(u64*, expiries) F(u32*, key_lengths) F(u32*, value_lengths) F(u8*, kinds) F(u8*, keys) F(u8*, values)

struct ChangeColumns {
    CHANGES_FIELDS(GPKVS_FIELD)

    u64 bytes() const { return columns_bytes() + sizeof *this; }

    u64 columns_bytes() const {
        return n * (8 * has_versions + 8 * has_expiries + 2 * sizeof(u32) + 1) + key_bytes + value_bytes;
    }

    // Memory for the columns that counters ask for, in one piece; std::bad_alloc.
    void take() {
        u8* at = (u8*)malloc(columns_bytes() + 1);
        if (!at) throw std::bad_alloc();
        memory = at;
        const auto column = [&](u64 column_bytes) { return std::exchange(at, at + column_bytes); };
        versions = has_versions ? (u64*)column(8 * n) : nullptr;
        expiries = has_expiries ? (u64*)column(8 * n) : nullptr;
        key_lengths = (u32*)column(4 * n);
        value_lengths = (u32*)column(4 * n);
        kinds = column(n);
        keys = column(key_bytes);
        values = column(value_bytes);
    }

    // Adds columns of the same table behind the first `at_n` effects.
    void append(const ChangeColumns& other, u64 at_n, u64 at_key, u64 at_value) {
        copy(versions, other.versions, at_n, other.n);
        copy(expiries, other.expiries, at_n, other.n);
        memcpy(key_lengths + at_n, other.key_lengths, 4 * other.n);
        memcpy(value_lengths + at_n, other.value_lengths, 4 * other.n);
        memcpy(kinds + at_n, other.kinds, other.n);
        memcpy(keys + at_key, other.keys, other.key_bytes);
        memcpy(values + at_value, other.values, other.value_bytes);
    }

    ChangeColumns() = default;
    ChangeColumns(const ChangeColumns&) = delete;
    ChangeColumns& operator=(const ChangeColumns&) = delete;
    ~ChangeColumns() { free(memory); }

    bool has_versions = false, has_expiries = false;

  private:
    static void copy(u64* to, const u64* from, u64 at, u64 count) {
        if (!to) return;
        if (from) memcpy(to + at, from, 8 * count);
        else memset(to + at, 0, 8 * count);
    }

    void* memory = nullptr;
};

enum ChangesRead : u64 { READ_SOME, READ_NONE, READ_LOST };

class ChangeLog {
    typedef std::shared_ptr<ChangeColumns> Entry;
    typedef std::deque<Entry> Entries;

  public:
    explicit ChangeLog(u64 bytes_max) : bytes_max_(bytes_max) {}

    bool is_on() const { return is_on_.load(std::memory_order_relaxed); }
    u64 newest() const { return newest_.load(std::memory_order_acquire); }

    // Between two batches; what was before is told to nobody.
    void turn_on(u64 next_sequence) {
        std::lock_guard<std::mutex> lock(mutex_);
        held_behind_ = newest_ = next_sequence;
        is_on_ = true;
    }
    void turn_off() {
        const std::unique_ptr<Entries> old = no_entries();
        {
            std::lock_guard<std::mutex> lock(mutex_);
            is_on_ = false;
            lose_all(old.get());
        }
        if (old) free_beside(std::move(*old));
    }

    // No batch comes any more, and all are durable: who waits is told.
    void close() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            is_closed_ = true;
        }
        news_.notify_all();
    }

    // Tells what a transaction of one table did, which has this gate. Its number is the next sequence number behind it.
    template <class Planner>
    void tell(const Planner& a, u64 gate, ChangeKind gone) {
        const u64 number = a.first_sequence + a.n;
        try {
            auto entry = std::make_shared<ChangeColumns>();
            if (collect(a, *entry, gone)) add(std::move(entry), number, gate);  // without effects: it has taken numbers
            else tell_lost(number);
        } catch (const std::bad_alloc&) {
            tell_lost(number);
        }
    }

    // It has taken a sequence number before (`Committer.take_number`).
    void tell_table(ChangeEvent event, u64 table_id, u64 number, u64 gate) {
        try {
            auto entry = std::make_shared<ChangeColumns>();
            entry->event = event;
            entry->table_id = table_id;
            add(std::move(entry), number, gate);
        } catch (const std::bad_alloc&) {
            tell_lost(number);
        }
    }

    // The next entries behind a position, as many as are of one table and one millisecond, of which everything up to a gate is
    // durable; at least one, and others while they have no more bytes together. READ_NONE: `wait_gate` is that of the next one,
    // or 0. std::bad_alloc.
    ChangesRead read(u64 behind, u64 durable, u64 bytes_max, std::shared_ptr<ChangeColumns>& out, u64& wait_gate) {
        std::vector<std::shared_ptr<ChangeColumns>> found;
        wait_gate = 0;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            if (behind < held_behind_ || behind > newest_) return READ_LOST;
            u64 bytes = 0;
            const auto is_behind = [](u64 number, const Entry& entry) { return number < entry->number; };
            for (auto at = std::upper_bound(entries_.begin(), entries_.end(), behind, is_behind); at != entries_.end(); ++at) {
                const Entry& entry = *at;
                if (entry->gate > durable) {
                    if (found.empty()) wait_gate = entry->gate;
                    break;
                }
                bytes += entry->bytes();
                if (!found.empty() && (bytes > bytes_max || !are_alike(*found[0], *entry))) break;
                found.push_back(entry);
            }
        }
        if (found.empty()) return READ_NONE;
        out = found.size() == 1 ? found[0] : joined(found);
        return READ_SOME;
    }

    // Returns when there is something behind a position, or the time is over, or the log is closed.
    void wait(u64 behind, u64 milliseconds) {
        std::unique_lock<std::mutex> lock(mutex_);
        news_.wait_for(lock, std::chrono::milliseconds(milliseconds), [&] { return newest_ > behind || is_closed_; });
    }

    u64 oldest() {
        std::lock_guard<std::mutex> lock(mutex_);
        return held_behind_;
    }
    u64 bytes() {
        std::lock_guard<std::mutex> lock(mutex_);
        return bytes_;
    }

  private:
    static bool are_alike(const ChangeColumns& one, const ChangeColumns& other) {
        return !one.event && !other.event && one.table_id == other.table_id && one.time_ms == other.time_ms;
    }

    static std::shared_ptr<ChangeColumns> joined(const std::vector<std::shared_ptr<ChangeColumns>>& found) {
        auto all = std::make_shared<ChangeColumns>();
        for (const auto& entry : found) {
            all->n += entry->n;
            all->key_bytes += entry->key_bytes;
            all->value_bytes += entry->value_bytes;
            all->has_versions |= entry->has_versions;
            all->has_expiries |= entry->has_expiries;
        }
        all->take();
        const ChangeColumns& last = *found.back();
        all->number = last.number;
        all->gate = last.gate;
        all->time_ms = last.time_ms;
        all->event = last.event;
        all->table_id = last.table_id;
        u64 n = 0, key = 0, value = 0;
        for (const auto& entry : found) {
            all->append(*entry, n, key, value);
            n += entry->n;
            key += entry->key_bytes;
            value += entry->value_bytes;
        }
        return all;
    }

    void add(Entry entry, u64 number, u64 gate) {
        std::vector<Entry> old;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            entry->number = number;
            entry->gate = gate;
            entry->time_ms = last_ms_ = std::max(last_ms_, wall_ms());
            entries_.push_back(std::move(entry));
            bytes_ += entries_.back()->bytes();
            newest_ = number;
            while (bytes_ > bytes_max_) forget_oldest(old);
        }
        news_.notify_all();
        free_beside(std::move(old));
    }

    // There was no room for an entry, or a value of it is damaged: it has a number, and nobody has it.
    void tell_lost(u64 number) {
        const std::unique_ptr<Entries> old = no_entries();
        {
            std::lock_guard<std::mutex> lock(mutex_);
            newest_ = number;
            lose_all(old.get());
        }
        news_.notify_all();
        if (old) free_beside(std::move(*old));
    }

    void forget_oldest(std::vector<Entry>& old) {
        bytes_ -= entries_.front()->bytes();
        held_behind_ = entries_.front()->number;
        old.push_back(std::move(entries_.front()));
        entries_.pop_front();
    }

    // Also a list without entries takes memory; null where there is none.
    static std::unique_ptr<Entries> no_entries() {
        try {
            return std::make_unique<Entries>();
        } catch (const std::bad_alloc&) {
            return nullptr;
        }
    }

    void lose_all(Entries* old) {
        if (old) entries_.swap(*old);
        else entries_.clear();
        bytes_ = 0;
        held_behind_ = newest_;
    }

    // To free many entries takes a long one's time, and a writer does not wait for that.
    template <class Kept>
    static void free_beside(Kept&& old) {
        static const u64 FEW = 1000;
        if (old.size() <= FEW) return;
        try {
            std::thread([kept = std::move(old)] {}).detach();
        } catch (const std::exception&) {  // there is no thread: they are freed here
        }
    }

    static u64 wall_ms() {
        timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        return (u64)now.tv_sec * 1000 + (u64)now.tv_nsec / 1'000'000;
    }

    static const u8* key_of(const PlannerBytes& a, u32 op) { return a.keys + a.key_offsets[op]; }
    static const u8* key_of(const PlannerU64& a, u32 op) { return a.keys + sizeof(u64) * op; }
    static u32 key_bytes_of(const PlannerBytes& a, u32 op) { return a.key_lengths[op]; }
    static u32 key_bytes_of(const PlannerU64&, u32) { return sizeof(u64); }
    static u32 value_bytes_of_op(const PlannerBytes& a, u32 op) { return a.value_lengths[op]; }
    static u32 value_bytes_of_op(const PlannerU64&, u32) { return sizeof(u64); }
    static const u8* value_of(const PlannerBytes& a, u32 op) {
        if (!is_kept(a, op)) return a.values + a.value_offsets[op];
        const Record record = kept_record(a, op);
        return is_blob_sound(a, record) ? record_value(record, blob_file_of(a)) : nullptr;
    }
    static const u8* value_of(const PlannerU64& a, u32 op) {
        return a.values + (a.value_offsets ? a.value_offsets[op] : sizeof(u64) * op);
    }

    // The effects of a transaction that is committed; false if they are more than the log may hold, or a value that it keeps
    // is damaged. std::bad_alloc.
    template <class Planner>
    bool collect(const Planner& a, ChangeColumns& entry, ChangeKind gone) {
        constexpr bool of_records = has_records<typename Planner::Slot>;
        const u64 chains = a.planned[PLANNED_CHAINS];
        entry.has_versions = of_records;
        for (u64 chain = 0; chain < chains; chain++) {
            if (a.change[chain] == CHANGE_NONE) continue;
            const u32 op = a.final_op[chain];
            const bool is_put = a.change[chain] == CHANGE_PUT;
            entry.n++;
            entry.key_bytes += key_bytes_of(a, op);
            entry.value_bytes += is_put ? value_bytes_of_op(a, op) : 0;
            if constexpr (of_records) entry.has_expiries |= is_put && a.expiries && a.expiries[op];
        }
        if (entry.columns_bytes() > bytes_max_) return false;
        entry.event = EVENT_EFFECTS;
        entry.table_id = a.table_id;
        entry.take();
        u64 n = 0;
        u8 *key = entry.keys, *value = entry.values;
        for (u64 chain = 0; chain < chains; chain++) {
            if (a.change[chain] == CHANGE_NONE) continue;
            const u32 op = a.final_op[chain];
            const bool is_put = a.change[chain] == CHANGE_PUT;
            entry.kinds[n] = is_put ? CHANGED_SET : gone;
            entry.key_lengths[n] = key_bytes_of(a, op);
            entry.value_lengths[n] = is_put ? value_bytes_of_op(a, op) : 0;
            memcpy(key, key_of(a, op), entry.key_lengths[n]);
            if (entry.value_lengths[n]) {  // if all are empty, their column has no memory
                const u8* const from = value_of(a, op);
                if (!from) return false;
                memcpy(value, from, entry.value_lengths[n]);
            }
            key += entry.key_lengths[n];
            value += entry.value_lengths[n];
            if (entry.versions) entry.versions[n] = is_put ? version_of(a, op) : 0;
            if constexpr (of_records)
                if (entry.expiries) entry.expiries[n] = is_put && a.expiries ? a.expiries[op] : 0;
            n++;
        }
        return true;
    }

    const u64 bytes_max_;
    std::atomic<bool> is_on_{false};
    std::atomic<u64> newest_{0};
    std::mutex mutex_;
    std::condition_variable news_;
    Entries entries_;  // all those with numbers above `held_behind_`, up to `newest_`
    u64 held_behind_ = 0, bytes_ = 0, last_ms_ = 0;
    bool is_closed_ = false;
};

extern "C" {

const char* gpkvs_changes_fields() { return CHANGES_FIELDS(GPKVS_NAME); }
// Null where there is no memory for it.
void* gpkvs_change_log_new(u64 bytes_max) {
    try {
        return new ChangeLog(bytes_max);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}
void gpkvs_change_log_delete(void* log) { delete (ChangeLog*)log; }
void gpkvs_change_log_turn_on(void* log, u64 next_sequence) { ((ChangeLog*)log)->turn_on(next_sequence); }
void gpkvs_change_log_turn_off(void* log) { ((ChangeLog*)log)->turn_off(); }
void gpkvs_change_log_close(void* log) { ((ChangeLog*)log)->close(); }
u64 gpkvs_change_log_newest(void* log) { return ((ChangeLog*)log)->newest(); }
u64 gpkvs_change_log_oldest(void* log) { return ((ChangeLog*)log)->oldest(); }
u64 gpkvs_change_log_bytes(void* log) { return ((ChangeLog*)log)->bytes(); }
void gpkvs_change_log_tell_table(void* log, u64 event, u64 table_id, u64 number, u64 gate) {
    ((ChangeLog*)log)->tell_table((ChangeEvent)event, table_id, number, gate);
}
void gpkvs_change_log_wait(void* log, u64 behind, u64 milliseconds) { ((ChangeLog*)log)->wait(behind, milliseconds); }

// READ_SOME: `out` is a held entry (`gpkvs_changes_delete`) and `words` its columns. Without memory, READ_LOST.
u64 gpkvs_change_log_read(void* log, u64 behind, u64 durable, u64 bytes_max, void** out, const ChangeColumns** words, u64* wait_gate) {
    try {
        auto held = std::make_unique<std::shared_ptr<ChangeColumns>>();
        const ChangesRead read = ((ChangeLog*)log)->read(behind, durable, bytes_max, *held, *wait_gate);
        *words = held->get();
        *out = read == READ_SOME ? held.release() : nullptr;
        return read;
    } catch (const std::bad_alloc&) {
        return READ_LOST;
    }
}
void gpkvs_changes_delete(void* held) { delete (std::shared_ptr<ChangeColumns>*)held; }

}  // extern "C"
