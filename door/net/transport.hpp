// The bytes of a connection: a socket, plain or under TLS.
#pragma once
#include <cerrno>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

#include "base/output.hpp"
#include "base/types.hpp"

namespace door {

// Owns a socket, which does not block.
class Transport {
  public:
    explicit Transport(int file) : file_(file) {}
    Transport(const Transport&) = delete;
    virtual ~Transport() { close(file_); }

    int file() const { return file_; }

    // How many bytes were read or written; 0: none now, -1: the connection is over.
    virtual long read(u8* to, u64 size) = 0;
    virtual long write(const Output::Parts& parts) = 0;
    // Whether bytes may be there that were taken from the socket and not read: `read` is called again without waiting.
    virtual bool has_more() const = 0;
    // Whether one of the last calls waits until the socket can be written.
    virtual bool wants_write() const = 0;
    // Whether bytes of the client's may be read and written: a handshake is done.
    virtual bool is_ready() const = 0;
    // The names in the client's certificate.
    virtual const std::vector<std::string>& names() const = 0;
    // Memory that it takes now beside the socket; the connection is charged for it.
    virtual u64 held_bytes() const { return 0; }
    // Whether the client has shown a certificate of one of the CAs that count.
    virtual bool has_certificate() const { return false; }
    // How its client has begun without the handshake that is asked for; empty if it has not.
    virtual std::string_view plain() const { return {}; }
    // Whether its handshake takes too long; the connection is closed then.
    virtual bool is_late(u64) const { return false; }
    // Says that there is no handshake, to a client that has not heard of one yet.
    virtual void refuse_handshake() {}
    // Whether it is over because the client did too much that brings nothing.
    virtual bool is_flooded() const { return false; }
    // Nothing more will be written: the client reads the end after all that was.
    virtual void end_writing() { shutdown(file_, SHUT_WR); }

  private:
    const int file_;
};

class PlainTransport : public Transport {
  public:
    explicit PlainTransport(int file) : Transport(file) {}

    long read(u8* to, u64 size) override {
        const long bytes = recv(file(), to, size, 0);
        if (bytes == 0) return -1;
        return bytes > 0 ? bytes : outcome_of_error();
    }

    long write(const Output::Parts& parts) override {
        msghdr message = {};
        message.msg_iov = const_cast<iovec*>(parts.at);
        message.msg_iovlen = parts.count;
        const long bytes = sendmsg(file(), &message, MSG_NOSIGNAL);
        wants_write_ = bytes < 0 && outcome_of_error() == 0;
        return bytes >= 0 ? bytes : outcome_of_error();
    }

    bool has_more() const override { return false; }
    bool wants_write() const override { return wants_write_; }
    bool is_ready() const override { return true; }
    const std::vector<std::string>& names() const override { return names_; }

  private:
    static long outcome_of_error() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1; }

    bool wants_write_ = false;
    const std::vector<std::string> names_;
};

}  // namespace door
