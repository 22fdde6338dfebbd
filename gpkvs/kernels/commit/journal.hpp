// The journal's writer: a thread that writes frames in their order, flushes once for all that wait, and then says how far
// the journal is durable.
//
// The journal is a ring of segments in the file of data. Its pages are numbered from the first one ever written, heads of
// segments not counted. Who submits a frame has made sure that its place is free.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <vector>

#include "base/fatal_line.hpp"
#include "base/hash.cuh"

constexpr u64 PAGE = 4096;

// The head of a segment: what recovery finds it by. The digest is keyed: no bytes of a user pass for a head.
struct SegmentHead {
    char magic[8];
    u64 incarnation;
    u64 serial;       // of the segment, counted from the first one ever written
    u64 first_epoch;  // of the frame that the segment's first page belongs to
    u64 digest[2];
};

// What a journal begins with: the words that the host gives.
struct JournalGiven {
    u64 file, direct, flushes;
    u64 segment_bytes, segments;
    const u64* places;  // where each segment begins in the file; copied
    u64 key0, key1;
    u64 incarnation, durable;
};

struct Frame {
    u64 epoch, position, pages;
    const u8* data;
};

class Journal {
public:
    explicit Journal(const JournalGiven& given)
        : given_(given), places_(given.places, given.places + given.segments), durable_(given.durable) {
        void* page = mmap(nullptr, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED) throw std::bad_alloc();
        head_ = static_cast<u8*>(page);
        writer_ = std::thread([this] { write_frames(); });
    }

    ~Journal() { munmap(head_, PAGE); }

    // Writes what was submitted, then ends the thread. Others may still ask what is durable.
    void end() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            is_ending_ = true;
        }
        submitted_.notify_one();
        writer_.join();
    }

    // The data must stay as they are until the frame is durable.
    void submit(const Frame& frame) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            waiting_.push_back(frame);
        }
        submitted_.notify_one();
    }

    // What was written to another file by now is flushed before the frames that are submitted after.
    void flush_too(int file) { other_file_.store(file, std::memory_order_release); }

    // The ring has more segments from here on. Those that frames were submitted for have the places that they had.
    void set_places(const u64* places, u64 segments) {
        std::vector<u64> more(places, places + segments);
        std::lock_guard<std::mutex> lock(places_mutex_);
        places_.swap(more);
    }

    u64 durable() const { return durable_.load(std::memory_order_acquire); }

    // How many flushes there were, and how long they took in all.
    u64 flushes() const { return flushes_.load(std::memory_order_relaxed); }
    u64 flush_nanoseconds() const { return flush_nanoseconds_.load(std::memory_order_relaxed); }

    // Waits until the frame of an epoch is durable.
    void wait(u64 epoch) {
        if (durable() >= epoch) return;
        std::unique_lock<std::mutex> lock(mutex_);
        published_.wait(lock, [&] { return durable() >= epoch; });
    }

