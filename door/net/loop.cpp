#include "net/loop.hpp"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <sys/epoll.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "door.hpp"

namespace door {

namespace {

// As much is read from a socket at once.
constexpr u64 INPUT_BYTES = 64 << 10;
constexpr int EVENTS = 256;

// The thread that runs a batch now, of those that have connections.
thread_local const Thread* running_here = nullptr;

int new_epoll() {
    const int file = epoll_create1(EPOLL_CLOEXEC);
    if (file < 0) throw std::system_error(errno, std::generic_category());
    return file;
}

}  // namespace

void use_thread_storage() {
    running_here = nullptr;
    (void)std::uncaught_exceptions();
}

Thread::Thread(Door& door, u32 number)
    : door(door), number(number), epoll_(new_epoll()), mailbox_([this](Request* request) { give_back(request); }),
      tables_(door.tables), scripts_(door.scripts), tls_(door.tls), input_(INPUT_BYTES), thread_([this] { run(); }) {}

Thread::~Thread() {
    struct End final : Errand {
        explicit End(bool& is_ending) : is_ending(is_ending) {}
        void run() override { is_ending = true; }
        bool& is_ending;
    } end(is_ending_);
    post(end);
    thread_.join();
    close(epoll_);
}

void Thread::run() {
    use_thread_storage();
    watch(mailbox_, mailbox_.file(), EPOLLIN | EPOLLET);
    while (!is_ending_) round();
}

// What other threads see of a round happens once in it: requests go to the queue together.
void Thread::round() {
    int timeout_ms = -1;
    now_ = now_ns();
    if (!waiting_.empty())
        timeout_ms = 0;
    else if (!connections_.empty())
        timeout_ms = wakes_at() <= now_ ? 0 : (int)((wakes_at() - now_) / 1000000 + 1);
    epoll_event events[EVENTS];
    const int ready = epoll_wait(epoll_, events, EVENTS, timeout_ms);
    now_ = now_ns();
    handshakes_ = 0;
    for (int i = 0; i < ready; i++) ((Watched*)events[i].data.ptr)->ready(events[i].events);
    serve_waiting();
    if (append_submitted()) {
        serve_waiting();
        append_submitted();
    }
    remove_closed();
    if (now_ >= next_tick_) tick();
    if (now_ >= expires_at()) expire();
}

void Thread::tick() {
    next_tick_ = now_ + TICK_NS;
    slow_notes_ = 0;
    for (const auto& [id, connection] : connections_) {
        connection->used_ns_ /= 2;
        connection->tick_if_open();
    }
}

void Thread::expire() {
    next_deadline_ = NEVER;
    next_expire_ = now_ + EXPIRE_NS;
    for_open([this](Connection& connection) { expect_deadline(connection.expire(now_)); });
}

// Whoever used least of this thread's time comes first, so that nobody waits long for those who ask too much. The others go
// on in the next round, beside those who have become ready. What came back from other threads has taken its own time.
void Thread::serve_waiting() {
    u64 began = now_ns();
    for (const u64 ends = began + ROUND_NS; !waiting_.empty() && began < ends;) {
        std::pop_heap(waiting_.begin(), waiting_.end(), used_more);
        Connection& connection = *waiting_.back();
        waiting_.pop_back();
        connection.is_waiting_ = false;
        served_ = &connection;
        connection.take_turn();
        served_ = nullptr;
        const u64 ended = now_ns();
        connection.used_ns_ += ended - began;
        began = ended;
        if (connection.is_waiting_) push_waiting(connection);
    }
}

void Thread::wait(Connection& connection) {
    if (std::exchange(connection.is_waiting_, true) || served_ == &connection) return;
    push_waiting(connection);
}

void Thread::push_waiting(Connection& connection) {
    waiting_.push_back(&connection);
    std::push_heap(waiting_.begin(), waiting_.end(), used_more);
}

bool Thread::used_more(const Connection* one, const Connection* other) { return one->used_ns_ > other->used_ns_; }

// Returns whether requests came back in the meantime.
bool Thread::append_submitted() {
    if (!submitted_first_) return false;
    const bool is_small = is_small_batch();
    door.queue.append(submitted_first_, submitted_last_);
    submitted_first_ = submitted_last_ = nullptr;
    running_here = this;
    if (!is_small || !door.turn.run_here()) door.queue.ring();
    running_here = nullptr;
    const bool has_run_here = answered_ != nullptr;
    for (Request* request = std::exchange(answered_, nullptr); request;) {
        Request* const next = request->next;
        give_back(request);
        request = next;
    }
    return has_run_here;
}

bool Thread::is_small_batch() const {
    u64 operations = 0, bytes = 0;
    for (const Request* request = submitted_first_; request; request = request->next) {
        operations += request->n;
        bytes += request->payload_bytes();
        if (operations > Turn::HERE_OPERATIONS_MAX || bytes > Turn::HERE_BYTES_MAX) return false;
    }
    return true;
}

void Thread::post_answered(Request* first, Request* last) {
    if (running_here != this) return mailbox_.post(first, last);
    last->next = answered_;
    answered_ = first;
}

void Thread::give_back(Request* request) {
    Connection* const connection = request->connection;
    connection->guard([&] { connection->came_back(request); });
}

// A closed connection stays until its requests are back.
void Thread::remove_closed() {
    Connection** link = &closed_;
    while (Connection* const connection = *link) {
        if (connection->lent_ || connection->is_waiting_) {
            link = &connection->next_closed_;
            continue;
        }
        *link = connection->next_closed_;
        connections_.erase(connection->id);
        connections_count_.fetch_sub(1, std::memory_order_relaxed);
    }
}

void Thread::add(std::unique_ptr<Connection> connection) {
    Connection& added = *connection;
    if (waiting_.capacity() <= connections_.size()) waiting_.reserve(2 * connections_.size() + 1);
    connections_.emplace(added.id, std::move(connection));
    if (is_closed_ || !watch(added, added.transport->file(), added.watched_events_)) return added.close();
    added.want_fill();
    if (is_draining_) added.guard([&] { added.drain(); });
}

Connection* Thread::find(u64 id) const {
    const auto found = connections_.find(id);
    return found == connections_.end() || found->second->is_closed_ ? nullptr : found->second.get();
}

void Thread::drain() {
    is_draining_ = true;
    for_open([](Connection& connection) { connection.drain(); });
}

void Thread::for_open(const std::function<void(Connection&)>& work) {
    for (const auto& [id, connection] : connections_)
        if (!connection->is_closed_) connection->guard([&] { work(*connection); });
}

void Thread::close_all() {
    is_closed_ = true;
    for (const auto& [id, connection] : connections_) connection->close();
}

bool Thread::watch(Watched& watched, int file, u32 events) {
    epoll_event event = {};
    event.events = events;
    event.data.ptr = &watched;
    return epoll_ctl(epoll_, EPOLL_CTL_ADD, file, &event) == 0;
}

void Thread::change(Watched& watched, int file, u32 events) {
    epoll_event event = {};
    event.events = events;
    event.data.ptr = &watched;
    epoll_ctl(epoll_, EPOLL_CTL_MOD, file, &event);
}

void Thread::forget(int file) { epoll_ctl(epoll_, EPOLL_CTL_DEL, file, nullptr); }

}  // namespace door
