// Runs of pages, found by address and by size.
#pragma once
#include <iterator>
#include <map>
#include <new>
#include <set>
#include <utility>

#include "base/platform.cuh"

// Runs that do not touch. What throws std::bad_alloc has changed nothing.
class PageRuns {
  public:
    using Run = std::map<u64, u64>::iterator;  // first page, pages

    u64 pages() const { return pages_; }
    Run end() { return by_address_.end(); }
    Run last() { return by_address_.empty() ? end() : std::prev(end()); }

    // The smallest run that fits, the first of equals.
    Run find(u64 pages) {
        const auto found = by_size_.lower_bound({pages, 0});
        return found == by_size_.end() ? end() : by_address_.find(found->second);
    }

    bool touch(u64 first, u64 pages) const {
        const auto next = by_address_.lower_bound(first + pages);
        if (next == by_address_.begin()) return false;
        const auto before = std::prev(next);
        return before->first + before->second > first;
    }

    // Adds pages that are not here, and joins them with their neighbours: that needs no memory.
    void add(u64 first, u64 pages) {
        const Run next = by_address_.lower_bound(first);
        const bool joins_next = next != end() && next->first == first + pages;
        const Run before = next == by_address_.begin() ? end() : std::prev(next);
        const bool joins_before = before != end() && before->first + before->second == first;
        if (joins_before) {
            const u64 more = joins_next ? next->second : 0;
            if (joins_next) erase(next);
            change(before, before->first, before->second + pages + more);
        } else if (joins_next) {
            change(next, first, next->second + pages);
        } else {
            insert(first, pages);
        }
    }

    // Takes pages out, as many of a range as are here; returns how many. Only a cut inside a run needs memory.
    u64 cut(u64 first, u64 pages) {
        const u64 last = first + pages, before = pages_;
        Run run = by_address_.upper_bound(first);
        if (run != by_address_.begin() && std::prev(run)->first + std::prev(run)->second > first) --run;
        while (run != end() && run->first < last) {
            const u64 run_first = run->first, run_last = run->first + run->second;
            const Run next = std::next(run);
            if (run_first < first && run_last > last) {
                insert(last, run_last - last);
                change(run, run_first, first - run_first);
                break;
            }
            if (run_first < first) change(run, run_first, first - run_first);
            else if (run_last > last) change(run, last, run_last - last);
            else erase(run);
            run = next;
        }
        return before - pages_;
    }

  private:
    void insert(u64 first, u64 pages) {
        const auto sized = by_size_.insert({pages, first}).first;
        try {
            by_address_.emplace(first, pages);
        } catch (const std::bad_alloc&) {
            by_size_.erase(sized);
            throw;
        }
        pages_ += pages;
    }

    void erase(Run run) {
        pages_ -= run->second;
        by_size_.erase({run->second, run->first});
        by_address_.erase(run);
    }

    void change(Run run, u64 first, u64 pages) {
        pages_ += pages - run->second;
        auto sized = by_size_.extract({run->second, run->first});
        sized.value() = {pages, first};
        by_size_.insert(std::move(sized));
        auto placed = by_address_.extract(run);
        placed.key() = first;
        placed.mapped() = pages;
        by_address_.insert(std::move(placed));
    }

    std::map<u64, u64> by_address_;
    std::set<std::pair<u64, u64>> by_size_;
    u64 pages_ = 0;
};
