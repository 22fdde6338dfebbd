#include "python/forward.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <system_error>
#include <utility>

#include "door.hpp"
#include "grpc/python_request.hpp"
#include "resp/resp_session.hpp"
#include "resp/subscriptions.hpp"

namespace door {

namespace {

int wake_up_file() {
    const int file = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (file < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
    return file;
}

}  // namespace

Forwarded::Forwarded(Forward& forward, u64 id, bool has_end, CallHead& call, Responder& responder)
    : id(id), forward_(forward), has_end_(has_end), call_(call), responder_(responder) {
    over_.emplace_back(forward.account_, id, EVENT_OVER);
}

void Forwarded::message(Message&& message) {
    if (is_asked_) {
        is_asked_ = false;
        forward_.tell(id, std::move(message));
    } else {
        waiting_.push_back(std::move(message));
    }
}

void Forwarded::half_closed() {
    ends_ = true;
    if (waiting_.empty()) forward_.tell(id, EVENT_HALF_CLOSED);
}

void Forwarded::sent() { forward_.tell(id, EVENT_SENT); }

// Of a call that ends at once Python hears nothing: a flood of them is no work for it.
void Forwarded::over() {
    if (!forward_.take_back(id)) forward_.tell(std::move(over_));
    else if (has_end_) call_.count_unheard();
    forward_.forget(id);
}

void Forwarded::ask() {
    if (waiting_.empty()) {
        is_asked_ = true;
        if (!ends_) responder_.ask();
        return;
    }
    forward_.tell(id, std::move(waiting_.front()));
    waiting_.pop_front();
    if (ends_ && waiting_.empty()) forward_.tell(id, EVENT_HALF_CLOSED);
}

Event::Event(Account& account, u64 id, DoorEventKind kind, const Connection& connection, const CallHead& call)
    : account_(account), id_(id), kind_(kind), is_counted_(call.is_counted()), connection_(connection.id),
      deadline_ns_(call.deadline_ns), caller_(call.caller ? call.caller->id : 0), path_(call.path), peer_(connection.peer), metadata_(call.metadata) {
    for (const std::string& name : connection.transport->names()) names_ += name + '\n';
    charged_bytes_ = opening_bytes(connection, call);
    account_.change(CALLS, (i64)charged_bytes_);
}

Event::Event(Account& account, u64 id, Message&& message) : account_(account), id_(id), kind_(EVENT_MESSAGE) {
    take(std::move(message));
}

Event::~Event() {
    account_.change(CALLS, -(i64)charged_bytes_);
    if (message_) account_.change(message_kind_, -(i64)message_bytes_);
    free(message_);
}

void Event::take(Message&& message) {
    message_kind_ = message.kind();
    message_bytes_ = message.size();
    message_ = message.leave(account_);
}

void Event::answer(Message&& response, bool is_refusal) {
    is_refusal_ = is_refusal;
    take(std::move(response));
}

void Event::answer_nothing(int code, bool is_refusal) {
    code_ = code;
    is_refusal_ = is_refusal;
}

void Event::take_times(const PythonRequest& request) {
    const u64 times_ns[] = {request.submitted_ns, request.began_ns, request.planned_ns, request.durable_ns};
    std::copy(times_ns, times_ns + 4, times_ns_);
}

u64 Event::opening_bytes(const Connection& connection, const CallHead& call) {
    return sizeof(Event) + call.path.size() + connection.peer.size() + call.metadata.size();
}

DoorEvent Event::view() const {
    return {id_, kind_, is_counted_, connection_, deadline_ns_, caller_, path_.c_str(), metadata_.c_str(), peer_.c_str(),
            names_.c_str(), message_, message_bytes_, (u32)code_, is_refusal_, times_ns_[0], times_ns_[1], times_ns_[2], times_ns_[3]};
}

Forward::Forward(Account& account) : account_(account), file_(wake_up_file()) {}

Forward::~Forward() { ::close(file_); }

Forwarded* Forward::open(CallHead& call, Responder& responder) {
    knows_caller(responder.responds_over(), call);
    Forwarded* const opened = begin(EVENT_OPEN, call, responder);
    if (opened) call.leave_end();
    return opened;
}

Forwarded* Forward::ask_for_login(CallHead& call, Responder& responder) { return begin(EVENT_LOGIN, call, responder); }

Forwarded* Forward::begin(DoorEventKind kind, CallHead& call, Responder& responder) {
    Connection& connection = responder.responds_over();
    if (!connection.account.has_room(Event::opening_bytes(connection, call))) return nullptr;
    const u32 thread = connection.thread.number;
    Calls& calls = calls_[thread];
    const u64 id = id_of(++calls.opened, thread);
    const auto made = calls.open.emplace(id, std::make_unique<Forwarded>(*this, id, kind == EVENT_OPEN, call, responder));
    try {
        std::list<Event> opening;
        opening.emplace_back(account_, id, kind, connection, std::as_const(call));
        {
            std::lock_guard<std::mutex> guard(mutex_);
            unheard_.emplace(id, opening.begin());
        }
        tell(std::move(opening));
    } catch (...) {
        calls.open.erase(made.first);
        throw;
    }
    return made.first->second.get();
}

void Forward::ask(u64 call) {
    if (Forwarded* forwarded = find(call)) guard(forwarded->responder_, [&] { forwarded->ask(); });
}

void Forward::respond(u64 call, u8* response, u64 size) {
    Forwarded* forwarded = find(call);
    if (!forwarded) return free(response);
    Responder& responder = forwarded->responder_;
    ConnectionAccount& account = responder.responds_over().account;
    account.charge(ANSWERS, size);
    guard(responder, [&] { responder.respond(Message(account, ANSWERS, response, size)); });
}

void Forward::finish(u64 call, const Status& status) {
    Forwarded* forwarded = find(call);
    if (!forwarded) return;
    Responder& responder = forwarded->responder_;
    forget(call);
    guard(responder, [&] { responder.finish(status); });
}

void Forward::set_session(u64 call, const RespSession& session) {
    if (Forwarded* forwarded = find(call)) guard(forwarded->responder_, [&] { forwarded->responder_.set_session(session); });
}

void Forward::set_subscriptions(u64 call, std::shared_ptr<const Subscriptions> subscriptions) {
    Forwarded* forwarded = find(call);
    if (forwarded) guard(forwarded->responder_, [&] { forwarded->responder_.set_subscriptions(std::move(subscriptions)); });
}

void Forward::note_login(u64 call, u64 caller, u64 end_ns, u64 idle_ns) {
    Forwarded* forwarded = find(call);
    if (!forwarded) return;
    Responder& responder = forwarded->responder_;
    guard(responder, [&] { door::note_login(responder.responds_over(), forwarded->call_, caller, end_ns, idle_ns); });
}

void Forward::submit(Connection* connection, std::list<Event>&& answer, u32 table_id, u64 deadline_ns, u8* message, u64 size) {
    if (!connection) {
        free(message);
        answer.front().answer_nothing(CANCELLED_CODE, true);
        return tell(std::move(answer));
    }
    auto& requests = calls_[connection->thread.number].requests;
    const u64 ticket = answer.front().id();
    PythonRequest* request = nullptr;
    try {
        request = new PythonRequest(*connection, std::move(answer));
        request->deadline_ns = deadline_ns;
        requests.emplace(ticket, request);
    } catch (const std::bad_alloc&) {
        free(message);
        std::list<Event> left = request ? std::move(request->answer) : std::move(answer);
        delete request;
        left.front().answer_nothing(RESOURCE_EXHAUSTED, true);
        return tell(std::move(left));
    }
    try {
        if (std::optional<Refusal> refusal = lend(*request, table_id, message, size)) {
            request->outcome = REFUSED;
            request->refusal = std::make_shared<const Refusal>(std::move(*refusal));
            answered(*request);
        }
    } catch (const std::bad_alloc&) {  // before it was lent
        request->outcome = NO_ROOM;
        give_up(*request, RESOURCE_EXHAUSTED, true);
    }
}

// Returns why not.
std::optional<Refusal> Forward::lend(PythonRequest& request, u32 table_id, u8* bytes, u64 size) {
    ConnectionAccount& account = request.connection->account;
    if (!account.admit(REQUESTS, size)) {
        free(bytes);
        return request.no_room(size);
    }
    Message message(account, REQUESTS, bytes, size);
    if (!request.take_batch(table_id, message)) return Refusal{INTERNAL, "a handler made a request that keeps no limits", "", true};
    return request.lend();
}

void Forward::give_up(PythonRequest& given, int code, bool is_refusal) {
    const std::unique_ptr<PythonRequest> request(&given);
    calls_[request->connection->thread.number].requests.erase(request->ticket());
    request->answer.front().answer_nothing(code, is_refusal);
    tell(std::move(request->answer));
}

void Forward::withdraw(u32 thread, u64 ticket) {
    auto& requests = calls_[thread].requests;
    const auto found = requests.find(ticket);
    if (found != requests.end()) found->second->is_cancelled = true;
}

void Forward::answered(PythonRequest& back) {
    const std::unique_ptr<PythonRequest> request(&back);
    ConnectionAccount& account = request->connection->account;
    calls_[request->connection->thread.number].requests.erase(request->ticket());
    Event& event = request->answer.front();
    event.take_times(*request);
    bool is_refusal = request->outcome != DONE;
    try {
        if (request->outcome == CANCELLED) {
            event.answer_nothing(CANCELLED_CODE, true);
        } else if (const std::optional<Refusal> refusal = request->why_not_done()) {
            is_refusal = refusal->is_refusal;
            MessageWriter writer;
            respond_failed(0, *refusal, &writer);
            event.answer(writer.message(account), refusal->is_refusal);
        } else {
            Message response = request->make_response();
            if (response.has_lent()) response = response.flat();
            if (!response.is_there()) throw std::bad_alloc();
            event.answer(std::move(response), false);
        }
    } catch (const std::bad_alloc&) {
        event.answer_nothing(is_refusal ? RESOURCE_EXHAUSTED : INTERNAL, is_refusal);
    }
    tell(std::move(request->answer));
}

u64 Forward::take(DoorEvent* events, u64 room) {
    taken_.clear();
    {
        std::lock_guard<std::mutex> guard(mutex_);
        auto end = events_.begin();
        for (u64 i = 0; i < room && end != events_.end(); i++) ++end;
        taken_.splice(taken_.begin(), events_, events_.begin(), end);
        for (const Event& event : taken_)
            if (event.is_of_call()) unheard_.erase(event.id());
        u64 count;
        if (events_.empty()) (void)!read(file_, &count, sizeof count);
    }
    for (const Event& event : taken_) *events++ = event.view();
    return taken_.size();
}

template <class... Arguments>
void Forward::tell(u64 call, Arguments&&... arguments) {
    std::list<Event> event;
    event.emplace_back(account_, call, std::forward<Arguments>(arguments)...);
    tell(std::move(event));
}

void Forward::tell(std::list<Event>&& event) {
    std::lock_guard<std::mutex> guard(mutex_);
    const u64 one = 1;
    if (events_.empty()) (void)!write(file_, &one, sizeof one);
    events_.splice(events_.end(), event);
}

bool Forward::take_back(u64 call) {
    std::list<Event> opening;
    std::lock_guard<std::mutex> guard(mutex_);
    const auto found = unheard_.find(call);
    if (found == unheard_.end()) return false;
    opening.splice(opening.end(), events_, found->second);
    unheard_.erase(found);
    return true;
}

template <class Function>
void Forward::guard(Responder& responder, Function function) {
    Connection& connection = responder.responds_over();
    try {
        function();
    } catch (const std::bad_alloc&) {
        connection.close();
    }
}

Forwarded* Forward::find(u64 call) {
    auto& open = calls_[thread_of(call)].open;
    const auto found = open.find(call);
    return found == open.end() ? nullptr : found->second.get();
}

}  // namespace door

using namespace door;

// What Python does is brought to the thread of its call. Returns 0, or -ENOMEM.
template <class Function>
static int in_thread(Door* door, u64 thread, Function function) {
    if (thread >= door->threads.size()) return 0;
    try {
        door->threads[thread]->post(std::move(function));
        return 0;
    } catch (const std::bad_alloc&) {
        return -ENOMEM;
    }
}

extern "C" {

int gpkvs_door_events_file(Door* door) { return door->forward.file(); }

u64 gpkvs_door_events(Door* door, DoorEvent* events, u64 room) { return door->forward.take(events, room); }

int gpkvs_door_ask(Door* door, u64 call) {
    return in_thread(door, Forward::thread_of(call), [door, call] { door->forward.ask(call); });
}

int gpkvs_door_respond(Door* door, u64 call, const u8* response, u64 bytes) {
    u8* copy = (u8*)malloc(bytes + !bytes);
    if (!copy) return -ENOMEM;
    memcpy(copy, response, bytes);
    const int outcome =
        in_thread(door, Forward::thread_of(call), [door, call, copy, bytes] { door->forward.respond(call, copy, bytes); });
    if (outcome) free(copy);
    return outcome;
}

int gpkvs_door_finish(Door* door, u64 call, int code, const char* text, const char* trailers) {
    try {
        return in_thread(door, Forward::thread_of(call),
                         [door, call, code, text = std::string(text), trailers = std::string(trailers)] {
                             door->forward.finish(call, {code, text, trailers});
                         });
    } catch (const std::bad_alloc&) {
        return -ENOMEM;
    }
}

int gpkvs_door_logged_in(Door* door, u64 call, u64 caller, u64 end_ns, u64 idle_ns) {
    return in_thread(door, Forward::thread_of(call),
                     [=] { door->forward.note_login(call, caller, end_ns, idle_ns); });
}

int gpkvs_door_submit(Door* door, u64 connection, u64 ticket, u32 table_id, u64 deadline_ns, const u8* message, u64 bytes) {
    u8* const copy = (u8*)malloc(bytes + !bytes);
    if (!copy) return -ENOMEM;
    memcpy(copy, message, bytes);
    const u64 thread = Forward::thread_of(connection);
    try {
        const auto answer = std::make_shared<std::list<Event>>();
        answer->emplace_back(door->account, ticket, EVENT_ANSWER);
        door->threads[thread]->post([=] {
            door->forward.submit(door->threads[thread]->find(connection), std::move(*answer), table_id, deadline_ns, copy, bytes);
        });
        return 0;
    } catch (const std::bad_alloc&) {
        free(copy);
        return -ENOMEM;
    }
}

int gpkvs_door_withdraw(Door* door, u64 connection, u64 ticket) {
    const u32 thread = Forward::thread_of(connection);
    return in_thread(door, thread, [=] { door->forward.withdraw(thread, ticket); });
}

int gpkvs_door_set_session(Door* door, u64 call, u32 table, u32 protocol, bool hands_all, bool is_silent) {
    return in_thread(door, Forward::thread_of(call),
                     [=] { door->forward.set_session(call, {table, protocol, hands_all, is_silent}); });
}

int gpkvs_door_set_subscriptions(Door* door, u64 call, u32 protocol, const u8* words) {
    try {
        return in_thread(door, Forward::thread_of(call),
                         [door, call, made = std::make_shared<const Subscriptions>(protocol, words)] {
                             door->forward.set_subscriptions(call, made);
                         });
    } catch (const std::bad_alloc&) {
        return -ENOMEM;
    }
}

int gpkvs_door_tell(Door* door, u64 database, u64 n, const u8* kinds, const u8* keys, const u32* key_lengths) {
    try {
        door->subscribers.tell(database, n, kinds, keys, key_lengths);
        return 0;
    } catch (const std::bad_alloc&) {
        return -ENOMEM;
    }
}

int gpkvs_door_charge(Door* door, u64 connection, int kind, i64 bytes) {
    // The server's account has at once what is more, so that whoever asks next sees it.
    if (bytes > 0 || !connection) door->account.change((Kind)kind, bytes);
    if (!connection) return 0;
    const u64 thread = Forward::thread_of(connection);
    const int outcome = in_thread(door, thread, [=] {
        Connection* found = door->threads[thread]->find(connection);
        if (found && bytes > 0) found->account.take_over((Kind)kind, (u64)bytes);
        else if (found) found->account.give((Kind)kind, (u64)-bytes);
        else if (bytes > 0) door->account.change((Kind)kind, -bytes);
    });
    if (outcome && bytes > 0) door->account.change((Kind)kind, -bytes);
    return outcome;
}

}  // extern "C"
