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
#include "../../../door/resp_parser.hpp"
#include "toy_certificate.hpp"
#include "toy_engine.hpp"

using namespace door;

namespace {

#define REQUIRE(condition)                                                                        \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: not so: %s (seed %llu)\n", __FILE__, __LINE__, #condition, seed); \
            abort();                                                                              \
        }                                                                                         \
    } while (0)

unsigned long long seed;

// A door whose turns run in a thread of their own.
class RunningDoor {
  public:
    RunningDoor(const DoorConfig& config, u64 flush_us, u16 port = 0) : toy_(flush_us), engine_(toy_.engine()) {
        door = gpkvs_door_new(&config);
        const DoorTable table = {"default", 0, 0, 1024, 4 * MIB, 65536, 16 * MIB};
        gpkvs_door_set_tables(door, &table, 1);
        gpkvs_door_open(door);
        turns_ = std::thread([this] {
            gpkvs_door_set_engine(door, &engine_);
            while (gpkvs_door_turn(door, 1000000) != TURN_STOPPED) continue;
        });
        this->port = gpkvs_door_listen(door, "127.0.0.1", port, DOOR_RESP);
        REQUIRE(this->port > 0);
    }

    ~RunningDoor() {
        gpkvs_door_drain(door);
        gpkvs_door_stop(door);
        turns_.join();
        gpkvs_door_delete(door);
    }

    Door* door;
    int port;

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

    void send(const std::string& text) {
        const long size = (long)text.size();
        if (size) REQUIRE((ssl_ ? SSL_write(ssl_, text.data(), (int)size) : write(file_, text.data(), text.size())) == size);
    }

    void expect(const std::string& text) {
        std::string found(text.size(), 0);
        for (u64 at = 0; at < found.size();) {
            const u64 left = found.size() - at;
            const long bytes = ssl_ ? SSL_read(ssl_, &found[at], (int)left) : read(file_, &found[at], left);
            REQUIRE(bytes > 0);
            at += (u64)bytes;
        }
        REQUIRE(found == text);
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
    for (u64 number = 0; number < 6; number++) clients.emplace_back(be_client, running.port, number, tls);
    for (int i = 0; i < 100; i++) {
        renew();
        const DoorTable tables[] = {{"default", 0, 0, 1024, 4 * MIB, 65536, 16 * MIB}, {"other", 4, 0, 1, 1, 1, 1}};
        gpkvs_door_set_tables(running.door, tables, 1 + i % 2);
        gpkvs_door_interrupt(running.door);
        gpkvs_door_held(running.door, REQUESTS);
        usleep(1000);
    }
    for (std::thread& client : clients) client.join();
    while (gpkvs_door_connections(running.door)) usleep(1000);
    REQUIRE(gpkvs_door_held(running.door, REQUESTS) == 0 && gpkvs_door_held(running.door, ANSWERS) == 0);
    Client late(running.port, tls);  // is cut off by the end
    late.send(command({"GET", "x"}));
    SSL_CTX_free(tls);
}

// The certificate is renewed all the while.
void run_tls_clients() {
    const Files files = new_files();
    run_clients(&files);
}

// Doors stop while clients come.
void stop_doors() {
    std::mt19937_64 random(seed);
    for (int life = 0; life < 100; life++) {
        std::atomic<bool> is_over{false};
        std::thread clients;
        {
            RunningDoor running(config_of(2), 0);
            clients = std::thread([&, port = running.port] {
                while (!is_over) {
                    const int file = socket(AF_INET, SOCK_STREAM, 0);
                    const sockaddr_in address = loopback(port);
                    connect(file, (const sockaddr*)&address, sizeof address);  // refused when the door has stopped
                    close(file);
                }
            });
            usleep((useconds_t)(random() % 2000));
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
