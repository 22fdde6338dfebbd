// Throws broken HTTP/2 at a door: fuzz_http2 SECONDS SEED. Half of the doors serve KV, with an engine that finds nothing or
// fails. Half have too little memory: now and then they get none. Built with sanitizers, which end it; it ends itself if the
// account of an idle door is not empty.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../../../door/door.hpp"
#include "../../../door/grpc/http2.hpp"

using namespace door;

namespace {

using Dice = std::mt19937_64;

// Of a thread whose allocations fail, one in so many; 0: of any other.
thread_local u64 fails_every = 0;
thread_local Dice failures;

bool fails() { return fails_every && failures() % fails_every == 0; }

}  // namespace

extern "C" {
void* __real_malloc(size_t size);
void* __wrap_malloc(size_t size) { return fails() ? nullptr : __real_malloc(size); }
}

void* operator new(size_t size) {
    void* const made = fails() ? nullptr : __real_malloc(size + !size);
    if (!made) throw std::bad_alloc();
    return made;
}
void* operator new(size_t size, const std::nothrow_t&) noexcept { return fails() ? nullptr : __real_malloc(size + !size); }
void operator delete(void* bytes) noexcept { free(bytes); }
void operator delete(void* bytes, size_t) noexcept { free(bytes); }

namespace {

u64 below(Dice& dice, u64 limit) { return dice() % limit; }

std::string random_bytes(Dice& dice, u64 size) {
    std::string out(size, 0);
    for (char& byte : out) byte = (char)dice();
    return out;
}

std::string number(u64 value, int bytes) {
    std::string out;
    while (bytes--) out += (char)(value >> 8 * bytes);
    return out;
}

std::string frame(u64 kind, u64 flags, u64 stream, const std::string& payload) {
    return number(payload.size(), 3) + number(kind, 1) + number(flags, 1) + number(stream, 4) + payload;
}

std::string header(const std::string& name, const std::string& value) {
    return std::string(1, 0) + (char)name.size() + name + (char)value.size() + value;
}

// A field of protobuf that holds bytes.
std::string field(int tag, const std::string& bytes) {
    return std::string(1, (char)(tag << 3 | 2)) + (char)bytes.size() + bytes;
}

std::string framed(const std::string& data) { return number(0, 1) + number(data.size(), 4) + data; }

// One that a native KV takes: a GET or a SET by its only key, or a batch of both.
std::string plain_message(Dice& dice, const std::string& path) {
    const std::string key(1 + below(dice, 60), 'k'), value(below(dice, 60), 'v');
    if (path == "/gpkvs.v1.KV/Get") return framed(field(2, key));
    if (path == "/gpkvs.v1.KV/Set") return framed(field(2, key) + field(3, value));
    return framed(field(2, "\1\2") + field(3, key + key) + "\x2d" + (char)key.size() + std::string(3, 0) + field(6, value) +
                  "\x45" + (char)value.size() + std::string(3, 0));
}

std::string message(Dice& dice, const std::string& path) {
    if (path.size() > 15 && below(dice, 3)) return plain_message(dice, path);
    const u64 size = below(dice, 2) ? below(dice, 50) : below(dice, 40000);
    const u64 told = below(dice, 8) ? size : dice() & 0xFFFFFFFF;
    return number(below(dice, 50) == 0, 1) + number(told, 4) + std::string(size, 'm');
}

std::string call(Dice& dice, u64 stream) {
    static const char* PATHS[] = {"/echo/Unary", "/", "/gpkvs.v1.KV/Get", "/gpkvs.v1.KV/Set", "/gpkvs.v1.KV/Batch",
                                  "/gpkvs.v1.KV/Pipeline"};
    const std::string path = PATHS[below(dice, 6)];
    std::string block = header(":method", below(dice, 20) ? "POST" : "GET") + header(":scheme", "http") +
                        header(":path", path) + header(":authority", "a");
    if (below(dice, 20)) block += header("content-type", "application/grpc");
    if (below(dice, 4) == 0) block += header("grpc-timeout", std::to_string(below(dice, 100)) + "munSM"[below(dice, 5)]);
    if (below(dice, 30) == 0) block += header("x", std::string(120, 'x'));
    std::string out;
    if (below(dice, 5)) {
        out = frame(1, 4 | (below(dice, 10) == 0), stream, block);
    } else {
        const u64 cut = below(dice, block.size());
        out = frame(1, 0, stream, block.substr(0, cut)) + frame(9, 4, stream, block.substr(cut));
    }
    const u64 messages = below(dice, 4);
    for (u64 i = 0; i < messages; i++) {
        const std::string data = message(dice, path);
        for (u64 at = 0; at < data.size();) {
            const u64 part = std::min<u64>(data.size() - at, 1 + below(dice, 16384));
            out += frame(0, 0, stream, data.substr(at, part));
            at += part;
        }
    }
    if (below(dice, 3)) out += frame(0, 1, stream, "");
    if (below(dice, 6) == 0) out += frame(3, 0, stream, number(below(dice, 14), 4));
    return out;
}

std::string odd_frame(Dice& dice) {
    switch (below(dice, 6)) {
        case 0: return frame(4, below(dice, 2), 0, number(below(dice, 10), 2) + number(below(dice, 3) ? dice() : 0, 4));
        case 1: return frame(6, below(dice, 2), 0, random_bytes(dice, 8));
        case 2: return frame(8, 0, below(dice, 12), number(dice() >> below(dice, 64), 4));
        case 3: return frame(2, 0, below(dice, 12), number(below(dice, 12), 4) + "p");
        case 4: return frame(7, 0, 0, number(0, 4) + number(0, 4));
        default: return frame(below(dice, 14), dice(), below(dice, 12), random_bytes(dice, below(dice, 40)));
    }
}

std::string conversation(Dice& dice) {
    std::string out = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    if (below(dice, 30) == 0) return out + random_bytes(dice, below(dice, 1000));
    out += frame(4, 0, 0, below(dice, 3) ? "" : number(4, 2) + number(below(dice, 70000), 4));
    const u64 calls = below(dice, 8);
    for (u64 i = 0; i < calls; i++) {
        out += call(dice, 2 * i + 1);
        if (below(dice, 4) == 0) out += odd_frame(dice);
    }
    u64 changes = below(dice, 2) ? 0 : below(dice, 6);
    while (changes-- && !out.empty()) {
        const u64 at = below(dice, out.size());
        switch (below(dice, 4)) {
            case 0: out[at] = (char)dice(); break;
            case 1: out.erase(at, below(dice, 20)); break;
            case 2: out.insert(at, random_bytes(dice, below(dice, 20))); break;
            default: out.insert(at, out.substr(below(dice, out.size()), below(dice, 200)));
        }
    }
    return out;
}

// As a handler of Python's does, which may think better of it.
void make_requests(Door* door, u64 connection, Dice& dice) {
    static u64 ticket = 0;
    static const u8 GET_K[] = {0x12, 1, op::GET, 0x1a, 1, 'k', 0x2d, 1, 0, 0, 0};
    for (u64 left = 1 + below(dice, 3); left; left--) {
        const u64 bytes = below(dice, 8) ? sizeof GET_K : below(dice, sizeof GET_K);
        gpkvs_door_submit(door, connection, ++ticket, (u32)below(dice, 3), below(dice, 4) ? NEVER : now_ns(), GET_K, bytes);
        if (below(dice, 3) == 0) gpkvs_door_withdraw(door, connection, ticket);
    }
}

void answer(Door* door, const DoorEvent& event, Dice& dice) {
    static const std::string response(100000, 'r');
    if (event.kind == EVENT_OVER || event.kind == EVENT_ANSWER) return;
    if (event.kind == EVENT_OPEN && below(dice, 4) == 0) make_requests(door, event.connection, dice);
    if (event.kind == EVENT_LOGIN && below(dice, 4)) {
        const u32 table = 1;
        const u8 rights = (u8)below(dice, 4);
        gpkvs_door_set_rights(door, 1, &table, &rights, 1);
        gpkvs_door_logged_in(door, event.id, 1, below(dice, 4) ? NEVER : 0, NEVER);
        if (below(dice, 8) == 0) gpkvs_door_end_caller(door, 1);
        gpkvs_door_finish(door, event.id, 0, "", "");
        return;
    }
    // One response for each message, as Python's streams do.
    switch (below(dice, event.kind == EVENT_MESSAGE ? 5 : 2)) {
        case 0: gpkvs_door_finish(door, event.id, (int)below(dice, 18), "text %\n", "name: value\nodd\n: \n"); break;
        case 2:
        case 3:
            gpkvs_door_respond(door, event.id, (const u8*)response.data(), below(dice, 3) ? below(dice, 100) : response.size());
            [[fallthrough]];
        default: gpkvs_door_ask(door, event.id);
    }
}

void take_events(Door* door, Dice& dice) {
    DoorEvent events[64];
    for (u64 count; (count = gpkvs_door_events(door, events, 64));)
        for (u64 i = 0; i < count; i++) answer(door, events[i], dice);
}

void converse(Door* door, Dice& dice) {
    int files[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, files)) abort();
    Thread& thread = *door->threads.front();
    const u64 id = Forward::id_of(door->next_connection_id++, thread.number);
    if (!door->places.enter(id, DOOR_GRPC, 0, now_ns(), 0, [](u64) {})) abort();
    thread.expect_connection();
    Transport* const transport = new PlainTransport(files[1]);
    thread.post([&thread, transport, id] {
        try {
            thread.add(std::make_unique<Http2>(thread, std::unique_ptr<Transport>(transport),
                                               Arrival{id, DOOR_GRPC, "ipv4:1.2.3.4:5"}));
        } catch (const std::bad_alloc&) {  // no room for another connection
            thread.forget_expected();
            thread.door.places.leave(id, DOOR_GRPC, true);
        }
    });
    const std::string all = conversation(dice);
    char received[65536];
    bool is_over = false;
    for (u64 at = 0; at < all.size() && !is_over;) {
        const u64 part = std::min<u64>(all.size() - at, 1 + (below(dice, 3) ? below(dice, 50000) : below(dice, 30)));
        const long sent = send(files[0], all.data() + at, part, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) break;
        if (sent > 0) at += (u64)sent;
        take_events(door, dice);
        if (below(dice, 2)) is_over = recv(files[0], received, sizeof received, 0) == 0;
    }
    if (below(dice, 2)) {
        if (below(dice, 20) == 0) gpkvs_door_drain(door);
        pollfd waiting = {files[0], POLLIN, 0};
        for (int i = 0; i < 3 && poll(&waiting, 1, 1) > 0 && recv(files[0], received, sizeof received, 0) > 0; i++)
            take_events(door, dice);
    }
    close(files[0]);
}

