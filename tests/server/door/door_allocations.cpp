// Each allocation of the native door fails once, in a run of its own, maybe with some behind it: the first, then the
// second, until a run meets none. A conversation goes on all the while. Whatever fails, a client gets the right answer, a
// refusal, or the end of its connection, a new connection is served, and nothing is left behind. Sanitizers see the rest.
//
//     door_allocations plain|tls|logins engine|left IN_A_ROW [FIRST [STEP]]      STEP 0: only this one, and where it is
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <nghttp2/nghttp2.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sanitizer/common_interface_defs.h>
#include <sys/socket.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <thread>

#include "../../../door/door.hpp"
#include "toy_certificate.hpp"
#include "toy_engine.hpp"

namespace {

// How many allocations of the door still go well, and how many in a row fail then.
std::atomic<i64> good_left{0}, bad_left{0};
std::atomic<bool> has_failed{false};
bool is_shown = false;  // where it is
// Whether this thread is not the door's, or does work of the door's neighbours.
thread_local bool is_spared = false;

class Spared {
  public:
    explicit Spared(bool is_so = true) : was_(std::exchange(is_spared, is_so)) {}
    ~Spared() { is_spared = was_; }

  private:
    const bool was_;
};

bool fails() {
    if (is_spared || bad_left <= 0 || good_left-- > 0 || bad_left-- <= 0) return false;
    has_failed = true;
    if (is_shown) __sanitizer_print_stack_trace();
    return true;
}

#define REQUIRE(condition)                                                                                       \
    do {                                                                                                         \
        if (!(condition)) {                                                                                      \
            fprintf(stderr, "%s:%d: not so: %s (allocation %lu)\n", __FILE__, __LINE__, #condition, (unsigned long)number); \
            abort();                                                                                             \
        }                                                                                                        \
    } while (0)

u64 number;  // of the allocation that fails, from 1 on; 0: none
i64 in_a_row = 1;

}  // namespace

extern "C" {
// The linker brings the door's calls here.
void* __real_malloc(size_t size);
void* __real_calloc(size_t count, size_t size);
void* __real_realloc(void* bytes, size_t size);
void* __wrap_malloc(size_t size) { return fails() ? nullptr : __real_malloc(size); }
void* __wrap_calloc(size_t count, size_t size) { return fails() ? nullptr : __real_calloc(count, size); }
void* __wrap_realloc(void* bytes, size_t size) { return fails() ? nullptr : __real_realloc(bytes, size); }
}

// Not inlined: the compiler would take `free` for a mistake.
#define HERE __attribute__((noinline))
HERE void* operator new(size_t size, const std::nothrow_t&) noexcept { return __wrap_malloc(size + !size); }
HERE void operator delete(void* bytes) noexcept { free(bytes); }
HERE void operator delete(void* bytes, size_t) noexcept { free(bytes); }
HERE void* operator new(size_t size) {
    void* const bytes = operator new(size, std::nothrow);
    if (!bytes) throw std::bad_alloc();
    return bytes;
}

namespace {

// TLS, and users.

const Files* tls_files;  // null: no TLS
bool asks_for_logins;

// The door, and its neighbours.

const u32 TABLE = 0;  // which a new session of RESP has

template <class Function>
auto as_door(Function function) {
    const Spared not_any_more(false);
    return function();
}

// Python's side: it sends back what comes, but for calls of KV, which are handed to it where somebody is not known, and tells
// the door who calls. What finds no memory is tried again.
class ToyPython {
  public:
    explicit ToyPython(Door* door) : door_(door), thread_([this] { run(); }) {}

    ~ToyPython() {
        is_ending_ = true;
        thread_.join();
    }

  private:
    void run() {
        const Spared spared;
        while (!is_ending_) {
            pollfd waiting = {gpkvs_door_events_file(door_), POLLIN, 0};
            poll(&waiting, 1, 5);
            DoorEvent events[16];
            const u64 count = as_door([&] { return gpkvs_door_events(door_, events, 16); });
            for (u64 i = 0; i < count; i++) take(events[i]);
        }
    }

