// The pages of the file `blobs`: which are free, and which wait. Nothing on media says it: an opening makes it anew from
// the live blobs.
//
//     absent <-> present -> taken -> live -> waiting (W6) -> present
//                                                         -> read -> present
//
// A live blob may be *pinned*, by those who read it: when it is free otherwise, its pages are *read* until the last of them
// is done.
// Absent and present pages are free; absent ones have no space on the disk. Python has pages *out* while it reserves or
// punches them (gpkvs/engine/state/blob_space.py): nobody takes them meanwhile.
//
// Pages that become free need memory for a note of them, and a batch that has committed cannot fail. Where there is no
// memory they are *lost* until the next opening, and counted. Nodes that are reserved for each live blob would take memory
// for ever, for what a process that is out of memory hardly sees: it could not have planned the batch.
#pragma once
#include <algorithm>
#include <deque>
#include <mutex>

#include "base/page_runs.hpp"

static const u64 NO_BLOB = ~0ull;

// Free and waiting pages are kept up to a part of the live ones: an eighth of few, a sixteenth of many.
static const u64 KEPT_SHARE_MOST = 8, KEPT_SHARE = 16, KEPT_PAGES = (64 << 20) / PAGE_BYTES;

// In pages; gpkvs/engine/state/blob_space.py has the names.
struct PageCounts {
    u64 file, live, taken, waiting, read, present, absent, out, lost, kept;
};

class BlobSpace {
  public:
    explicit BlobSpace(u64 file_pages) { counts_.file = file_pages; }

    // At an opening: the pages between live blobs, which are ascending; all are present. Blobs that overlap are damage:
    // both stay, and what either frees is lost. std::bad_alloc where there is no memory.
    void begin(const u64* first, const u64* pages, u64 blobs) {
        std::lock_guard<std::mutex> guard(mutex_);
        u64 at = 0;
        for (u64 e = 0; e <= blobs; e++) {
            const u64 until = e < blobs ? first[e] : counts_.file;
            if (until > at) {
                free_.add(at, until - at);
                present_.add(at, until - at);
            }
            if (e == blobs) break;
            const u64 last = first[e] + pages[e];
            if (at > first[e]) {
                const u64 shared = std::min(at, last) - first[e];
                shared_.cut(first[e], shared);
                shared_.add(first[e], shared);
            }
            counts_.live += pages[e];
            at = std::max(at, last);
        }
    }

    // Notes that free pages of these parts of the file are absent. std::bad_alloc where there is no memory.
    void leave(const u64* first, const u64* pages, u64 parts) {
        std::lock_guard<std::mutex> guard(mutex_);
        for (u64 part = 0; part < parts; part++) present_.cut(first[part], pages[part]);
    }

    // The best place for a blob: pages that are present. NO_BLOB if there is none; std::bad_alloc, too, changes nothing.
    u64 take(u64 pages) {
        std::lock_guard<std::mutex> guard(mutex_);
        const PageRuns::Run best = present_.find(pages);
        if (best == present_.end()) return NO_BLOB;
        const u64 first = best->first;
        free_.cut(first, pages);
        present_.cut(first, pages);  // from the beginning of a run: it needs no memory
        counts_.taken += pages;
        return first;
    }

    bool fits(u64 pages) {
        std::lock_guard<std::mutex> guard(mutex_);
        return present_.find(pages) != present_.end();
    }

    // What was taken belongs to a batch that commits.
    void commit(u64 pages) {
        std::lock_guard<std::mutex> guard(mutex_);
        counts_.taken -= pages;
        counts_.live += pages;
    }

    // What was taken, and no batch has committed, is free at once.
    void give_back(u64 first, u64 pages) {
        std::lock_guard<std::mutex> guard(mutex_);
        counts_.taken -= pages;
        make_free(first, pages, true);
    }

    // What was live waits for an epoch, which is not older than any noted; with an undo log (0) it is free at once.
    void free_after(u64 epoch, u64 first, u64 pages) {
        std::lock_guard<std::mutex> guard(mutex_);
        counts_.live -= pages;
        if (!epoch) return end_life(first, pages);
        try {
            notes_.push_back({epoch, first, pages});
            counts_.waiting += pages;
        } catch (const std::bad_alloc&) {
            counts_.lost += pages;
        }
    }

