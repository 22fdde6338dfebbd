#include "door.hpp"

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <netdb.h>
#include <sys/epoll.h>
#include <system_error>

#include "grpc/kv.hpp"
#include "resp/resp_command.hpp"

using namespace door;

namespace {

constexpr u64 THREADS_MAX = 16;

// One up to 4 cores, then a quarter of them: the engine's kernels have the others.
u64 threads_of(const DoorConfig& config) {
    if (config.threads) return std::min(config.threads, THREADS_MAX);
    return std::clamp<u64>(std::thread::hardware_concurrency() / 4, 1, 4);
}

// Threads that begin meanwhile are sent no signals of the process: these are Python's. Faults of their own still have handlers.
class NoSignals {
  public:
    NoSignals() {
        sigset_t all;
        sigfillset(&all);
        for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) sigdelset(&all, fault);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  private:
    sigset_t before_;
};

std::shared_ptr<const Refusal> copy_of(const Door& door, const DoorRefusal& refusal) try {
    return std::make_shared<const Refusal>(refusal_of(refusal));
} catch (const std::bad_alloc&) {
    return door.no_memory;
}

// What every thread is to do.
struct Everywhere {
    Everywhere(const std::function<void(Thread&)>& work, u64 busy) : work(work), busy(busy) {}

    const std::function<void(Thread&)>& work;
    u64 busy;  // threads that have not done it
    std::mutex mutex;
    std::condition_variable done;
};

// One thread's share of it.
struct Share final : Errand {
    void run() override {
        all->work(*thread);
        std::lock_guard<std::mutex> guard(all->mutex);
        if (!--all->busy) all->done.notify_all();
    }

    Everywhere* all;
    Thread* thread;
};

}  // namespace

Door::Door(const DoorConfig& config)
    : config(config), places(config.connections_max), account(config.clients_bytes_max), service(std::make_unique<KvService>()),
      slow_log(config.slow_ns, config.slow_calls_max), no_memory(std::make_shared<const Refusal>(
          Refusal{RESOURCE_EXHAUSTED, "the server has no memory to tell what became of the request", "memory", false})),
      queue(config.queue_requests_max), gates(*this), turn(*this) {
    tables.publish(std::make_shared<const Tables>());
    scripts.publish(std::make_shared<const Scripts>());
    for (u64 number = 0; number < threads_of(config); number++)
        threads.push_back(std::make_unique<Thread>(*this, (u32)number));
}

Door::~Door() {
    stop();
    turn.abandon();
    gates.abandon();
    threads.clear();
}

void Door::give_back(Request* first, u64 durable_ns) {
    Request* firsts[THREADS_MAX] = {};
    Request* lasts[THREADS_MAX] = {};
    u64 given_back = 0;
    for (Request* next; first; first = next, given_back++) {
        next = first->next;
        const u32 number = first->connection->thread.number;
        first->next = nullptr;
        first->durable_ns = durable_ns;
        (firsts[number] ? lasts[number]->next : firsts[number]) = first;
        lasts[number] = first;
    }
    requests -= given_back;
    for (const auto& thread : threads)
        if (firsts[thread->number]) thread->post_answered(firsts[thread->number], lasts[thread->number]);
}

void Door::in_all_threads(const std::function<void(Thread&)>& work) {
    Everywhere all(work, threads.size());
    Share shares[THREADS_MAX];
    for (const auto& thread : threads) {
        Share& share = shares[thread->number];
        share.all = &all;
        share.thread = thread.get();
        thread->post(share);
    }
    std::unique_lock<std::mutex> lock(all.mutex);
    all.done.wait(lock, [&] { return !all.busy; });
}

Thread& Door::least_loaded() {
    return **std::min_element(threads.begin(), threads.end(),
                              [](const auto& a, const auto& b) { return a->connections() < b->connections(); });
}

u64 Door::connections() const {
    u64 sum = 0;
    for (const auto& thread : threads) sum += thread->connections();
    return sum;
}

void Door::evict(u64 id, StatsConnection why) {
    Thread& thread = *threads[Forward::thread_of(id)];
    thread.post([&thread, id, why] {
        if (Connection* const connection = thread.find(id)) connection->give_way(why);
    });
}

int Door::listen(const char* host, u16 port, int protocol) {
    addrinfo wanted = {};
    wanted.ai_socktype = SOCK_STREAM;
    wanted.ai_flags = AI_PASSIVE;
    addrinfo* found;
    const int error = getaddrinfo(host, nullptr, &wanted, &found);
    if (error) return error == EAI_SYSTEM ? -errno : -EADDRNOTAVAIL;
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
    std::vector<std::unique_ptr<Listener>> opened;
    for (const addrinfo* address = found; address; address = address->ai_next) {
        const int file = Listener::open(*address, port);
        if (file >= 0) opened.push_back(std::make_unique<Listener>(*this, file, protocol));
        else if (file != -EADDRNOTAVAIL && file != -EAFNOSUPPORT) return file;
    }
    if (opened.empty()) return -EADDRNOTAVAIL;
    places.open_port(protocol);
    std::lock_guard<std::mutex> guard(listeners_mutex);
    for (auto& listener : opened) {
        threads.front()->watch(*listener, listener->file(), EPOLLIN);
        listeners.push_back(std::move(listener));
    }
    return port;
}