    void take(const DoorEvent& event) {
        if (event.kind == EVENT_OPEN) paths_[event.call] = event.path;
        if (event.kind == EVENT_OPEN && asks_for_logins) log_in(event.call);
        const std::string path = paths_[event.call];
        const bool is_stream = path == "/gpkvs.v1.KV/Pipeline";
        const std::string message((const char*)event.data, event.bytes);
        switch (event.kind) {
            case EVENT_OPEN: return insist([&] { return gpkvs_door_ask(door_, event.call); });
            case EVENT_MESSAGE:
                if (path == "/toy/Hold") return;
                if (path == "/redis") {
                    insist([&] { return gpkvs_door_respond(door_, event.call, (const u8*)"+Python\r\n", 9); });
                    return insist([&] { return gpkvs_door_ask(door_, event.call); });
                }
                if (!is_stream && path.find("KV") != std::string::npos) return finish(event.call, 8, "nobody knows the caller");
                insist([&] { return gpkvs_door_respond(door_, event.call, (const u8*)message.data(), message.size()); });
                if (!is_stream) finish(event.call);
                return;
            case EVENT_SENT:
                if (is_stream) insist([&] { return gpkvs_door_ask(door_, event.call); });
                return;
            case EVENT_HALF_CLOSED: return finish(event.call);
        }
    }

    void finish(u64 call, int code = 0, const char* text = "") {
        insist([&] { return gpkvs_door_finish(door_, call, code, text, "from: Python\n"); });
    }

    void log_in(u64 call) {
        const u32 table = TABLE;
        const u8 rights = MAY_READ | MAY_WRITE;
        insist([&] { return gpkvs_door_set_rights(door_, 1, &table, &rights, 1); });
        insist([&] { return gpkvs_door_logged_in(door_, call, 1, NEVER, NEVER); });
    }

    template <class Function>
    static void insist(Function function) {
        while (as_door(function)) continue;
    }

    Door* const door_;
    std::atomic<bool> is_ending_{false};
    std::map<u64, std::string> paths_;
    std::thread thread_;
};

// The toy engine, whose own allocations never fail; the room for its results is the door's.
class SparedEngine {
  public:
    Engine engine() { return {this, run, newest_durable, wait, nullptr, ~0ull, true}; }

  private:
    static int run(void* self, const EngineBatch* batch, EngineGivesRoom room, void* sink, u64* requests, u64* gate,
                   u64* has_versions) {
        const Spared spared;
        struct Asked {
            EngineGivesRoom room;
            void* sink;
        } asked = {room, sink};
        const auto as_asked = [](void* sink, u64 operations, u64 gets, u64 value_bytes, u64 conflicts, EngineRoom* out) {
            const Asked& asked = *(Asked*)sink;
            return as_door([&] { return asked.room(asked.sink, operations, gets, value_bytes, conflicts, out); });
        };
        const Engine& toy = ((SparedEngine*)self)->toy_engine_;
        return toy.run(toy.self, batch, as_asked, &asked, requests, gate, has_versions);
    }

    static u64 newest_durable(void* self) {
        const Engine& toy = ((SparedEngine*)self)->toy_engine_;
        return toy.durable(toy.self);
    }

    static void wait(void* self, u64 gate) {
        const Engine& toy = ((SparedEngine*)self)->toy_engine_;
        toy.wait(toy.self, gate);
    }

