// The whole door: what all of its threads share.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "base/account.hpp"
#include "door.h"
#include "python/forward.hpp"
#include "queue/gates.hpp"
#include "net/listener.hpp"
#include "net/loop.hpp"
#include "base/patience.hpp"
#include "net/places.hpp"
#include "base/published.hpp"
#include "queue/queue.hpp"
#include "resp/scripts.hpp"
#include "grpc/service.hpp"
#include "base/slow_log.hpp"
#include "base/stats.hpp"
#include "resp/subscriber.hpp"
#include "request/tables.hpp"
#include "net/tls.hpp"
#include "queue/turn.hpp"

struct Door {
    // std::bad_alloc, std::system_error.
    explicit Door(const DoorConfig& config);
    ~Door();

    // Sends requests back to the threads of their connections: a list. If they were executed, they are durable since then.
    void give_back(door::Request* first, uint64_t durable_ns = 0);
    // Has each thread do this, and waits until all have; not from one of them.
    void in_all_threads(const std::function<void(door::Thread&)>& work);
    door::Thread& least_loaded();
    uint64_t connections() const;
    // A stranger has to go: its thread closes it, soon. std::bad_alloc.
    void evict(uint64_t id, door::StatsConnection why);
    // How long a connection may stay a stranger's.
    uint64_t stranger_ns() const { return asks_for_logins ? patience.login_ns : patience.first_request_ns; }
    int listen(const char* host, uint16_t port, int protocol);
    void stop_listening();
    void stop();

    const DoorConfig config;
    door::Patience patience;
    door::Places places;
    door::Account account;
    door::Forward forward{account};
    std::unique_ptr<door::Service> service;  // null: Python serves all calls
    door::EngineStats engine_stats;
    door::TableStats gone_tables;  // of batches whose table was gone; the engine's thread writes it
    door::SlowLog slow_log;
    door::Subscribers subscribers;
    // Where there is no memory for what is to be said of a request.
    const std::shared_ptr<const door::Refusal> no_memory;
    // Replaced by one thread at a time.
    std::mutex tables_mutex;
    door::Published<door::Tables> tables;
    door::TableStats dropped_tables;  // what was counted of tables that are gone; guarded by that mutex
    door::Published<door::Scripts> scripts;
    door::Published<door::TlsContext> tls;
    std::atomic<bool> is_open{false};
    bool asks_for_logins = false;  // before it listens
    std::atomic<uint64_t> next_connection_id{1};
    std::atomic<uint64_t> requests{0};  // that are not answered
    door::Queue queue;
    door::Gates gates;
    door::Turn turn;
    std::vector<std::unique_ptr<door::Thread>> threads;
    std::mutex listeners_mutex;
    std::vector<std::unique_ptr<door::Listener>> listeners;
};
