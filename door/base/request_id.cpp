#include "base/request_id.hpp"

#include <sys/random.h>

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "base/types.hpp"

namespace door {

namespace {

u64 random_word() {
    u64 word = 0;
    if (getrandom(&word, sizeof word, 0) != sizeof word) word = now_ns();  // a very old system
    return word;
}

// Different numbers give different words, which do not look like their neighbours (the end of splitmix64).
u64 mixed(u64 word) {
    word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9;
    word = (word ^ word >> 27) * 0x94d049bb133111eb;
    return word ^ word >> 31;
}

bool may_be_id(std::string_view text) {
    const auto is_printed = [](char letter) { return letter > ' ' && letter <= '~'; };
    return !text.empty() && text.size() <= REQUEST_ID_BYTES_MAX && std::all_of(text.begin(), text.end(), is_printed);
}

}  // namespace

std::string_view given_request_id(std::string_view metadata) {
    for (size_t at = 0; at < metadata.size();) {
        const size_t end = std::min(metadata.find('\n', at), metadata.size());
        const std::string_view line = metadata.substr(at, end - at);
        if (line.substr(0, REQUEST_ID.size()) == REQUEST_ID) {
            const std::string_view id = line.substr(REQUEST_ID.size());
            return may_be_id(id) ? id : std::string_view();
        }
        at = end + 1;
    }
    return {};
}

std::string new_request_id() { return LateRequestId().text(); }

std::string LateRequestId::text() {
    static std::atomic<u64> next{random_word()};
    while (!number_) number_ = next.fetch_add(1, std::memory_order_relaxed);
    char id[17];
    snprintf(id, sizeof id, "%016llx", (unsigned long long)mixed(number_));
    return id;
}

}  // namespace door
