// What the door counts of each table. The engine's thread writes it (stats.hpp).
#pragma once
#include "base/stats.hpp"

namespace door {

struct TableStats {
    Counter operations[OPS][STATUSES];
    Counter bytes_in, bytes_out;  // of keys and values

    // For its heir, when its table is gone.
    void add(const TableStats& other) {
        for (u64 op = 0; op < OPS; op++)
            for (u64 status = 0; status < STATUSES; status++)
                operations[op][status].add(other.operations[op][status].value());
        bytes_in.add(other.bytes_in.value());
        bytes_out.add(other.bytes_out.value());
    }
};

}  // namespace door
