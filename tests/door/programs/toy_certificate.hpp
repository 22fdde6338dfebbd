// TLS for programs that test the door: a certificate, and a client that shows it.
#pragma once
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <string>

#include "../../../door/base/types.hpp"

namespace door {

struct Files {
    std::string chain, key;
};

inline std::string text_of(BIO* bytes) {
    char* at;
    const long size = BIO_get_mem_data(bytes, &at);
    const std::string text(at, (size_t)size);
    BIO_free(bytes);
    return text;
}

// A certificate that signs itself: server and client show it, and both know it.
inline Files new_files() {
    EVP_PKEY* const key = EVP_EC_gen("P-256");
    X509* const made = X509_new();
    X509_set_version(made, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(made), 1);
    X509_gmtime_adj(X509_getm_notBefore(made), -3600);
    X509_gmtime_adj(X509_getm_notAfter(made), 3600);
    X509_set_pubkey(made, key);
    X509_NAME* const name = X509_get_subject_name(made);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const u8*)"door", -1, -1, 0);
    X509_set_issuer_name(made, name);
    X509_EXTENSION* const names = X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "DNS:a.example,DNS:b.example");
    X509_add_ext(made, names, -1);
    X509_sign(made, key, EVP_sha256());
    Files files;
    BIO* bytes = BIO_new(BIO_s_mem());
    PEM_write_bio_X509(bytes, made);
    files.chain = text_of(bytes);
    bytes = BIO_new(BIO_s_mem());
    PEM_write_bio_PrivateKey(bytes, key, nullptr, nullptr, 0, nullptr, nullptr);
    files.key = text_of(bytes);
    X509_EXTENSION_free(names);
    X509_free(made);
    EVP_PKEY_free(key);
    return files;
}

// A client's side, which trusts anybody.
inline SSL_CTX* new_client_context(const Files& files) {
    SSL_CTX* const context = SSL_CTX_new(TLS_client_method());
    BIO* bytes = BIO_new_mem_buf(files.chain.data(), -1);
    X509* const certificate = PEM_read_bio_X509(bytes, nullptr, nullptr, nullptr);
    BIO_free(bytes);
    bytes = BIO_new_mem_buf(files.key.data(), -1);
    EVP_PKEY* const key = PEM_read_bio_PrivateKey(bytes, nullptr, nullptr, nullptr);
    BIO_free(bytes);
    SSL_CTX_use_certificate(context, certificate);
    SSL_CTX_use_PrivateKey(context, key);
    X509_free(certificate);
    EVP_PKEY_free(key);
    return context;
}

}  // namespace door
