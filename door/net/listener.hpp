// A socket that listens: it deals connections to the threads that have the fewest. The first thread waits for it.
#pragma once
#include <netdb.h>

#include "base/watched.hpp"

struct Door;

namespace door {

class Listener : public Watched {
  public:
    // Owns the file.
    Listener(Door& door, int file, int protocol);
    ~Listener();

    // A file that listens there, or -errno. `port` becomes the one that was taken, if it is 0.
    static int open(const addrinfo& address, u16& port);

    int file() const { return file_; }
    void ready(u32 events) override;

  private:
    void accept_by_spare();

    Door& door_;
    const int file_;
    const int protocol_;
    int spare_;  // is given up where no other file is free
};

}  // namespace door
