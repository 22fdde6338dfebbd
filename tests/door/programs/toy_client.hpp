// Clients of the native door, over sockets that wait, and the messages of gRPC that they send. A program that has them says
// what REQUIRE is.
#pragma once
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <nghttp2/nghttp2.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "../../../door/base/types.hpp"

namespace door {

// A socket, maybe under TLS, that waits.
class Wire {
  public:
    explicit Wire(int port, SSL_CTX* tls = nullptr) : file_(socket(AF_INET, SOCK_STREAM, 0)) {
        sockaddr_in address = {};
        address.sin_family = AF_INET;
        address.sin_port = htons((u16)port);
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        REQUIRE(connect(file_, (sockaddr*)&address, sizeof address) == 0);
        const int yes = 1;
        setsockopt(file_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        const timeval patience = {10, 0};
        setsockopt(file_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        if (!tls) return;
        ssl_ = SSL_new(tls);
        SSL_set_fd(ssl_, file_);
        is_over_ = SSL_connect(ssl_) != 1;
    }

    ~Wire() {
        SSL_free(ssl_);
        close(file_);
    }

    bool is_over() const { return is_over_; }

    void write(const std::string& text) { write((const u8*)text.data(), text.size()); }
    void write(const u8* data, u64 size) {
        while (size && !is_over_) {
            const long sent = ssl_ ? SSL_write(ssl_, data, (int)size) : send(file_, data, size, MSG_NOSIGNAL);
            if (sent <= 0) is_over_ = true;
            else data += sent, size -= (u64)sent;
        }
    }

    // Waits for something; nothing comes when the connection is over.
    std::string read(u64 most = 65536) {
        char data[65536];
        if (is_over_) return "";
        errno = 0;
        const long bytes = ssl_ ? SSL_read(ssl_, data, (int)most) : recv(file_, data, most, 0);
        REQUIRE(bytes > 0 || errno != EAGAIN);  // else nobody answers
        if (bytes <= 0) is_over_ = true;
        return std::string(data, bytes > 0 ? (size_t)bytes : 0);
    }

  private:
    const int file_;
    SSL* ssl_ = nullptr;
    bool is_over_ = false;
};

// What became of a call: its messages, framed, if it went well; else it was refused, or the connection ended.
struct Answer {
    bool is_over = false, is_not_executed = false;
    std::string messages, status, text, from;
};

// Speaks gRPC.
class GrpcClient {
  public:
    explicit GrpcClient(int port, SSL_CTX* tls = nullptr, bool has_login = false) : wire_(port, tls), has_login_(has_login) {
        nghttp2_session_callbacks* callbacks;
        nghttp2_session_callbacks_new(&callbacks);
        nghttp2_session_callbacks_set_on_header_callback(
            callbacks, [](nghttp2_session*, const nghttp2_frame* frame, const u8* name, size_t name_size, const u8* value,
                          size_t value_size, u8, void* self) {
                const std::string said((const char*)name, name_size), what((const char*)value, value_size);
                Answer& answer = ((GrpcClient*)self)->answers_[frame->hd.stream_id];
                if (said == "grpc-status") answer.status = what;
                if (said == "grpc-message") answer.text = what;
                if (said == "from") answer.from = what;
                if (said == "gpkvs-executed") answer.is_not_executed = what == "no";
                return 0;
            });
        nghttp2_session_callbacks_set_on_data_chunk_recv_callback(
            callbacks, [](nghttp2_session*, u8, i32 stream, const u8* data, size_t size, void* self) {
                ((GrpcClient*)self)->answers_[stream].messages.append((const char*)data, size);
                return 0;
            });
        nghttp2_session_callbacks_set_on_stream_close_callback(
            callbacks, [](nghttp2_session*, i32 stream, u32, void* self) {
                ((GrpcClient*)self)->answers_[stream].is_over = true;
                return 0;
            });
        nghttp2_session_client_new(&session_, callbacks, this);
        nghttp2_session_callbacks_del(callbacks);
        nghttp2_submit_settings(session_, 0, nullptr, 0);
    }

    ~GrpcClient() { nghttp2_session_del(session_); }

    bool is_lost() const { return wire_.is_over(); }

    // A frame has at most so many bytes of a message.
    u64 frame_bytes = 16384;

    // Begins a call with these messages, framed. Some of the last bytes may be kept back: then the call never ends.
    i32 begin(const std::string& path, const std::string& messages, u64 kept_bytes = 0) {
        const std::pair<std::string, std::string> lines[] = {
            {":method", "POST"},   {":scheme", "http"}, {":path", path},
            {":authority", "toy"}, {"te", "trailers"},  {"content-type", "application/grpc"},
            {"authorization", "Bearer a"},
        };
        std::vector<nghttp2_nv> headers;
        for (const auto& [name, value] : lines)
            headers.push_back({(u8*)name.data(), (u8*)value.data(), name.size(), value.size(), 0});
        if (!has_login_) headers.pop_back();
        unsent_ = messages.substr(0, messages.size() - kept_bytes);
        ends_ = !kept_bytes;
        sent_ = 0;
        nghttp2_data_provider provider;
        provider.source.ptr = this;
        provider.read_callback = [](nghttp2_session*, i32, u8* to, size_t room, u32* flags, nghttp2_data_source* source, void*) {
            GrpcClient& client = *(GrpcClient*)source->ptr;
            const size_t size = std::min<size_t>({room, client.unsent_bytes(), client.frame_bytes});
            if (!size && !client.ends_) return (ssize_t)NGHTTP2_ERR_DEFERRED;
            memcpy(to, client.unsent_.data() + client.sent_, size);
            client.sent_ += size;
            if (!client.unsent_bytes() && client.ends_) *flags |= NGHTTP2_DATA_FLAG_EOF;
            return (ssize_t)size;
        };
        const i32 stream = nghttp2_submit_request(session_, nullptr, headers.data(), headers.size(), &provider, nullptr);
        while (unsent_bytes() && !answers_[stream].is_over && !is_lost()) {
            send();
            if (unsent_bytes()) receive();  // windows
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

    // Takes what comes next.
    void receive() {
        const std::string data = wire_.read();
        REQUIRE(nghttp2_session_mem_recv(session_, (const u8*)data.data(), data.size()) == (ssize_t)data.size());
    }

  private:
    u64 unsent_bytes() const { return unsent_.size() - sent_; }

    void send() {
        const u8* data;
        for (ssize_t size; (size = nghttp2_session_mem_send(session_, &data)) > 0;) wire_.write(data, (u64)size);
    }

    Wire wire_;
    const bool has_login_;
    nghttp2_session* session_;
    std::map<i32, Answer> answers_;
    std::string unsent_;
    u64 sent_ = 0;  // of it
    bool ends_ = true;
};

// Messages.

inline std::string varint(u64 value) {
    std::string out;
    for (; value >= 128; value >>= 7) out += (char)(value | 128);
    return out + (char)value;
}

inline std::string field(int tag, const std::string& bytes) { return (char)(tag << 3 | 2) + varint(bytes.size()) + bytes; }

inline std::string u32s(const std::vector<u32>& numbers) {
    return std::string((const char*)numbers.data(), 4 * numbers.size());
}

inline std::string framed(const std::string& data) {
    std::string head(5, 0);
    for (int i = 0; i < 4; i++) head[4 - i] = (char)(data.size() >> 8 * i);
    return head + data;
}

inline std::string get(const std::string& key) { return framed(field(2, key)); }
inline std::string set(const std::string& key, const std::string& value) { return framed(field(2, key) + field(3, value)); }
inline std::string found(const std::string& value) { return framed("\x08\x01" + field(2, value)); }

struct GrpcBatch {
    std::string ops, keys, values;
    std::vector<u32> key_lengths, value_lengths;

    GrpcBatch& get(const std::string& key) { return add('\1', key); }
    GrpcBatch& set(const std::string& key, const std::string& value) {
        values += value;
        value_lengths.push_back((u32)value.size());
        return add('\2', key);
    }
    GrpcBatch& add(char op, const std::string& key) {
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
inline std::string batch_response(int id, size_t operations, const std::vector<std::string>& found) {
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

}  // namespace door