    ToyEngine toy_{100};
    const Engine toy_engine_ = toy_.engine();
};

class RunningDoor {
  public:
    RunningDoor(Door* door, bool has_engine) : door(door), engine_(toy_.engine()), python_(door) {
        const DoorTable table = {"default", TABLE, 0, 1024, 4 * MIB, 65536, 16 * MIB};
        insist([&] { return gpkvs_door_set_tables(door, &table, 1); });
        if (tls_files) {
            // Spared: OpenSSL takes an algorithm for which there is no memory for one that it does not have.
            char error[256];
            REQUIRE(gpkvs_door_set_tls(door, tls_files->chain.data(), tls_files->chain.size(), tls_files->key.data(),
                                       tls_files->key.size(), tls_files->chain.data(), tls_files->chain.size(), 10000000000,
                                       error, sizeof error) == 0);
        }
        if (asks_for_logins) gpkvs_door_ask_for_logins(door);
        as_door([&] { gpkvs_door_open(door); });
        turns_ = std::thread([this, has_engine] { run_turns(has_engine); });
        for (int protocol : {DOOR_GRPC, DOOR_RESP})
            insist([&] {
                ports[protocol] = gpkvs_door_listen(this->door, "127.0.0.1", 0, protocol);
                return ports[protocol] == -ENOMEM;
            });
    }

    ~RunningDoor() {
        as_door([&] {
            gpkvs_door_drain(door);
            gpkvs_door_stop(door);
        });
        turns_.join();
    }

    Door* const door;
    int ports[2];

  private:
    template <class Function>
    static void insist(Function function) {
        while (as_door(function)) continue;
    }

    void run_turns(bool has_engine) {
        const Spared spared;
        if (has_engine) as_door([&] { gpkvs_door_set_engine(door, &engine_); });
        for (;;) {
            const int turn = as_door([&] { return gpkvs_door_turn(door, 1000000); });
            if (turn == TURN_STOPPED) return;
            if (turn == TURN_LEFT) run_left();
        }
    }

    // Without a native engine, and where that one found no room for its results.
    void run_left() {
        if (as_door([&] { return gpkvs_door_hand_on_left(door); })) return;
        struct Results {
            std::vector<u8> status, values;
            std::vector<u64> versions;
            std::vector<u32> lengths;
        } results;
        const EngineBatch& batch = *gpkvs_door_left(door);
        const auto give_room = [](void* sink, u64 operations, u64 gets, u64 value_bytes, u64, EngineRoom* out) {
            const Spared spared;
            Results& results = *(Results*)sink;
            results.status.resize(operations);
            results.versions.resize(operations);
            results.lengths.resize(gets + 1);
            results.values.resize(value_bytes + 1);
            *out = {results.status.data(), results.versions.data(), results.lengths.data(), results.values.data(), nullptr, nullptr, nullptr};
            return true;
        };
        u64 requests, gate, has_versions;
        engine_.run(engine_.self, &batch, give_room, &results, &requests, &gate, &has_versions);
        as_door([&] {
            gpkvs_door_left_done(door, batch.requests, results.status.data(), nullptr, results.lengths.data(),
                                 results.values.data(), 0);
        });
    }

