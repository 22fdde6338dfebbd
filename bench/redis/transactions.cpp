// Transactions on connections that speak the Redis protocol: MULTI, SETs, EXEC. Each connection sends one in one piece
// as soon as it has the replies to the one before. One thread; it prints a line of numbers: transactions, seconds, then
// the 50th, 95th and 99th percentile of the milliseconds of one.
//
//   transactions PORT CONNECTIONS SECONDS RECORDS SETS VALUE_BYTES

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point then) { return std::chrono::duration<double>(Clock::now() - then).count(); }

std::string expected_reply(int sets) {
    std::string text = "+OK\r\n";
    for (int i = 0; i < sets; i++) text += "+QUEUED\r\n";
    text += "*" + std::to_string(sets) + "\r\n";
    for (int i = 0; i < sets; i++) text += "+OK\r\n";
    return text;
}

class Requests {
  public:
    Requests(unsigned long records, int sets, size_t value_bytes) : numbers_(0, records - 1), sets_(sets) {
        tail_ = "\r\n$" + std::to_string(value_bytes) + "\r\n" + std::string(value_bytes, 'x') + "\r\n";
    }

    std::string next() {
        std::string text = "*1\r\n$5\r\nMULTI\r\n";
        for (int i = 0; i < sets_; i++) {
            char key[32];
            snprintf(key, sizeof key, "key:%012lu", numbers_(random_));
            text += std::string("*3\r\n$3\r\nSET\r\n$16\r\n") + key + tail_;
        }
        return text + "*1\r\n$4\r\nEXEC\r\n";
    }

  private:
    std::mt19937_64 random_{1};
    std::uniform_int_distribution<unsigned long> numbers_;
    const int sets_;
    std::string tail_;
};

struct Connection {
    int file;
    size_t received = 0;
    Clock::time_point sent{};

    explicit Connection(int port) : file(socket(AF_INET, SOCK_STREAM, 0)) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(static_cast<uint16_t>(port));
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        if (connect(file, reinterpret_cast<sockaddr*>(&address), sizeof address))
            throw std::runtime_error("cannot connect");
        int on = 1;
        setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }

    void send(const std::string& request) {
        sent = Clock::now();
        received = 0;
        // A transaction is smaller than a socket's buffer.
        if (write(file, request.data(), request.size()) != static_cast<ssize_t>(request.size()))
            throw std::runtime_error("a transaction was not sent whole");
    }

    // Whether the reply is complete.
    bool receive(const std::string& expected) {
        char buffer[4096];
        const ssize_t bytes = read(file, buffer, sizeof buffer);
        if (bytes <= 0) throw std::runtime_error("the server closed a connection");
        const auto got = static_cast<size_t>(bytes);
        if (received + got > expected.size() || expected.compare(received, got, buffer, got))
            throw std::runtime_error("a transaction was answered by: " + std::string(buffer, got));
        received += got;
        return received == expected.size();
    }
};

void run(int port, int connections, double seconds, Requests requests, int sets) {
    const std::string expected = expected_reply(sets);
    const int poll = epoll_create1(0);
    std::vector<Connection> all;
    for (int i = 0; i < connections; i++) all.emplace_back(port);
    for (Connection& connection : all) {
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.ptr = &connection;
        epoll_ctl(poll, EPOLL_CTL_ADD, connection.file, &event);
    }
    const Clock::time_point began = Clock::now();
    for (Connection& connection : all) connection.send(requests.next());
    std::vector<double> took_ms;
    std::vector<epoll_event> events(all.size());
    double elapsed = 0;
    for (size_t busy = all.size(); busy;) {
        const int ready = epoll_wait(poll, events.data(), static_cast<int>(events.size()), -1);
        elapsed = seconds_since(began);
        for (int i = 0; i < ready; i++) {
            auto& connection = *static_cast<Connection*>(events[static_cast<size_t>(i)].data.ptr);
            if (!connection.receive(expected)) continue;
            took_ms.push_back(1e3 * seconds_since(connection.sent));
            if (elapsed < seconds) connection.send(requests.next());
            else busy--;
        }
    }
    elapsed = seconds_since(began);
    std::sort(took_ms.begin(), took_ms.end());
    auto percentile = [&](double share) {
        return took_ms[static_cast<size_t>(share * static_cast<double>(took_ms.size() - 1))];
    };
    printf("%zu %.6f %.4f %.4f %.4f\n", took_ms.size(), elapsed, percentile(0.5), percentile(0.95), percentile(0.99));
}

}  // namespace

int main(int, char** words) try {
    const int sets = atoi(words[5]);
    const Requests requests(strtoul(words[4], nullptr, 10), sets, strtoul(words[6], nullptr, 10));
    run(atoi(words[1]), atoi(words[2]), atof(words[3]), requests, sets);
} catch (const std::exception& error) {
    fprintf(stderr, "%s\n", error.what());
    return 1;
}
