#include "net/connection.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "door.hpp"
#include "net/foreign.hpp"
#include "base/texts.hpp"

namespace door {

namespace {

// A connection beside its calls, requests and answers; a socket takes as much again in the system.
constexpr u64 CONNECTION_BYTES = (4 << 10) + Output::KEPT_BYTES;
// So many bytes of values are looked at before the others have their turn.
constexpr u64 ALL_BYTES = 1ull << 40;  // of values that are lent
constexpr u64 LOOKED_BYTES = 1 << 20;
// A client's reading of the last bytes may take so long.
constexpr u64 PATIENCE_NS = 20000000000;
// A client that reads the end may take so long to close its side, or to send more.
constexpr u64 LINGER_NS = 1000000000, LINGERING_NS = 5 * LINGER_NS;  // the second one in all

}  // namespace

Connection::Connection(Thread& thread, std::unique_ptr<Transport> transport, Arrival arrival)
    : thread(thread), transport(std::move(transport)), account(thread.door.account), id(arrival.id),
      protocol(arrival.protocol), peer(std::move(arrival.peer)), begun_ns(thread.now()), watched_events_(EPOLLIN) {
    account.charge(CALLS, CONNECTION_BYTES);
    counted_transport_ = this->transport->held_bytes();
    if (!counted_transport_ || account.admit(CALLS, counted_transport_)) return;
    this->transport->refuse_handshake();
    throw std::bad_alloc();
}

bool Connection::submit(Request* request) {
    if (!thread.door.queue.reserve()) return false;
    request->next = nullptr;
    request->connection = this;
    request->submitted_ns = thread.now();
    (thread.submitted_first_ ? thread.submitted_last_->next : thread.submitted_first_) = request;
    thread.submitted_last_ = request;
    lent_++;
    thread.door.requests++;
    return true;
}

void Connection::want_fill() {
    if (!is_closed_) thread.wait(*this);
}

void Connection::close() {
    if (is_closed_) return;
    is_closed_ = true;
    thread.forget(transport->file());
    transport.reset();
    thread.door.places.leave(id, protocol, is_stranger_);
    next_closed_ = thread.closed_;
    thread.closed_ = this;
    if (looking_first_) thread.wait(*this);
    closed();
}

void Connection::close(StatsConnection why) {
    if (is_closed_) return;
    thread.stats.connections_refused[why].add();
    close();
}

void Connection::close(StatsConnection why, const std::string& word) {
    if (is_closed_) return;
    guard([&] { say_goodbye(word); });
    close(why);
}

void Connection::say_goodbye(const std::string& word) {
    if (!transport->is_ready()) return transport->refuse_handshake();
    if (closes_when_sent_) return;
    take_leave(word, output_);
    if (output_.size()) transport->write(output_.front());
}

void Connection::ready(u32 events) {
    ready_events_ |= events;
    want_fill();
}

// One piece is read and one is written before the others have their turn.
void Connection::take_turn() {
    const u32 events = std::exchange(ready_events_, 0);
    if (is_closed_) return stop_looking();
    if (events & (EPOLLERR | EPOLLHUP) && !(watched_events_ & EPOLLIN)) return close();
    guard([this, events] {
        look_at_lent();
        if (is_closed_) return;
        if (events || transport->has_more()) receive();
        if (!is_closed_) send();
        if (!is_closed_) watch();
    });
}

void Connection::receive() {
    if (is_lingering_) return skip_input();
    const bool was_ready = transport->is_ready();
    if (!was_ready && !thread.may_shake_hands()) return;  // what came is still there in the next round
    if (!wants_input() || closes_when_sent_) return;
    const long bytes = transport->read(thread.input_.data(), thread.input_.size());
    if (!was_ready) {
        if (bytes < 0 && !transport->is_ready()) refuse_handshake();  // else the client had no more to say
        look_at_stranger();
    }
    const bool goes_on = bytes < 0 ? transport->is_ready() && input_ended() : !bytes || received(thread.input_.data(), (u64)bytes);
    if (goes_on) {
        if (is_stranger_) look_at_stranger();
    } else if (!is_closed_) {
        transport->is_flooded() ? close(STATS_FLOOD) : close();
    }
}

// Whoever speaks in plain is told in plain.
void Connection::refuse_handshake() {
    const std::string_view plain = transport->plain();
    thread.stats.connections_refused[plain.empty() ? STATS_HANDSHAKE : STATS_PLAIN].add();
    if (plain.empty()) return;
    const std::string answer = in_words_of(language_of(plain), TLS_PORT_TEXT);
    (void)!::send(transport->file(), answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void Connection::look_at_stranger() {
    if (is_closed_) return;
    if (transport->has_certificate() || (!thread.door.asks_for_logins && has_asked())) settle();
}

void Connection::settle() {
    if (is_stranger_ && !is_closed_) is_stranger_ = !thread.door.places.settle(id, protocol);
}

// Who needs its place waits: what the socket does not take at once is lost.
void Connection::give_way(StatsConnection why) {
    if (is_stranger_) close(why, gave_way_text(thread.door.asks_for_logins));
}

void Connection::send() {
    if (!transport->is_ready()) return;
    if (output_.size() < Output::LOW_BYTES && !closes_when_sent_ && !fill(output_)) {
        closes_when_sent_ = true;
        ends_ns_ = thread.now() + PATIENCE_NS;
    }
    if (is_closed_) return;
    const bool has_more = output_.size() >= Output::LOW_BYTES;
    if (output_.size()) {
        const long bytes = transport->write(output_.front());
        if (bytes < 0) return close();
        output_.sent((u64)bytes);
        progress_.sent((u64)bytes, thread.now());
    }
    if (!output_.size()) progress_.begin(thread.now());
    if (closes_when_sent_ && !output_.size()) return linger();
    if ((output_.size() || has_more) && !transport->wants_write()) want_fill();
    account.give(ANSWERS, counted_output_);
    counted_output_ = output_.held_bytes();
    account.charge(ANSWERS, counted_output_);
    if (transport->held_bytes() == counted_transport_) return;
    account.give(CALLS, counted_transport_);
    counted_transport_ = transport->held_bytes();
    account.charge(CALLS, counted_transport_);
}

// All is sent. A client that still sends would lose the end of it if the socket were closed now: the system refuses its
// bytes, and gRPC's own client then gives up what it has not read. So the client closes first, if it does soon.
void Connection::linger() {
    if (is_lingering_) return;
    if (!lingers()) return close();
    is_lingering_ = true;
    transport->end_writing();
    lingers_until_ns_ = thread.now() + LINGERING_NS;
    ends_ns_ = thread.now() + LINGER_NS;
}

void Connection::skip_input() {
    const long bytes = recv(transport->file(), thread.input_.data(), thread.input_.size(), 0);
    if (bytes > 0) ends_ns_ = std::min(lingers_until_ns_, thread.now() + LINGER_NS);
    if (bytes == 0 || (bytes < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) close();
}

// A request is back. What is lent to it is looked at before the protocol sees it, a part at a time. Of a connection that is closed
// nobody has a turn, and the client needs nothing; Python does, whose request may be for others too.
void Connection::came_back(Request* request) {
    if (!request->blob_count || (is_closed_ && !request->python)) return tell_answered(request);
    if (!request->take_lent(account)) {
        request->release_results();
        request->outcome = request->changes_nothing() ? NO_ROOM : REFUSED;
        request->refusal = thread.door.no_memory;
        return tell_answered(request);
    }
    request->next = nullptr;
    (looking_first_ ? looking_last_->next : looking_first_) = request;
    looking_last_ = request;
    if (is_closed_) stop_looking();
    else if (looking_first_ == request) look_at_lent();
}

void Connection::look_at_lent() {
    Request* const request = looking_first_;
    if (!request) return;
    if (!request->look_at_lent(LOOKED_BYTES)) return want_fill();
    thread.stats.damaged_values.add(request->damaged_values());
    looking_first_ = request->next;
    if (looking_first_) want_fill();
    tell_answered(request);
}

void Connection::stop_looking() {
    while (Request* const request = looking_first_) {
        looking_first_ = request->next;
        if (request->python) request->look_at_lent(ALL_BYTES);
        tell_answered(request);
    }
}

void Connection::tell_answered(Request* request) {
    lent_--;
    if (request->python) return thread.door.forward.answered(*request->python);  // Python knows how long it took
    const u64 ended_ns = std::max(thread.now(), request->durable_ns);
    if (thread.door.slow_log.is_slow(ended_ns - request->submitted_ns)) note_slow(*request);
    answered(request);
}

// The one place where all that the door answers passes. What Python answers is noted there, and room for a value is no call.
void Connection::note_slow(const Request& request) {
    if (request.reserve_bytes || request.outcome == GONE) return;
    thread.stats.slow.add();
    if (!thread.may_note_slow()) return thread.stats.slow_unnoted.add();
    DoorSlowCall call = slow_call_of(request, now_ns());
    call.protocol = (u32)protocol;
    copy_text(call.peer, peer);
    try {
        describe(request, call);
        thread.door.slow_log.note(call);
    } catch (const std::bad_alloc&) {
        thread.stats.slow_unnoted.add();
    }
}

void Connection::watch() {
    const bool reads = is_lingering_ || (wants_input() && !closes_when_sent_);
    if (reads && !is_lingering_ && transport->has_more()) want_fill();  // the system does not see it
    const u32 events = (reads ? u32(EPOLLIN) : 0) | (transport->wants_write() ? u32(EPOLLOUT) : 0);
    if (events == watched_events_) return;
    watched_events_ = events;
    thread.change(*this, transport->file(), events);
}

void Connection::tick_if_open() {
    if (is_closed_) return;
    if (transport->is_late(thread.now())) return close(STATS_SILENT, "");
    if (closes_when_sent_ && thread.now() >= ends_ns_) return is_lingering_ ? close() : close(STATS_UNREAD);
    if (output_.size() && account.lent_values && progress_.is_late(thread.now(), thread.door.patience.unread_ns))
        return close(STATS_UNREAD);
    if (closes_when_answered_ && !lent_ && !is_waiting_ && !output_.size()) return end_for_user();
    guard([this] {
        if (is_out_of_patience()) end_patience(silent_text(thread.door.asks_for_logins, thread.door.stranger_ns()));
        if (!is_closed_) tick(thread.now());
    });
}

// A client of the Redis protocol would take a word for the answer to its next command, as if that had been tried; it learns
// the reason at its next login.
void Connection::end_for_user() {
    if (protocol == DOOR_GRPC) close(STATS_USER_GONE, USER_GONE_TEXT);
    else close(STATS_USER_GONE);
}

bool Connection::is_out_of_patience() {
    if (!is_stranger_ || has_lost_patience_ || thread.now() <= begun_ns + thread.door.stranger_ns()) return false;
    has_lost_patience_ = true;
    return true;
}

}  // namespace door