void Door::stop_listening() {
    std::lock_guard<std::mutex> guard(listeners_mutex);
    in_all_threads([this](Thread& thread) {
        if (&thread != threads.front().get()) return;
        for (const auto& listener : listeners) thread.forget(listener->file());
    });
    in_all_threads([](Thread&) {});  // in the round of the first, one of them may still have its turn
    listeners.clear();
}

void Door::stop() {
    stop_listening();
    in_all_threads([](Thread& thread) { thread.close_all(); });
    turn.stop();  // it drops what waits, without a word for those who wait
}

void gpkvs_door_begin_thread(void) { use_thread_storage(); }

Door* gpkvs_door_new(const DoorConfig* config) try {
    const NoSignals guard;
    return new Door(*config);
} catch (const std::exception&) {  // no memory, no threads, no files
    return nullptr;
}

void gpkvs_door_delete(Door* door) { delete door; }

int gpkvs_door_listen(Door* door, const char* host, u16 port, int protocol) try {
    return door->listen(host, port, protocol);
} catch (const std::bad_alloc&) {
    return -ENOMEM;
}

int gpkvs_door_set_tables(Door* door, const DoorTable* tables, u64 n) try {
    std::lock_guard<std::mutex> guard(door->tables_mutex);
    const std::shared_ptr<const Tables> before = door->tables.value();
    const auto snapshot = std::make_shared<Tables>();
    for (const DoorTable* table = tables; table < tables + n; table++)
        snapshot->add(table->name, table_of(*table), *before);
    door->tables.publish(snapshot);
    for (const auto& [id, stats] : before->all_stats())
        if (!snapshot->find(id)) door->dropped_tables.add(*stats);
    return 0;
} catch (const std::bad_alloc&) {
    return -ENOMEM;
}

int gpkvs_door_set_scripts(Door* door, const DoorScript* scripts, u64 n) try {
    const auto snapshot = std::make_shared<Scripts>();
    for (const DoorScript* script = scripts; script < scripts + n; script++)
        snapshot->add(script->name, (Program)script->program, script->keys);
    door->scripts.publish(snapshot);
    return 0;
} catch (const std::bad_alloc&) {
    return -ENOMEM;
}

const char* gpkvs_door_redis_commands(void) try {
    static const std::string names = command_names();
    return names.c_str();
} catch (const std::bad_alloc&) {
    return nullptr;
}

void gpkvs_door_open(Door* door) {
    door->turn.refuse_waiting(nullptr);
    door->is_open = true;
}

void gpkvs_door_shut(Door* door, const DoorRefusal* refusal) {
    door->is_open = false;
    door->in_all_threads([](Thread& thread) { thread.for_open([](Connection& connection) { connection.shut(); }); });
    if (refusal) door->turn.refuse_waiting(copy_of(*door, *refusal));
}

u64 gpkvs_door_waiting(Door* door) { return door->queue.requests(); }
u64 gpkvs_door_requests(Door* door) { return door->requests; }
u64 gpkvs_door_held(Door* door, int kind) { return door->account.bytes((Kind)kind); }

void gpkvs_door_drain(Door* door) {
    door->stop_listening();
    door->in_all_threads([](Thread& thread) { thread.drain(); });
}

u64 gpkvs_door_connections(Door* door) { return door->connections(); }
void gpkvs_door_stop(Door* door) { door->stop(); }
void gpkvs_door_set_engine(Door* door, const Engine* engine) { door->turn.set_engine(engine); }
void gpkvs_door_set_clock(Door* door, int64_t* ahead_us) { door->turn.set_clock(ahead_us); }
int gpkvs_door_turn(Door* door, u64 timeout_ns) { return door->turn.run(timeout_ns); }
void gpkvs_door_interrupt(Door* door) { door->turn.interrupt(); }
const EngineBatch* gpkvs_door_left(Door* door) { return door->turn.left(); }

void gpkvs_door_left_lacks(Door* door, uint32_t what, const DoorRefusal* refusal) {
    door->turn.left_lacks(what, copy_of(*door, *refusal));
}

bool gpkvs_door_run_left(Door* door) { return door->turn.run_left(); }

uint64_t gpkvs_door_left_without(Door* door, uint32_t what) { return door->turn.left_without(what); }

void gpkvs_door_left_done(Door* door, u64 covered, const u8* status, const u64* versions, const u32* value_lengths,
                          const u8* values, u64 gate) {
    door->turn.left_done(covered, status, versions, value_lengths, values, gate);
}

u64 gpkvs_door_left_failed(Door* door, const DoorRefusal* refusal) { return door->turn.left_failed(copy_of(*door, *refusal)); }
void gpkvs_door_durable(Door* door, u64 gate) { door->gates.durable(gate); }
