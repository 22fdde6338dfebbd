// The native door with a toy engine: what its threads do to each other, for ThreadSanitizer; its parser of RESP with random
// bytes, for AddressSanitizer; the order of its queue. And, for measurements, a server that stays (`serve`).
//
//     door_threads clients|tls|stops|parser|queue|serve [SEED]
#include <arpa/inet.h>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <netinet/in.h>
#include <random>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "../../../door/door.hpp"
#include "../../../door/resp/resp_parser.hpp"
unsigned long long seed;

#define REQUIRE(condition)                                                                        \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: not so: %s (seed %llu)\n", __FILE__, __LINE__, #condition, seed); \
            abort();                                                                              \
        }                                                                                         \
    } while (0)

#include "toy_certificate.hpp"
#include "toy_client.hpp"
#include "toy_engine.hpp"

using namespace door;

namespace {

// A door whose turns run in a thread of their own.
class RunningDoor {
  public:
    RunningDoor(const DoorConfig& config, u64 flush_us, u16 port = 0) : toy_(flush_us), engine_(toy_.engine()) {
        door = gpkvs_door_new(&config);
        const DoorTable table = {"default", 0, 0, "bytes", 1, 1024, 0, 4 * MIB, 65536, 16 * MIB};
        gpkvs_door_set_tables(door, &table, 1);
        gpkvs_door_open(door);
        turns_ = std::thread([this] {
            const DoorRefusal no_room = {8, NO_ROOM_TEXT, "heap", true, nullptr};
            gpkvs_door_left_lacks(door, LEFT_GROW_BLOBS, &no_room);
            gpkvs_door_set_engine(door, &engine_);
            for (int turn; (turn = gpkvs_door_turn(door, 1000000)) != TURN_STOPPED;)
                if (turn == TURN_LEFT) gpkvs_door_run_left(door);
        });
        this->port = gpkvs_door_listen(door, "127.0.0.1", port, DOOR_RESP);
        grpc_port = gpkvs_door_listen(door, "127.0.0.1", 0, DOOR_GRPC);
        REQUIRE(this->port > 0 && grpc_port > 0);
    }

    ~RunningDoor() {
        gpkvs_door_drain(door);
        gpkvs_door_stop(door);
        turns_.join();
        gpkvs_door_delete(door);
    }

    // What the toy says where it has no room for a value.
    static constexpr const char* NO_ROOM_TEXT = "no room in the toy";

    const ToyBlobs& blobs() const { return toy_.blobs(); }

    Door* door;
    int port, grpc_port;