    SparedEngine toy_;
    const Engine engine_;
    ToyPython python_;
    std::thread turns_;
};

// Clients.

// A socket, maybe under TLS, that waits.
class Wire {
  public:
    explicit Wire(int port) : file_(socket(AF_INET, SOCK_STREAM, 0)) {
        sockaddr_in address = {};
        address.sin_family = AF_INET;
        address.sin_port = htons((u16)port);
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        REQUIRE(connect(file_, (sockaddr*)&address, sizeof address) == 0);
        const int yes = 1;
        setsockopt(file_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        const timeval patience = {10, 0};
        setsockopt(file_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        if (!tls_files) return;
        static SSL_CTX* const context = new_context();
        ssl_ = SSL_new(context);
        SSL_set_fd(ssl_, file_);
        is_over_ = SSL_connect(ssl_) != 1;
    }

    ~Wire() {
        SSL_free(ssl_);
        close(file_);
    }

    bool is_over() const { return is_over_; }

    void write(const u8* data, u64 size) {
        while (size && !is_over_) {
            const long sent = ssl_ ? SSL_write(ssl_, data, (int)size) : send(file_, data, size, MSG_NOSIGNAL);
            if (sent <= 0) is_over_ = true;
            else data += sent, size -= (u64)sent;
        }
    }

    // Waits for something; nothing comes when the connection is over.
    std::string read() {
        char data[16384];
        if (is_over_) return "";
        errno = 0;
        const long bytes = ssl_ ? SSL_read(ssl_, data, sizeof data) : recv(file_, data, sizeof data, 0);
        REQUIRE(bytes > 0 || errno != EAGAIN);  // else nobody answers
        if (bytes <= 0) is_over_ = true;
        return std::string(data, bytes > 0 ? (size_t)bytes : 0);
    }

  private:
    static SSL_CTX* new_context() {
        SSL_CTX* const context = new_client_context(*tls_files);
        SSL_CTX_set_alpn_protos(context, (const u8*)"\2h2", 3);
        return context;
    }

    const int file_;
    SSL* ssl_ = nullptr;
    bool is_over_ = false;
};

// What became of a call: its messages, framed, if it went well; else it was refused, or the connection ended.
struct Answer {
    bool is_over = false;
    std::string messages, status, text, from;
};

// Speaks gRPC.
class Client {
  public:
    explicit Client(int port) : wire_(port) {
        nghttp2_session_callbacks* callbacks;
        nghttp2_session_callbacks_new(&callbacks);
        nghttp2_session_callbacks_set_on_header_callback(
            callbacks, [](nghttp2_session*, const nghttp2_frame* frame, const u8* name, size_t name_size, const u8* value,
                          size_t value_size, u8, void* self) {
                const std::string said((const char*)name, name_size), what((const char*)value, value_size);
                Answer& answer = ((Client*)self)->answers_[frame->hd.stream_id];
                if (said == "grpc-status") answer.status = what;
                if (said == "grpc-message") answer.text = what;
                if (said == "from") answer.from = what;
                return 0;
            });
        nghttp2_session_callbacks_set_on_data_chunk_recv_callback(
            callbacks, [](nghttp2_session*, u8, i32 stream, const u8* data, size_t size, void* self) {
                ((Client*)self)->answers_[stream].messages.append((const char*)data, size);
                return 0;
            });
        nghttp2_session_callbacks_set_on_stream_close_callback(
            callbacks, [](nghttp2_session*, i32 stream, u32, void* self) {
                ((Client*)self)->answers_[stream].is_over = true;
                return 0;
            });
        nghttp2_session_client_new(&session_, callbacks, this);
        nghttp2_session_callbacks_del(callbacks);
        nghttp2_submit_settings(session_, 0, nullptr, 0);
    }

    ~Client() { nghttp2_session_del(session_); }

    bool is_lost() const { return wire_.is_over(); }

    // Begins a call with these messages, framed.
    i32 begin(const std::string& path, const std::string& messages) {
        const std::pair<std::string, std::string> lines[] = {
            {":method", "POST"},   {":scheme", "http"}, {":path", path},
            {":authority", "toy"}, {"te", "trailers"},  {"content-type", "application/grpc"},
            {"authorization", "Bearer a"},
        };
        std::vector<nghttp2_nv> headers;
        for (const auto& [name, value] : lines)
            headers.push_back({(u8*)name.data(), (u8*)value.data(), name.size(), value.size(), 0});
        if (!asks_for_logins) headers.pop_back();
        unsent_ = messages;
        nghttp2_data_provider provider;
        provider.source.ptr = this;
        provider.read_callback = [](nghttp2_session*, i32, u8* to, size_t room, u32* flags, nghttp2_data_source* source, void*) {
            std::string& unsent = ((Client*)source->ptr)->unsent_;
            const size_t size = std::min(room, unsent.size());
            memcpy(to, unsent.data(), size);
            unsent.erase(0, size);
            if (unsent.empty()) *flags |= NGHTTP2_DATA_FLAG_EOF;
            return (ssize_t)size;
        };
        const i32 stream = nghttp2_submit_request(session_, nullptr, headers.data(), headers.size(), &provider, nullptr);
        while (!unsent_.empty() && !answers_[stream].is_over && !is_lost()) {
            send();
            if (!unsent_.empty()) receive();  // windows
        }
        return stream;
    }

    Answer end(i32 stream) {
        send();
        while (!answers_[stream].is_over && !is_lost()) {
            receive();
            send();
        }
        return answers_[stream];
    }

    Answer call(const std::string& path, const std::string& messages) { return end(begin(path, messages)); }

    void cancel(i32 stream) {
        nghttp2_submit_rst_stream(session_, 0, stream, NGHTTP2_CANCEL);
        send();
    }

  private:
    void send() {
        const u8* data;
        for (ssize_t size; (size = nghttp2_session_mem_send(session_, &data)) > 0;) wire_.write(data, (u64)size);
    }

    void receive() {
        const std::string data = wire_.read();
        REQUIRE(nghttp2_session_mem_recv(session_, (const u8*)data.data(), data.size()) == (ssize_t)data.size());
    }

    Wire wire_;
    nghttp2_session* session_;
    std::map<i32, Answer> answers_;
    std::string unsent_;
};

// Messages.

std::string varint(u64 value) {
    std::string out;
    for (; value >= 128; value >>= 7) out += (char)(value | 128);
    return out + (char)value;
}

std::string field(int tag, const std::string& bytes) { return (char)(tag << 3 | 2) + varint(bytes.size()) + bytes; }

std::string u32s(const std::vector<u32>& numbers) { return std::string((const char*)numbers.data(), 4 * numbers.size()); }

std::string framed(const std::string& data) {
    std::string head(5, 0);
    for (int i = 0; i < 4; i++) head[4 - i] = (char)(data.size() >> 8 * i);
    return head + data;
}

std::string get(const std::string& key) { return framed(field(2, key)); }
std::string set(const std::string& key, const std::string& value) { return framed(field(2, key) + field(3, value)); }
std::string found(const std::string& value) { return framed("\x08\x01" + field(2, value)); }

struct Operations {
    std::string ops, keys, values;
    std::vector<u32> key_lengths, value_lengths;

    Operations& get(const std::string& key) { return add('\1', key); }
    Operations& set(const std::string& key, const std::string& value) {
        values += value;
        value_lengths.push_back((u32)value.size());
        return add('\2', key);
    }
    Operations& add(char op, const std::string& key) {
        ops += op;
        keys += key;
        key_lengths.push_back((u32)key.size());
        return *this;
    }
    std::string message(int id, const std::string& more = "") const {
        return framed(field(2, ops) + field(3, keys) + field(4, u32s(key_lengths)) + field(6, values) +
                      field(7, u32s(value_lengths)) + "\x48" + varint((u64)id) + more);
    }
};

// All operations are OK.
std::string batch_response(int id, size_t operations, const std::vector<std::string>& found) {
    std::string values;
    std::vector<u32> lengths;
    for (const std::string& value : found) {
        values += value;
        lengths.push_back((u32)value.size());
    }
    std::string out = "\x08" + varint((u64)id) + field(2, std::string(operations, 0));
    if (!values.empty()) out += field(3, values);
    if (!lengths.empty()) out += field(4, u32s(lengths));
    return framed(out);
}

// The conversation.

class Conversation {
  public:
    Conversation(const RunningDoor& running, const std::string& name) : running_(running), name_(name) { connect(); }

    // Everything once. A connection that ends is made again.
    void run() {
        const std::string one = name_ + "one", two = name_ + "two", large(100000, 'l');
        // The first is a new connection's, so it may be lost. What was not told may have happened or not.
        const bool is_set = step("/gpkvs.v1.KV/Set", set(one, "first"), framed(""));
        expect("/gpkvs.v1.KV/Get", get(one), found("first"), is_set);
        const bool is_large =
            step("/gpkvs.v1.KV/Batch", Operations().set(two, large).get(two).message(7), batch_response(7, 2, {large}));
        calls_at_the_same_time(one, two, large, is_set && is_large);
        pipeline(name_ + "three");
        if (const auto answer = told("/toy/Unary", framed("there and back"))) {
            REQUIRE(answer->messages == framed("there and back"));
            REQUIRE(answer->from == "Python");
        }
        cancels(one);
        resp(name_ + "four");
    }

  private:
    void connect() {
        client_.reset();
        client_ = std::make_unique<Client>(running_.ports[DOOR_GRPC]);
        if (!asks_for_logins) return;
        const Answer answer = client_->call("/toy/Unary", framed("who am I"));
        REQUIRE(answer.messages == framed("who am I") || has_failed);
    }

    // The answer, if it is neither a refusal nor lost.
    std::optional<Answer> judged(const Answer& answer) {
        if (client_->is_lost()) {
            REQUIRE(has_failed);
            if (!answer.is_over || answer.status != "0") {
                connect();
                return std::nullopt;
            }
        }
        if (answer.status == "0") return answer;
        REQUIRE(has_failed);
        REQUIRE(answer.status.empty() || (answer.status == "8" && !answer.text.empty()));
        return std::nullopt;
    }

    std::optional<Answer> told(const std::string& path, const std::string& messages) {
        return judged(client_->call(path, messages));
    }

    bool step(const std::string& path, const std::string& messages, const std::string& expected) {
        const auto answer = told(path, messages);
        if (answer) REQUIRE(answer->messages == expected);
        return answer.has_value();
    }

    // `is_sure`: else it may be that nothing is found.
    void expect(const std::string& path, const std::string& messages, const std::string& expected, bool is_sure) {
        if (const auto answer = told(path, messages))
            REQUIRE(answer->messages == expected || (!is_sure && answer->messages == framed("")));
    }

    void calls_at_the_same_time(const std::string& one, const std::string& two, const std::string& large, bool is_sure) {
        const i32 first = client_->begin("/gpkvs.v1.KV/Get", get(two)), second = client_->begin("/gpkvs.v1.KV/Get", get(one));
        const Answer answers[] = {client_->end(first), client_->end(second)};
        const std::string expected[] = {found(large), found("first")};
        for (int i = 0; i < 2; i++)
            if (answers[i].status == "0")
                REQUIRE(answers[i].messages == expected[i] || (!is_sure && answers[i].messages == framed("")));
            else
                REQUIRE(has_failed);
        if (client_->is_lost()) connect();
    }

    // Plain messages, and one that is Python's; that one comes back as it was.
    void pipeline(const std::string& key) {
        const std::string odd = Operations().get(key).message(3, field(13, std::string(8, 0x7f)));  // it lives for long
        const std::string sent = Operations().set(key, "kept").message(1) + Operations().get(key).get(key).message(2) + odd +
                                 Operations().get(key).message(4);
        const auto answer = told("/gpkvs.v1.KV/Pipeline", sent);
        if (!answer) return;
        const std::string expected = batch_response(1, 1, {}) + batch_response(2, 2, {"kept", "kept"}) + odd;
        if (asks_for_logins && has_failed && answer->messages == sent) return;  // the caller was not known
        // The last one follows Python's, or is Python's too.
        const std::string ends[] = {batch_response(4, 1, {"kept"}), Operations().get(key).message(4)};
        if (answer->messages == expected + ends[0] || answer->messages == expected + ends[1]) return;
        REQUIRE(has_failed);  // else no message was refused
        REQUIRE(answer->messages.find("memory") != std::string::npos);
    }

    void cancels(const std::string& key) {
        const i32 held = client_->begin("/toy/Hold", framed("x")), waiting = client_->begin("/gpkvs.v1.KV/Get", get(key));
        client_->cancel(held);
        client_->cancel(waiting);
        if (client_->is_lost()) connect();
        told("/toy/Unary", framed("y"));
    }

    void resp(const std::string& key) {
        Wire wire(running_.ports[DOOR_RESP]);
        const std::string bulk = "$" + std::to_string(key.size()) + "\r\n" + key + "\r\n";
        const std::string get = "GET " + key + "\r\n", set = "SET " + key + " v XX\r\n", pythons = "SET " + key + " v XX KEEPTTL\r\n";
        const std::string others = "INCRBY " + key + " 7\r\nEXPIRE " + key + " 100\r\nSTRLEN " + key + "\r\n";
        const std::string login = asks_for_logins ? "PING\r\n" : "";  // Python lets in whoever says something
        const std::string sent = login + "*3\r\n$3\r\nSET\r\n" + bulk + "$1\r\nv\r\n" + get + pythons + "MULTI\r\n" + set + get + others +
                                 "EXEC\r\nMULTI\r\n" + get + pythons + "*1\r\n$4\r\nPING\r\n";
        wire.write((const u8*)sent.data(), sent.size());
        const std::string value = "$1\r\nv\r\n", queued = "+OK\r\n+QUEUED\r\n";
        const std::string expected = (asks_for_logins ? "+Python\r\n" : "") + ("+OK\r\n" + value) + "+Python\r\n" + queued + "+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*5\r\n+OK\r\n" + value +
                                     ":7\r\n:1\r\n:1\r\n" + queued + "+Python\r\n+PONG\r\n";
        std::string got;
        while (!wire.is_over() && got.find("+PONG\r\n") == std::string::npos) got += wire.read();
        if (got == expected) return;
        REQUIRE(has_failed);
        REQUIRE(wire.is_over() ? expected.compare(0, got.size(), got) == 0 || got.find("-") != std::string::npos
                               : got.find("memory") != std::string::npos);
    }

    const RunningDoor& running_;
    const std::string name_;
    std::unique_ptr<Client> client_;
};

void require_idle(Door* door) {
    for (int i = 0; i < 10000; i++) {
        if (!gpkvs_door_connections(door) && !gpkvs_door_requests(door) && !door->account.clients_bytes() &&
            !door->account.bytes(BATCH))
            return;
        usleep(1000);
    }
    fprintf(stderr, "allocation %lu: an idle door holds %lu bytes, %lu of batches, %lu requests, %lu connections\n",
            (unsigned long)number, (unsigned long)door->account.clients_bytes(), (unsigned long)door->account.bytes(BATCH),
            (unsigned long)gpkvs_door_requests(door), (unsigned long)gpkvs_door_connections(door));
    abort();
}

// Returns whether an allocation failed.
bool run(bool has_engine) {
    has_failed = false;
    good_left = (i64)number - 1;
    bad_left = number ? in_a_row : 0;
    const DoorConfig config = config_of(1);
    Door* const door = as_door([&] { return gpkvs_door_new(&config); });
    REQUIRE(door || has_failed);
    if (!door) return true;
    {
        RunningDoor running(door, has_engine);
        Conversation(running, "a").run();
        require_idle(door);
        if (has_failed) {
            has_failed = false;  // nothing may be refused now
            bad_left = 0;
            Conversation(running, "b").run();
            require_idle(door);
            has_failed = true;
        }
    }
    as_door([&] { gpkvs_door_delete(door); });
    return has_failed;
}

}  // namespace

int main(int count, char** words) {
    is_spared = true;
    signal(SIGPIPE, SIG_IGN);  // as Python does
    if (count < 4) return 2;
    CRYPTO_set_mem_functions([](size_t size, const char*, int) { return __wrap_malloc(size); },
                             [](void* bytes, size_t size, const char*, int) { return __wrap_realloc(bytes, size); },
                             [](void* bytes, const char*, int) { free(bytes); });
    Files files;
    asks_for_logins = std::string(words[1]) == "logins";
    if (std::string(words[1]) == "tls") {
        files = new_files();
        tls_files = &files;
    }
    const bool has_engine = std::string(words[2]) == "engine";
    run(has_engine);  // what libraries make once is not the door's
    in_a_row = atoi(words[3]);
    number = count > 4 ? strtoull(words[4], nullptr, 10) : 1;
    const u64 step = count > 5 ? strtoull(words[5], nullptr, 10) : 1;
    is_shown = !step;
    std::set_terminate([] {
        fprintf(stderr, "allocation %lu: std::terminate\n", (unsigned long)number);
        abort();
    });
    for (; run(has_engine) && step; number += step) continue;
    printf("%lu allocations\n", (unsigned long)number - 1);
}
