// The sort of a batch's operations by fingerprint, that is by block and bucket, in arrival order inside a key.
//
// Fingerprints are uniform by construction, so one pass over their high bits leaves groups of one or two entries, and a
// stable sort inside each group ends it. Threads share the work by ranges of fingerprints: each takes its own out of
// the whole batch, and when all know how many they have, each writes its part of the result.
#pragma once
#include <algorithm>
#include <vector>

#include "layout.cuh"

class Order {
  public:
    // Begins with a batch; memory of the last one is used again, because fresh memory would cost more than the sort.
    void begin(const u64* fingerprint0, const u64* fingerprint1, u64 n, u64 parts) {
        fingerprint0_ = fingerprint0;
        fingerprint1_ = fingerprint1;
        n_ = n;
        group_bits_ = 1;
        while (group_bits_ < 18 && (1ull << group_bits_) < n) group_bits_++;
        parts_.resize(parts);
    }

    // First step, for each part: take and sort the entries of its range. No exception may end the thread it runs in.
    void sort(u64 number) {
        try {
            sort_part(parts_[number], number);
            parts_[number].starved = false;
        } catch (const std::bad_alloc&) {
            parts_[number].starved = true;
        }
    }

    // Whether the first step found no memory.
    bool starved() const {
        return std::any_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.starved; });
    }

    // Second step: where each part's operations and chains begin; returns the number of all chains.
    u64 place() {
        u64 position = 0, chain = 0;
        for (Part& part : parts_) {
            part.first_position = position;
            part.first_chain = chain;
            position += part.count;
            chain += part.chains;
        }
        return chain;
    }

    // Third step, for each part: write the result. `last_write` counts inside the part: a chain never leaves it.
    void write(u64 number, const u8* ops, u32* order, u32* chain_of, u32* chain_start, u32* last_write) const {
        const Part& part = parts_[number];
        u64 chain = part.first_chain;
        u32 written = 0;
        for (u64 e = 0; e < part.count; e++) {
            const u32 position = (u32)(part.first_position + e);
            const Entry& entry = part.entries[e];
            if (e == 0 || before(part.entries[e - 1], entry)) chain_start[chain++] = position;
            order[position] = entry.op;
            chain_of[position] = (u32)(chain - 1);
            if (ops[entry.op] != OP_GET) written = position + 1;
            last_write[position] = written;
        }
    }

  private:
    struct Entry {
        u64 fingerprint0;
        u32 op;
    };
    struct Part {
        std::vector<Entry> taken, entries;
        std::vector<u32> end;
        u64 count, chains, first_position, first_chain;
        bool starved;
    };

    void sort_part(Part& part, u64 number) {
        const u32 shift = 64 - group_bits_;
        const u64 first_group = (number << group_bits_) / parts_.size();
        const u64 groups = ((number + 1) << group_bits_) / parts_.size() - first_group;

        // One place more than there can be: an entry outside the range is written and not kept, without a branch.
        if (part.taken.size() <= n_) part.taken.resize(n_ + 1);
        u64 count = 0;
        for (u64 i = 0; i < n_; i++) {
            part.taken[count] = {fingerprint0_[i], (u32)i};
            count += (fingerprint0_[i] >> shift) - first_group < groups;
        }
        part.end.assign(groups + 1, 0);
        if (part.entries.size() < count) part.entries.resize(count);
        for (u64 e = 0; e < count; e++) part.end[(part.taken[e].fingerprint0 >> shift) - first_group + 1]++;
        for (u64 g = 0; g < groups; g++) part.end[g + 1] += part.end[g];
        for (u64 e = 0; e < count; e++)
            part.entries[part.end[(part.taken[e].fingerprint0 >> shift) - first_group]++] = part.taken[e];
        for (u64 g = 0, first = 0; g < groups; first = part.end[g++])
            if (part.end[g] - first > 1) sort_group(&part.entries[first], &part.entries[0] + part.end[g]);

        part.count = count;
        part.chains = count > 0;
        for (u64 e = 1; e < count; e++) part.chains += before(part.entries[e - 1], part.entries[e]);
    }

    bool before(const Entry& left, const Entry& right) const {
        if (left.fingerprint0 != right.fingerprint0) return left.fingerprint0 < right.fingerprint0;
        return fingerprint1_[left.op] < fingerprint1_[right.op];
    }

    // Insertion for a few entries, where std::stable_sort would allocate each time.
    void sort_group(Entry* first, Entry* last) const {
        if (last - first > 32)
            return std::stable_sort(first, last, [this](const Entry& a, const Entry& b) { return before(a, b); });
        for (Entry* next = first + 1; next < last; next++) {
            const Entry moving = *next;
            Entry* at = next;
            for (; at > first && before(moving, at[-1]); at--) *at = at[-1];
            *at = moving;
        }
    }

    const u64 *fingerprint0_ = nullptr, *fingerprint1_ = nullptr;
    u64 n_ = 0;
    u32 group_bits_ = 1;
    std::vector<Part> parts_;
};
