// Large values on connections that speak the Redis protocol: each connection is a thread, which sends one SET or GET and
// waits for the whole reply before it sends the next. It prints a line of numbers: commands, seconds, then the 50th and
// 99th percentile of the milliseconds of one. A run ends after a number of commands, or after some seconds.
//
//   load PORT SET|GET CONNECTIONS SECONDS KEYS VALUE_BYTES SEED

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t OFFSETS = 4096;  // values are parts of the same random bytes that begin at different ones

double seconds_since(Clock::time_point then) { return std::chrono::duration<double>(Clock::now() - then).count(); }

struct Work {
    bool sets;
    double seconds;
    size_t value_bytes;
    std::vector<unsigned> keys;  // in their order
    std::string random_bytes;
    std::atomic<size_t> next{0};
    Clock::time_point began{};
};

class Connection {
  public:
    explicit Connection(int port) : file_(socket(AF_INET, SOCK_STREAM, 0)) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(static_cast<uint16_t>(port));
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        if (connect(file_, reinterpret_cast<sockaddr*>(&address), sizeof address))
            throw std::runtime_error("cannot connect");
        int on = 1;
        setsockopt(file_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    ~Connection() { close(file_); }
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    void send(std::vector<iovec> parts) {
        for (size_t first = 0; first < parts.size();) {
            ssize_t sent = writev(file_, &parts[first], static_cast<int>(parts.size() - first));
            if (sent < 0) throw std::runtime_error("a command was not sent whole");
            auto left = static_cast<size_t>(sent);
            while (first < parts.size() && left >= parts[first].iov_len) left -= parts[first++].iov_len;
            if (first == parts.size()) break;
            parts[first].iov_base = static_cast<char*>(parts[first].iov_base) + left;
            parts[first].iov_len -= left;
        }
    }

    // Receives so many bytes, of which the first must be these.
    void receive(std::string& buffer, size_t bytes, const std::string& head) {
        for (size_t received = 0; received < bytes;) {
            const ssize_t got = read(file_, &buffer[received], bytes - received);
            if (got <= 0) throw std::runtime_error("the server closed a connection");
            received += static_cast<size_t>(got);
            const size_t seen = std::min(received, head.size());
            if (buffer.compare(0, seen, head, 0, seen))
                throw std::runtime_error("a command was answered by: " + buffer.substr(0, std::min<size_t>(received, 80)));
        }
    }

  private:
    const int file_;
};

iovec part(const std::string& text) { return {const_cast<char*>(text.data()), text.size()}; }

std::string length_of(const Work& work) { return "$" + std::to_string(work.value_bytes) + "\r\n"; }

struct Caller {
    Connection connection;
    std::string buffer;
    std::vector<double> took_ms;

    // The server has taken the connection, and the buffer's pages are there, before the clock starts.
    Caller(int port, const Work& work) : connection(port), buffer(length_of(work).size() + work.value_bytes + 2, 0) {
        const std::string ping = "PING\r\n", pong = "+PONG\r\n";
        connection.send({part(ping)});
        connection.receive(buffer, pong.size(), pong);
    }
};

// Sends commands on one connection until there are none left, or the time is over; keeps the milliseconds of each.
void call(Caller& caller, Work& work) {
    const std::string length = length_of(work), end = "\r\n", ok = "+OK\r\n";
    for (size_t at; (at = work.next++) < work.keys.size();) {
        char key[32];
        snprintf(key, sizeof key, "value:%010u", work.keys[at]);
        const Clock::time_point sent = Clock::now();
        if (work.sets) {
            const std::string head = std::string("*3\r\n$3\r\nSET\r\n$16\r\n") + key + "\r\n" + length;
            const size_t offset = work.keys[at] * 61 % OFFSETS;
            caller.connection.send({part(head), {&work.random_bytes[offset], work.value_bytes}, part(end)});
            caller.connection.receive(caller.buffer, ok.size(), ok);
        } else {
            const std::string head = std::string("*2\r\n$3\r\nGET\r\n$16\r\n") + key + "\r\n";
            caller.connection.send({part(head)});
            caller.connection.receive(caller.buffer, caller.buffer.size(), length);
        }
        caller.took_ms.push_back(1e3 * seconds_since(sent));
        if (seconds_since(work.began) >= work.seconds) break;
    }
}

void run(int port, int connections, Work& work) {
    std::deque<Caller> callers;
    for (int i = 0; i < connections; i++) callers.emplace_back(port, work);
    std::vector<std::exception_ptr> failures(callers.size());
    std::vector<std::thread> threads;
    work.began = Clock::now();
    for (size_t i = 0; i < callers.size(); i++)
        threads.emplace_back([&, i] {
            try {
                call(callers[i], work);
            } catch (...) {
                failures[i] = std::current_exception();
            }
        });
    for (std::thread& thread : threads) thread.join();
    const double elapsed = seconds_since(work.began);
    for (const std::exception_ptr& failure : failures)
        if (failure) std::rethrow_exception(failure);
    std::vector<double> all;
    for (const Caller& one : callers) all.insert(all.end(), one.took_ms.begin(), one.took_ms.end());
    std::sort(all.begin(), all.end());
    auto percentile = [&](double share) { return all[static_cast<size_t>(share * static_cast<double>(all.size() - 1))]; };
    printf("%zu %.6f %.4f %.4f\n", all.size(), elapsed, percentile(0.5), percentile(0.99));
}

}  // namespace

int main(int, char** words) try {
    Work work;
    work.sets = std::string(words[2]) == "SET";
    work.seconds = atof(words[4]);
    work.value_bytes = strtoul(words[6], nullptr, 10);
    std::mt19937_64 random(strtoul(words[7], nullptr, 10));
    work.keys.resize(strtoul(words[5], nullptr, 10));
    std::iota(work.keys.begin(), work.keys.end(), 0u);
    std::shuffle(work.keys.begin(), work.keys.end(), random);
    work.random_bytes.resize(work.value_bytes + OFFSETS);
    for (char& byte : work.random_bytes) byte = static_cast<char>(random());
    run(atoi(words[1]), atoi(words[3]), work);
} catch (const std::exception& error) {
    fprintf(stderr, "%s\n", error.what());
    return 1;
}