    // Frees what waits for the epochs up to one; returns whether there was something.
    bool release(u64 epoch) {
        std::lock_guard<std::mutex> guard(mutex_);
        const u64 before = notes_.size();
        for (; !notes_.empty() && notes_.front().epoch <= epoch; notes_.pop_front()) {
            counts_.waiting -= notes_.front().pages;
            end_life(notes_.front().first, notes_.front().pages);
        }
        return notes_.size() < before;
    }

    // Somebody reads the live blob that begins there. std::bad_alloc.
    void pin(u64 first) {
        std::lock_guard<std::mutex> guard(mutex_);
        pins_[first].readers++;
    }

    // One of its readers is done.
    void unpin(u64 first) {
        std::lock_guard<std::mutex> guard(mutex_);
        const auto pin = pins_.find(first);
        if (--pin->second.readers) return;
        const u64 pages = pin->second.pages_read;
        pins_.erase(pin);
        counts_.read -= pages;
        if (pages) make_free(first, pages, true);
    }

    // The newest epoch that pages wait for; 0 if none do.
    u64 newest() const {
        std::lock_guard<std::mutex> guard(mutex_);
        return notes_.empty() ? 0 : notes_.back().epoch;
    }

    PageCounts counts() const {
        std::lock_guard<std::mutex> guard(mutex_);
        return counted();
    }

    // Has out the last present pages, of one run, that are too many beside others that are wanted: in whole steps, no more
    // than `most`. Returns how many. std::bad_alloc where there is no memory.
    u64 take_spare(u64 wanted, u64 step, u64 most, u64* first) {
        std::lock_guard<std::mutex> guard(mutex_);
        const u64 kept = counted().kept, used = counts_.waiting + wanted;
        const u64 may_stay = kept - std::min(kept, used);
        if (present_.pages() <= may_stay) return 0;
        const PageRuns::Run last = present_.last();
        const u64 spare = (present_.pages() - may_stay + step - 1) / step * step;
        const u64 pages = std::min({spare, last->second, most});
        *first = last->first + last->second - pages;
        take_out(*first, pages);
        return pages;
    }

    // Has out the best place for a blob, whether its pages are present or absent, or beyond the end of the file: then with
    // so many pages more as may be kept, up to `ahead`. Returns how many pages it has, and says how many of them are not
    // present. std::bad_alloc where there is no memory.
    u64 take_place(u64 pages, u64 ahead, u64* first, u64* missing) {
        std::lock_guard<std::mutex> guard(mutex_);
        const PageRuns::Run best = free_.find(pages), last = free_.last();
        u64 within = pages;
        if (best != free_.end()) {
            *first = best->first;
        } else {
            const bool is_at_end = last != free_.end() && last->first + last->second == counts_.file;
            *first = is_at_end ? last->first : counts_.file;
            within = counts_.file - *first;
            const u64 kept = counted().kept, used = present_.pages() + counts_.waiting + pages;
            pages += std::min(ahead, kept - std::min(kept, used));
        }
        *missing = pages - take_out(*first, within);
        return pages;
    }

    // Pages that were out are free again; what lies beyond the end of the file makes it longer.
    void put(u64 first, u64 pages, bool are_present) {
        std::lock_guard<std::mutex> guard(mutex_);
        const u64 beyond = std::max(first + pages, counts_.file) - counts_.file;
        counts_.file += beyond;
        counts_.out -= pages - beyond;
        make_free(first, pages, are_present);
    }

  private:
    struct Note {
        u64 epoch, first, pages;
    };

    struct Pin {
        u64 readers = 0;
        u64 pages_read = 0;  // 0: the blob is live, or waits
    };

    // Pages that no batch needs any more.
    void end_life(u64 first, u64 pages) {
        const auto pin = pins_.find(first);
        if (pin == pins_.end()) return make_free(first, pages, true);
        if (pin->second.pages_read) {  // damage: two records named it
            counts_.lost += pages;
            return;
        }
        pin->second.pages_read = pages;
        counts_.read += pages;
    }

