// The tables that the door knows: a snapshot, replaced whole.
#pragma once
#include <string>
#include <unordered_map>

#include "types.hpp"

namespace door {

struct Table {
    u32 id;
    bool holds_numbers;  // fixed-width keys and values of 8 bytes
    u64 key_bytes_max, value_bytes_max;
    u64 request_ops_max, result_bytes_max;
};

class Tables {
  public:
    void add(const std::string& name, const Table& table) {
        by_name_[name] = table;
        by_id_[table.id] = table;
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

  private:
    std::unordered_map<std::string, Table> by_name_;
    std::unordered_map<u32, Table> by_id_;
};

}  // namespace door
