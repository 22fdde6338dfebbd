#include "base/slow_log.hpp"

#include <algorithm>
#include <cstring>
#include <ctime>

#include "door.hpp"

namespace door {

namespace {

u64 microseconds_since_1970() {
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (u64)now.tv_sec * 1000000 + (u64)now.tv_nsec / 1000;
}

void copy_key(const Request& request, DoorSlowCall& call) {
    if (!request.n || !request.keys) return;
    u32 size = request.key_size;
    if (request.key_lengths) memcpy(&size, request.key_lengths, sizeof size);
    call.key_bytes = size;
    memcpy(call.key, request.keys, std::min<u64>(size, sizeof call.key));
}

}  // namespace

void SlowLog::note(const DoorSlowCall& call) {
    std::lock_guard<std::mutex> guard(mutex_);
    if (calls_.empty()) return;
    calls_[(first_ + count_) % calls_.size()] = call;
    if (count_ < calls_.size()) count_++;
    else first_ = (first_ + 1) % calls_.size();
}

u64 SlowLog::take(DoorSlowCall* calls, u64 room) {
    std::lock_guard<std::mutex> guard(mutex_);
    const u64 taken = std::min(room, count_);
    for (u64 at = 0; at < taken; at++) calls[at] = calls_[(first_ + at) % calls_.size()];
    if (taken) first_ = (first_ + taken) % calls_.size();
    count_ -= taken;
    return taken;
}

DoorSlowCall slow_call_of(const Request& request, u64 ended_ns) {
    DoorSlowCall call = {};
    call.ended_us = microseconds_since_1970();
    u64 at = request.submitted_ns;
    const auto until = [&](u64 time_ns) {
        const u64 end = std::clamp(time_ns, at, ended_ns);
        return end - std::exchange(at, end);
    };
    const bool was_run = request.began_ns;
    call.waiting_ns = until(was_run ? request.began_ns : ended_ns);
    call.executing_ns = until(request.planned_ns);
    call.durable_ns = until(request.durable_ns);
    call.answering_ns = until(ended_ns);
    call.table_id = request.table_id;
    call.operations = request.n;
    call.bytes_in = request.bytes_in();
    call.bytes_out = request.result_value_bytes + request.lent_bytes();
    copy_key(request, call);
    return call;
}

}  // namespace door

using namespace door;

u64 gpkvs_door_slow_calls(Door* door, DoorSlowCall* calls, u64 room) { return door->slow_log.take(calls, room); }