private:
    void write_frames() {
        use_thread_storage();
        for (;;) {
            {
                std::unique_lock<std::mutex> lock(mutex_);
                submitted_.wait(lock, [&] { return is_ending_ || !waiting_.empty(); });
                if (waiting_.empty()) return;
                taken_.swap(waiting_);
            }
            {
                std::lock_guard<std::mutex> lock(places_mutex_);
                for (const Frame& frame : taken_) write(frame);
            }
            if (given_.flushes) flush();
            {
                std::lock_guard<std::mutex> lock(mutex_);
                durable_.store(taken_.back().epoch, std::memory_order_release);
            }
            published_.notify_all();
            taken_.clear();
        }
    }

    void flush() {
        const auto begin = std::chrono::steady_clock::now();
        const int other = other_file_.exchange(NO_FILE, std::memory_order_acquire);
        if (other != NO_FILE) flush(other);
        flush((int)given_.file);
        const auto took = std::chrono::steady_clock::now() - begin;
        flush_nanoseconds_ += std::chrono::duration_cast<std::chrono::nanoseconds>(took).count();
        flushes_++;
    }

    static void flush(int file) {
        while (fdatasync(file))
            if (errno != EINTR) end_after_failed_write("a flush of the store", errno);
    }

    // A frame goes on in the next segment where one ends.
    void write(const Frame& frame) {
        const u64 segment_pages = given_.segment_bytes / PAGE - 1;
        for (u64 done = 0; done < frame.pages;) {
            const u64 serial = (frame.position + done) / segment_pages, page = (frame.position + done) % segment_pages;
            const u64 at = places_[serial % places_.size()];
            const u64 count = std::min(frame.pages - done, segment_pages - page);
            if (page == 0) write_head(serial, frame.epoch, at);
            write_whole((int)given_.direct, frame.data + done * PAGE, count * PAGE, at + (1 + page) * PAGE);
            done += count;
        }
    }

    void write_head(u64 serial, u64 epoch, u64 at) {
        SegmentHead* head = new (head_) SegmentHead{{'G', 'P', 'K', 'V', 'S', 'J', 'S', 0}, given_.incarnation, serial, epoch, {}};
        const Hash128 digest = siphash128(given_.key0, given_.key1, head_, offsetof(SegmentHead, digest));
        head->digest[0] = digest.low;
        head->digest[1] = digest.high;
        write_whole((int)given_.direct, head_, PAGE, at);
    }

    const JournalGiven given_;
    std::mutex places_mutex_;  // the writer holds it while it writes
    std::vector<u64> places_;
    u8* head_;  // a page that a file without a cache takes
    std::mutex mutex_;
    std::condition_variable submitted_, published_;
    std::deque<Frame> waiting_;
    std::deque<Frame> taken_;  // the writer's; made by the caller of the constructor, which can be told of no memory
    std::atomic<u64> durable_;
    static constexpr int NO_FILE = -1;
    std::atomic<int> other_file_{NO_FILE};
    std::atomic<u64> flushes_{0}, flush_nanoseconds_{0};
    bool is_ending_ = false;
    std::thread writer_;
};

extern "C" {

// Begins a journal's writer; nullptr where there is no thread or memory for it.
void* gpkvs_journal_new(const u64* given) {
    try {
        return new Journal(*reinterpret_cast<const JournalGiven*>(given));
    } catch (const std::exception&) {
        return nullptr;
    }
}
void gpkvs_journal_end(void* journal) { static_cast<Journal*>(journal)->end(); }
// Gives the memory back, after the end, and when no thread waits any more.
void gpkvs_journal_delete(void* journal) { delete static_cast<Journal*>(journal); }
void gpkvs_journal_set_places(void* journal, const u64* places, u64 segments) {
    static_cast<Journal*>(journal)->set_places(places, segments);
}
void gpkvs_journal_wait(void* journal, u64 epoch) { static_cast<Journal*>(journal)->wait(epoch); }
u64 gpkvs_journal_durable(void* journal) { return static_cast<Journal*>(journal)->durable(); }
u64 gpkvs_journal_flushes(void* journal) { return static_cast<Journal*>(journal)->flushes(); }
u64 gpkvs_journal_flush_nanoseconds(void* journal) { return static_cast<Journal*>(journal)->flush_nanoseconds(); }

// The keyed digest of some bytes, in two words.
void gpkvs_keyed_digest(u64 key0, u64 key1, const u8* data, u64 bytes, u64* digest) {
    const Hash128 hash = siphash128(key0, key1, data, bytes);
    digest[0] = hash.low;
    digest[1] = hash.high;
}

// Copies the pages of an image that changed since they were last copied: those whose mark is above `copied`. Stops after
// `pages_max` pages. `ended` is the newest epoch whose slots were all stored when the first mark was read. Returns how many
// pages it copied to `out`; their numbers go to `numbers`, and `*next` gets the page to go on with.
u64 gpkvs_copy_pages(const u8* image, const u64* marks, u64* copied, u64 ended, u64 pages, u64* next, u64 pages_max,
                     u64* numbers, u8* out) {
    u64 count = 0, page = *next;
    for (; page < pages && count < pages_max; page++) {
        const u64 mark = __atomic_load_n(marks + page, __ATOMIC_ACQUIRE);
        if (mark <= copied[page]) continue;
        // A batch may store to the page meanwhile: its mark is above `ended` then, and the page is copied again.
        memcpy(out + count * PAGE, image + page * PAGE, PAGE);
        copied[page] = std::min(mark, ended);
        numbers[count++] = page;
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);
    *next = page;
    return count;
}

}  // extern "C"