// Runs batches until the door stops.
void run_engine(Door* door, u64 seed) {
    Dice dice(seed);
    for (;;) {
        const int turn = gpkvs_door_turn(door, 1000 * 1000 * 1000);
        if (turn == TURN_STOPPED) return;
        if (turn != TURN_LEFT) continue;
        const DoorRefusal refusal = {8, "heap full", "heap", true};
        const EngineBatch* batch = gpkvs_door_left(door);
        if (below(dice, 5) == 0) {
            gpkvs_door_left_failed(door, &refusal);
            continue;
        }
        const std::vector<u8> status(batch->n, 1);
        const std::vector<u64> versions(batch->n, 7);
        const std::vector<u32> lengths(batch->n, 0);
        gpkvs_door_left_done(door, batch->requests, status.data(), versions.data(), lengths.data(), status.data(), 0);
    }
}

void require_idle(Door* door, Dice& dice) {
    for (int i = 0; i < 5000; i++) {
        take_events(door, dice);
        if (!gpkvs_door_connections(door) && !door->account.clients_bytes()) return;
        poll(nullptr, 0, 1);
    }
    fprintf(stderr, "an idle door holds %lu bytes, %lu connections\n", (unsigned long)door->account.clients_bytes(),
            (unsigned long)gpkvs_door_connections(door));
    abort();
}

}  // namespace

