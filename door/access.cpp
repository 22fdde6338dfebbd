#include "access.hpp"

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include <algorithm>
#include <new>

namespace door {

Rights::Rights(const u32* tables, const u8* rights, u64 n) {
    words_.reserve(n);
    for (u64 at = 0; at < n; at++) words_.push_back((u64)tables[at] << 2 | rights[at]);
}

bool Rights::allow(u32 table, u8 rights) const {
    const auto found = std::lower_bound(words_.begin(), words_.end(), (u64)table << 2);
    return found != words_.end() && *found >> 2 == table && (*found & rights) == rights;
}

std::shared_ptr<Caller> Logins::find(const Shown& shown, u64 now_ns) {
    for (u64 at = 0; at < logins_.size(); at++) {
        Login& login = logins_[at];
        if (!(login.shown == shown)) continue;
        if (!login.caller->is_gone && now_ns < login.end_ns && now_ns - login.used_ns <= login.idle_ns) {
            login.used_ns = now_ns;
            return login.caller;
        }
        logins_.erase(logins_.begin() + (long)at);
        return nullptr;
    }
    return nullptr;
}

void Logins::note(const Shown& shown, std::shared_ptr<Caller> caller, u64 end_ns, u64 idle_ns, u64 now_ns) {
    const Login login = {shown, std::move(caller), end_ns, idle_ns, now_ns};
    for (Login& other : logins_)
        if (other.shown == shown) return void(other = login);
    if (logins_.size() < LOGINS_MAX) return logins_.push_back(login);
    *std::min_element(logins_.begin(), logins_.end(), [](const Login& one, const Login& other) {
        return one.used_ns < other.used_ns;
    }) = login;
}

void Logins::forget_certificate() {
    logins_.erase(std::remove_if(logins_.begin(), logins_.end(),
                                 [](const Login& login) { return login.shown == CERTIFICATE; }),
                  logins_.end());
}

Callers::Callers() : mac_(nullptr) {
    EVP_MAC* siphash = EVP_MAC_fetch(nullptr, "SIPHASH", nullptr);
    mac_ = siphash ? EVP_MAC_CTX_new(siphash) : nullptr;
    EVP_MAC_free(siphash);  // its context holds it
    if (!mac_ || RAND_bytes(key_, sizeof key_) != 1) {
        EVP_MAC_CTX_free(mac_);
        throw std::bad_alloc();
    }
}

Callers::~Callers() {
    EVP_MAC_CTX_free(mac_);
    OPENSSL_cleanse(key_, sizeof key_);
}

Shown Callers::shown(std::string_view authorization) {
    Shown shown;
    size_t size;
    if (EVP_MAC_init(mac_, key_, sizeof key_, nullptr) != 1 ||
        EVP_MAC_update(mac_, (const u8*)authorization.data(), authorization.size()) != 1 ||
        EVP_MAC_final(mac_, (u8*)shown.words, &size, sizeof shown.words) != 1 || size != sizeof shown.words)
        throw std::bad_alloc();
    return shown;
}

void Callers::set_rights(u64 caller, std::shared_ptr<const Rights> rights) {
    if (const std::shared_ptr<Caller> known = find(caller))
        known->rights = std::move(rights);
    else
        callers_.emplace(caller, std::make_shared<Caller>(Caller{caller, std::move(rights)}));
}

void Callers::end(u64 caller) {
    const auto found = callers_.find(caller);
    if (found == callers_.end()) return;
    found->second->is_gone = true;
    callers_.erase(found);
}

std::shared_ptr<Caller> Callers::find(u64 caller) const {
    const auto found = callers_.find(caller);
    return found == callers_.end() ? nullptr : found->second;
}

}  // namespace door
