// Each allocation of the native door fails once, in a run of its own, maybe with some behind it: the first, then the
// second, until a run meets none. A conversation goes on all the while. Whatever fails, a client gets the right answer, a
// refusal, or the end of its connection, a new connection is served, and nothing is left behind. Sanitizers see the rest.
//
//     door_allocations plain|tls|logins engine|left IN_A_ROW [FIRST [STEP]]      STEP 0: only this one, and where it is
//     door_allocations large engine IN_A_ROW [FIRST [STEP]]                      values that are lent, or come in pieces
#include <poll.h>
#include <sanitizer/common_interface_defs.h>

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

#include "toy_client.hpp"

namespace {

// TLS, and users.

const Files* tls_files;  // null: no TLS
bool asks_for_logins;
bool is_large;  // the conversation is about values that are lent, and that come in pieces

SSL_CTX* client_context() {
    if (!tls_files) return nullptr;
    static SSL_CTX* const context = [] {
        SSL_CTX* const made = new_client_context(*tls_files);
        SSL_CTX_set_alpn_protos(made, (const u8*)"\2h2", 3);
        return made;
    }();
    return context;
}

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
        if (event.kind == EVENT_ANSWER) return answer(event.id);
        if (event.kind == EVENT_OPEN) {
            paths_[event.id] = event.path;
            connections_[event.id] = event.connection;
        }
        if (event.kind == EVENT_OPEN && asks_for_logins) log_in(event.id);
        const std::string path = paths_[event.id];
        const bool is_stream = path == "/gpkvs.v1.KV/Pipeline";
        const std::string message((const char*)event.data, event.bytes);
        switch (event.kind) {
            case EVENT_LOGIN: log_in(event.id); return finish(event.id);
            case EVENT_OPEN: return insist([&] { return gpkvs_door_ask(door_, event.id); });
            case EVENT_MESSAGE:
                if (path == "/toy/Hold") return;
                if (path == "/redis") return look_up(event.id);
                if (!is_stream && path.find("KV") != std::string::npos) return finish(event.id, 8, "nobody knows the caller");
                insist([&] { return gpkvs_door_respond(door_, event.id, (const u8*)message.data(), message.size()); });
                if (!is_stream) finish(event.id);
                return;
            case EVENT_SENT:
                if (is_stream) insist([&] { return gpkvs_door_ask(door_, event.id); });
                return;
            case EVENT_HALF_CLOSED: return finish(event.id);
        }
    }

    // It answers a command when it has read a key.
    void look_up(u64 call) {
        static const u8 GET_K[] = {0x12, 1, op::GET, 0x1a, 1, 'k', 0x2d, 1, 0, 0, 0};
        const u64 connection = connections_[call];
        insist([&] { return gpkvs_door_submit(door_, connection, call, TABLE, NEVER, GET_K, sizeof GET_K); });
    }

    void answer(u64 call) {
        insist([&] { return gpkvs_door_respond(door_, call, (const u8*)"+Python\r\n", 9); });
        insist([&] { return gpkvs_door_ask(door_, call); });
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
    std::map<u64, u64> connections_;
    std::thread thread_;
};

// The toy engine, whose own allocations never fail; the room for its results is the door's.
class SparedEngine {
  public:
    Engine engine() { return {this, run, newest_durable, wait, reserve, ~0ull, true, nullptr}; }

    const ToyBlobs& blobs() const { return toy_.blobs(); }

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

