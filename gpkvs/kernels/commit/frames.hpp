// The frames of the journal: room for each in memory and in the ring, the chain of their headers, and what they cover.
//
// Whoever appends holds the lock, from `reserve` until the slots of the batch are stored. The rest is for any thread.
#pragma once
#include "commit/commit.hpp"
#include "commit/journal.hpp"

// Frames that may be on their way to the disk: with more, a batch waits. Each holds memory.
constexpr u64 IN_FLIGHT_MAX = 4;

// The entries follow (`FrameHeader` in gpkvs/media/frame.py).
struct FrameHeader {
    char magic[8];
    u64 incarnation;
    u64 previous;      // the digest of the frame before
    u64 durable_upto;  // the newest epoch that was durable when the batch began
    u64 pages;
    u64 records_digest;
    Descriptor descriptor;
    u8 zeros[448];
    u64 digest[2];
};
static_assert(sizeof(FrameHeader) == 1024, "as docs/format.md has it");

inline u64 frame_pages(u64 words) { return (sizeof(FrameHeader) + 8 * words + PAGE - 1) / PAGE; }

// A batch of the journal: what the next frame and a checkpoint must know of it.
struct Written {
    Descriptor descriptor;
    u64 digest;    // of its frame
    u64 position;  // the page after its frame
};

struct FrameMemory {
    u8* data;
    u64 bytes;
};

// What a journal begins with: the words that the host gives.
struct FramesGiven {
    Journal* writer;
    u64 key0, key1;
    u64 incarnation;
    u64 capacity;  // pages of the ring that may be in use
    u64 freed_to;  // the page that a replay begins with
    const Written* last;  // what was recovered; it is durable
};

class Frames {
public:
    explicit Frames(const FramesGiven& given)
        : writer_(*given.writer), key0_(given.key0), key1_(given.key1), incarnation_(given.incarnation),
          capacity_(given.capacity), freed_to_(given.freed_to), last_(*given.last), ended_(*given.last),
          position_(given.last->position), begun_(given.last->descriptor.epoch),
          stable_sequence_(given.last->descriptor.next_sequence) {
        spare_.reserve(IN_FLIGHT_MAX + 1);
    }

    ~Frames() {
        for (; in_flight_; in_flight_--) spare_.push_back(flights_[first_flight_++ % IN_FLIGHT_MAX].memory);
        if (memory_.data) spare_.push_back(memory_);
        for (const FrameMemory& memory : spare_) munmap(memory.data, memory.bytes);
    }

    Frames(const Frames&) = delete;

    std::mutex& appending() { return appending_; }

    // Room for a frame, in memory and in the ring; waits until there is some. std::bad_alloc where there is no memory for
    // it: then nothing has changed.
    FrameMemory reserve(u64 pages) {
        while (in_flight_ == IN_FLIGHT_MAX || (in_flight_ && oldest().epoch <= writer_.durable())) {
            writer_.wait(oldest().epoch);
            give_back(oldest().memory);
            first_flight_++;
            in_flight_--;
        }
        take_memory(pages);
        wait_for_room(pages);
        pages_ = pages;
        return memory_;
    }

    // From here on the slots of an epoch may be stored.
    void begin(u64 epoch) { begun_.store(epoch, std::memory_order_release); }

    // Gives the reserved frame its header, and has it written behind the last one. Its entries are in place, its records
    // written. It is durable when the writer says so.
    void append(const Descriptor& descriptor, u64 records_digest, u64 durable_upto) {
        FrameHeader& header = *reinterpret_cast<FrameHeader*>(memory_.data);
        header = {{'G', 'P', 'K', 'V', 'S', 'B', 'L', 0}, incarnation_, last_.digest, durable_upto, pages_, records_digest,
                  descriptor, {}, {}};
        const Hash128 digest = siphash128(key0_, key1_, memory_.data, offsetof(FrameHeader, digest));
        header.digest[0] = digest.low;
        header.digest[1] = digest.high;
        const Frame frame = {descriptor.epoch, last_.position, pages_, memory_.data};
        flights_[(first_flight_ + in_flight_++) % IN_FLIGHT_MAX] = {descriptor.epoch, memory_};
        memory_ = {};
        {
            std::lock_guard<std::mutex> lock(naming_);
            forget_names(writer_.durable());
            names_[(first_name_ + named_++) % IN_FLIGHT_MAX] = {descriptor.epoch, durable_upto, descriptor.next_sequence};
            last_ = {descriptor, digest.low, frame.position + frame.pages};
            is_empty_ = !descriptor.run_count;
        }
        position_.store(last_.position, std::memory_order_release);
        writer_.submit(frame);
    }

