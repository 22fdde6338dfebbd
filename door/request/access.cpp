#include "request/access.hpp"

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "request/call_head.hpp"
#include "door.hpp"

namespace door {

Rights::Rights(const u32* tables, const u8* rights, u64 n) {
    words_.reserve(n);
    for (u64 at = 0; at < n; at++) words_.push_back((u64)tables[at] << 2 | rights[at]);
}

bool Rights::allow(u32 table, u8 rights) const {
    const auto found = std::lower_bound(words_.begin(), words_.end(), (u64)table << 2);
    return rights && found != words_.end() && *found >> 2 == table && (*found & rights) == rights;
}

std::shared_ptr<Caller> Logins::use(const Shown& shown, u64 now_ns) {
    const auto found = find(shown);
    if (found == logins_.end()) return nullptr;
    if (!found->caller->is_gone && now_ns < found->end_ns && now_ns - found->used_ns <= found->idle_ns) {
        found->used_ns = now_ns;
        return found->caller;
    }
    forget(found);
    return nullptr;
}

void Logins::note(const Shown& shown, std::shared_ptr<Caller> caller, u64 end_ns, u64 idle_ns, u64 now_ns) {
    const Login login = {shown, std::move(caller), end_ns, idle_ns, now_ns};
    auto place = find(shown);
    if (place == logins_.end() && logins_.size() == LOGINS_MAX)
        place = std::min_element(logins_.begin(), logins_.end(),
                                 [](const Login& one, const Login& other) { return one.used_ns < other.used_ns; });
    if (place != logins_.end()) *place = login;
    else if (account_.admit(CALLS, sizeof(Login))) logins_.push_back(login);
}

void Logins::forget_certificate() {
    const auto found = find(CERTIFICATE);
    if (found != logins_.end()) forget(found);
}

std::vector<Logins::Login>::iterator Logins::find(const Shown& shown) {
    return std::find_if(logins_.begin(), logins_.end(), [&](const Login& login) { return login.shown == shown; });
}

void Logins::forget(std::vector<Login>::iterator login) {
    logins_.erase(login);
    account_.give(CALLS, sizeof(Login));
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

void Callers::set_rights(u64 caller, std::shared_ptr<const Rights> rights) try {
    if (const std::shared_ptr<Caller> known = find(caller))
        known->rights = std::move(rights);
    else
        callers_.emplace(caller, std::make_shared<Caller>(Caller{caller, std::move(rights)}));
} catch (const std::bad_alloc&) {
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

namespace {

constexpr std::string_view HEADER = "authorization: ";

// Returns the value of a call's header; empty if it has none, or several.
std::string_view authorization_of(const CallHead& call, u64* count) {
    std::string_view found;
    *count = 0;
    for (std::string_view rest = call.metadata; !rest.empty();) {
        const std::string_view line = rest.substr(0, rest.find('\n'));
        if (line.substr(0, HEADER.size()) == HEADER && !(*count)++) found = line.substr(HEADER.size());
        rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    }
    return found;
}

}  // namespace

bool knows_caller(Connection& connection, CallHead& call) {
    Thread& thread = connection.thread;
    if (!thread.door.asks_for_logins) return true;
    if (call.caller) return true;
    u64 headers;
    const std::string_view authorization = authorization_of(call, &headers);
    if (headers > 1) return false;  // Python refuses them
    call.shown = headers ? thread.callers.shown(authorization) : CERTIFICATE;
    call.caller = connection.logins.use(call.shown, thread.now());
    return call.caller != nullptr;
}

void note_login(Connection& connection, CallHead& call, u64 caller, u64 end_ns, u64 idle_ns) {
    Thread& thread = connection.thread;
    const std::shared_ptr<Caller> known = thread.callers.find(caller);
    if (!known || call.shown == NOTHING) return;
    call.caller = known;
    connection.logins.note(call.shown, known, end_ns, idle_ns, thread.now());
    connection.settle();
}

}  // namespace door

using namespace door;

namespace {

// Runs something in every thread of connections.
template <class Function>
int tell_all(Door* door, const Function& function) try {
    for (const auto& thread : door->threads)
        thread->post([function, thread = thread.get()] { function(*thread); });
    return 0;
} catch (const std::bad_alloc&) {
    return -ENOMEM;
}

}  // namespace

void gpkvs_door_ask_for_logins(Door* door) { door->asks_for_logins = true; }

int gpkvs_door_set_rights(Door* door, uint64_t caller, const uint32_t* tables, const uint8_t* rights, uint64_t n) try {
    const auto made = std::make_shared<const Rights>(tables, rights, n);
    return tell_all(door, [caller, made](Thread& thread) { thread.callers.set_rights(caller, made); });
} catch (const std::bad_alloc&) {
    return -ENOMEM;
}

int gpkvs_door_end_caller(Door* door, uint64_t caller) {
    return tell_all(door, [caller](Thread& thread) {
        thread.callers.end(caller);
        thread.for_open([](Connection& connection) { connection.callers_changed(); });
    });
}

int gpkvs_door_forget_certificates(Door* door) {
    return tell_all(door, [](Thread& thread) {
        thread.for_open([](Connection& connection) { connection.logins.forget_certificate(); });
    });
}

int gpkvs_door_close_answered(Door* door, const char* peer) try {
    return tell_all(door, [name = std::string(peer)](Thread& thread) {
        thread.for_open([&](Connection& connection) {
            if (connection.peer == name) connection.close_answered();
        });
    });
} catch (const std::bad_alloc&) {
    return -ENOMEM;
}
