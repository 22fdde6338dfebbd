#include "resp/resp.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "door.hpp"
#include "python/forward.hpp"
#include "resp/resp_answer.hpp"
#include "resp/resp_columns.hpp"
#include "resp/resp_message.hpp"
#include "base/texts.hpp"

namespace door {

namespace {

constexpr const char* PATH = "/redis";

}  // namespace

// A command, or a transaction, whose answer was not sent. The columns of its request lie behind it.
struct RespConnection::Pending {
    Pending(u64 bytes, const RespSession& session)
        : bytes(bytes), protocol(session.protocol), is_silent(session.is_silent) {}
    ~Pending() { request.release_results(); }

    u64 held_bytes() const { return bytes + answer_bytes + request.lent_counted + pythons.size(); }
    RespAnswer engines(RespStats& stats) {
        const bool is_transaction = !parts.empty();
        return {request, is_transaction ? parts.data() : &part, is_transaction ? parts.size() : 1,
                is_transaction, protocol, stats, id};
    }

    Pending* next = nullptr;
    const u64 bytes;  // charged as a request, with its columns or its text
    const u32 protocol;
    const bool is_silent;
    RespPart part = {};           // what the engine executes; no command: `answer` or Python says it
    std::vector<RespPart> parts;  // of a transaction
    bool is_done = false;
    u64 answer_bytes = 0;  // charged as an answer
    std::string answer;
    std::unique_ptr<Output> written;  // or what the engine's answer is, when the results are given back
    Message pythons;  // its message, then its answer
    u64 told_before = 0;  // so far messages of the subscriber go before it
    LateRequestId id;
    Request request;
};

RespConnection::RespConnection(Thread& thread, std::unique_ptr<Transport> transport, Arrival arrival)
    : Connection(thread, std::move(transport), std::move(arrival)), held_bytes_max_(thread.door.config.stream_bytes_max),
      parser_(thread.door.config.message_bytes_max) {
    head_.path = PATH;
    thread.stats.resp.opened.add();
}

RespConnection::~RespConnection() {
    while (first_) remove_first();
    drop_queue();
    thread.stats.resp.closed.add();
}

bool RespConnection::received(const u8* data, u64 size) {
    if (!std::exchange(has_begun_, true) && answer_foreigner({(const char*)data, size})) return true;
    if (is_value_missing()) {
        const u64 taken = incoming_->receive(data, size, thread.now());
        if (is_value_missing()) return true;
        data += taken;
        size -= taken;
    }
    if (input_.empty()) {
        const u64 taken = take_commands(data, size);
        input_.assign(data + taken, data + size);
    } else {
        input_.insert(input_.end(), data, data + size);
        take_waiting_commands();
    }
    count_input();
    if (first_ && first_->is_done) want_fill();
    return true;
}

// A client that does not speak RESP; it may be a person with a browser. False: it may speak it.
bool RespConnection::answer_foreigner(std::string_view first) {
    const Language language = language_of(first);
    if (language == Language::LINES) return false;
    end_foreign(language);
    return true;
}

void RespConnection::end_foreign(Language language) {
    thread.stats.connections_refused[stats_of(language)].add();
    end_refused(in_words_of(language, language == Language::TLS ? NO_TLS_TEXT : RESP_PORT_TEXT));
    want_fill();
}

bool RespConnection::input_ended() {
    is_half_closed_ = true;
    want_fill();
    return true;
}

void RespConnection::take_waiting_commands() {
    if (input_.empty()) return;
    const u64 taken = take_commands(input_.data(), input_.size());
    if (taken == input_.size()) std::vector<u8>().swap(input_);
    else if (taken) input_.erase(input_.begin(), input_.begin() + (long)taken);
}

// Takes whole commands while there are not too many; returns how many bytes these were.
u64 RespConnection::take_commands(const u8* data, u64 size) {
    const u64 taken = take_possible_commands(data, size);
    if (std::exchange(is_joining_, false) && !executing_) give_python();
    return taken;
}

u64 RespConnection::take_possible_commands(const u8* data, u64 size) {
    u64 taken = 0;
    parser_.is_stranger = is_stranger() && thread.door.asks_for_logins;
    while (is_joining_ || may_take_commands()) {
        parser_.large_bytes_min = may_come_in_pieces() ? Upload::BYTES_MIN : NEVER;
        const RespParser::Found found = parser_.parse(data + taken, size - taken);
        if (is_joining_ && found != RespParser::Found::COMMAND && found != RespParser::Found::NOTHING) return taken;
        if (found == RespParser::Found::LARGE) {
            const Begun begun = begin_incoming();
            if (begun == Begun::LEFT_IN) continue;
            return begun == Begun::ENDS ? size : taken;
        }
        if (found == RespParser::Found::MORE_NEEDED) {
            // The whole command must find room before it is received.
            const u64 needed = parser_.bytes_needed();
            const u64 more = needed > counted_input_ ? needed - counted_input_ : 0;
            const bool has_room = !more || account.has_room(more);
            if (has_room) full_since_ns_ = NEVER;
            if (has_room || may_wait()) return taken;
            end_with(full_error(memory_text(account, needed)), STATS_NO_MEMORY);
            return size;
        }
        if (found == RespParser::Found::ERROR) {
            end_with("ERR " + parser_.error, STATS_INVALID);
            return size;
        }
        if (found == RespParser::Found::COMMAND && !execute()) break;
        full_since_ns_ = NEVER;
        taken += parser_.taken;
    }
    return taken;
}

// Whether the engine takes values in pieces now. In a transaction they are kept until EXEC.
bool RespConnection::may_come_in_pieces() const {
    return thread.door.turn.takes_uploads() && !is_in_transaction() && !session_.hands_all;
}

// A word is so large that it may come in pieces.
RespConnection::Begun RespConnection::begin_incoming() {
    const Table* const found = table();
    const u64 bytes = parser_.large_bytes;
    if (!found || found->holds_numbers || !brings_value(parser_.words) || !may(MAY_WRITE)) {
        parser_.leave_in();
        return Begun::LEFT_IN;
    }
    if (bytes > found->value_bytes_max) {
        end_with(VALUE_TOO_LONG_ERROR, STATS_INVALID);
        return Begun::ENDS;
    }
    auto incoming = std::make_unique<RespIncoming>(bytes, parser_.taken, account);
    incoming->reservation.table_id = session_.table_id;
    if (incoming->upload->is_admitted() && submit(&incoming->reservation)) {
        incoming_ = std::move(incoming);
        parser_.take_out();
        full_since_ns_ = NEVER;
        return Begun::BEGUN;
    }
    if (may_wait()) return Begun::WAITS;
    const std::string full = incoming->upload->is_admitted() ? queue_text(thread.door.config.queue_requests_max)
                                                             : memory_text(account, LentValue::counted(bytes));
    end_with(full_error(full), STATS_NO_MEMORY);
    return Begun::ENDS;
}

// The engine has said whether there is room for a value.
void RespConnection::reserved() {
    Request& reservation = incoming_->reservation;
    reservation.release_results();
    incoming_->is_decided = true;
    if (reservation.reserved.uploads) {
        incoming_->upload->begin(reservation.reserved);
    } else {
        incoming_->upload.reset();
        LateRequestId id;
        incoming_->refusal = reservation.outcome == DONE ? full_error(NO_ROOM_NOW_TEXT) : error_of(reservation, id);
    }
    incoming_->ends_ns =
        thread.now() + Upload::time_ns(incoming_->bytes, thread.door.patience, thread.door.config.receive_seconds_max);
    if (is_closed()) return;  // maybe because what came with the head was not kept
    receive_waiting();
    want_fill();
}

// What came with the head of its command.
void RespConnection::receive_waiting() {
    const auto begin = input_.begin() + (long)incoming_->head_bytes;
    const u64 taken = incoming_->receive(input_.data() + incoming_->head_bytes, (u64)(input_.end() - begin), thread.now());
    input_.erase(begin, begin + (long)taken);
}

// A command whose value came in pieces, or was thrown away.
bool RespConnection::execute_incoming() {
    const std::unique_ptr<RespIncoming> incoming = std::move(incoming_);
    if (!incoming->upload) {
        answer(error_line(incoming->refusal, thread.stats.resp));
        return true;
    }
    for (Word& word : parser_.words)
        if (!word.data) word.data = incoming->upload->data();
    upload_ = std::move(incoming->upload);
    must_not_wait_ = true;
    execute();
    must_not_wait_ = false;
    upload_.reset();  // if nobody has taken it
    return true;
}

// What is not plain is Python's, and all that is wrong with it. False: the command must wait for room.
bool RespConnection::execute() {
    if (incoming_) return execute_incoming();
    if (is_joining_) return join();
    if (is_attack(parser_.words)) {
        end_foreign(Language::HTTP1);
        return true;
    }
    RespOptions options;
    const RespCommand* const command = session_.hands_all ? nullptr : command_of(parser_.words, thread.scripts(), options);
    if (!command || !may(*command, options)) return hand_on();
    if (is_in_transaction()) return queue_or_execute(*command, options);
    if (command->answer == Answer::QUEUE) return queue(*command, "+OK\r\n");
    if (command->answer == Answer::RESULTS || command->answer == Answer::DISCARDED) return hand_on();
    if (command->answer == Answer::WATCHED) return watch(*command, options);
    if (command->answer == Answer::UNWATCHED) forget_watched();
    if (!command->op) answer(answer_without_engine(*command, parser_.words));
    else if (!lend([&](const auto& take) { return take(*command, options, parser_.words); })) return false;
    if (!handed_) count(*command);
    return true;
}

// What the door cannot queue is Python's, with all that is queued.
bool RespConnection::queue_or_execute(const RespCommand& command, const RespOptions& options) {
    if (command.answer == Answer::RESULTS) return execute_queue(command);
    if (command.answer == Answer::DISCARDED) {
        end_queue(command);
        answer("+OK\r\n");
        return true;
    }
    const bool may_queue = command.op && command.answer != Answer::WATCHED && is_plain(command, options);
    return may_queue ? queue(command, "+QUEUED\r\n") : hand_on();
}

// Keeps the command until EXEC.
bool RespConnection::queue(const RespCommand& command, const char* text) {
    const u64 bytes = message_bytes(parser_.words), bytes_max = thread.door.config.message_bytes_max;
    if (queued_bytes_ + bytes > bytes_max) {
        end_with("ERR a transaction of more than " + grouped(bytes_max) + " bytes (message_bytes_max): split it", STATS_INVALID);
        return true;
    }
    Message message = new_message();
    if (!message.is_there()) return wait_or_refuse(memory_text(account, bytes));
    queue_.push_back({&command, std::move(message)});
    account.charge(REQUESTS, sizeof(Queued));
    queued_bytes_ += bytes;
    answer(text);
    return true;
}

void RespConnection::drop_queue() {
    account.give(REQUESTS, queue_.size() * sizeof(Queued));
    queue_.clear();
    queued_bytes_ = 0;
}

// Its commands are done with here, and so is the one that says so.
void RespConnection::end_queue(const RespCommand& last) {
    for (const Queued& queued : queue_) count(*queued.command);
    count(last);
    drop_queue();
    forget_watched();
}

// What Python does with it, too: the versions are those of this moment.
bool RespConnection::watch(const RespCommand& command, const RespOptions& options) {
    u64 bytes = 0;
    for (u64 at = 1; at < parser_.words.size(); at++) bytes += watched_bytes(parser_.words[at].size);
    if (!account.admit(CALLS, bytes)) return wait_or_refuse(memory_text(account, bytes));
    const u64 executing = executing_;
    const bool is_taken = lend([&](const auto& take) { return take(command, options, parser_.words); });
    if (executing_ > executing) {
        watching_ = last_;
        watched_bytes_ += bytes;
        count(command);
    } else {
        account.give(CALLS, bytes);
    }
    return is_taken;
}

// What is not done is not watched.
void RespConnection::note_watched(const Pending& pending) {
    watching_ = nullptr;
    want_fill();
    const Request& request = pending.request;
    const u8* key = request.keys;
    for (u64 at = 0; at < request.n; at++) {
        u32 size = request.key_size;
        if (request.key_lengths) memcpy(&size, request.key_lengths + 4 * at, sizeof size);
        const bool is_done = request.outcome == DONE;
        const u64 version = is_done && request.status()[at] == status::OK ? request.versions()[at] : 0;
        if (!is_done || !watched_.emplace(std::string((const char*)key, size), version).second) {
            account.give(CALLS, watched_bytes(size));
            watched_bytes_ -= watched_bytes(size);
        }
        key += size;
    }
}

void RespConnection::forget_watched() {
    WatchedKeys().swap(watched_);
    account.give(CALLS, std::exchange(watched_bytes_, 0));
}

bool RespConnection::execute_queue(const RespCommand& exec) {
    if (queue_.size() == 1) {
        if (!watched_.empty()) return hand_on();
        end_queue(exec);
        answer("*0\r\n");
        return true;
    }
    if (!watched_.empty() && !may(MAY_READ)) return hand_on();  // whether it has changed would tell something
    std::vector<Word> words;
    const bool is_taken = lend([&](const auto& take) {
        for (u64 at = 1; at < queue_.size(); at++) {
            read_message(queue_[at].message.data(), words);
            const RespCommand& command = *queue_[at].command;
            const RespOptions options = *command.options(words);
            // The script may be forgotten.
            if (command.program != Program::NONE && thread.scripts().program_of(words) != command.program) return false;
            if (!may(command, options) || !take(command, options, words)) return false;
        }
        return true;
    });
    if (is_taken && !handed_) end_queue(exec);
    return is_taken;
}

void RespConnection::count(const RespCommand& command) { thread.stats.resp.commands[command.number()].add(); }

Message RespConnection::new_message() {
    Message message = Message::admitted(account, REQUESTS, message_bytes(parser_.words));
    if (message.is_there()) write_message(parser_.words, message.data());
    return message;
}

// Null: the engine cannot be asked.
const Table* RespConnection::table() {
    return thread.door.is_open ? thread.tables().find(session_.table_id) : nullptr;
}

bool RespConnection::is_plain(const RespCommand& command, const RespOptions& options) {
    const Table* const found = table();
    return found && RespColumns(*found, thread.door.turn).measure(command, options, parser_.words);
}

// Whom Python has let in stays so until Python ends that caller, or lets in another one.
bool RespConnection::may(const RespCommand& command, const RespOptions& options) { return may(command.rights_for(options)); }

bool RespConnection::may(u8 rights) {
    if (!thread.door.asks_for_logins) return true;
    const Caller* const caller = head_.caller.get();
    if (!caller || caller->is_gone) return false;
    return !rights || caller->may(session_.table_id, rights);
}

// Lends commands to the engine, as one request, or hands them on; `for_each` gives each of them away, until one of them is
// not taken.
template <class ForEach>
bool RespConnection::lend(const ForEach& for_each) {
    const Table* const found = table();
    if (!found) return hand_on();
    RespColumns columns(*found, thread.door.turn, upload_.get());
    bool is_plain = !is_in_transaction() || columns.measure(watched_);
    is_plain = is_plain && for_each([&](const RespCommand& command, const RespOptions& options, const std::vector<Word>& words) {
        return columns.measure(command, options, words);
    });
    if (!is_plain) return hand_on();
    std::vector<RespPart> parts;
    if (is_in_transaction()) parts.reserve(queue_.size());
    const u64 bytes = sizeof(Pending) + columns.bytes() + parts.capacity() * sizeof(RespPart);
    if (!account.admit(REQUESTS, bytes)) return wait_or_refuse(memory_text(account, bytes));
    Pending* const pending = new_pending(bytes, columns.bytes());
    pending->request.call = pending;
    columns.place((u8*)(pending + 1), pending->request);
    pending->parts = std::move(parts);
    pending->request.upload = std::move(upload_);
    if (is_in_transaction()) columns.write(watched_);
    for_each([&](const RespCommand& command, const RespOptions& options, const std::vector<Word>& words) {
        pending->part = {&command, columns.write(command, options, words)};
        pending->part.words = words.size();
        if (command.answer == Answer::RANGE) {
            pending->part.first_byte = options.first;
            pending->part.last_byte = options.last;
        }
        if (is_in_transaction()) pending->parts.push_back(pending->part);
        return true;
    });
    if (!submit(&pending->request)) {
        destroy(pending);
        return wait_or_refuse(queue_text(thread.door.config.queue_requests_max));
    }
    executing_++;
    append(pending);
    return true;
}

void RespConnection::answered(Request* request) {
    if (incoming_ && request == &incoming_->reservation) return reserved();
    Pending& pending = *(Pending*)request->call;
    executing_--;
    pending.is_done = true;
    pending.answer_bytes = request->result_value_bytes;
    account.charge(ANSWERS, pending.answer_bytes);
    held_bytes_ += pending.answer_bytes + request->lent_counted;
    want_fill();
    if (watching_ == &pending) note_watched(pending);
    if (handed_ && !executing_) give_python();
}

void RespConnection::describe(const Request& request, DoorSlowCall& call) {
    Pending& pending = *(Pending*)request.call;
    if (is_told_with_id(request)) copy_text(call.request_id, pending.id.text());
    copy_text(call.command, pending.parts.empty() ? pending.part.command->name : "exec");
    call.words = pending.part.words;
    call.caller = head_.caller ? head_.caller->id : 0;
}

bool RespConnection::hand_on() {
    const u64 bytes = message_bytes(parser_.words), bytes_max = thread.door.config.message_bytes_max;
    if (upload_ && bytes > bytes_max) {
        refuse("ERR so large a value comes only with a plain SET, SETEX, PSETEX, SETNX or GETSET: others end at " +
               grouped(bytes_max) + " bytes (message_bytes_max)");
        return true;
    }
    Message message = new_message();
    if (!message.is_there()) return wait_or_refuse(memory_text(account, bytes));
    account.charge(REQUESTS, sizeof(Pending));
    handed_ = new_pending(sizeof(Pending), 0);
    append(handed_);
    handed_->pythons = std::move(message);
    joined_ = 1;
    is_joining_ = true;
    takes_more_ = !subscribes(parser_.words);  // what is done behind that is told
    return true;
}

// Python gets a command together with those before it. False: by itself, later.
bool RespConnection::join() {
    const u64 at = handed_->pythons.size(), bytes = message_bytes(parser_.words);
    if (!takes_more_) return false;
    if (joined_ == JOINED_MAX || at + bytes > thread.door.config.message_bytes_max) return false;
    if (parser_.is_stranger) return false;
    if (!is_answered_shortly(parser_.words) || !handed_->pythons.grow(bytes)) return false;
    write_message(parser_.words, handed_->pythons.data() + at);
    joined_++;
    return true;
}

void RespConnection::give_python() {
    if (is_closed()) return;
    answered_ = 0;
    if (!python_) python_ = thread.door.forward.open(head_, *this);
    if (!python_ || !give_watched()) {
        const std::string text = error_line(full_error(memory_text(account, handed_->pythons.size())), thread.stats.resp);
        for (; joined_; joined_--) handed_->answer += text;
        is_ending_ = is_ending_ || is_in_transaction();
        return end_handed({});
    }
    is_asked_ = false;
    // The client has the answers to what is queued.
    answered_ += queue_.size();
    for (Queued& queued : queue_) python_->message(std::move(queued.message));
    drop_queue();
    python_->message(std::move(handed_->pythons));
}

// What is watched comes first, and is Python's from now on. False: there is no memory for that.
bool RespConnection::give_watched() {
    if (watched_.empty()) return true;
    Message message = Message::charged(account, REQUESTS, message_bytes(watched_));
    if (!message.is_there()) return false;
    write_message(watched_, message.data());
    forget_watched();
    is_asked_ = false;
    answered_++;
    python_->message(std::move(message));
    return true;
}

void RespConnection::ask() {
    is_asked_ = true;
    want_fill();
}

void RespConnection::respond(Message&& response) {
    if (answered_) answered_--;
    else if (handed_) end_handed(std::move(response));
}

void RespConnection::finish(const Status&) {
    python_ = nullptr;
    is_ending_ = true;
    end_subscriptions();
    if (handed_) end_handed({});  // what it has not answered by now it never will
    want_fill();
}

void RespConnection::end_handed(Message&& response) {
    handed_->pythons = std::move(response);
    handed_->is_done = true;
    if (next_subscriptions_) subscribe();
    held_bytes_ += handed_->pythons.size();
    handed_ = nullptr;
    want_fill();
}

void RespConnection::subscribe() {
    if (!subscriber_) subscriber_ = std::make_shared<Subscriber>(thread, id, held_bytes_max_);
    const bool are_none = next_subscriptions_->are_none();
    handed_->told_before = subscriber_->change(std::move(next_subscriptions_));
    if (are_none) thread.door.subscribers.remove(subscriber_);
    else thread.door.subscribers.add(subscriber_);
}

bool RespConnection::fill(Output& output) {
    for (; first_ && first_->is_done && output.size() < Output::LOW_BYTES; remove_first()) {
        if (first_->told_before && !subscriber_->take(output, first_->told_before)) return true;
        write(*first_, output);
        is_full_ = false;
    }
    if (subscriber_ && !(first_ && first_->is_done)) subscriber_->take(output, Subscriber::ALL);
    if (first_ && first_->is_done) {
        leave_results();
    } else if (may_take_commands()) {
        take_waiting_commands();
        count_input();
        if (first_ && first_->is_done) want_fill();
        if (is_half_closed_ && may_take_commands()) is_ending_ = true;  // what is left is no whole command
    } else if (is_half_closed_ && is_receiving()) {
        is_ending_ = true;
    }
    return first_ || !is_ending_;
}

// Answers that the client does not read yet must not hold the results of whole batches.
void RespConnection::leave_results() {
    for (Pending* pending = first_; pending; pending = pending->next) {
        if (!pending->is_done || !pending->request.results) continue;  // the engine may be writing it
        pending->written = std::make_unique<Output>();
        pending->engines(thread.stats.resp).append(*pending->written);
        pending->request.release_results();
    }
}

void RespConnection::tick(u64 now_ns) {
    if (is_receiving() && now_ns > incoming_->heard_ns + thread.door.patience.message_ns)
        end_with("ERR no byte of the value came for 10 s", STATS_SLOW_HEADERS);
    else if (is_receiving() && now_ns > incoming_->ends_ns)
        end_with("ERR the value came too slowly: at least 128 KiB a second", STATS_SLOW_HEADERS);
    if (subscriber_) look_at_subscriber();
    if (!is_full_) return;
    is_full_ = false;  // others may have left room
    want_fill();
}

void RespConnection::end_subscriptions() {
    if (!subscriber_) return;
    thread.door.subscribers.remove(subscriber_);
    subscriber_->end();
}

void RespConnection::look_at_subscriber() {
    StatsConnection why;
    if (subscriber_->is_cut_off(why)) close(why);
    else if (subscriber_->has_messages()) want_fill();  // maybe there was no memory to say so
}

void RespConnection::drain() {
    is_ending_ = true;
    want_fill();
}

void RespConnection::closed() {
    if (python_) python_->over();
    python_ = nullptr;
    end_subscriptions();
    if (incoming_) incoming_->reservation.is_cancelled = true;
}

// There is no room for a command.
bool RespConnection::wait_or_refuse(const std::string& text) {
    if (!must_not_wait_ && may_wait()) return false;
    refuse(full_error(text));
    return true;
}

// Not without an end: those who hold what the others wait for may be waiting, too.
bool RespConnection::may_wait() {
    full_since_ns_ = std::min(full_since_ns_, thread.now());
    is_full_ = thread.now() - full_since_ns_ < thread.door.patience.message_ns;
    return is_full_;
}

// A transaction without one of its commands must not be executed.
void RespConnection::refuse(const std::string& text) {
    if (is_in_transaction()) end_with(text, STATS_NO_MEMORY);
    else answer(error_line(text, thread.stats.resp));
}

void RespConnection::end_with(const std::string& text, StatsConnection why) {
    thread.stats.connections_refused[why].add();
    end_refused(error_line(text, thread.stats.resp));
    want_fill();
}

// The client may be sending more: it would not read the answer if its bytes were refused.
void RespConnection::end_refused(std::string text) {
    answer(std::move(text));
    is_ending_ = is_refused_ = true;
}

void RespConnection::take_leave(const std::string& why, Output& output) {
    const std::string line = error_line("ERR " + why, thread.stats.resp);
    output.append(line.data(), line.size());
}

void RespConnection::answer(std::string text) {
    const u64 bytes = sizeof(Pending) + text.size();
    account.charge(REQUESTS, bytes);
    Pending* const pending = new_pending(bytes, 0);
    pending->answer = std::move(text);
    pending->is_done = true;
    append(pending);
}

// `bytes` are charged already: its own, and those of the columns behind it or of a text.
RespConnection::Pending* RespConnection::new_pending(u64 bytes, u64 bytes_behind) {
    void* const memory = malloc(sizeof(Pending) + bytes_behind);
    if (memory) return new (memory) Pending(bytes, session_);
    account.give(REQUESTS, bytes);
    throw std::bad_alloc();
}

void RespConnection::append(Pending* pending) {
    (first_ ? last_->next : first_) = pending;
    last_ = pending;
    pending_++;
    held_bytes_ += pending->bytes;
}

void RespConnection::remove_first() {
    Pending* const pending = first_;
    first_ = pending->next;
    pending_--;
    held_bytes_ -= pending->held_bytes();
    destroy(pending);
}

void RespConnection::destroy(Pending* pending) {
    account.give(REQUESTS, pending->bytes);
    account.give(ANSWERS, pending->answer_bytes);
    pending->~Pending();
    free(pending);
}

void RespConnection::count_input() {
    const u64 bytes = input_.capacity() + parser_.held_bytes();
    account.give(REQUESTS, counted_input_);
    account.charge(REQUESTS, bytes);
    counted_input_ = bytes;
}

void RespConnection::write(Pending& pending, Output& output) {
    Output unsent;
    if (pending.pythons.size()) {
        output.append(pending.pythons.data(), pending.pythons.size());
    } else if (!pending.answer.empty()) {
        if (!pending.is_silent) output.append(pending.answer.data(), pending.answer.size());
    } else if (pending.written) {
        if (!pending.is_silent) output.append(std::move(*pending.written));
    } else if (pending.part.command) {
        if (!pending.is_silent) pending.engines(thread.stats.resp).append(output);
        else if (pending.request.outcome != DONE) pending.engines(thread.stats.resp).append(unsent);  // that counts it
    }
}

}  // namespace door