  private:
    ToyEngine toy_;
    const Engine engine_;
    std::thread turns_;
};

sockaddr_in loopback(int port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons((u16)port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

constexpr char ANY_DIGIT = 1;
const std::string ANY_ID = " (request " + std::string(16, ANY_DIGIT) + ")";

// Inside TLS, if there is a context for it.
class Client {
  public:
    explicit Client(int port, SSL_CTX* tls = nullptr) : file_(socket(AF_INET, SOCK_STREAM, 0)) {
        const sockaddr_in address = loopback(port);
        REQUIRE(connect(file_, (const sockaddr*)&address, sizeof address) == 0);
        if (!tls) return;
        ssl_ = SSL_new(tls);
        SSL_set_fd(ssl_, file_);
        REQUIRE(SSL_connect(ssl_) == 1);
    }
    ~Client() {
        SSL_free(ssl_);
        close(file_);
    }

    void send(const std::string& text) { send(text.data(), text.size()); }
    void send(const char* text, u64 size) {
        if (size) REQUIRE((ssl_ ? SSL_write(ssl_, text, (int)size) : write(file_, text, size)) == (long)size);
    }

    // In the place of `ANY_ID` any id may come.
    void expect(const std::string& text) {
        char found[65536];
        for (u64 at = 0; at < text.size();) {
            const u64 most = std::min<u64>(text.size() - at, sizeof found);
            const long bytes = ssl_ ? SSL_read(ssl_, found, (int)most) : read(file_, found, most);
            REQUIRE(bytes > 0);
            for (long i = 0; i < bytes; i++, at++) REQUIRE(text[at] == found[i] || (text[at] == ANY_DIGIT && isxdigit(found[i])));
        }
    }

  private:
    const int file_;
    SSL* ssl_ = nullptr;
};

std::string bulk(const std::string& text) { return "$" + std::to_string(text.size()) + "\r\n" + text + "\r\n"; }

std::string command(const std::vector<std::string>& words) {
    std::string text = "*" + std::to_string(words.size()) + "\r\n";
    for (const std::string& word : words) text += bulk(word);
    return text;
}

// One client with keys of its own, so it knows each answer; it comes and goes.
void be_client(int port, u64 number, SSL_CTX* tls) {
    std::mt19937_64 random(seed + number);
    std::map<std::string, std::string> mine;
    for (int life = 0; life < 4; life++) {
        Client client(port, tls);
        for (int round = 0; round < 40; round++) {
            std::string sent, expected;
            for (u64 count = random() % 40; count; count--) {
                const std::string key = "client" + std::to_string(number) + ":" + std::to_string(random() % 5);
                const u64 what = random() % 5;
                if (what == 0) {
                    mine[key] = std::string(random() % (random() % 8 ? 20 : 20000), (char)('a' + random() % 26));
                    sent += command({"SET", key, mine[key]});
                    expected += "+OK\r\n";
                } else if (what == 1) {
                    sent += command({"DEL", key, key});
                    expected += ":" + std::to_string(mine.erase(key)) + "\r\n";
                } else if (what == 2) {
                    sent += command({"PING"});
                    expected += "+PONG\r\n";
                } else {
                    sent += command({"GET", key});
                    expected += mine.count(key) ? bulk(mine[key]) : "$-1\r\n";
                }
            }
            client.send(sent);
            client.expect(expected);
        }
        client.send(command({"PING"}) + "*1\r\n$5\r\nhal");  // and goes in the middle of a command
    }
}

// Sizes of values that are copied, lent, or come in pieces; of these some have no room, or must wait for it.
u64 random_size(std::mt19937_64& random) {
    const u64 sizes[] = {100, 20000, 20000, 300000, MIB - 1, MIB, MIB + random() % 1000, MIB + 3 + random() % 2 * 2};
    return sizes[random() % std::size(sizes)];
}

bool is_refused(const std::string& value) { return value.size() >= MIB && ToyBlobs::is_lacking(value.size()); }

// Maybe a damaged one.
std::string random_value(std::mt19937_64& random) {
    std::string value(random_size(random), (char)('a' + random() % 26));
    if (value.size() >= ToyEngine::LENT_BYTES_MIN && random() % 8 == 0) value[random() % value.size()] = ToyBlobs::DAMAGED;
    return value;
}

bool is_damaged(const std::string& value) { return value.find(ToyBlobs::DAMAGED) != std::string::npos; }

// One client of RESP with long values; some of its connections end in the middle of one.
void be_large_client(int port, u64 number, SSL_CTX* tls) {
    const std::string damaged = "-ERR the record fails its checksum, so no value is returned: run gpkvs check" + ANY_ID + "\r\n";
    const std::string no_room = std::string("-OOM ") + RunningDoor::NO_ROOM_TEXT + ANY_ID + "\r\n";
    std::mt19937_64 random(seed + 100 + number);
    std::map<std::string, std::string> mine;
    const auto key_of = [&](u64 key) { return "large" + std::to_string(number) + ":" + std::to_string(key); };
    const auto told = [&](const std::string& key) {
        if (!mine.count(key)) return std::string("$-1\r\n");
        return is_damaged(mine[key]) ? damaged : bulk(mine[key]);
    };
    std::string sent, expected;  // which keep their memory: much of it is slow to get under sanitizers
    for (int life = 0; life < 2; life++) {
        Client client(port, tls);
        for (int round = 0; round < 3; round++) {
            sent.clear(), expected.clear();
            for (u64 count = 1 + random() % 3; count; count--) {  // its answers must not be more than it may leave unread
                const std::string key = key_of(random() % 3), value = random_value(random);
                const u64 what = random() % 6;
                if (what == 0) {
                    sent += command({"MGET", key_of(0), key_of(1), key_of(2)});
                    std::string found = "*3\r\n";
                    bool is_whole = true;
                    for (u64 at = 0; at < 3; at++) {
                        const std::string text = told(key_of(at));
                        is_whole = is_whole && text != damaged;
                        found += text;
                    }
                    expected += is_whole ? found : damaged;
                } else if (what == 1) {
                    sent += command({"GETRANGE", key, "5", "-70000"});
                    const std::string whole = mine.count(key) ? mine[key] : "";
                    const std::string part = whole.size() > 70004 ? whole.substr(5, whole.size() - 70004) : "";
                    expected += is_damaged(whole) ? damaged : bulk(part);
                } else if (what == 2) {
                    sent += command({"GET", key});
                    expected += told(key);
                } else {
                    const bool asks = what == 3;
                    sent += asks ? command({"SET", key, value, "GET"}) : command({"SET", key, value});
                    expected += is_refused(value) ? no_room : asks ? told(key) : "+OK\r\n";
                    if (!is_refused(value)) mine[key] = value;
                }
            }
            for (u64 at = 0, part; at < sent.size(); at += part) {
                part = 1 + random() % (random() % 4 ? 700000 : 100);
                part = std::min<u64>(part, sent.size() - at);
                client.send(sent.data() + at, part);
            }
            if (random() % 8 == 0) usleep(20000);  // a slow reader
            client.expect(expected);
        }
        // And goes in the middle of a value that comes, or that it gets.
        const std::string key = key_of(0), value(MIB, 'z');
        if (life % 2) {
            client.send(command({"SET", key, value}).substr(0, random() % MIB));
        } else {
            client.send(command({"SET", key, value}) + command({"GET", key}));
            client.expect("+OK\r\n$1048576\r\n" + std::string(random() % MIB, 'z'));
            mine[key] = value;
        }
    }
}

// The same with gRPC. Calls end in the middle, too.
void be_grpc_client(int port, u64 number, SSL_CTX* tls) {
    std::mt19937_64 random(seed + 200 + number);
    std::map<std::string, std::string> mine;
    for (int life = 0; life < 2; life++) {
        GrpcClient client(port, tls);
        const auto call = [&](const std::string& path, const std::string& messages) {
            client.frame_bytes = 1 + random() % 16384;
            const Answer answer = client.call("/gpkvs.v1.KV/" + path, messages);
            REQUIRE(!client.is_lost());
            return answer;
        };
        for (int round = 0; round < 2; round++) {
            const std::string key = "grpc" + std::to_string(number) + ":" + std::to_string(random() % 3);
            const std::string value = random_value(random), old = mine.count(key) ? mine[key] : "";
            if (is_refused(value)) {
                const Answer answer = call("Set", set(key, value));
                REQUIRE(answer.status == "8" && answer.text == RunningDoor::NO_ROOM_TEXT && answer.is_not_executed);
            } else {
                REQUIRE(call("Set", set(key, value)).messages == framed(""));
                mine[key] = value;
            }
            // Of a damaged value Python would say more.
            if (mine.count(key) && !is_damaged(mine[key])) {
                REQUIRE(call("Get", get(key)).messages == found(mine[key]));
                REQUIRE(call("Batch", GrpcBatch().get(key).set(key, "small").get(key).message(1)).messages ==
                        batch_response(1, 3, {mine[key], "small"}));
                mine[key] = "small";
            }
            const std::string one(MIB + random() % 2, '1'), two(MIB, '2');
            const std::string messages = GrpcBatch().set(key, one).message(1) +
                                         GrpcBatch().get(key).set(key, two).message(2) + GrpcBatch().get(key).message(3);
            const Answer stream = call("Pipeline", messages);
            REQUIRE(stream.messages == batch_response(1, 1, {}) + batch_response(2, 2, {one}) + batch_response(3, 1, {two}));
            mine[key] = two;
            const u64 kept = 1 + random() % MIB;
            const i32 half = client.begin("/gpkvs.v1.KV/Set", set(key, std::string(MIB, 'h')), kept);
            if (round && random() % 2) break;  // the connection ends with it
            client.cancel(half);
            const i32 reading = client.begin("/gpkvs.v1.KV/Get", get(key));
            client.receive();
            client.cancel(reading);
        }
    }
}

void run_clients(const Files* files) {
    RunningDoor running(config_of(3, 50), 200);  // batches that end before the queue does
    const auto renew = [&] {
        char error[256];
        REQUIRE(!files || gpkvs_door_set_tls(running.door, files->chain.data(), files->chain.size(), files->key.data(),
                                             files->key.size(), nullptr, 0, Patience::SECOND_NS * 60, error,
                                             sizeof error) == 0);
    };
    renew();
    SSL_CTX* const tls = files ? new_client_context(*files) : nullptr;
    std::vector<std::thread> clients;
    SSL_CTX* const http2 = files ? new_client_context(*files) : nullptr;
    if (http2) SSL_CTX_set_alpn_protos(http2, (const u8*)"\2h2", 3);
    for (u64 number = 0; number < 6; number++) clients.emplace_back(be_client, running.port, number, tls);
    for (u64 number = 0; number < 2; number++) clients.emplace_back(be_large_client, running.port, number, tls);
    for (u64 number = 0; number < 2; number++) clients.emplace_back(be_grpc_client, running.grpc_port, number, http2);
    for (int i = 0; i < 100; i++) {
        renew();
        const DoorTable tables[] = {{"default", 0, 0, "bytes", 1, 1024, 0, 4 * MIB, 65536, 16 * MIB},
                                    {"other", 4, 0, "bytes", 1, 1, 0, 1, 1, 1}};
        gpkvs_door_set_tables(running.door, tables, 1 + i % 2);
        gpkvs_door_interrupt(running.door);
        gpkvs_door_held(running.door, REQUESTS);
        usleep(1000);
    }
    for (std::thread& client : clients) client.join();
    while (gpkvs_door_connections(running.door)) usleep(1000);
    REQUIRE(gpkvs_door_held(running.door, REQUESTS) == 0 && gpkvs_door_held(running.door, ANSWERS) == 0);
    REQUIRE(running.blobs().is_idle() && running.blobs().ever_lent() && running.blobs().ever_reserved());
    Client late(running.port, tls);  // is cut off by the end
    late.send(command({"GET", "x"}));
    SSL_CTX_free(http2);
    SSL_CTX_free(tls);
}

// The certificate is renewed all the while.
void run_tls_clients() {
    const Files files = new_files();
    run_clients(&files);
}

// Doors stop while clients come, some of them with a large value: the toy engine gets back what it lent and reserved.
void stop_doors() {
    std::mt19937_64 random(seed);
    const std::string text = command({"SET", "k", std::string(MIB, 'v')}) + command({"GET", "k"}) + command({"MGET", "k", "k"});
    for (int life = 0; life < 100; life++) {
        std::atomic<bool> is_over{false};
        std::thread clients;
        {
            RunningDoor running(config_of(2), 0);
            const bool are_large = life % 4 == 0;
            clients = std::thread([&, are_large, port = running.port, most = random()] {
                for (u64 bytes = most; !is_over; bytes += 700001) {
                    const int file = socket(AF_INET, SOCK_STREAM, 0);
                    const sockaddr_in address = loopback(port);
                    const bool is_there = connect(file, (const sockaddr*)&address, sizeof address) == 0;  // the door has not stopped
                    if (is_there && are_large) {
                        const u64 size = bytes % 2 ? text.size() : bytes % text.size();
                        char got[4096];
                        send(file, text.data(), size, MSG_NOSIGNAL);
                        if (size == text.size()) (void)!read(file, got, sizeof got);
                    }
                    close(file);
                }
            });
            usleep((useconds_t)(random() % (are_large ? 20000 : 2000)));
        }
        is_over = true;
        clients.join();
    }
}

// A copy that ends where it ends, so that a read behind it is seen.
struct Exact {
    explicit Exact(const std::string& text) : data((u8*)malloc(text.size())), size(text.size()) {
        memcpy(data, text.data(), size);
    }
    ~Exact() { free(data); }
    u8* const data;
    const u64 size;
};

std::string seen(const RespParser& parser, RespParser::Found found) {
    std::string text = std::to_string((int)found) + parser.error;
    if (found == RespParser::Found::COMMAND)
        for (const Word& word : parser.words) text += "[" + std::string((const char*)word.data, word.size) + "]";
    return text;
}

// All that a parser finds in a text that comes in pieces: up to `cut`, then byte by byte, or at once.
std::vector<std::string> parse_all(const std::string& text, u64 first, u64 step) {
    RespParser parser(MIB);
    std::vector<std::string> found;
    u64 taken = 0;
    for (u64 end = first;; end = std::min(end + step, text.size())) {
        while (end > taken) {
            const Exact piece(text.substr(taken, end - taken));
            const RespParser::Found what = parser.parse(piece.data, piece.size);
            if (what == RespParser::Found::MORE_NEEDED) break;
            found.push_back(seen(parser, what));
            if (what == RespParser::Found::ERROR) return found;
            REQUIRE(parser.taken && parser.taken <= piece.size);
            taken += parser.taken;
        }
        if (end == text.size()) return found;
    }
}

void fuzz_parser() {
    std::mt19937_64 random(seed);
    const std::string pieces[] = {"*", "$", "\r\n", "\n", "1", "2", "3", "10", "-1", "0", "GET", "a", "'", "\"", "\\x41", " ",
                                  std::string(1, 0), "\\", command({"GET", "a"}), command({"SET", "a", "b\r\n"}), "\xff"};
    for (int round = 0; round < 20000; round++) {
        std::string text;
        for (u64 count = random() % 12; count; count--)
            text += random() % 8 ? pieces[random() % (sizeof pieces / sizeof *pieces)] : std::string(1, (char)random());
        const std::vector<std::string> whole = parse_all(text, text.size(), 1);
        REQUIRE(parse_all(text, std::min<u64>(text.size(), random() % 20), 1 + random() % 5) == whole);
    }
}

// Takes nothing and says nothing.
class Quiet : public Connection {
  public:
    explicit Quiet(Thread& thread) : Connection(thread, std::make_unique<PlainTransport>(-1), {}) {}
    bool received(const u8*, u64) override { return true; }
    void answered(Request*) override {}
    void describe(const Request&, DoorSlowCall&) override {}
    bool fill(Output&) override { return true; }
    void tick(u64) override {}
    void drain() override {}
    void closed() override {}
    bool has_asked() const override { return false; }
    void end_patience(const std::string&) override {}
    void take_leave(const std::string&, Output&) override {}
};

void test_queue() {
    const DoorConfig config = config_of(1);
    Door* const door = gpkvs_door_new(&config);
    {
        Quiet a(*door->threads[0]), b(*door->threads[0]);
        std::vector<std::unique_ptr<Request>> requests;
        Queue queue(1000);
        const auto append = [&](Connection& connection, u32 table, u64 n) {
            requests.push_back(std::make_unique<Request>());
            Request& request = *requests.back();
            request.connection = &connection;
            request.table_id = table;
            request.n = n;
            REQUIRE(queue.reserve());
            queue.append(&request, &request);
        };
        // The requests that a batch on a table takes, by their place in `requests`.
        const auto take = [&](u32 table, u64 most) {
            queue.take_in();
            std::string taken;
            queue.offer([&](Request* request) {
                if (request->table_id != table) return Verdict::PASSED_BY;
                if (!most--) return Verdict::END;
                for (u64 i = 0; i < requests.size(); i++)
                    if (requests[i].get() == request) taken += (taken.empty() ? "" : " ") + std::to_string(i);
                return Verdict::TAKEN;
            });
            return taken;
        };
        // A request of another table keeps its place, and those of its connection behind it; other connections go on.
        append(a, 1, 1), append(a, 2, 1), append(a, 1, 1), append(b, 1, 1), append(b, 1, 1);
        REQUIRE(take(1, 10) == "0 3 4");
        REQUIRE(queue.requests() == 2 && queue.operations() == 2);
        queue.put_back(requests[4].get());
        queue.put_back(requests[3].get());
        REQUIRE(take(1, 1) == "3");  // b has had its turn
        REQUIRE(take(2, 10) == "1");
        REQUIRE(take(1, 10) == "4 2");
        REQUIRE(queue.is_empty() && queue.requests() == 0);
        // Two connections take turns of 64 requests.
        requests.clear();
        for (int i = 0; i < 70; i++) append(a, 1, 1);
        append(b, 1, 1);
        const std::string taken = take(1, 100);
        REQUIRE(taken.find(" 63 70 64") != std::string::npos);
    }
    gpkvs_door_delete(door);
}

void serve() {
    RunningDoor running(config_of(1), 0, 7172);
    printf("%d\n", running.port);
    fflush(stdout);
    pause();
}

}  // namespace

int main(int count, char** words) {
    const std::string what = count > 1 ? words[1] : "";
    seed = count > 2 ? strtoull(words[2], nullptr, 10) : std::random_device()();
    printf("seed %llu\n", seed);
    if (what == "clients") run_clients(nullptr);
    else if (what == "tls") run_tls_clients();
    else if (what == "stops") stop_doors();
    else if (what == "parser") fuzz_parser();
    else if (what == "queue") test_queue();
    else if (what == "serve") serve();
    else return 2;
    return 0;
}
