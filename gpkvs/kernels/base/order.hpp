// The sort of a batch's operations by fingerprint, that is by block, in arrival order inside a key.
//
// Fingerprints are uniform by construction, so one pass over their high bits leaves groups of one or two entries, and a
// stable sort inside each group ends it. Threads share the work by ranges of fingerprints: each takes its own out of
// the whole batch, and when all know how many they have, each writes its part of the result.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "base/layout.cuh"

class Order {
  public:
    // Begins with a batch, and takes all the memory that it may need: std::bad_alloc where there is none. Memory of the
    // last batch is used again, because fresh memory would cost more than the sort.
    void begin(const u64* fingerprint0, const u64* fingerprint1, u64 n, u64 parts) {
        fingerprint0_ = fingerprint0;
        fingerprint1_ = fingerprint1;
        n_ = n;
        group_bits_ = 1;
        while (group_bits_ < 18 && (1ull << group_bits_) < n) group_bits_++;
        if (parts_.size() < parts) parts_.resize(parts);
        used_ = parts;
        for (u64 number = 0; number < parts; number++) {
            parts_[number].taken.reserve(n + 1);
            parts_[number].entries.reserve(n);
            parts_[number].end.reserve((1ull << group_bits_) / parts + 2);
        }
    }

    // First step, for each part: take and sort the entries of its range.
    void sort(u64 number) {
        Part& part = parts_[number];
        const u32 shift = 64 - group_bits_;
        const u64 first_group = (number << group_bits_) / used_;
        const u64 groups = ((number + 1) << group_bits_) / used_ - first_group;

        // An entry outside the range is written and not kept, without a branch; hence one place more than entries.
        u64 count = 0;
        for (u64 i = 0; i < n_; i++) {
            part.taken.at[count] = {fingerprint0_[i], (u32)i};
            count += (fingerprint0_[i] >> shift) - first_group < groups;
        }
        std::fill_n(part.end.at, groups + 1, 0u);
        for (u64 e = 0; e < count; e++) part.end.at[(part.taken.at[e].fingerprint0 >> shift) - first_group + 1]++;
        for (u64 g = 0; g < groups; g++) part.end.at[g + 1] += part.end.at[g];
        for (u64 e = 0; e < count; e++)
            part.entries.at[part.end.at[(part.taken.at[e].fingerprint0 >> shift) - first_group]++] = part.taken.at[e];
        for (u64 g = 0, first = 0; g < groups; first = part.end.at[g++])
            if (part.end.at[g] - first > 1) sort_group(part.entries.at + first, part.entries.at + part.end.at[g]);

        part.count = count;
        part.chains = count > 0;
        for (u64 e = 1; e < count; e++) part.chains += before(part.entries.at[e - 1], part.entries.at[e]);
    }

    // Second step: where each part's operations and chains begin; returns the number of all chains.
    u64 place() {
        u64 position = 0, chain = 0;
        for (u64 number = 0; number < used_; number++) {
            Part& part = parts_[number];
            part.first_position = position;
            part.first_chain = chain;
            position += part.count;
            chain += part.chains;
        }
        return chain;
    }

    // Third step, for each part: write the result. `last_write` counts inside the part: a chain never leaves it. Without
    // `chain_of`, nobody asks for it, nor for the last writes.
    void write(u64 number, const u8* ops, u32* order, u32* chain_of, u32* chain_start, u32* last_write) const {
        const Part& part = parts_[number];
        u64 chain = part.first_chain;
        u32 written = 0;
        for (u64 e = 0; e < part.count; e++) {
            const u32 position = (u32)(part.first_position + e);
            const Entry& entry = part.entries.at[e];
            if (e == 0 || before(part.entries.at[e - 1], entry)) chain_start[chain++] = position;
            order[position] = entry.op;
            if (!chain_of) continue;
            chain_of[position] = (u32)(chain - 1);
            if (is_write(ops[entry.op])) written = position + 1;
            last_write[position] = written;
        }
    }

  private:
    struct Entry {
        u64 fingerprint0;
        u32 op;
    };
    // Memory that is not touched before it is used.
    template <class T>
    struct Buffer {
        std::unique_ptr<T[]> memory;
        T* at = nullptr;
        u64 size = 0;

        void reserve(u64 count) {
            if (count <= size) return;
            memory.reset();
            size = 0;
            memory.reset(new T[count]);
            at = memory.get();
            size = count;
        }
    };
    struct Part {
        Buffer<Entry> taken, entries;
        Buffer<u32> end;
        u64 count, chains, first_position, first_chain;
    };

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
    u64 used_ = 1;  // parts of this batch; those beyond keep their memory for the next one
    std::vector<Part> parts_;
};
