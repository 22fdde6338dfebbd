#include "listener.hpp"

#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "door.hpp"
#include "http2.hpp"
#include "resp.hpp"

namespace door {

namespace {

constexpr int BACKLOG = 4096;
constexpr int PIECE = 8;  // connections that are accepted before those that are there have their turn
// Where nobody can be accepted, nor refused, the system says at once that somebody waits. It is not to be asked all the time.
constexpr useconds_t TROUBLE_US = 1000;

// As gRPC writes it: ipv4:1.2.3.4:5, ipv6:%5B::1%5D:5.
std::string name_of(const sockaddr_storage& address) {
    char text[INET6_ADDRSTRLEN] = "";
    if (address.ss_family == AF_INET) {
        const sockaddr_in& four = (const sockaddr_in&)address;
        inet_ntop(AF_INET, &four.sin_addr, text, sizeof text);
        return "ipv4:" + std::string(text) + ":" + std::to_string(ntohs(four.sin_port));
    }
    const sockaddr_in6& six = (const sockaddr_in6&)address;
    inet_ntop(AF_INET6, &six.sin6_addr, text, sizeof text);
    return "ipv6:%5B" + std::string(text) + "%5D:" + std::to_string(ntohs(six.sin6_port));
}

std::unique_ptr<Connection> new_connection(Thread& thread, int protocol, std::unique_ptr<Transport> transport,
                                           std::string peer) {
    if (protocol == DOOR_GRPC) return std::make_unique<Http2>(thread, std::move(transport), std::move(peer));
    return std::make_unique<RespConnection>(thread, std::move(transport), std::move(peer));
}

// RESP has no pings of the server's: the system asks whether a silent client is still there.
void keep_alive(int file) {
    const int yes = 1, idle_s = 60, interval_s = 10, probes = 3;
    setsockopt(file, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    setsockopt(file, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(file, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(file, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

int open_spare() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

// In the connection's thread.
void begin_connection(Thread& thread, int file, int protocol) {
    sockaddr_storage address = {};
    socklen_t size = sizeof address;
    getpeername(file, (sockaddr*)&address, &size);
    std::unique_ptr<Transport> transport;
    if (const auto& tls = thread.tls()) transport = tls->accept(file, protocol == DOOR_GRPC);
    else transport.reset(new (std::nothrow) PlainTransport(file));
    if (!transport) close(file);
    try {
        if (transport) return thread.add(new_connection(thread, protocol, std::move(transport), name_of(address)));
    } catch (const std::bad_alloc&) {
    }
    thread.forget_expected();
    thread.stats.connections_refused[STATS_CONNECTION_MEMORY_FULL].add();
}

}  // namespace

int Listener::open(const addrinfo& address, u16& port) {
    const int file = socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (file < 0) return -errno;
    const int yes = 1;
    setsockopt(file, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_storage at = {};
    memcpy(&at, address.ai_addr, address.ai_addrlen);
    in_port_t& at_port = address.ai_family == AF_INET6 ? ((sockaddr_in6&)at).sin6_port : ((sockaddr_in&)at).sin_port;
    at_port = htons(port);
    // Without it an address of IPv6 takes that of IPv4 too, and the same port of IPv4 is not free any more.
    if (address.ai_family == AF_INET6) setsockopt(file, IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof yes);
    socklen_t size = sizeof at;
    if (bind(file, (sockaddr*)&at, address.ai_addrlen) || listen(file, BACKLOG) || getsockname(file, (sockaddr*)&at, &size)) {
        const int error = errno;
        close(file);
        return -error;
    }
    port = ntohs(at_port);
    return file;
}

Listener::Listener(Door& door, int file, int protocol)
    : door_(door), file_(file), protocol_(protocol), spare_(open_spare()) {}

Listener::~Listener() {
    close(file_);
    if (spare_ >= 0) close(spare_);
}

void Listener::ready(u32) {
    if (spare_ < 0) spare_ = open_spare();
    for (int piece = 0; piece < PIECE; piece++) {
        const int file = accept4(file_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (file >= 0) {
            deal(file);
        } else if ((errno == EMFILE || errno == ENFILE) && spare_ >= 0) {
            refuse_one();
        } else if (errno == EAGAIN) {
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            usleep(TROUBLE_US);
            return;
        }
    }
}

// No file is free: a client that is not accepted would keep this thread busy, so it is accepted and closed.
void Listener::refuse_one() {
    close(spare_);
    const int file = accept4(file_, nullptr, nullptr, SOCK_CLOEXEC);
    if (file >= 0) refuse(file, STATS_FILES_FULL);
    spare_ = open_spare();  // or later: another thread may have been faster
}

void Listener::deal(int file) {
    if (door_.connections() >= door_.config.connections_max) {
        refuse(file, STATS_CONNECTIONS_FULL);
        return;
    }
    const int yes = 1;
    setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (protocol_ == DOOR_RESP) keep_alive(file);
    Thread& thread = door_.least_loaded();
    thread.expect_connection();
    try {
        const auto open = [&thread, file, protocol = protocol_] { begin_connection(thread, file, protocol); };
        if (&thread == door_.threads.front().get()) open();
        else thread.post(open);
    } catch (const std::bad_alloc&) {
        thread.forget_expected();
        refuse(file, STATS_CONNECTION_MEMORY_FULL);
    }
}

void Listener::refuse(int file, StatsConnection why) {
    close(file);
    door_.threads.front()->stats.connections_refused[why].add();
}

}  // namespace door
