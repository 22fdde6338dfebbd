#include "resp.hpp"

#include <algorithm>
#include <cstring>

#include "door.hpp"
#include "forward.hpp"
#include "resp_answer.hpp"
#include "resp_columns.hpp"
#include "texts.hpp"

namespace door {

namespace {

constexpr const char* PATH = "/redis";

// As Python gets a command: how many words it has, their lengths, and they themselves.
u64 message_bytes(const std::vector<Word>& words) {
    u64 bytes = 4;
    for (const Word& word : words) bytes += 4 + word.size;
    return bytes;
}

void write_message(const std::vector<Word>& words, u8* to) {
    const auto write_number = [&](u64 number) {
        const u32 written = (u32)number;
        memcpy(to, &written, 4);
        to += 4;
    };
    write_number(words.size());
    for (const Word& word : words) write_number(word.size);
    for (const Word& word : words) to = std::copy_n(word.data, word.size, to);
}

}  // namespace

// A command whose answer was not sent. The columns of its request lie behind it.
struct RespConnection::Pending {
    Pending(const RespCommand* command, u64 bytes, u32 protocol) : command(command), bytes(bytes), protocol(protocol) {}
    ~Pending() { request.release_results(); }

    u64 held_bytes() const { return bytes + answer_bytes + pythons.size(); }

