// The turns of the engine's thread: it makes batches of the requests that wait, and runs them one after the other. While one
// runs, the next one's requests gather; there is no timer. A small batch may run in the thread that brought it.
#pragma once
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "queue/batch_columns.hpp"
#include "door.h"
#include "queue/gates.hpp"
#include "base/published.hpp"
#include "queue/queue.hpp"
#include "request/tables.hpp"

namespace door {

class Turn {
  public:
    // So much is a small batch.
    static constexpr u64 HERE_OPERATIONS_MAX = 32, HERE_BYTES_MAX = 64 << 10;

    explicit Turn(Door& door);

    // The engine's thread.

    int run(u64 timeout_ns);
    void set_engine(const Engine* engine);
    void set_clock(int64_t* ahead_us) { ahead_us_ = ahead_us; }
    const EngineBatch* left() const { return &columns_.batch(); }
    // Before it runs again: what requests hear that lack something (EngineLeft). After it: how many have heard that.
    void left_lacks(u32 what, const std::shared_ptr<const Refusal>& refusal);
    bool run_left();
    u64 left_without(u32 what);
    void left_done(u64 covered, const u8* status, const u64* versions, const u32* value_lengths, const u8* values, u64 gate);
    u64 left_failed(const std::shared_ptr<const Refusal>& refusal);
    // Gives back all that waits: nobody is there any more for whom to execute it.
    void abandon();

    // A thread of connections.

    // By which keys expire; while the door is open.
    u64 time_ms() const { return counted_ms(ahead_us_); }
    // Whether values may come in pieces.
    bool takes_uploads() const { return takes_uploads_; }
    // Runs a small batch of what waits in this thread, if the engine's thread sleeps meanwhile: waking that one would take
    // longer. False: the engine's thread must look.
    bool run_here();

    // Any thread.

    void interrupt();
    // From now on all that waits is refused; null: no more.
    void refuse_waiting(std::shared_ptr<const Refusal> refusal);
    void stop();

  private:
    void sleep(std::unique_lock<std::mutex>& lock, u64 until_ns);
    bool may_start();
    void form();
    Verdict judge(Request* request, u64 now);
    u64 operations_max() const;
    Verdict drop(Request* request, Outcome outcome);
    void give_back_dropped();
    bool join_columns();
    bool count_working();
    int run_batch();
    int run_reservation();
    void learn(u64 covered);
    static bool give_room(void* self, u64 operations, u64 returning, u64 value_bytes, u64 refusals,
                          EngineRoom* room);
    void refuse_stopped();
    std::shared_ptr<const Refusal> stopped_by(const Request& request, const EngineRefusal& refusal);
    EngineRefusal* take_stopped(Request& request, u64 first_number, EngineRefusal* next, EngineRefusal* end);
    void share_out(u64 covered, u64 gate);
    u64 planned_ns() const;
    static void count_operations(const Request& request, TableStats& stats);
    void put_back();
    void give_back(Outcome outcome, const std::shared_ptr<const Refusal>& refusal);
    void end_batch();
    void change_counted(u64 bytes);
    void release_results();

    Door& door_;
    Queue& queue_;
    Gates& gates_;
    Reader<Tables> tables_;
    const Engine* engine_ = nullptr;
    std::atomic<bool> takes_uploads_{false};
    int64_t own_ahead_us_ = INT64_MIN;
    int64_t* ahead_us_ = &own_ahead_us_;  // the word of the time that counts

    // Whoever runs a batch has it; all below is theirs. The engine's thread gives it away only while it sleeps.
    std::mutex mutex_;
    std::atomic<bool> is_asleep_{false};
    bool is_due_ = false;  // Python has work to do
    u64 timeout_ns_ = 0, idle_at_ns_ = 0;

    std::atomic<bool> is_interrupted_{false}, is_stopped_{false};
    Published<Refusal> waiting_refusal_;
    Reader<Refusal> refusal_{waiting_refusal_};  // null: none

    // The batch: a list of requests, with their columns joined. Several requests of one message are one of the list.
    Request* first_ = nullptr;
    Request* last_ = nullptr;
    u64 requests_ = 0, operations_ = 0, returning_ = 0, payload_bytes_ = 0;
    u64 returning_max_ = NEVER;  // with more, the values would be too many
    BatchColumns columns_;
    Results* results_ = nullptr;
    struct Lacking {
        std::shared_ptr<const Refusal> refusal;
        u64 requests = 0;
    };
    std::array<Lacking, LEFT_COUNT> lacking_;  // while a batch that was left runs again
    u64 counted_bytes_ = 0, began_ns_ = 0;
    Request* dropped_ = nullptr;  // a list
    // As many batches waited for their gate when there was no memory for one more.
    u64 too_many_waiting_ = NEVER;
};

}  // namespace door
