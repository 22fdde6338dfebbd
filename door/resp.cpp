#include "resp.hpp"

#include <algorithm>
#include <cstring>

#include "door.hpp"
#include "operations.hpp"
#include "texts.hpp"

namespace door {

// Of an answer.
enum class Form { PONG, VALUE, OK, COUNT };

struct RespCommand {
    const char* name;
    u8 op;  // 0: PING
    Form form;
    u64 words_min, words_max;
};

namespace {

const char* const TABLE = "default";
constexpr u64 NAME_BYTES_MAX = 128;  // of a command that is not known, in its refusal

const RespCommand COMMANDS[] = {
    {"ping", 0, Form::PONG, 1, 2},          {"get", op::GET, Form::VALUE, 2, 2},
    {"set", op::SET, Form::OK, 3, NEVER},       {"del", op::DELETE, Form::COUNT, 2, NEVER},
    {"exists", op::EXISTS, Form::COUNT, 2, NEVER},
};

std::string text_of(const Word& word) { return std::string((const char*)word.data, word.size); }

// In a refusal: as a string of C, which ends at a zero byte.
std::string quoted(const Word& word, u64 bytes_max) {
    return "'" + std::string((const char*)word.data, strnlen((const char*)word.data, std::min(word.size, bytes_max))) + "'";
}

const RespCommand* command_of(const Word& name) {
    for (const RespCommand& command : COMMANDS)
        if (strlen(command.name) == name.size && !strncasecmp(command.name, (const char*)name.data, name.size))
            return &command;
    return nullptr;
}

// One line, whatever is in the text.
std::string error(std::string text) {
    for (char& letter : text)
        if (letter == '\r' || letter == '\n') letter = ' ';
    return "-" + text + "\r\n";
}

std::string wrong_number(const RespCommand& command) {
    return error(std::string("ERR wrong number of arguments for '") + command.name + "' command");
}

std::string pong(const std::vector<Word>& words) {
    return words.size() == 1 ? "+PONG\r\n" : "$" + std::to_string(words[1].size) + "\r\n" + text_of(words[1]) + "\r\n";
}

std::string unknown_command(const std::vector<Word>& words) {
    std::string arguments;
    for (u64 i = 1; i < words.size() && arguments.size() < NAME_BYTES_MAX; i++)
        arguments += quoted(words[i], NAME_BYTES_MAX - arguments.size()) + " ";
    return error("ERR unknown command " + quoted(words[0], NAME_BYTES_MAX) + ", with args beginning with: " + arguments);
}

std::string wrong_size(const char* name, u64 size, u64 bytes_min, u64 bytes_max) {
    return std::string("ERR a ") + name + " of " + grouped(size) + (size == 1 ? " byte" : " bytes") + ", allowed are " +
           grouped(bytes_min) + " to " + grouped(bytes_max) + " (" + name + "_bytes_max)";
}

// To an Output or a string.
template <class To>
void append_text(const std::string& text, To& to) {
    to.append(text.data(), text.size());
}

template <class To>
void append_bulk(const u8* data, u64 size, To& to) {
    append_text("$" + std::to_string(size) + "\r\n", to);
    to.append((const char*)data, size);
    append_text("\r\n", to);
}

std::string error_of(const Request& request) {
    switch (request.outcome) {
        case REFUSED: return error((request.refusal->full.empty() ? "ERR " : "OOM ") + request.refusal->text);
        case NO_ROOM: return error("OOM " + memory_text(request.connection->account, 0));
        case GONE: return error("ERR the table is gone");
        default: return error("ERR not executed");
    }
}

template <class To>
void append_answer(const Request& request, Form form, To& to) {
    if (request.outcome != DONE) return append_text(error_of(request), to);
    const u8* const results = request.status();
    if (form == Form::OK) return append_text("+OK\r\n", to);
    if (form == Form::COUNT)
        return append_text(":" + std::to_string(std::count(results, results + request.n, status::OK)) + "\r\n", to);
    if (*results == status::OK) return append_bulk(request.result_values(), request.result_value_bytes, to);
    if (*results == status::NOT_FOUND) return append_text("$-1\r\n", to);
    append_text(error("ERR the record fails its checksum, so no value is returned: run gpkvs check"), to);
}

}  // namespace

// A command whose answer was not sent. The columns of its request lie behind it.
struct RespConnection::Call {
    Call(const RespCommand* command, u64 bytes) : command(command), bytes(bytes) {}
    ~Call() { request.release_results(); }

