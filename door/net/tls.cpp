#include "net/tls.hpp"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

#include "door.hpp"
#include "net/foreign.hpp"

namespace door {
namespace {

// What OpenSSL holds for one connection, measured: 20 to 37 KiB, and while hands are shaken up to 245 KiB, if the client
// sends the longest first message that there may be.
const u64 HELD_BYTES = 48 << 10, SHAKING_BYTES = 256 << 10;

// So much is read of what a client has sent whose handshake failed.
const u64 INPUT_DROPPED_MAX = 64 << 10;

// A real chain takes 2 to 8 KiB. Whatever a client shows is kept as long as its connection.
const long CLIENT_CHAIN_BYTES_MAX = 32 << 10;

// So much of what a client in plain has sent shows what it speaks.
const u64 PLAIN_BYTES_MAX = 256;

// All that a client of TLS sends begins with it.
const u8 HANDSHAKE_RECORD = 0x16;

// How keys are agreed on: on curves, with a post-quantum half where OpenSSL has it (3.5). OpenSSL would also take the groups of
// finite fields, in which a client that sends the same bytes again and again costs the server 125 ms each time.
const char* const GROUPS = "X25519:P-256:X448:P-521:P-384";
const char* const POST_QUANTUM = "X25519MLKEM768:";

const unsigned char H2[] = {'h', '2'};

struct Free {
    void operator()(BIO* one) const { BIO_free(one); }
    void operator()(X509* one) const { X509_free(one); }
    void operator()(EVP_PKEY* one) const { EVP_PKEY_free(one); }
    void operator()(SSL* one) const { SSL_free(one); }
    void operator()(SSL_CTX* one) const { SSL_CTX_free(one); }
    void operator()(GENERAL_NAMES* one) const { GENERAL_NAMES_free(one); }
};
template <class One>
using Owned = std::unique_ptr<One, Free>;

bool is_http2(SSL* ssl) { return SSL_get_app_data(ssl) != nullptr; }

// Refuses a client of HTTP/2 that does not say so, before anything is computed for it.
int look_at_hello(SSL* ssl, int* alert, void*) {
    const unsigned char* protocols;
    size_t size;
    if (!is_http2(ssl) ||
        SSL_client_hello_get0_ext(ssl, TLSEXT_TYPE_application_layer_protocol_negotiation, &protocols, &size))
        return SSL_CLIENT_HELLO_SUCCESS;
    *alert = SSL_AD_NO_APPLICATION_PROTOCOL;
    return SSL_CLIENT_HELLO_ERROR;
}

int choose_protocol(SSL* ssl, const unsigned char** chosen, unsigned char* chosen_size, const unsigned char* offered,
                    unsigned offered_size, void*) {
    if (!is_http2(ssl)) return SSL_TLSEXT_ERR_NOACK;
    for (unsigned at = 0; at < offered_size; at += 1 + offered[at]) {
        if (std::string_view((const char*)offered + at + 1, offered[at]) != "h2") continue;
        *chosen = H2;
        *chosen_size = sizeof H2;
        return SSL_TLSEXT_ERR_OK;
    }
    return SSL_TLSEXT_ERR_ALERT_FATAL;
}

void look_at_message(int is_sent, int, int kind, const void* bytes, size_t size, SSL*, void* transport) {
    if (!is_sent && kind == SSL3_RT_HANDSHAKE && size && *(const u8*)bytes == SSL3_MT_KEY_UPDATE)
        ((TlsTransport*)transport)->count_key_change();
}

// A key with a password is refused: OpenSSL would ask the terminal for it.
int no_password(char*, int, int, void*) { return -1; }

Owned<BIO> bytes_of(std::string_view pem) { return Owned<BIO>(BIO_new_mem_buf(pem.data(), (int)pem.size())); }

void require(bool is_good, const char* what) {
    if (is_good) return;
    const char* reason = ERR_reason_error_string(ERR_peek_last_error());
    throw std::runtime_error(std::string(what) + " refused by OpenSSL: " + (reason ? reason : "not usable"));
}

bool use_chain(SSL_CTX* context, std::string_view pem) {
    const Owned<BIO> bytes = bytes_of(pem);
    const Owned<X509> own(PEM_read_bio_X509(bytes.get(), nullptr, no_password, nullptr));
    if (!own || SSL_CTX_use_certificate(context, own.get()) != 1) return false;
    while (const Owned<X509> issuer{PEM_read_bio_X509(bytes.get(), nullptr, no_password, nullptr)})
        if (SSL_CTX_add1_chain_cert(context, issuer.get()) != 1) return false;
    return true;
}

bool use_key(SSL_CTX* context, std::string_view pem) {
    const Owned<EVP_PKEY> key(PEM_read_bio_PrivateKey(bytes_of(pem).get(), nullptr, no_password, nullptr));
    return key && SSL_CTX_use_PrivateKey(context, key.get()) == 1 && SSL_CTX_check_private_key(context) == 1;
}

// Every client must show a certificate of one of these CAs from now on; it is told their names.
bool require_clients_of(SSL_CTX* context, std::string_view pem) {
    const Owned<BIO> bytes = bytes_of(pem);
    u64 authorities = 0;
    while (const Owned<X509> one{PEM_read_bio_X509(bytes.get(), nullptr, no_password, nullptr)}) {
        if (X509_STORE_add_cert(SSL_CTX_get_cert_store(context), one.get()) != 1 ||
            SSL_CTX_add_client_CA(context, one.get()) != 1)
            return false;
        authorities++;
    }
    // One that another CA has signed counts too, without that other.
    X509_STORE_set_flags(SSL_CTX_get_cert_store(context), X509_V_FLAG_PARTIAL_CHAIN);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    return authorities > 0;
}

bool set_up(SSL_CTX* context) {
    SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    // What is written may lie elsewhere, or be more, when it is written again. Idle connections keep no buffers.
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
    // Otherwise each record takes two calls of the system.
    SSL_CTX_set_read_ahead(context, 1);
    // A client that changes its keys over and over gets no more time than one that sends something.
    SSL_CTX_clear_mode(context, SSL_MODE_AUTO_RETRY);
    SSL_CTX_set_max_cert_list(context, CLIENT_CHAIN_BYTES_MAX);
    SSL_CTX_set_client_hello_cb(context, look_at_hello, nullptr);
    SSL_CTX_set_alpn_select_cb(context, choose_protocol, nullptr);
    const bool has_groups = SSL_CTX_set1_groups_list(context, (std::string(POST_QUANTUM) + GROUPS).c_str()) == 1 ||
                            SSL_CTX_set1_groups_list(context, GROUPS) == 1;
    ERR_clear_error();
    return has_groups && SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 && SSL_CTX_set_num_tickets(context, 0) == 1;
}

// Returns the name of an entry, or "" if it has none that is text of plain characters.
std::string text_of(const GENERAL_NAME* entry, int kind) {
    if (kind == GEN_IPADD) {
        const ASN1_OCTET_STRING* address = entry->d.iPAddress;
        const int size = ASN1_STRING_length(address);
        char text[INET6_ADDRSTRLEN];
        if (size != 4 && size != 16) return "";
        inet_ntop(size == 4 ? AF_INET : AF_INET6, ASN1_STRING_get0_data(address), text, sizeof text);
        return text;
    }
    const std::string text((const char*)ASN1_STRING_get0_data(entry->d.ia5), (size_t)ASN1_STRING_length(entry->d.ia5));
    for (const char character : text)
        if (character < 0x20 || character > 0x7e) return "";
    return text;
}

// The names in subjectAltName, as `DNS:`, `URI:`, `EMAIL:` and `IP:` in this order (server/ports/tls.py); never the common
// name, and none that has other characters than plain ones.
std::vector<std::string> names_of(X509* certificate) {
    static const std::pair<int, const char*> kinds[] = {
        {GEN_DNS, "DNS:"}, {GEN_URI, "URI:"}, {GEN_EMAIL, "EMAIL:"}, {GEN_IPADD, "IP:"}};
    std::vector<std::string> names;
    const Owned<GENERAL_NAMES> entries(
        (GENERAL_NAMES*)X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
    for (const auto& [kind, prefix] : kinds) {
        for (int at = 0; at < sk_GENERAL_NAME_num(entries.get()); at++) {
            const GENERAL_NAME* entry = sk_GENERAL_NAME_value(entries.get(), at);
            const std::string text = entry->type == kind ? text_of(entry, kind) : "";
            if (!text.empty()) names.push_back(prefix + text);
        }
    }
    return names;
}

}  // namespace

TlsContext::TlsContext(std::string_view chain, std::string_view key, std::string_view client_ca, u64 handshake_ns)
    : handshake_ns_(handshake_ns) {
    ERR_clear_error();
    Owned<SSL_CTX> made(SSL_CTX_new(TLS_server_method()));
    require(made && set_up(made.get()), "the settings of TLS are");
    require(use_chain(made.get(), chain), "the certificate is");
    require(use_key(made.get(), key), "the key is");
    require(client_ca.empty() || require_clients_of(made.get(), client_ca), "the CAs of clients are");
    ERR_clear_error();  // the end of a file of certificates is one
    context_ = made.release();
}

std::unique_ptr<Transport> TlsContext::accept(int file, bool is_http2) const {
    Owned<SSL> ssl(SSL_new(context_));
    if (!ssl || SSL_set_fd(ssl.get(), file) != 1) return nullptr;
    std::unique_ptr<Transport> made(new (std::nothrow)
                                        TlsTransport(file, ssl.get(), is_http2, now_ns() + handshake_ns_));
    if (made) ssl.release();
    return made;
}

TlsTransport::TlsTransport(int file, SSL* ssl, bool is_http2, u64 late_ns)
    : Transport(file), ssl_(ssl), late_ns_(late_ns) {
    SSL_set_app_data(ssl, is_http2 ? this : nullptr);
    SSL_set_accept_state(ssl);
    SSL_set_msg_callback(ssl, look_at_message);
    SSL_set_msg_callback_arg(ssl, this);
}

TlsTransport::~TlsTransport() {
    if (state_ == READY) SSL_shutdown(ssl_);
    ERR_clear_error();
    SSL_free(ssl_);
}

void TlsTransport::end_writing() {
    if (state_ == READY) SSL_shutdown(ssl_);
    ERR_clear_error();
    Transport::end_writing();
}

long TlsTransport::read(u8* to, u64 size) {
    if (state_ != READY && !shake_hands()) return state_ == OVER ? -1 : 0;
    wants_write_ = false;
    ERR_clear_error();
    size_t done;
    has_more_ = false;
    if (!SSL_read_ex(ssl_, to, size, &done)) {
        // The client has said that it sends no more: it may still be answered.
        if (SSL_get_error(ssl_, 0) == SSL_ERROR_ZERO_RETURN) return -1;
        if (is_flooded()) state_ = OVER;
        return state_ == OVER ? -1 : outcome(0);
    }
    key_changes_ = 0;
    has_more_ = SSL_has_pending(ssl_) == 1;
    return (long)done;
}

// One part at a time: each call encrypts what it is given.
long TlsTransport::write(const Output::Parts& parts) {
    if (state_ != READY && !shake_hands()) return state_ == OVER ? -1 : 0;
    wants_write_ = false;
    ERR_clear_error();
    size_t done;
    return SSL_write_ex(ssl_, parts.at->iov_base, parts.at->iov_len, &done) ? (long)done : outcome(0);
}

bool TlsTransport::shake_hands() try {
    if (state_ == OVER || !look_at_begin()) return false;
    wants_write_ = false;
    ERR_clear_error();
    const int result = SSL_do_handshake(ssl_);
    if (result != 1) {
        if (outcome(result) < 0) drop_input();
        return false;
    }
    if (X509* certificate = SSL_get0_peer_certificate(ssl_)) {
        has_certificate_ = true;
        names_ = names_of(certificate);
    }
    state_ = READY;
    return true;
} catch (const std::bad_alloc&) {
    state_ = OVER;
    return false;
}

// A client in plain is closed at once. OpenSSL would wait for more bytes of it, and answer them with an alert.
bool TlsTransport::look_at_begin() {
    char begin[PLAIN_BYTES_MAX];
    const long size = has_begun_ ? 0 : recv(file(), begin, sizeof begin, MSG_PEEK);
    if (size <= 0) return true;  // OpenSSL sees the same, and what it means
    has_begun_ = true;
    if ((u8)begin[0] == HANDSHAKE_RECORD) return true;
    plain_.assign(begin, (u64)size);
    state_ = OVER;
    drop_input();
    return false;
}

// Once the server has begun, a client would take the alert for a record that is broken.
void TlsTransport::refuse_handshake() {
    if (state_ != SHAKING || BIO_number_written(SSL_get_wbio(ssl_))) return;
    (void)!send(file(), NO_HANDSHAKE.data(), NO_HANDSHAKE.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    drop_input();
}

// Bytes that nobody has read when a socket is closed would keep the client from reading why.
void TlsTransport::drop_input() {
    u8 dropped[4096];
    for (u64 bytes = 0; bytes < INPUT_DROPPED_MAX; bytes += sizeof dropped)
        if (recv(file(), dropped, sizeof dropped, MSG_DONTWAIT) <= 0) return;
}

u64 TlsTransport::held_bytes() const { return state_ == SHAKING ? SHAKING_BYTES : HELD_BYTES; }

// Returns what a call of OpenSSL that did nothing means: 0 that the socket is not ready, -1 that it is over.
long TlsTransport::outcome(int result) {
    switch (SSL_get_error(ssl_, result)) {
        case SSL_ERROR_WANT_READ:
            return 0;
        case SSL_ERROR_WANT_WRITE:
            wants_write_ = true;
            return 0;
    }
    state_ = OVER;
    return -1;
}

}  // namespace door

int gpkvs_door_set_tls(Door* door, const char* chain, uint64_t chain_bytes, const char* key, uint64_t key_bytes,
                       const char* client_ca, uint64_t client_ca_bytes, uint64_t handshake_ns, char* error,
                       uint64_t error_bytes) try {
    door->tls.publish(std::make_shared<const door::TlsContext>(std::string_view(chain, chain_bytes),
                                                               std::string_view(key, key_bytes),
                                                               std::string_view(client_ca, client_ca_bytes),
                                                               handshake_ns));
    return 0;
} catch (const std::exception& refused) {
    strncpy(error, refused.what(), error_bytes - 1);
    return -1;
}