int main(int, char** arguments) {
    const double seconds = atof(arguments[1]);
    const u64 seed = strtoull(arguments[2], nullptr, 10);
    printf("seed %lu\n", (unsigned long)seed);
    fflush(stdout);
    Dice dice(seed);
    DoorConfig config = {};
    config.threads = 1;
    config.connections_max = 100;
    config.message_bytes_max = 1 << 20;
    config.stream_bytes_max = 1 << 20;
    config.message_requests_max = 16;
    config.stream_requests_max = 16;
    config.queue_requests_max = 100;
    config.batch_ops_max = 1000;
    config.batch_bytes_max = 1 << 20;
    config.batch_result_bytes_max = 1 << 20;
    config.engine_bytes = 1 << 20;
    config.receive_seconds_max = 30;
    config.slow_calls_max = 16;  // every call is slow
    const u64 end_ns = now_ns() + (u64)(1e9 * seconds);
    u64 conversations = 0;
    while (now_ns() < end_ns) {
        config.clients_bytes_max = below(dice, 4) ? 64 << 20 : 100000 + below(dice, 2 << 20);
        Door* door = gpkvs_door_new(&config);
        const DoorTable table = {"default", 1, 0, "bytes", 1, 60, 0, 50, 1000, 1 << 20};
        gpkvs_door_set_tables(door, &table, 1);
        if (below(dice, 2)) gpkvs_door_ask_for_logins(door);
        if (below(dice, 2)) gpkvs_door_open(door);
        if (below(dice, 2))
            door->threads.front()->post([every = 50 + below(dice, 2000), seed = dice()] {
                failures.seed(seed);
                fails_every = every;
            });
        std::thread engine(run_engine, door, dice());
        for (int i = 0; i < 200 && now_ns() < end_ns; i++, conversations++) converse(door, dice);
        require_idle(door, dice);
        gpkvs_door_stop(door);
        engine.join();
        gpkvs_door_delete(door);
    }
    printf("%lu conversations\n", (unsigned long)conversations);
}
