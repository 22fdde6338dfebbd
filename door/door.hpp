// The whole door: what all of its threads share.
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "account.hpp"
#include "door.h"
#include "forward.hpp"
#include "loop.hpp"
#include "published.hpp"
#include "service.hpp"
#include "tables.hpp"
#include "tls.hpp"

struct Door {
    explicit Door(const DoorConfig& config);

    const DoorConfig config;
    door::Account account;
    door::Forward forward{account};
    std::unique_ptr<door::Service> service;
    door::Published<door::Tables> tables;
    door::Published<door::TlsContext> tls;
    std::atomic<bool> is_open{false};
    bool asks_for_logins = false;  // before it listens
    std::vector<std::unique_ptr<door::Thread>> threads;
};
