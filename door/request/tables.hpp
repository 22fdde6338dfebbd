// The tables that the door knows: a snapshot, replaced whole.
#pragma once
#include <memory>
#include <string>
#include <unordered_map>

#include "door.h"
#include "base/table_stats.hpp"
#include "base/types.hpp"

namespace door {

struct Table {
    u32 id;
    bool holds_numbers;  // keys and values of 8 bytes, in slots
    std::string layout;
    u64 key_bytes_min, key_bytes_max, value_bytes_min, value_bytes_max;
    u64 request_ops_max, result_bytes_max;
};

inline Table table_of(const DoorTable& told) {
    return {told.id, told.holds_numbers != 0, told.layout, told.key_bytes_min, told.key_bytes_max, told.value_bytes_min,
            told.value_bytes_max, told.request_ops_max, told.result_bytes_max};
}

class Tables {
  public:
    // A table that was there before goes on counting. std::bad_alloc.
    void add(const std::string& name, const Table& table, const Tables& before) {
        by_name_[name] = table;
        by_id_[table.id] = table;
        const auto found = before.stats_.find(table.id);
        stats_[table.id] = found == before.stats_.end() ? std::make_shared<TableStats>() : found->second;
    }

    // Null where there is none.
    const Table* find(const std::string& name) const {
        const auto found = by_name_.find(name);
        return found == by_name_.end() ? nullptr : &found->second;
    }

    const Table* find(u32 id) const {
        const auto found = by_id_.find(id);
        return found == by_id_.end() ? nullptr : &found->second;
    }

    // Where the engine's thread counts; null where there is no such table.
    TableStats* stats(u32 id) const {
        const auto found = stats_.find(id);
        return found == stats_.end() ? nullptr : found->second.get();
    }
    const std::unordered_map<u32, std::shared_ptr<TableStats>>& all_stats() const { return stats_; }

  private:
    std::unordered_map<std::string, Table> by_name_;
    std::unordered_map<u32, Table> by_id_;
    std::unordered_map<u32, std::shared_ptr<TableStats>> stats_;
};

}  // namespace door
