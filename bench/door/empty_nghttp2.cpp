// A gRPC server on nghttp2 that answers every call with the same message and does nothing else: any server on nghttp2
// pays that for a call. One thread; it prints its port and the library's version.
//
//   empty_nghttp2 MESSAGE    the answer's message, hexadecimal

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <nghttp2/nghttp2.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

std::string answer;  // the message behind its prefix of 5 bytes

nghttp2_nv header(const char* name, const char* value) {
    auto bytes = [](const char* text) { return reinterpret_cast<uint8_t*>(const_cast<char*>(text)); };
    return {bytes(name), bytes(value), strlen(name), strlen(value),
            NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE};
}

ssize_t read_answer(nghttp2_session* session, int32_t stream, uint8_t* to, size_t size, uint32_t* flags,
                    nghttp2_data_source*, void*) {
    if (size < answer.size()) return NGHTTP2_ERR_CALLBACK_FAILURE;
    memcpy(to, answer.data(), answer.size());
    *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
    nghttp2_nv trailer = header("grpc-status", "0");
    nghttp2_submit_trailer(session, stream, &trailer, 1);
    return static_cast<ssize_t>(answer.size());
}

int received_frame(nghttp2_session* session, const nghttp2_frame* frame, void*) {
    bool is_end = frame->hd.flags & NGHTTP2_FLAG_END_STREAM;
    if (!is_end || (frame->hd.type != NGHTTP2_DATA && frame->hd.type != NGHTTP2_HEADERS)) return 0;
    nghttp2_nv headers[] = {header(":status", "200"), header("content-type", "application/grpc")};
    nghttp2_data_provider provider{};
    provider.read_callback = read_answer;
    return nghttp2_submit_response(session, frame->hd.stream_id, headers, 2, &provider);
}

struct Connection {
    int file;
    nghttp2_session* session = nullptr;
    std::string output;  // from `sent` on it waits for the socket
    size_t sent = 0;
    bool waits_for_room = false;

    Connection(int file, nghttp2_session_callbacks* callbacks) : file(file) {
        nghttp2_session_server_new(&session, callbacks, this);
        nghttp2_settings_entry streams{NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, 100};
        nghttp2_submit_settings(session, NGHTTP2_FLAG_NONE, &streams, 1);
    }

    ~Connection() {
        nghttp2_session_del(session);
        close(file);
    }

    // False: the connection is over.
    bool turn() {
        uint8_t bytes[1 << 16];
        ssize_t got = read(file, bytes, sizeof bytes);
        if (got == 0 || (got < 0 && errno != EAGAIN)) return false;
        if (got > 0 && nghttp2_session_mem_recv(session, bytes, got) < 0) return false;
        const uint8_t* part;
        while (output.size() < sizeof bytes) {
            ssize_t size = nghttp2_session_mem_send(session, &part);
            if (size < 0) return false;
            if (size == 0) break;
            output.append(reinterpret_cast<const char*>(part), size);
        }
        ssize_t written = output.size() > sent ? write(file, output.data() + sent, output.size() - sent) : 0;
        if (written < 0 && errno != EAGAIN) return false;
        sent += std::max<ssize_t>(written, 0);
        if (sent == output.size()) output.clear(), sent = 0;
        return nghttp2_session_want_read(session) || nghttp2_session_want_write(session);
    }
};

}  // namespace

int main(int, char** arguments) {
    for (const char* digits = arguments[1]; *digits; digits += 2) {
        char pair[] = {digits[0], digits[1], 0};
        answer += static_cast<char>(strtol(pair, nullptr, 16));
    }
    uint32_t size = htonl(answer.size());
    answer.insert(0, std::string(1, '\0') + std::string(reinterpret_cast<char*>(&size), sizeof size));

    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    if (bind(listener, reinterpret_cast<sockaddr*>(&address), length) || listen(listener, 4096)) return 1;
    getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
    printf("%d %s\n", ntohs(address.sin_port), NGHTTP2_VERSION);
    fflush(stdout);

    nghttp2_session_callbacks* callbacks;
    nghttp2_session_callbacks_new(&callbacks);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, received_frame);
    int poll = epoll_create1(0);
    epoll_event event{EPOLLIN, {nullptr}}, events[256];
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int ready = epoll_wait(poll, events, 256, -1);
        for (int i = 0; i < ready; i++) {
            auto* connection = static_cast<Connection*>(events[i].data.ptr);
            if (!connection) {
                int file = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK);
                if (file < 0) continue;
                setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                event = {EPOLLIN, {new Connection(file, callbacks)}};
                epoll_ctl(poll, EPOLL_CTL_ADD, file, &event);
            } else if (!connection->turn()) {
                delete connection;
            } else {
                bool has_more = !connection->output.empty() || nghttp2_session_want_write(connection->session);
                if (has_more == connection->waits_for_room) continue;
                connection->waits_for_room = has_more;
                event = {EPOLLIN | (has_more ? EPOLLOUT : 0u), {connection}};
                epoll_ctl(poll, EPOLL_CTL_MOD, connection->file, &event);
            }
        }
    }
}
