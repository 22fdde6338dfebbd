// TLS of connections, by OpenSSL: 1.3 only, without resumption, so that a client shows who it is in every handshake.
#pragma once
#include <openssl/ssl.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "net/transport.hpp"

namespace door {

// What handshakes are made of. Connections keep what they began with, and OpenSSL frees it with the last of them.
class TlsContext {
  public:
    // Takes the server's chain of certificates and its key as PEM, and the CAs of clients: without any, no client is
    // asked for a certificate. A handshake may take `handshake_ns`. std::runtime_error says why not.
    TlsContext(std::string_view chain, std::string_view key, std::string_view client_ca, u64 handshake_ns);
    ~TlsContext() { SSL_CTX_free(context_); }
    TlsContext(const TlsContext&) = delete;

    // Takes the socket of a new connection. A client that speaks HTTP/2 must say so by ALPN. Null without memory: the
    // socket is still the caller's then.
    std::unique_ptr<Transport> accept(int file, bool is_http2) const;

  private:
    SSL_CTX* context_;
    const u64 handshake_ns_;
};

// The bytes of one connection inside TLS. Its handshake goes on whenever somebody reads or writes.
class TlsTransport : public Transport {
  public:
    // Takes both; `late_ns` is when the handshake takes too long.
    TlsTransport(int file, SSL* ssl, bool is_http2, u64 late_ns);
    ~TlsTransport() override;

    long read(u8* to, u64 size) override;
    void end_writing() override;
    long write(const Output::Parts& parts) override;
    bool has_more() const override { return has_more_; }
    bool wants_write() const override { return wants_write_; }
    bool is_ready() const override { return state_ == READY; }
    const std::vector<std::string>& names() const override { return names_; }
    u64 held_bytes() const override;
    bool has_certificate() const override { return has_certificate_; }
    std::string_view plain() const override { return plain_; }
    void refuse_handshake() override;
    bool is_flooded() const override { return key_changes_ > KEY_CHANGES_MAX; }
    void count_key_change() { key_changes_++; }
    bool is_late(u64 now_ns) const override { return state_ == SHAKING && now_ns > late_ns_; }

  private:
    // A client may change its keys so often between two pieces of data. One change takes the server 10 us, and a client's 27
    // bytes: a buffer full of them would take others 6 ms. Real ones change them after millions of records.
    static constexpr u64 KEY_CHANGES_MAX = 32;

    enum State { SHAKING, READY, OVER };

    bool shake_hands();
    bool look_at_begin();
    void drop_input();
    long outcome(int result);

    SSL* const ssl_;
    const u64 late_ns_;
    State state_ = SHAKING;
    u64 key_changes_ = 0;  // since the client sent data
    bool has_begun_ = false, has_certificate_ = false;
    std::string plain_;
    bool has_more_ = false, wants_write_ = false;
    std::vector<std::string> names_;
};

}  // namespace door
