#include "net/listener.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string_view>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

#include "door.hpp"
#include "net/foreign.hpp"
#include "grpc/http2.hpp"
#include "resp/resp.hpp"
#include "base/texts.hpp"

namespace door {

namespace {

constexpr int BACKLOG = 4096;
constexpr int PIECE = 8;  // connections that are accepted before those that are there have their turn
// Where nobody can be accepted, nor refused, the system says at once that somebody waits. It is not to be asked all the time.
constexpr useconds_t TROUBLE_US = 1000;
// Connections leave so many files to the server itself, which reads users and certificates again, makes tables and serves its
// metrics (server/http_port.py): an eighth of those that there may be, 64 at most.
constexpr rlim_t FILES_KEPT_MAX = 64, FILES_KEPT_SHARE = 8;

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

std::unique_ptr<Connection> new_connection(Thread& thread, std::unique_ptr<Transport> transport, Arrival arrival) {
    if (arrival.protocol == DOOR_GRPC) return std::make_unique<Http2>(thread, std::move(transport), std::move(arrival));
    return std::make_unique<RespConnection>(thread, std::move(transport), std::move(arrival));
}

// A hash of what one peer has: an address of IPv4, or a network of IPv6, all addresses of which are its own
// (server/access/throttle.py).
u64 network_of(const sockaddr_storage& address) {
    const auto hash = [](const void* bytes, u64 size) { return (u64)std::hash<std::string_view>{}({(const char*)bytes, size}); };
    if (address.ss_family != AF_INET6) return hash(&((const sockaddr_in&)address).sin_addr, 4);
    return hash(&((const sockaddr_in6&)address).sin6_addr, 8);
}

// RESP has no pings of the server's: the system asks whether a silent client is still there.
void keep_alive(int file) {
    const int yes = 1, idle_s = 60, interval_s = 10, probes = 3;
    setsockopt(file, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    setsockopt(file, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(file, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(file, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

// The system gives the lowest number that is free, so all below are taken.
bool is_kept_file(int file) {
    rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) return false;
    return (rlim_t)file >= limit.rlim_cur - std::min(FILES_KEPT_MAX, limit.rlim_cur / FILES_KEPT_SHARE);
}

// Takes the number of a file that was closed, if there is one: numbers say how many files are taken.
int renumbered(int file) {
    const int lowest = fcntl(file, F_DUPFD_CLOEXEC, 0);
    if (lowest < 0) return file;
    close(std::max(file, lowest));
    return std::min(file, lowest);
}

int open_spare() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

// Whoever has connected, before a thread has the connection. The thread that listens deals with it.
struct Newcomer {
    Door& door;
    int protocol, file;
    sockaddr_storage address;
};

// The client is told why, as far as its socket takes that at once. Bytes that nobody has read would keep it from reading that.
void refuse(const Newcomer& newcomer, StatsConnection why, const char* text) {
    Thread& thread = *newcomer.door.threads.front();
    thread.stats.connections_refused[why].add();
    try {
        const Language language = newcomer.protocol == DOOR_GRPC ? Language::HTTP2 : Language::LINES;
        const std::string word = thread.tls() ? std::string(NO_HANDSHAKE) : in_words_of(language, text);
        u8 dropped[4096];
        (void)!send(newcomer.file, word.data(), word.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        shutdown(newcomer.file, SHUT_WR);
        (void)!recv(newcomer.file, dropped, sizeof dropped, MSG_DONTWAIT);
    } catch (const std::bad_alloc&) {  // there is no memory for a word either
    }
    close(newcomer.file);
}

// In the connection's thread.
void begin_connection(Thread& thread, int file, Arrival arrival) {
    const u64 id = arrival.id;
    const int protocol = arrival.protocol;
    std::unique_ptr<Transport> transport;
    if (const auto& tls = thread.tls()) transport = tls->accept(file, protocol == DOOR_GRPC);
    else transport.reset(new (std::nothrow) PlainTransport(file));
    if (!transport) close(file);
    try {
        if (transport) return thread.add(new_connection(thread, std::move(transport), std::move(arrival)));
    } catch (const std::bad_alloc&) {
    }
    thread.door.places.leave(id, protocol, true);
    thread.forget_expected();
    thread.stats.connections_refused[STATS_CONNECTION_MEMORY_FULL].add();
}

void deal_for_another(const Newcomer& newcomer);

// In the connection's thread, which has closed the one that it takes the file of. If somebody was faster and has that file,
// another one has to go.
void begin_for_another(Thread& thread, Newcomer newcomer, Arrival arrival) {
    newcomer.file = renumbered(newcomer.file);
    if (!is_kept_file(newcomer.file)) return begin_connection(thread, newcomer.file, std::move(arrival));
    thread.door.places.leave(arrival.id, arrival.protocol, true);
    thread.forget_expected();
    try {
        thread.door.threads.front()->post([newcomer] { deal_for_another(newcomer); });
    } catch (const std::bad_alloc&) {
        close(newcomer.file);
        thread.stats.connections_refused[STATS_CONNECTION_MEMORY_FULL].add();
    }
}

void deal(const Newcomer& newcomer, Thread& thread, bool is_for_another) try {
    Door& door = newcomer.door;
    const int protocol = newcomer.protocol, file = newcomer.file;
    const u64 id = Forward::id_of(door.next_connection_id++, thread.number);
    const auto evict = [&door](u64 stranger) { door.evict(stranger, STATS_GAVE_WAY); };
    if (!door.places.enter(id, protocol, network_of(newcomer.address), now_ns(), door.patience.young_ns, evict))
        return refuse(newcomer, STATS_CONNECTIONS_FULL, CONNECTIONS_FULL_TEXT);
    const int yes = 1;
    setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (protocol == DOOR_RESP) keep_alive(file);
    thread.expect_connection();
    try {
        Arrival arrival{id, protocol, name_of(newcomer.address)};
        if (is_for_another) thread.post([&thread, newcomer, arrival] { begin_for_another(thread, newcomer, arrival); });
        else if (&thread == door.threads.front().get()) begin_connection(thread, file, std::move(arrival));
        else thread.post([&thread, file, arrival] { begin_connection(thread, file, arrival); });
    } catch (const std::bad_alloc&) {
        thread.forget_expected();
        door.places.leave(id, protocol, true);
        throw;
    }
} catch (const std::bad_alloc&) {
    refuse(newcomer, STATS_CONNECTION_MEMORY_FULL, CONNECTION_MEMORY_FULL_TEXT);
}

// Connections have all files that they may have: a stranger has to go. Its thread takes the newcomer when it has closed it.
void deal_for_another(const Newcomer& newcomer) {
    Door& door = newcomer.door;
    Thread* thread = nullptr;
    try {
        door.places.evict_one([&](u64 id) {
            door.evict(id, STATS_FILES_FULL);
            thread = door.threads[Forward::thread_of(id)].get();
        });
    } catch (const std::bad_alloc&) {
    }
    if (thread) deal(newcomer, *thread, true);
    else refuse(newcomer, STATS_FILES_FULL, FILES_FULL_TEXT);
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
        sockaddr_storage address = {};
        socklen_t size = sizeof address;
        const int file = accept4(file_, (sockaddr*)&address, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (file >= 0) {
            const Newcomer newcomer{door_, protocol_, file, address};
            if (is_kept_file(file)) deal_for_another(newcomer);
            else deal(newcomer, door_.least_loaded(), false);
        } else if (errno == EMFILE || errno == ENFILE) {
            return accept_by_spare();
        } else if (errno == EAGAIN) {
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            usleep(TROUBLE_US);
            return;
        }
    }
}

// No file is free, but for the spare one. If whoever waits went on waiting, this thread would be busy with it.
void Listener::accept_by_spare() {
    if (spare_ < 0) return (void)usleep(TROUBLE_US);
    close(std::exchange(spare_, -1));
    sockaddr_storage address = {};
    socklen_t size = sizeof address;
    const int file = accept4(file_, (sockaddr*)&address, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (file >= 0) deal_for_another({door_, protocol_, file, address});
    spare_ = open_spare();  // or later: another thread may have been faster
}

}  // namespace door