    // All slots of the last batch are stored.
    void end() {
        std::lock_guard<std::mutex> lock(naming_);
        ended_ = last_;
    }

    // Whether the last frame of this opening says nothing: then nothing is to be covered.
    bool is_empty() const {
        std::lock_guard<std::mutex> lock(naming_);
        return is_empty_;
    }

    u64 begun() const { return begun_.load(std::memory_order_acquire); }

    // The newest batch whose slots are all stored.
    Written ended() const {
        std::lock_guard<std::mutex> lock(naming_);
        return ended_;
    }

    // The version that the next SET may get.
    u64 next_sequence() const {
        std::lock_guard<std::mutex> lock(naming_);
        return ended_.descriptor.next_sequence;
    }

    // The newest one that was appended.
    Written last() const {
        std::lock_guard<std::mutex> lock(naming_);
        return last_;
    }

    Journal& writer() const { return writer_; }

    // The newest epoch that the frames up to a durable one name as durable (W6).
    u64 covered_by(u64 durable) {
        std::lock_guard<std::mutex> lock(naming_);
        forget_names(durable);
        return covered_;
    }

    // The version below which the frames up to a durable one gave all.
    u64 stable_sequence(u64 durable) {
        std::lock_guard<std::mutex> lock(naming_);
        forget_names(durable);
        return stable_sequence_;
    }

    // Pages that a replay would read.
    u64 used_pages() const {
        const u64 freed_to = freed_to_.load(std::memory_order_acquire);  // first: it follows the position
        return position_.load(std::memory_order_acquire) - freed_to;
    }

    // The pages before a position may be used again: both root copies name a checkpoint there (W3).
    void free(u64 position) {
        std::lock_guard<std::mutex> lock(freeing_);
        freed_to_.store(position, std::memory_order_release);
        freed_.notify_all();
    }

    // The ring has more pages from here on.
    void grow(u64 capacity) {
        std::lock_guard<std::mutex> lock(freeing_);
        capacity_ = capacity;
        freed_.notify_all();
    }

    // How long batches have waited for room in the ring.
    u64 room_nanoseconds() const { return room_nanoseconds_.load(std::memory_order_relaxed); }

private:
    struct Flight {
        u64 epoch;
        FrameMemory memory;
    };

    // What a frame names.
    struct Name {
        u64 epoch, durable_upto, next_sequence;
    };

    const Flight& oldest() const { return flights_[first_flight_ % IN_FLIGHT_MAX]; }

    // `spare_` has room for all memory that there is.
    void give_back(const FrameMemory& memory) { spare_.push_back(memory); }

    void take_memory(u64 pages) {
        if (memory_.data) give_back(memory_);  // of a frame that was given up
        memory_ = {};
        for (auto memory = spare_.begin(); memory != spare_.end(); ++memory) {
            if (memory->bytes < pages * PAGE) continue;
            memory_ = *memory;
            spare_.erase(memory);
            return;
        }
        u64 bytes = PAGE;
        while (bytes < pages * PAGE) bytes *= 2;
        spare_.reserve(spare_.size() + IN_FLIGHT_MAX + 1);
        void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (data == MAP_FAILED) throw std::bad_alloc();
        madvise(data, bytes, MADV_HUGEPAGE);
        memory_ = {static_cast<u8*>(data), bytes};
    }

    void wait_for_room(u64 pages) {
        std::unique_lock<std::mutex> lock(freeing_);
        if (used_pages() + pages <= capacity_) return;
        const auto begin = std::chrono::steady_clock::now();
        freed_.wait(lock, [&] { return used_pages() + pages <= capacity_; });
        const auto took = std::chrono::steady_clock::now() - begin;
        room_nanoseconds_ += std::chrono::duration_cast<std::chrono::nanoseconds>(took).count();
    }

