// TLS of connections, by OpenSSL: 1.3 only, without resumption, so that every client shows who it is in every handshake.
#pragma once
#include <openssl/ssl.h>

#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "transport.hpp"

// What OpenSSL holds for one connection beside the socket: measured with a client's certificate, and the longest chain
// of certificates that a client may show. Nothing tells OpenSSL's memory of one connection from that of another.
static const u64 TLS_BYTES = 128 << 10;

// What handshakes are made of. Another one may take its place while connections are open: they keep what they have, and
// OpenSSL frees it with the last of them. For any thread.
class TlsContext {
  public:
    TlsContext() = default;
    ~TlsContext();
    TlsContext(const TlsContext&) = delete;
    TlsContext& operator=(const TlsContext&) = delete;

    // Takes the server's chain of certificates and its key as PEM, and the CAs of clients: without any, no client is asked
    // for a certificate. Returns why not, and changes nothing then; "" when they are in force. std::bad_alloc.
    std::string take(std::string_view chain, std::string_view key, std::string_view client_ca);

    bool is_set() const;

    // Returns the server's side of a connection; null without memory.
    SSL* open(int socket) const;

  private:
    mutable std::mutex mutex_;
    SSL_CTX* context_ = nullptr;
};

// The bytes of one connection inside TLS. A handshake is made by the calls of read and write.
class TlsTransport : public Transport {
  public:
    // Takes `ssl`. A client that speaks HTTP/2 must say so by ALPN.
    TlsTransport(SSL* ssl, bool is_http2);
    ~TlsTransport() override;

    long read(u8* to, u64 size) override;
    long write(const u8* from, u64 size) override;
    bool wants_write() const override { return wants_write_; }
    bool is_ready() const override { return state_ == READY; }
    const std::vector<std::string>& names() const override { return names_; }

  private:
    enum State { SHAKING, READY, OVER };

    bool shake_hands();
    long outcome(int result);

    SSL* ssl_;
    State state_ = SHAKING;
    bool wants_write_ = false;
    std::vector<std::string> names_;
};

// The names in a certificate's subjectAltName, as `DNS:`, `URI:`, `EMAIL:` and `IP:` in this order; never the common name,
// and none that has other characters than plain ones.
std::vector<std::string> names_of(X509* certificate);