    Pending* next = nullptr;
    const RespCommand* const command;  // that the engine executes; null: `answer` or Python says it
    const u64 bytes;                   // charged as a request, with its columns or its text
    const u32 protocol;
    bool is_done = false;
    u64 answer_bytes = 0;  // charged as an answer
    std::string answer;
    Message pythons;  // its message, then its answer
    Request request;
};

RespConnection::RespConnection(Thread& thread, std::unique_ptr<Transport> transport, std::string peer)
    : Connection(thread, std::move(transport), std::move(peer)), held_bytes_max_(thread.door.config.stream_bytes_max),
      parser_(thread.door.config.message_bytes_max) {
    head_.path = PATH;
}

RespConnection::~RespConnection() {
    while (first_) remove_first();
}

bool RespConnection::received(const u8* data, u64 size) {
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
    u64 taken = 0;
    parser_.is_stranger = thread.door.asks_for_logins && !head_.caller && transport->names().empty();
    while (may_take_commands()) {
        const RespParser::Found found = parser_.parse(data + taken, size - taken);
        if (found == RespParser::Found::MORE_NEEDED) {
            // The whole command must find room before it is received.
            const u64 needed = parser_.bytes_needed();
            if (needed <= counted_input_ || account.has_room(needed - counted_input_)) return taken;
            end_with("OOM " + memory_text(account, needed));
            return size;
        }
        if (found == RespParser::Found::ERROR) {
            end_with("ERR " + parser_.error);
            return size;
        }
        taken += parser_.taken;
        if (found == RespParser::Found::COMMAND) execute();
    }
    return taken;
}

// What is not plain is Python's, and all that is wrong with it.
void RespConnection::execute() {
    if (is_attack(parser_.words)) {
        is_ending_ = true;
        return close();
    }
    const RespCommand* const command = session_.hands_all ? nullptr : command_of(parser_.words);
    if (!command || !may(*command)) return hand_on();
    if (!command->op) return answer(answer_without_engine(*command, parser_.words));
    if (!request(*command)) hand_on();
}

// What the session shows is what Python let it in for.
bool RespConnection::may(const RespCommand& command) {
    if (!thread.door.asks_for_logins) return true;
    const std::shared_ptr<Caller> caller = logins.use(CERTIFICATE, thread.now());
    return caller && (!command.rights || caller->may(session_.table_id, command.rights));
}

// Lends the command to the engine. False: it is not plain.
bool RespConnection::request(const RespCommand& command) {
    const Table* const table = thread.door.is_open ? thread.tables().find(session_.table_id) : nullptr;
    if (!table) return false;
    RespColumns columns(*table);
    if (!columns.measure(command, parser_.words)) return false;
    const u64 bytes = sizeof(Pending) + columns.bytes();
    if (!account.admit(REQUESTS, bytes)) {
        answer(error_line("OOM " + memory_text(account, bytes)));
        return true;
    }
    Pending* const pending = append(&command, bytes, columns.bytes());
    pending->request.call = pending;
    columns.place((u8*)(pending + 1), pending->request);
    columns.write(command, parser_.words);
    if (submit(&pending->request)) {
        executing_++;
    } else {
        pending->answer = error_line("OOM " + queue_text(thread.door.config.queue_requests_max));
        pending->is_done = true;
    }
    return true;
}

void RespConnection::answered(Request* request) {
    Pending& pending = *(Pending*)request->call;
    executing_--;
    pending.is_done = true;
    pending.answer_bytes = request->result_value_bytes;
    account.charge(ANSWERS, pending.answer_bytes);
    held_bytes_ += pending.answer_bytes;
    want_fill();
    if (handed_ && !executing_) give_python();
}

void RespConnection::hand_on() {
    const u64 bytes = message_bytes(parser_.words);
    Message message = Message::admitted(account, REQUESTS, bytes);
    if (!message.is_there()) return answer(error_line("OOM " + memory_text(account, bytes)));
    write_message(parser_.words, message.data());
    account.charge(REQUESTS, sizeof(Pending));
    handed_ = append(nullptr, sizeof(Pending), 0);
    handed_->pythons = std::move(message);
    if (!executing_) give_python();
}

void RespConnection::give_python() {
    if (is_closed()) return;
    if (!python_) python_ = thread.door.forward.open(head_, *this);
    if (python_) {
        is_asked_ = false;
        return python_->message(std::move(handed_->pythons));
    }
    handed_->answer = error_line("OOM " + memory_text(account, handed_->pythons.size()));
    end_handed({});
}

void RespConnection::ask() {
    is_asked_ = true;
    want_fill();
}

void RespConnection::respond(Message&& response) {
    if (handed_) end_handed(std::move(response));
}

void RespConnection::finish(const Status&) {
    python_ = nullptr;
    is_ending_ = true;
    if (handed_) end_handed({});  // what it has not answered by now it never will
    want_fill();
}

void RespConnection::end_handed(Message&& response) {
    handed_->pythons = std::move(response);
    handed_->is_done = true;
    held_bytes_ += handed_->pythons.size();
    handed_ = nullptr;
    want_fill();
}

bool RespConnection::fill(Output& output) {
    for (; first_ && first_->is_done && output.size() < Output::LOW_BYTES; remove_first()) write(*first_, output);
    if (first_ && first_->is_done) {
        leave_results();
    } else if (may_take_commands()) {
        take_waiting_commands();
        count_input();
        if (first_ && first_->is_done) want_fill();
        if (is_half_closed_ && may_take_commands()) is_ending_ = true;  // what is left is no whole command
    }
    return first_ || !is_ending_;
}

// Answers that the client does not read yet must not hold the results of whole batches.
void RespConnection::leave_results() {
    for (Pending* pending = first_; pending; pending = pending->next) {
        if (!pending->is_done || !pending->request.results) continue;  // the engine may be writing it
        append_answer(*pending->command, pending->request, pending->protocol, pending->answer);
        pending->request.release_results();
    }
}

void RespConnection::drain() {
    is_ending_ = true;
    want_fill();
}

void RespConnection::closed() {
    if (python_) python_->over();
    python_ = nullptr;
}

void RespConnection::end_with(const std::string& text) {
    answer(error_line(text));
    is_ending_ = true;
}

void RespConnection::answer(std::string text) {
    const u64 bytes = sizeof(Pending) + text.size();
    account.charge(REQUESTS, bytes);
    Pending* const pending = append(nullptr, bytes, 0);
    pending->answer = std::move(text);
    pending->is_done = true;
}

// `bytes` are charged already: its own, and those of the columns behind it or of a text.
RespConnection::Pending* RespConnection::append(const RespCommand* command, u64 bytes, u64 bytes_behind) {
    void* const memory = malloc(sizeof(Pending) + bytes_behind);
    if (!memory) {
        account.give(REQUESTS, bytes);
        throw std::bad_alloc();
    }
    Pending* const pending = new (memory) Pending(command, bytes, session_.protocol);
    (first_ ? last_->next : first_) = pending;
    last_ = pending;
    pending_++;
    held_bytes_ += bytes;
    return pending;
}

void RespConnection::remove_first() {
    Pending* const pending = first_;
    first_ = pending->next;
    pending_--;
    held_bytes_ -= pending->held_bytes();
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

void RespConnection::write(const Pending& pending, Output& output) {
    if (!pending.answer.empty()) output.append(pending.answer.data(), pending.answer.size());
    else if (pending.command) append_answer(*pending.command, pending.request, pending.protocol, output);
    else output.append(pending.pythons.data(), pending.pythons.size());
}

}  // namespace door
