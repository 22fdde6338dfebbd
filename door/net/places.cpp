#include "net/places.hpp"

#include <algorithm>

namespace door {

Places::Places(u64 places) : places_(places), counts_(2 * places + 1) {
    for (Port& port : ports_) port.strangers.reserve(places);
}

void Places::open_port(int protocol) {
    std::lock_guard<std::mutex> guard(mutex_);
    ports_[protocol].is_open = true;
}

bool Places::enter(u64 id, int protocol, u64 network, u64 now_ns, u64 young_ns, const std::function<void(u64)>& evict) {
    std::lock_guard<std::mutex> guard(mutex_);
    Port& port = ports_[protocol];
    Port* leaving = nullptr;  // the port that somebody has to leave
    if (port.places() >= port_max()) leaving = &port;
    else if (taken() >= places_) leaving = &most_crowded();
    if (leaving && leaving->strangers.empty()) return false;
    if (!leaving && port.strangers.size() >= strangers_max() && next_to_go(port)->begun_ns + young_ns < now_ns) leaving = &port;
    if (leaving) evict_from(*leaving, evict);
    port.strangers.push_back({id, network, now_ns});
    count_of(port.strangers.back())++;
    return true;
}

bool Places::evict_one(const std::function<void(u64)>& evict) {
    std::lock_guard<std::mutex> guard(mutex_);
    Port& port = most_crowded();
    if (port.strangers.empty()) return false;
    evict_from(port, evict);
    return true;
}

bool Places::settle(u64 id, int protocol) {
    std::lock_guard<std::mutex> guard(mutex_);
    Port& port = ports_[protocol];
    const auto stranger = find(port, id);
    if (stranger == port.strangers.end()) return false;
    remove(port, stranger);
    port.clients++;
    return true;
}

void Places::leave(u64 id, int protocol, bool is_stranger) {
    std::lock_guard<std::mutex> guard(mutex_);
    Port& port = ports_[protocol];
    if (!is_stranger) {
        port.clients--;
        return;
    }
    const auto stranger = find(port, id);
    if (stranger != port.strangers.end()) remove(port, stranger);
}

u64 Places::taken() const {
    u64 sum = 0;
    for (const Port& port : ports_) sum += port.places();
    return sum;
}

u64 Places::open_ports() const {
    return std::max<u64>(1, (u64)std::count_if(ports_, ports_ + PORTS, [](const Port& port) { return port.is_open; }));
}

u64 Places::strangers_max() const { return std::max<u64>(1, places_ / 2 / open_ports()); }

u64 Places::port_max() const { return places_ - (open_ports() - 1) * std::min(places_ / 2, std::max<u64>(1, places_ / 8)); }

std::vector<Places::Stranger>::iterator Places::next_to_go(Port& port) {
    return std::max_element(port.strangers.begin(), port.strangers.end(), [this](const Stranger& one, const Stranger& other) {
        return count_of(one) < count_of(other);  // of several, the first is found
    });
}

Places::Port& Places::most_crowded() {
    return *std::max_element(ports_, ports_ + PORTS, [](const Port& one, const Port& other) {
        return one.strangers.size() < other.strangers.size();
    });
}

void Places::evict_from(Port& port, const std::function<void(u64)>& evict) {
    const auto stranger = next_to_go(port);
    evict(stranger->id);
    remove(port, stranger);
}

void Places::remove(Port& port, std::vector<Stranger>::iterator stranger) {
    count_of(*stranger)--;
    port.strangers.erase(stranger);
}

std::vector<Places::Stranger>::iterator Places::find(Port& port, u64 id) {
    return std::find_if(port.strangers.begin(), port.strangers.end(), [&](const Stranger& stranger) { return stranger.id == id; });
}

}  // namespace door
