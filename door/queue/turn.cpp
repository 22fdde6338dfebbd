#include "queue/turn.hpp"

#include "request/handler.hpp"
#include "door.hpp"
#include "base/texts.hpp"

namespace door {

namespace {

// With fewer operations the next batch waits for the flush of the one before. Each batch and each flush costs the same whatever
// its size: 50 clients with one call each did 1,000 calls a second when every batch started early (2 in a batch), and 1,600 when
// none did (5 in a batch).
constexpr u64 EARLY_OPERATIONS_MIN = 4096;

// The engine takes, measured (server/account/bounds.py): copies of keys, of values and of results, and columns of a plan.
u64 engine_bytes(u64 bytes, u64 operations) { return 3 * bytes + 200 * operations; }

// A batch brings no more values than this, or is one request: what others have asked for must not wait for a copy of much
// more.
constexpr u64 VALUE_BYTES_MAX = 1 << 20;

// Python counts what its own requests are refused, but not what single ones of several in a message are.
bool is_counted_here(const Request& request) { return !request.python || request.request_ops; }

u64 later(u64 time_ns, u64 by_ns) { return by_ns < NEVER - time_ns ? time_ns + by_ns : NEVER; }

}  // namespace

Turn::Turn(Door& door)
    : door_(door), queue_(door.queue), gates_(door.gates), tables_(door.tables) {}

int Turn::run(u64 timeout_ns) {
    std::unique_lock<std::mutex> lock(mutex_);
    timeout_ns_ = timeout_ns;
    idle_at_ns_ = later(now_ns(), timeout_ns);
    bool has_run = false;
    while (!first_) {
        if (std::exchange(is_due_, false)) return TURN_DUE;
        queue_.take_in();
        if (is_stopped_) {
            abandon();
            return TURN_STOPPED;
        }
        const bool is_ready = !queue_.is_empty() && may_start();
        // One batch runs before: whoever interrupts every turn must not keep the door from its own.
        if ((has_run || !is_ready) && is_interrupted_.exchange(false)) return TURN_INTERRUPTED;
        if (is_ready) {
            form();
            if (!first_) continue;
            has_run = true;
            const int ran = run_batch();
            if (ran != ENGINE_DONE) return ran == ENGINE_LEFT ? TURN_LEFT : TURN_DUE;
            idle_at_ns_ = later(now_ns(), timeout_ns);
        } else if (queue_.is_empty() && !gates_.waiting()) {
            if (now_ns() >= idle_at_ns_) return TURN_IDLE;
            sleep(lock, idle_at_ns_);
        } else {
            sleep(lock, NEVER);
        }
    }
    return TURN_LEFT;  // still
}

void Turn::sleep(std::unique_lock<std::mutex>& lock, u64 until_ns) {
    is_asleep_ = true;
    lock.unlock();
    queue_.wait(until_ns);
    lock.lock();
    is_asleep_ = false;
}

bool Turn::run_here() {
    if (!is_asleep_) return false;
    std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (!lock || !is_asleep_ || is_interrupted_ || is_stopped_ || !engine_ || !engine_->never_waits) return false;
    if (first_ || is_due_) return false;
    queue_.take_in();
    if (queue_.operations() > HERE_OPERATIONS_MAX || !may_start()) return false;
    form();
    if (!first_) return queue_.is_empty();
    const int ran = run_batch();
    is_due_ = ran == ENGINE_DUE;
    idle_at_ns_ = later(now_ns(), timeout_ns_);
    return ran == ENGINE_DONE && queue_.is_empty();
}

void Turn::left_lacks(u32 what, const std::shared_ptr<const Refusal>& refusal) { lacking_[what] = {refusal, 0}; }

bool Turn::run_left() {
    std::lock_guard<std::mutex> lock(mutex_);
    return run_batch() != ENGINE_LEFT;
}

u64 Turn::left_without(u32 what) { return std::exchange(lacking_[what], {}).requests; }

void Turn::set_engine(const Engine* engine) {
    gates_.set_engine(engine);
    engine_ = engine;
    takes_uploads_ = engine && engine->reserve;
}

void Turn::interrupt() {
    is_interrupted_ = true;
    queue_.ring();
}

void Turn::refuse_waiting(std::shared_ptr<const Refusal> refusal) {
    waiting_refusal_.publish(std::move(refusal));
    queue_.ring();
}

void Turn::stop() {
    is_stopped_ = true;
    queue_.ring();
}

bool Turn::may_start() {
    const u64 waiting = gates_.waiting();
    if (!waiting || refusal_.now()) return true;
    return queue_.operations() >= EARLY_OPERATIONS_MIN && waiting < std::min(Gates::MOST, too_many_waiting_);
}

// Takes requests for a batch, and gives back those that were dropped. It may be none.
void Turn::form() {
    const u64 now = now_ns();
    queue_.offer([&](Request* request) { return judge(request, now); });
    give_back_dropped();
    if (!first_) return;
    if (!count_working()) {
        put_back();
        end_batch();
    } else if (!join_columns()) {
        give_back(NO_ROOM, nullptr);
    }
}

Verdict Turn::judge(Request* request, u64 now) {
    if (request->is_cancelled.load(std::memory_order_relaxed)) {
        door_.engine_stats.cancelled.add();
        return drop(request, CANCELLED);
    }
    if (request->deadline_ns <= now) {
        door_.engine_stats.expired.add();
        return drop(request, EXPIRED);
    }
    if (refusal_.now()) {
        request->refusal = refusal_.now();
        return drop(request, REFUSED);
    }
    if (!tables_.now()->find(request->table_id)) return drop(request, GONE);
    if (request->returning && !request->connection->account.has_room(request->connection->queue_place.value_bytes()))
        return drop(request, NO_ROOM);
    const u64 operations = operations_ + request->n, bytes = payload_bytes_ + request->payload_bytes();
    if (first_) {
        if (request->table_id != first_->table_id || request->is_alone() || first_->is_alone()) return Verdict::PASSED_BY;
        if (returning_ + request->returning > returning_max_) return Verdict::END;
        if (operations > operations_max() || bytes > door_.config.batch_bytes_max) return Verdict::END;
    }
    operations_ = operations;
    payload_bytes_ = bytes;
    returning_ += request->returning;
    requests_ += request->requests;
    (first_ ? last_->next : first_) = request;
    last_ = request;
    request->next = nullptr;
    return Verdict::TAKEN;
}

u64 Turn::operations_max() const {
    const u64 most = door_.config.batch_ops_max;
    return engine_ ? std::min(most, engine_->operations_max) : most;
}

Verdict Turn::drop(Request* request, Outcome outcome) {
    request->outcome = outcome;
    request->next = dropped_;
    dropped_ = request;
    return Verdict::TAKEN;
}

void Turn::give_back_dropped() {
    if (dropped_) door_.give_back(dropped_);
    dropped_ = nullptr;
}

// Counts the working memory of the batch. False: there is none beside the batches that wait for their gate, or no place there.
bool Turn::count_working() {
    const u64 wanted = engine_bytes(payload_bytes_ + door_.config.batch_result_bytes_max, operations_);
    const u64 waiting = gates_.waiting();
    const bool is_too_much = waiting && door_.account.bytes(BATCH) + wanted > door_.config.engine_bytes;
    too_many_waiting_ = is_too_much || waiting >= Gates::MOST ? waiting : NEVER;
    if (too_many_waiting_ != NEVER) return false;
    change_counted(wanted);
    return true;
}

bool Turn::join_columns() try {
    columns_.join(first_, requests_, VALUE_BYTES_MAX, ahead_us_);
    return true;
} catch (const std::bad_alloc&) {
    return false;
}

int Turn::run_batch() {
    began_ns_ = now_ns();
    if (!engine_) return ENGINE_LEFT;
    if (first_->reserve_bytes) return run_reservation();
    u64 covered = 0, gate = 0, has_versions = 0;
    const int ran = engine_->run(engine_->self, &columns_.batch(), give_room, this, &covered, &gate, &has_versions);
    if (ran == ENGINE_LEFT) {
        release_results();
    } else {
        results_->has_versions = has_versions;
        refuse_stopped();
        learn(covered);
        share_out(covered, gate);
    }
    return ran;
}

int Turn::run_reservation() {
    Request& request = *first_;
    u64 lacks = 0;
    const int ran = engine_->reserve(engine_->self, request.reserve_bytes, &request.reserved, &lacks);
    if (ran != ENGINE_LEFT) give_back(lacks ? REFUSED : DONE, lacks ? stopped_by(request, {0, (u32)lacks, 0, 0, 0}) : nullptr);
    return ran;
}

// So many values as the engine returned of a batch that brought too many are enough for the next one, until they are not.
void Turn::learn(u64 covered) {
    if (covered < requests_) returning_max_ = std::max<u64>(results_->returning, 1);
    else returning_max_ += std::min(returning_max_ / 8 + 1, NEVER - returning_max_);
}

std::shared_ptr<const Refusal> Turn::stopped_by(const Request& request, const EngineRefusal& refusal) try {
    if (!refusal.lacks) {
        if (is_counted_here(request)) door_.engine_stats.conflicts.add();
        return std::make_shared<const Refusal>(Refusal{ABORTED, conflict_text(refusal), "", true, refusal});
    }
    if (is_counted_here(request)) lacking_[refusal.lacks].requests++;
    return lacking_[refusal.lacks].refusal;
} catch (const std::bad_alloc&) {
    return door_.no_memory;
}

// Tells the requests that were not done.
void Turn::refuse_stopped() {
    Request* request = first_;
    EngineRefusal* next = results_->refusals;
    EngineRefusal* const end = next + results_->refusal_count;
    for (u64 number = 0; next < end; number += request->requests, request = request->next) {
        if (next->request >= number + request->requests) continue;
        if (!request->request_ops) request->refusal = stopped_by(*request, *next++);
        else next = take_stopped(*request, number, next, end);
    }
}

// The same of the requests of one message, of which the first has a number; returns the next refusal of the batch.
EngineRefusal* Turn::take_stopped(Request& request, u64 first_number, EngineRefusal* next, EngineRefusal* end) {
    request.first_stopped = (u32)(next - results_->refusals);
    u64 op = 0;
    for (u64 number = 0; number < request.requests; number++) {
        const u64 last = op + request.operations_of(number);
        if (next < end && next->request == first_number + number) {
            if (next->lacks) results_->lacking[next->lacks] = stopped_by(request, *next);
            else door_.engine_stats.conflicts.add();
            next++->request = number;
            request.stopped_count++;
            request.stopped += (u32)(last - op);
            for (u64 at = op; at < last; at++) request.stopped_returning += returns_value(request.ops[at]);
        }
        op = last;
    }
    return next;
}

bool Turn::give_room(void* self, u64 operations, u64 returning, u64 value_bytes, u64 refusals, EngineRoom* room) {
    Turn& turn = *(Turn*)self;
    turn.release_results();
    const u64 blobs = room->blob_count;
    Results* const results = turn.results_ = Results::make(turn.door_.account, operations, returning, value_bytes, refusals, blobs);
    if (!results) return false;
    results->now_ms = turn.columns_.now_ms();
    *room = {results->status, results->versions, results->value_lengths, results->values, results->refusals, nullptr, nullptr,
             results->blobs, blobs};
    return true;
}

void Turn::left_done(u64 covered, const u8* status, const u64* versions, const u32* value_lengths, const u8* values, u64 gate) {
    u64 n = 0, returning = 0, value_bytes = 0, number = 0;
    for (Request* request = first_; number < covered; request = request->next) {
        number += request->requests;
        n += request->n;
        returning += request->returning;
    }
    for (u64 at = 0; at < returning; at++) value_bytes += value_lengths[at];
    results_ = Results::make(door_.account, n, returning, value_bytes);
    if (results_) {
        results_->now_ms = columns_.now_ms();
        memcpy(results_->status, status, n);
        if (versions) memcpy(results_->versions, versions, 8 * n);
        else memset(results_->versions, 0, 8 * n);
        const Table* const table = tables_.now()->find(first_->table_id);
        results_->has_versions = versions && table && !table->holds_numbers;
        if (returning) memcpy(results_->value_lengths, value_lengths, 4 * returning);
        if (value_bytes) memcpy(results_->values, values, value_bytes);
    }
    share_out(covered, gate);
}

u64 Turn::left_failed(const std::shared_ptr<const Refusal>& refusal) {
    u64 counted = 0;
    for (const Request* request = first_; request; request = request->next)
        if (!request->python) counted += request->requests;
    give_back(REFUSED, refusal);
    return counted;
}

// Gives each request its part of the results; answers leave when the gate is durable. Requests that are not covered come again.
void Turn::share_out(u64 covered, u64 gate) {
    u64 op = 0, returned = 0, value = 0, operations = 0, blob = 0, bytes_in = 0, bytes_out = 0;
    if (results_) results_->charge_blobs();
    const u64 planned = planned_ns();
    TableStats* const known = tables_.now()->stats(first_->table_id);
    TableStats& stats = known ? *known : door_.gone_tables;
    Request** end = &first_;
    for (u64 number = 0; number < covered; end = &(*end)->next) {
        Request& request = **end;
        number += request.requests;
        operations += request.n;
        request.began_ns = began_ns_;
        request.planned_ns = planned;
        if (!request.refusal && !results_) request.refusal = door_.no_memory;
        request.outcome = request.refusal ? REFUSED : DONE;
        if (request.refusal) continue;
        request.first_op = op;
        request.first_returning = returned;
        request.first_value = value;
        op += request.done();
        for (const u64 last = returned + request.done_returning(); returned < last; returned++)
            value += results_->value_lengths[returned];
        request.result_value_bytes = value - request.first_value;
        request.first_blob = blob;
        u64 counted = request.result_value_bytes;
        for (; blob < results_->blob_count && results_->blobs[blob].value < returned; blob++)
            request.lent_counted += LentValue::counted(results_->blobs[blob].bytes);
        request.blob_count = blob - request.first_blob;
        counted += request.lent_counted;
        if (request.done_returning()) request.connection->queue_place.learn(counted);
        request.results = results_;
        results_->keep();
        bytes_in += request.bytes_in();
        bytes_out += request.result_value_bytes;
        count_operations(request, stats);
    }
    if (results_) {
        require_equal("results", results_->n, op);
        require_equal("values to return", results_->returning, returned);
        require_equal("bytes of values", results_->value_bytes, value);
    }
    for (u64 lent = 0; results_ && lent < results_->blob_count; lent++) bytes_out += results_->blobs[lent].bytes;
    stats.bytes_in.add(bytes_in);
    stats.bytes_out.add(bytes_out);
    door_.engine_stats.batch_operations.observe(operations);
    door_.engine_stats.batch_requests.observe(covered);
    Request* const rest = *end;
    *end = nullptr;
    Request* const answered = first_;
    change_counted(engine_bytes(payload_bytes_ + value, operations_));
    const Stored stored = {answered, gate, counted_bytes_, began_ns_};
    counted_bytes_ = 0;  // the gates give it back
    first_ = rest;
    if (rest) put_back();
    for (Request* request = answered; rest && request; request = request->next) queue_.end_turn(request->connection);
    end_batch();
    gates_.add(stored);
}

// When the engine had planned the batch: what it did then made that durable. Where Python planned it, that was now.
u64 Turn::planned_ns() const {
    const u64 planned = engine_ && engine_->planned_ns ? *engine_->planned_ns : 0;
    return planned >= began_ns_ ? planned : now_ns();
}

void Turn::count_operations(const Request& request, TableStats& stats) {
    const EngineRefusal *next = request.stopped_first(), *const end = next + request.stopped_count;
    const u8* status = request.status();
    const u8* op = request.ops;
    for (u64 number = 0; number < request.requests; number++) {
        const u8* const last = op + request.operations_of(number);
        if (next < end && next->request == number) op = last, next++;
        for (; op < last; op++) stats.operations[*op][std::min<u64>(*status++, STATUSES - 1)].add();
    }
}

// All requests of the batch are the next of the queue again.
void Turn::put_back() {
    Request* reversed = nullptr;
    while (first_) {
        Request* const next = first_->next;
        first_->next = reversed;
        reversed = first_;
        first_ = next;
    }
    while (reversed) {
        Request* const next = reversed->next;
        queue_.put_back(reversed);
        reversed = next;
    }
}

void Turn::give_back(Outcome outcome, const std::shared_ptr<const Refusal>& refusal) {
    for (Request* request = first_; request; request = request->next) {
        request->outcome = outcome;
        request->refusal = refusal;
    }
    Request* const first = first_;
    end_batch();
    if (first) door_.give_back(first);
}

void Turn::end_batch() {
    release_results();
    change_counted(0);
    first_ = last_ = nullptr;
    requests_ = operations_ = returning_ = payload_bytes_ = 0;
}

void Turn::change_counted(u64 bytes) {
    door_.account.change(BATCH, (i64)(bytes - counted_bytes_));
    counted_bytes_ = bytes;
}

void Turn::release_results() {
    if (results_) results_->release();
    results_ = nullptr;
}

void Turn::abandon() {
    queue_.take_in();
    queue_.offer([this](Request* request) { return drop(request, CANCELLED); });
    give_back_dropped();
    give_back(CANCELLED, nullptr);
}

}  // namespace door
