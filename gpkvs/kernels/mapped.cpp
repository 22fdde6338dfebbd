// A mapped file that cannot be read or written any more: it was truncated, or its disk fails.
//
// The processor then raises SIGBUS at whatever instruction touched it. Nothing may be answered after that, and nothing of
// what normally runs at the end of a process may run: the handler says which file it was, in one line on stderr, and ends
// the process with status 70, as any other failure in the middle of a transaction does. It only calls what is safe in a
// signal handler. A SIGBUS that is not of a mapped file of a store goes to whoever handled it before.

#include <atomic>
#include <csignal>
#include <cstdint>
#include <mutex>
#include <string>
#include <unistd.h>

#include "base/fatal_line.hpp"

namespace {

struct Mapping {
    std::atomic<uint64_t> bytes;  // 0: free to be used again
    uint64_t address;
    std::string path;
    Mapping* next;
};

std::atomic<Mapping*> mappings;
std::mutex changing;  // threads that open and close stores; the handler of the signal takes no lock
struct sigaction handled_before;

std::atomic_flag is_ending = ATOMIC_FLAG_INIT;

void on_bus_error(int signal, siginfo_t* info, void* context) {
    const auto address = reinterpret_cast<uint64_t>(info->si_addr);
    for (const Mapping* mapping = mappings.load(); mapping; mapping = mapping->next) {
        if (address - mapping->address >= mapping->bytes.load()) continue;
        while (is_ending.test_and_set()) pause();  // another thread, with the same to say
        FatalLine line;
        line << "gpkvs: " << mapping->path.c_str() << " cannot be read or written at byte " << address - mapping->address
             << ": it was truncated, or its disk fails. The process stops here, the batch in progress is not answered: "
                "restore the file, then run gpkvs check\n";
        line.end_process();
    }
    if (handled_before.sa_flags & SA_SIGINFO) {
        handled_before.sa_sigaction(signal, info, context);
    } else if (handled_before.sa_handler != SIG_DFL && handled_before.sa_handler != SIG_IGN) {
        handled_before.sa_handler(signal);
    } else {
        sigaction(SIGBUS, &handled_before, nullptr);  // the instruction runs again, and the process ends as it would have
    }
}

}  // namespace

extern "C" {

// Name the file at an address.
void gpkvs_mapped(uint64_t address, uint64_t bytes, const char* path) {
    std::lock_guard<std::mutex> guard(changing);
    if (!mappings.load()) {
        struct sigaction action = {};
        action.sa_sigaction = on_bus_error;
        action.sa_flags = SA_SIGINFO;
        sigaction(SIGBUS, &action, &handled_before);
    }
    Mapping* mapping = mappings.load();
    while (mapping && mapping->bytes.load()) mapping = mapping->next;
    const bool is_new = !mapping;
    if (is_new) mapping = new Mapping();
    mapping->address = address;
    mapping->path = path;
    mapping->bytes.store(bytes);
    if (is_new) {
        mapping->next = mappings.load();
        mappings.store(mapping);
    }
}

// Forget it, before it is unmapped.
void gpkvs_unmapped(uint64_t address) {
    std::lock_guard<std::mutex> guard(changing);
    for (Mapping* mapping = mappings.load(); mapping; mapping = mapping->next)
        if (mapping->bytes.load() && mapping->address == address) mapping->bytes.store(0);
}

}