    // Those that are not durable are on their way: no more names are kept than frames.
    void forget_names(u64 durable) {
        for (; named_ && names_[first_name_ % IN_FLIGHT_MAX].epoch <= durable; named_--) {
            const Name& name = names_[first_name_++ % IN_FLIGHT_MAX];
            covered_ = name.durable_upto;
            stable_sequence_ = name.next_sequence;
        }
    }

    Journal& writer_;
    const u64 key0_, key1_, incarnation_;
    std::mutex appending_;

    std::mutex freeing_;
    std::condition_variable freed_;
    u64 capacity_;
    std::atomic<u64> freed_to_;
    std::atomic<u64> room_nanoseconds_{0};

    Flight flights_[IN_FLIGHT_MAX];
    u64 first_flight_ = 0, in_flight_ = 0;
    std::vector<FrameMemory> spare_;
    FrameMemory memory_ = {};  // of the frame that is reserved
    u64 pages_ = 0;

    mutable std::mutex naming_;
    Written last_, ended_;
    bool is_empty_ = true;
    std::atomic<u64> position_, begun_;
    Name names_[IN_FLIGHT_MAX];
    u64 first_name_ = 0, named_ = 0;
    u64 covered_ = 0, stable_sequence_;
};

extern "C" {

// Begins the frames of a journal; nullptr where there is no memory for it.
void* gpkvs_frames_new(const u64* given) {
    try {
        return new Frames(*reinterpret_cast<const FramesGiven*>(given));
    } catch (const std::exception&) {
        return nullptr;
    }
}
// After the writer's end.
void gpkvs_frames_delete(void* frames) { delete static_cast<Frames*>(frames); }
void gpkvs_frames_lock(void* frames) { static_cast<Frames*>(frames)->appending().lock(); }
u64 gpkvs_frames_try_lock(void* frames) { return static_cast<Frames*>(frames)->appending().try_lock(); }
// Called as Python calls `__exit__`: no interrupt comes between.
void gpkvs_frames_unlock(void* frames, const void*, const void*, const void*) {
    static_cast<Frames*>(frames)->appending().unlock();
}

// Where the frame is made in memory, and how large that is; nullptr where there is none.
u8* gpkvs_frames_reserve(void* frames, u64 pages, u64* bytes) {
    try {
        const FrameMemory memory = static_cast<Frames*>(frames)->reserve(pages);
        *bytes = memory.bytes;
        return memory.data;
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}
void gpkvs_frames_begin(void* frames, u64 epoch) { static_cast<Frames*>(frames)->begin(epoch); }
void gpkvs_frames_append(void* frames, const u8* descriptor, u64 records_digest, u64 durable_upto) {
    static_cast<Frames*>(frames)->append(*reinterpret_cast<const Descriptor*>(descriptor), records_digest, durable_upto);
}
void gpkvs_frames_end(void* frames) { static_cast<Frames*>(frames)->end(); }
u64 gpkvs_frames_is_empty(void* frames) { return static_cast<Frames*>(frames)->is_empty(); }
u64 gpkvs_frames_begun(void* frames) { return static_cast<Frames*>(frames)->begun(); }
void gpkvs_frames_ended(void* frames, u8* written) {
    const Written ended = static_cast<Frames*>(frames)->ended();
    memcpy(written, &ended, sizeof ended);
}
void gpkvs_frames_last(void* frames, u8* written) {
    const Written last = static_cast<Frames*>(frames)->last();
    memcpy(written, &last, sizeof last);
}
u64 gpkvs_frames_next_sequence(void* frames) { return static_cast<Frames*>(frames)->next_sequence(); }
u64 gpkvs_frames_covered_by(void* frames, u64 durable) { return static_cast<Frames*>(frames)->covered_by(durable); }
u64 gpkvs_frames_used_pages(void* frames) { return static_cast<Frames*>(frames)->used_pages(); }
void gpkvs_frames_free(void* frames, u64 position) { static_cast<Frames*>(frames)->free(position); }
void gpkvs_frames_grow(void* frames, u64 capacity) { static_cast<Frames*>(frames)->grow(capacity); }
u64 gpkvs_frames_room_nanoseconds(void* frames) { return static_cast<Frames*>(frames)->room_nanoseconds(); }

}  // extern "C"