    static int reserve(void* self, u64 bytes, EngineUpload* out, u64* lacks) {
        const Spared spared;
        const Engine& toy = ((SparedEngine*)self)->toy_engine_;
        return toy.reserve(toy.self, bytes, out, lacks);
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
        const DoorTable table = {"default", TABLE, 0, "bytes", 1, 1024, 0, 4 * MIB, 65536, 16 * MIB};
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

    const ToyBlobs& blobs() const { return toy_.blobs(); }

    Door* const door;
    int ports[2];

  private:
    template <class Function>
    static void insist(Function function) {
        while (as_door(function)) continue;
    }

    void run_turns(bool has_engine) {
        const Spared spared;
        const DoorRefusal no_room = {8, "no memory in the toy", "heap", true, nullptr};
        gpkvs_door_left_lacks(door, LEFT_GROW_BLOBS, &no_room);  // spared: it is said once
        if (has_engine) as_door([&] { gpkvs_door_set_engine(door, &engine_); });
        for (;;) {
            const int turn = as_door([&] { return gpkvs_door_turn(door, 1000000); });
            if (turn == TURN_STOPPED) return;
            if (turn != TURN_LEFT) continue;
            if (!has_engine) run_left();
            else if (!as_door([&] { return gpkvs_door_run_left(door); })) as_door([&] { gpkvs_door_left_failed(door, &no_room); });
        }
    }

    // Without a native engine.
    void run_left() {
        struct Results {
            std::vector<u8> status, values;
            std::vector<u64> versions;
            std::vector<u32> lengths;
        } results;
        EngineBatch batch = *gpkvs_door_left(door);
        batch.lends_blobs = false;
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

// The conversation.

class Conversation {
  public:
    Conversation(const RunningDoor& running, const std::string& name) : running_(running), name_(name) { connect(); }

    // Everything once. A connection that ends is made again.
    void run() {
        if (is_large) return run_large();
        const std::string one = name_ + "one", two = name_ + "two", large(100000, 'l');
        // The first is a new connection's, so it may be lost. What was not told may have happened or not.
        const bool is_set = step("/gpkvs.v1.KV/Set", set(one, "first"), framed(""));
        expect("/gpkvs.v1.KV/Get", get(one), found("first"), is_set);
        const bool is_large =
            step("/gpkvs.v1.KV/Batch", GrpcBatch().set(two, large).get(two).message(7), batch_response(7, 2, {large}));
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
    // Values that are lent, and that come in pieces.
    void run_large() {
        const std::string key = name_ + "five", value(MIB + 1, 'v'), other = name_ + "six";
        Known known = {value, step("/gpkvs.v1.KV/Set", set(key, value), framed(""))};
        expect("/gpkvs.v1.KV/Get", get(key), found(value), known.is_sure);
        refused_or_lost("/gpkvs.v1.KV/Set", set(key, std::string(ROOMLESS, 'x')), "no memory in the toy");
        large_batch(key, known, other);
        large_pipeline(name_ + "seven");
        large_ends(key);
        large_resp(name_ + "eight");
    }

    // A value that there is, if that is sure; else it may be that nothing is there.
    struct Known {
        std::string value;
        bool is_sure;
    };

    // For a value of so many bytes there is no room; room for the other one is to be made first.
    static constexpr u64 ROOMLESS = MIB + 5, MADE = MIB + 3;

    void refused_or_lost(const std::string& path, const std::string& messages, const std::string& text) {
        const Answer answer = client_->call(path, messages);
        if (answer.status == "8" && answer.text == text) return;
        REQUIRE(!judged(answer));
    }

    // What is said not to be executed must not be.
    void large_batch(const std::string& key, const Known& known, const std::string& other) {
        const std::string message = GrpcBatch().get(key).set(other, "there").message(9);
        const Answer answer = client_->call("/gpkvs.v1.KV/Batch", message);
        const bool is_not_executed = answer.is_not_executed;
        const auto told = judged(answer);
        if (told && known.is_sure) REQUIRE(told->messages == batch_response(9, 2, {known.value}));
        const auto now = this->told("/gpkvs.v1.KV/Get", get(other));
        if (!now) return;
        REQUIRE(now->messages == found("there") || (!told && now->messages == framed("")));
        REQUIRE(!is_not_executed || now->messages == framed(""));
    }

    // The second value has to wait for its room; a damaged one is no value.
    void large_pipeline(const std::string& key) {
        const std::string one(400000, 'o'), two(MADE, 't');
        std::string damaged(100000, 'd');
        damaged[99999] = ToyBlobs::DAMAGED;
        const std::string sent = GrpcBatch().set(key, one).message(1) + GrpcBatch().get(key).set(key, two).message(2) +
                                 GrpcBatch().get(key).message(3) + GrpcBatch().set(key, damaged).message(4) +
                                 GrpcBatch().get(key).message(5);
        const auto answer = told("/gpkvs.v1.KV/Pipeline", sent);
        if (!answer) return;
        const std::string corrupt = framed("\x08\5" + field(2, std::string(1, status::CORRUPT)) + field(4, u32s({0})));
        const std::string expected = batch_response(1, 1, {}) + batch_response(2, 2, {one}) + batch_response(3, 1, {two}) +
                                     batch_response(4, 1, {}) + corrupt;
        if (answer->messages == expected) return;
        REQUIRE(has_failed);
        REQUIRE(answer->messages.find("memory") != std::string::npos);
    }

    // Calls and connections that end in the middle of a value.
    void large_ends(const std::string& key) {
        const std::string message = set(key, std::string(MIB, 'e'));
        const i32 half = client_->begin("/gpkvs.v1.KV/Set", message, 100000);
        if (!client_->is_lost()) client_->cancel(half);
        const i32 reading = client_->begin("/gpkvs.v1.KV/Get", get(key));
        if (!client_->is_lost()) client_->receive();
        if (!client_->is_lost()) client_->cancel(reading);
        if (client_->is_lost()) connect();
        client_->begin("/gpkvs.v1.KV/Set", message, MIB - 1000);
        REQUIRE(!client_->is_lost() || has_failed);
        connect();
    }

    void large_resp(const std::string& key) {
        const std::string value(MIB, 'r'), text = "$" + std::to_string(key.size()) + "\r\n" + key + "\r\n";
        const auto set = [&](const std::string& value, const std::string& more = "") {
            return "*" + std::to_string(more.empty() ? 3 : 4) + "\r\n$3\r\nSET\r\n" + text + bulk(value) + more;
        };
        const std::string sent = set(value) + "GETRANGE " + key + " 70000 70004\r\n" + "MGET " + key + " " + key + "\r\n" +
                                 set(std::string(20000, 'w'), "$3\r\nGET\r\n") + set(std::string(ROOMLESS, 'x')) +
                                 "GET " + key + "\r\nPING\r\n";
        const std::string replies[] = {"+OK\r\n", bulk("rrrrr"), "*2\r\n" + bulk(value) + bulk(value), bulk(value),
                                       "-OOM no memory in the toy\r\n", bulk(std::string(20000, 'w'))};
        Wire wire(running_.ports[DOOR_RESP], client_context());
        for (u64 at = 0, part = 1; at < sent.size(); at += part, part = part * 7 % 300007) wire.write(sent.substr(at, part));
        std::string got;
        const std::string pong = "+PONG\r\n";
        while (!wire.is_over() && (got.size() < 7 || got.substr(got.size() - 7) != pong)) got += wire.read();
        cut_ids(got);
        u64 at = 0;
        for (const std::string& reply : replies) {
            if (!got.compare(at, reply.size(), reply)) {
                at += reply.size();
                continue;
            }
            REQUIRE(has_failed);
            if (wire.is_over() && !reply.compare(0, got.size() - at, got, at, std::string::npos)) return;
            const u64 end = got.find("\r\n", at);
            REQUIRE(end != std::string::npos);
            const bool is_last = &reply == std::end(replies) - 1;
            if (is_last && got.substr(at) == bulk(value) + pong) return;  // it was not overwritten
            const std::string line = got.substr(at, end - at);
            const bool is_nothing = line == "$-1" || line == "$0";  // of what was not set
            if (line == "*2") return;                               // the same, twice
            REQUIRE(is_nothing || line.find("memory") != std::string::npos);
            at = end + 2 + (line == "$0" ? 2 : 0);
        }
        if (got.substr(at) != pong) REQUIRE(has_failed && wire.is_over() && at == got.size());
        large_resp_ends(set(value));
    }

    // Takes the ids out of errors, also one that a lost connection has cut.
    static void cut_ids(std::string& text) {
        const std::string begin = " (request ";
        for (u64 at; (at = text.find(begin)) != std::string::npos;) {
            const u64 end = text.find(')', at);
            text.erase(at, end == std::string::npos ? end : end + 1 - at);
        }
        for (u64 size = begin.size() - 1; size; size--)
            if (text.size() >= size && !text.compare(text.size() - size, size, begin, 0, size)) return text.resize(text.size() - size);
    }

    // Connections that end in the middle of a value.
    void large_resp_ends(const std::string& set) {
        Wire wire(running_.ports[DOOR_RESP], client_context());
        wire.write(set.substr(0, 500000));
        Wire reader(running_.ports[DOOR_RESP], client_context());
        reader.write(set + "GET " + name_ + "eight\r\n");
        const auto is_refused = [](const std::string& got) { return has_failed && got.find("memory") != std::string::npos; };
        for (std::string got; !reader.is_over() && got.size() < 100000 && !is_refused(got);) got += reader.read();
    }

    static std::string bulk(const std::string& text) { return "$" + std::to_string(text.size()) + "\r\n" + text + "\r\n"; }

    void connect() {
        client_.reset();
        client_ = std::make_unique<GrpcClient>(running_.ports[DOOR_GRPC], client_context(), asks_for_logins);
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
        // 14: a large value whose room could not be asked for again.
        REQUIRE(answer.status.empty() || ((answer.status == "8" || answer.status == "14") && !answer.text.empty()));
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
        const std::string odd = GrpcBatch().get(key).message(3, field(13, std::string(8, 0x7f)));  // it lives for long
        const std::string sent = GrpcBatch().set(key, "kept").message(1) + GrpcBatch().get(key).get(key).message(2) + odd +
                                 GrpcBatch().get(key).message(4);
        const auto answer = told("/gpkvs.v1.KV/Pipeline", sent);
        if (!answer) return;
        const std::string expected = batch_response(1, 1, {}) + batch_response(2, 2, {"kept", "kept"}) + odd;
        if (asks_for_logins && has_failed && answer->messages == sent) return;  // the caller was not known
        // The last one follows Python's, or is Python's too.
        const std::string ends[] = {batch_response(4, 1, {"kept"}), GrpcBatch().get(key).message(4)};
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
        Wire wire(running_.ports[DOOR_RESP], client_context());
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
    std::unique_ptr<GrpcClient> client_;
};

void require_idle(const RunningDoor& running) {
    Door* const door = running.door;
    for (int i = 0; i < 10000; i++) {
        if (!gpkvs_door_connections(door) && !gpkvs_door_requests(door) && !door->account.clients_bytes() &&
            !door->account.bytes(BATCH) && running.blobs().is_idle())
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
        require_idle(running);
        if (has_failed) {
            has_failed = false;  // nothing may be refused now
            bad_left = 0;
            Conversation(running, "b").run();
            require_idle(running);
            has_failed = true;
        }
        REQUIRE(has_failed || !is_large || !has_engine || (running.blobs().ever_lent() && running.blobs().ever_reserved()));
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
    is_large = std::string(words[1]) == "large";
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
