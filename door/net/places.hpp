// Who may have a connection: clients keep theirs, strangers give way to newcomers.
//
// Each connection begins as a stranger's. It becomes a client's by a login, or by a certificate; where nobody logs in, by the
// first request or command that is whole. So:
//
// - half of all connections are for clients alone. The ports share the other half out among their strangers. A newcomer at a
//   port whose share is full takes the place of a stranger there, unless that one came a moment ago;
// - where all connections are taken, a newcomer takes the place of a stranger in any case, at the port that has most of them;
// - the stranger that gives way is the oldest of the network that has the most. So a flood out of one network drives out
//   itself, and whoever else comes has time to log in;
// - an eighth of all is kept for each other port, so that the clients of one port cannot fill it.
#pragma once
#include <functional>
#include <mutex>
#include <vector>

#include "door.h"
#include "base/types.hpp"

namespace door {

class Places {
  public:
    // std::bad_alloc: it takes all its memory now.
    explicit Places(u64 places);

    // A port has opened. Any thread.
    void open_port(int protocol);

    // A newcomer, at a time, out of a network (a hash of it). `evict` is told of the connection whose place it takes, if it must;
    // where that throws, nothing has changed. False: clients have all places. The thread that listens.
    bool enter(u64 id, int protocol, u64 network, u64 now_ns, u64 young_ns, const std::function<void(u64)>& evict);
    // The system has no room for a newcomer: a stranger has to go. False: there is none.
    bool evict_one(const std::function<void(u64)>& evict);
    // A stranger has become a client. False: its place is another one's already. Any thread.
    bool settle(u64 id, int protocol);
    // A connection has ended. Any thread.
    void leave(u64 id, int protocol, bool is_stranger);

  private:
    struct Stranger {
        u64 id, network, begun_ns;
    };

    struct Port {
        u64 places() const { return clients + strangers.size(); }

        bool is_open = false;
        u64 clients = 0;
        std::vector<Stranger> strangers;  // the oldest first
    };

    static constexpr int PORTS = 2;

    u64 taken() const;
    u64 open_ports() const;
    u64 strangers_max() const;
    u64 port_max() const;
    u32& count_of(const Stranger& stranger) { return counts_[stranger.network % counts_.size()]; }
    std::vector<Stranger>::iterator next_to_go(Port& port);
    Port& most_crowded();
    void evict_from(Port& port, const std::function<void(u64)>& evict);
    void remove(Port& port, std::vector<Stranger>::iterator stranger);
    static std::vector<Stranger>::iterator find(Port& port, u64 id);

    const u64 places_;
    std::mutex mutex_;
    Port ports_[PORTS];
    // Strangers by network. Two networks may share a counter; that does little harm.
    std::vector<u32> counts_;
};

}  // namespace door