    Call* next = nullptr;
    const RespCommand* const command;
    const u64 bytes;  // charged as a request, with its columns
    bool is_done = false;
    u64 answer_bytes = 0;  // charged as an answer
    std::string answer;    // if there is nothing else to say
    Request request;
};

RespConnection::RespConnection(Thread& thread, std::unique_ptr<Transport> transport, std::string peer)
    : Connection(thread, std::move(transport), std::move(peer)), held_bytes_max_(thread.door.config.stream_bytes_max),
      parser_(thread.door.config.message_bytes_max) {}

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

void RespConnection::take_waiting_commands() {
    const u64 taken = take_commands(input_.data(), input_.size());
    if (taken == input_.size()) std::vector<u8>().swap(input_);
    else if (taken) input_.erase(input_.begin(), input_.begin() + (long)taken);
}

// Takes whole commands while there are not too many; returns how many bytes these were.
u64 RespConnection::take_commands(const u8* data, u64 size) {
    u64 taken = 0;
    while (wants_input()) {
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

void RespConnection::execute() {
    const std::vector<Word>& words = parser_.words;
    const RespCommand* const command = command_of(words[0]);
    if (!command) return answer(unknown_command(words));
    if (words.size() < command->words_min || words.size() > command->words_max) return answer(wrong_number(*command));
    if (command->form == Form::PONG) return answer(pong(words));
    if (command->form == Form::OK && words.size() > 3) return answer(error("ERR syntax error"));
    const std::string refusal = request(*command);
    if (!refusal.empty()) answer(error(refusal));
}

// Lends the command to the engine. Returns why not, or "".
std::string RespConnection::request(const RespCommand& command) {
    if (thread.door.asks_for_logins) return "NOAUTH this server asks who calls, which RESP cannot tell it: use gRPC";
    const std::vector<Word>& words = parser_.words;
    const Table* const table = thread.door.is_open ? thread.tables().find(TABLE) : nullptr;
    if (!table) return "LOADING the server does not serve: try again";
    const bool has_value = command.op == op::SET;
    const u64 n = words.size() - 1 - has_value;
    if (n > table->request_ops_max)
        return "ERR " + grouped(n) + " keys, allowed are " + grouped(table->request_ops_max) + " (request_ops_max): split it";
    u64 key_bytes = 0;
    for (u64 key = 1; key <= n; key++) {
        const u64 size = words[key].size;
        if (!size || size > table->key_bytes_max) return wrong_size("key", size, 1, table->key_bytes_max);
        key_bytes += size;
    }
    const u64 value_bytes = has_value ? words[2].size : 0;
    if (value_bytes > table->value_bytes_max) return wrong_size("value", value_bytes, 0, table->value_bytes_max);

    const u64 bytes = sizeof(Call) + 5 * n + key_bytes + value_bytes;
    if (!account.admit(REQUESTS, bytes)) return "OOM " + memory_text(account, bytes);
    Call* const call = new_call(&command, bytes);
    Request& request = call->request;
    request.call = call;
    request.table_id = table->id;
    request.n = n;
    request.gets = command.op == op::GET;
    request.sets = has_value;
    u8* at = (u8*)(call + 1);
    request.key_lengths = at;
    for (u64 key = 1; key <= n; key++, at += 4) {
        const u32 size = (u32)words[key].size;
        memcpy(at, &size, 4);
    }
    request.ops = at;
    at = std::fill_n(at, n, command.op);
    request.keys = at;
    for (u64 key = 1; key <= n; key++) at = std::copy_n(words[key].data, words[key].size, at);
    request.key_bytes = key_bytes;
    request.values = at;
    if (has_value) std::copy_n(words[2].data, value_bytes, at);
    request.value_bytes = value_bytes;
    request.value_size = (u32)value_bytes;
    if (n == 1) {  // so that the lengths of a batch may be one number
        request.key_lengths = nullptr;
        request.key_size = (u32)key_bytes;
    }
    if (!submit(&request)) {
        destroy(call);
        return "OOM " + queue_text(thread.door.config.queue_requests_max);
    }
    append(call);
    return "";
}

void RespConnection::answered(Request* request) {
    Call& call = *(Call*)request->call;
    call.is_done = true;
    call.answer_bytes = request->result_value_bytes;
    account.charge(ANSWERS, call.answer_bytes);
    want_fill();
}

bool RespConnection::fill(Output& output) {
    for (; first_ && first_->is_done && output.size() < Output::LOW_BYTES; remove_first()) write(*first_, output);
    if (first_ && first_->is_done) {
        leave_results();
    } else if (!input_.empty() && wants_input()) {
        take_waiting_commands();
        count_input();
        if (first_ && first_->is_done) want_fill();
    }
    return first_ || !is_ending_;
}

// Answers that the client does not read yet must not hold the results of whole batches.
void RespConnection::leave_results() {
    for (Call* call = first_; call; call = call->next) {
        if (!call->is_done || !call->request.results) continue;  // the engine may be writing it
        append_answer(call->request, call->command->form, call->answer);
        call->request.release_results();
    }
}

void RespConnection::drain() {
    is_ending_ = true;
    want_fill();
}

void RespConnection::end_with(const std::string& text) {
    answer(error(text));
    is_ending_ = true;
}

void RespConnection::answer(std::string text) {
    const u64 bytes = sizeof(Call) + text.size();
    account.charge(REQUESTS, bytes);
    Call* const call = new_call(nullptr, bytes);
    call->answer = std::move(text);
    call->is_done = true;
    append(call);
}

// `bytes` are charged already: its own, and those of the columns behind it or of a text.
RespConnection::Call* RespConnection::new_call(const RespCommand* command, u64 bytes) {
    void* const memory = malloc(command ? bytes : sizeof(Call));
    if (memory) return new (memory) Call(command, bytes);
    account.give(REQUESTS, bytes);
    throw std::bad_alloc();
}

void RespConnection::destroy(Call* call) {
    account.give(REQUESTS, call->bytes);
    account.give(ANSWERS, call->answer_bytes);
    call->~Call();
    free(call);
}

void RespConnection::append(Call* call) {
    (first_ ? last_->next : first_) = call;
    last_ = call;
    calls_++;
    held_bytes_ += call->bytes;
}

void RespConnection::remove_first() {
    Call* const call = first_;
    first_ = call->next;
    calls_--;
    held_bytes_ -= call->bytes;
    destroy(call);
}

void RespConnection::count_input() {
    const u64 bytes = input_.capacity() + parser_.held_bytes();
    account.give(REQUESTS, counted_input_);
    account.charge(REQUESTS, bytes);
    counted_input_ = bytes;
}

void RespConnection::write(const Call& call, Output& output) {
    if (call.answer.empty()) append_answer(call.request, call.command->form, output);
    else append_text(call.answer, output);
}

}  // namespace door