    void make_free(u64 first, u64 pages, bool are_present) {
        const u64 before = free_.pages();
        try {
            if (!shared_.touch(first, pages)) free_.add(first, pages);
            if (are_present && free_.pages() > before) present_.add(first, pages);  // else absent: they are reserved again
        } catch (const std::bad_alloc&) {
        }
        if (free_.pages() == before) counts_.lost += pages;
    }

    // Returns how many of the pages were present.
    u64 take_out(u64 first, u64 pages) {
        counts_.out += free_.cut(first, pages);
        return present_.cut(first, pages);
    }

    PageCounts counted() const {
        PageCounts counts = counts_;
        const u64 used = counts.live + counts.taken;
        counts.present = present_.pages();
        counts.absent = free_.pages() - counts.present;
        counts.kept = std::min(used / KEPT_SHARE_MOST, std::max(used / KEPT_SHARE, KEPT_PAGES));
        return counts;
    }

    mutable std::mutex mutex_;
    PageRuns free_, present_;  // the latter are of the former
    PageRuns shared_;          // of blobs that overlap
    std::deque<Note> notes_;
    std::map<u64, Pin> pins_;  // by the first page
    PageCounts counts_ = {};
};

extern "C" {

// nullptr where there is no memory for it.
void* gpkvs_blob_pages_new(const u64* first, const u64* pages, u64 blobs, u64 file_pages) {
    BlobSpace* space = nullptr;
    try {
        space = new BlobSpace(file_pages);
        space->begin(first, pages, blobs);
        return space;
    } catch (const std::bad_alloc&) {
        delete space;
        return nullptr;
    }
}
void gpkvs_blob_pages_delete(void* space) { delete (BlobSpace*)space; }
// Returns whether there was memory for it.
u64 gpkvs_blob_pages_leave(void* space, const u64* first, const u64* pages, u64 parts) {
    try {
        ((BlobSpace*)space)->leave(first, pages, parts);
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}
// NO_BLOB where there is no memory, too, as of the next two.
u64 gpkvs_blob_pages_take(void* space, u64 pages) {
    try {
        return ((BlobSpace*)space)->take(pages);
    } catch (const std::bad_alloc&) {
        return NO_BLOB;
    }
}
u64 gpkvs_blob_pages_take_spare(void* space, u64 wanted, u64 step, u64 most, u64* first) {
    try {
        return ((BlobSpace*)space)->take_spare(wanted, step, most, first);
    } catch (const std::bad_alloc&) {
        return NO_BLOB;
    }
}
u64 gpkvs_blob_pages_take_place(void* space, u64 pages, u64 ahead, u64* first, u64* missing) {
    try {
        return ((BlobSpace*)space)->take_place(pages, ahead, first, missing);
    } catch (const std::bad_alloc&) {
        return NO_BLOB;
    }
}
void gpkvs_blob_pages_put(void* space, u64 first, u64 pages, u64 are_present) {
    ((BlobSpace*)space)->put(first, pages, are_present);
}
u64 gpkvs_blob_pages_fits(void* space, u64 pages) { return ((BlobSpace*)space)->fits(pages); }
void gpkvs_blob_pages_commit(void* space, u64 pages) { ((BlobSpace*)space)->commit(pages); }
void gpkvs_blob_pages_give_back(void* space, u64 first, u64 pages) { ((BlobSpace*)space)->give_back(first, pages); }
void gpkvs_blob_pages_free_after(void* space, u64 epoch, u64 first, u64 pages) {
    ((BlobSpace*)space)->free_after(epoch, first, pages);
}
u64 gpkvs_blob_pages_release(void* space, u64 epoch) { return ((BlobSpace*)space)->release(epoch); }
u64 gpkvs_blob_pages_newest(void* space) { return ((BlobSpace*)space)->newest(); }
void gpkvs_blob_pages_count(void* space, PageCounts* counts) { *counts = ((BlobSpace*)space)->counts(); }

}  // extern "C"
