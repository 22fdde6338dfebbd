// Who calls, and what the caller may do. Python decides: it says who makes a call whose login is not known here
// (login.hpp), and a call whose right is not known here is handed to it whole. What it has said of a login is kept for its
// connection, so that the next call that shows the same need not ask. All of it is of one thread.
#pragma once
#include <openssl/evp.h>

#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/account.hpp"
#include "base/types.hpp"

namespace door {

static const u8 MAY_READ = 1, MAY_WRITE = 2;

// The tables that a caller may read or write.
class Rights {
  public:
    // Takes the ids of the tables, ascending, and what each allows. std::bad_alloc.
    Rights(const u32* tables, const u8* rights, u64 n);

    // Whether all of these are there; not, if none is asked for.
    bool allow(u32 table, u8 rights) const;

  private:
    std::vector<u64> words_;  // a table's id << 2 | what it allows
};

// A user who has logged in with one token, password or certificate.
struct Caller {
    const u64 id;  // Python's
    std::shared_ptr<const Rights> rights;
    bool is_gone = false;  // the login no longer counts

    bool may(u32 table, u8 needed) const { return !is_gone && rights->allow(table, needed); }
};

// What a call shows: a hash of its header that nobody can compute without this thread's key, since the header is a
// secret. All calls without a header show the certificate of their connection. No hash is likely to be one of the two
// that stand for something else.
struct Shown {
    u64 words[2] = {0, 0};  // nothing

    // Takes the same time wherever two differ.
    bool operator==(const Shown& other) const {
        return ((words[0] ^ other.words[0]) | (words[1] ^ other.words[1])) == 0;
    }
};
static const Shown NOTHING, CERTIFICATE = {{NEVER, NEVER}};

// What calls of one connection have shown, and who they were; charged to its account.
class Logins {
  public:
    static const u64 LOGINS_MAX = 256;

    explicit Logins(ConnectionAccount& account) : account_(account) {}

    // Returns who shows this; null if Python has to say.
    std::shared_ptr<Caller> use(const Shown& shown, u64 now_ns);

    // Takes who shows this: until a moment, and while the time between two uses is at most `idle_ns`. Where there are
    // too many, the one that was used longest ago goes; where there is no memory, Python decides again. std::bad_alloc.
    void note(const Shown& shown, std::shared_ptr<Caller> caller, u64 end_ns, u64 idle_ns, u64 now_ns);

    // Forgets whose certificate this is: a user of the changed file may have one of its names.
    void forget_certificate();

  private:
    struct Login {
        Shown shown;
        std::shared_ptr<Caller> caller;
        u64 end_ns, idle_ns, used_ns;
    };

    std::vector<Login>::iterator find(const Shown& shown);
    void forget(std::vector<Login>::iterator login);

    ConnectionAccount& account_;
    std::vector<Login> logins_;
};

// The callers that Python has told a thread of.
class Callers {
  public:
    // std::bad_alloc, also where the system has no random numbers.
    Callers();
    ~Callers();
    Callers(const Callers&) = delete;
    Callers& operator=(const Callers&) = delete;

    // Returns what a call with this header shows. std::bad_alloc.
    Shown shown(std::string_view authorization);

    // Makes a caller, or changes what it may do; calls under way see that at their next message. A caller for which
    // there is no memory stays unknown.
    void set_rights(u64 caller, std::shared_ptr<const Rights> rights);

    // Ends a caller: its logins count no more.
    void end(u64 caller);

    // Returns a caller; null if there is none of this id, or no longer.
    std::shared_ptr<Caller> find(u64 caller) const;

  private:
    u8 key_[16];
    EVP_MAC_CTX* mac_;
    std::unordered_map<u64, std::shared_ptr<Caller>> callers_;
};

class Connection;
struct CallHead;

// Whether the door knows who makes a call, which it notes there; without users it need not. std::bad_alloc.
bool knows_caller(Connection& connection, CallHead& call);

// Python says who makes a call, and for how long that counts (`Logins::note`). std::bad_alloc.
void note_login(Connection& connection, CallHead& call, u64 caller, u64 end_ns, u64 idle_ns);

}  // namespace door
