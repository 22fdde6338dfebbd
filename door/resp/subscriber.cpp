#include "resp/subscriber.hpp"

#include <cstring>
#include <utility>

#include "door.hpp"

namespace door {

namespace {

constexpr std::string_view EVENTS[] = {"", "set", "del", "expired"};  // by `ChangeKind`

u64 digits(u64 number) {
    u64 count = 1;
    while (number /= 10) count++;
    return count;
}

// A bulk string as it is sent.
u64 bulk_bytes(std::string_view text) { return 1 + digits(text.size()) + 2 + text.size() + 2; }

void append_text(std::vector<u8>& to, std::string_view text) { to.insert(to.end(), text.begin(), text.end()); }

void append_bulk(std::vector<u8>& to, std::string_view text) {
    char head[24];
    append_text(to, {head, (u64)snprintf(head, sizeof head, "$%zu\r\n", text.size())});
    append_text(to, text);
    append_text(to, "\r\n");
}

}  // namespace

Subscriber::Subscriber(Thread& thread, u64 connection, u64 bytes_max)
    : thread_(thread), account_(thread.door.account), connection_(connection), bytes_max_(bytes_max) {}

u64 Subscriber::change(std::shared_ptr<const Subscriptions> subscriptions) {
    std::lock_guard<std::mutex> guard(mutex_);
    subscriptions_ = std::move(subscriptions);
    is_piece_closed_ = true;
    return appended_;
}

bool Subscriber::take(Output& output, u64 until) {
    std::lock_guard<std::mutex> guard(mutex_);
    is_woken_ = false;
    for (; !pieces_.empty() && taken_ < until && output.size() < Output::LOW_BYTES; pieces_.pop_front()) {
        const Piece& piece = pieces_.front();
        output.append(piece.bytes.data(), piece.bytes.size());
        taken_ += piece.bytes.size();
        counted_ -= piece.counted;
        account_.change(ANSWERS, -(i64)piece.counted);
    }
    is_piece_closed_ |= pieces_.empty();
    return pieces_.empty() || taken_ >= until;
}

bool Subscriber::is_cut_off(StatsConnection& why) {
    std::lock_guard<std::mutex> guard(mutex_);
    why = why_;
    return is_cut_off_;
}

void Subscriber::end() {
    std::lock_guard<std::mutex> guard(mutex_);
    is_over_ = true;
    drop();
}

u64 Subscriber::tell(const std::string& channel, std::string_view payload, Subscriptions::Found& found) {
    while (true) {
        std::shared_ptr<const Subscriptions> seen;
        {
            std::lock_guard<std::mutex> guard(mutex_);
            if (is_over_) return 0;
            seen = subscriptions_;
        }
        seen->find(channel, found);
        if (!found.count()) return 0;
        std::lock_guard<std::mutex> guard(mutex_);
        if (is_over_) return 0;
        if (seen != subscriptions_) continue;
        try {
            if (found.by_channel) append(seen->protocol, nullptr, channel, payload);
            for (const std::string* pattern : found.by_patterns) append(seen->protocol, pattern, channel, payload);
            wake();
        } catch (const std::bad_alloc&) {
            cut_off(STATS_NO_MEMORY);
        }
        return found.count();
    }
}

void Subscriber::append(u32 protocol, const std::string* pattern, std::string_view channel, std::string_view payload) {
    const std::string_view kind = pattern ? "pmessage" : "message";
    const u64 head_bytes = 4;  // >4 and the end of the line
    const u64 size =
        head_bytes + bulk_bytes(kind) + (pattern ? bulk_bytes(*pattern) : 0) + bulk_bytes(channel) + bulk_bytes(payload);
    if (is_over_ || !make_room(size)) return;
    std::vector<u8>& to = pieces_.back().bytes;
    to.push_back(protocol == 3 ? '>' : '*');
    append_text(to, pattern ? "4\r\n" : "3\r\n");
    append_bulk(to, kind);
    if (pattern) append_bulk(to, *pattern);
    append_bulk(to, channel);
    append_bulk(to, payload);
    appended_ += size;
}

// The last piece has room for so much then. False: it is cut off.
bool Subscriber::make_room(u64 bytes) {
    if (!is_piece_closed_ && pieces_.back().bytes.capacity() - pieces_.back().bytes.size() >= bytes) return true;
    const u64 room = std::max(bytes, PIECE_BYTES), counted = room + sizeof(Piece);
    if (!admit(counted)) return false;
    try {
        pieces_.push_back({{}, 0});
        pieces_.back().bytes.reserve(room);
    } catch (const std::bad_alloc&) {
        account_.change(ANSWERS, -(i64)counted);
        throw;
    }
    pieces_.back().counted = counted;
    counted_ += counted;
    is_piece_closed_ = false;
    return true;
}

// As a connection's account has it: it may hold as much as it leaves free, and the last part is not for this.
bool Subscriber::admit(u64 bytes) {
    if (counted_ + bytes > bytes_max_) return cut_off(STATS_BEHIND), false;
    const u64 most = account_.clients_bytes_max() - account_.clients_bytes_max() / 8;
    const u64 before = account_.change(ANSWERS, (i64)bytes);
    if (before <= most && counted_ + 2 * bytes <= most - before) return true;
    account_.change(ANSWERS, -(i64)bytes);
    return cut_off(STATS_NO_MEMORY), false;
}

// Its connection's thread sees that at its next tick.
void Subscriber::cut_off(StatsConnection why) {
    is_cut_off_ = is_over_ = true;
    why_ = why;
    drop();
}

void Subscriber::drop() {
    std::deque<Piece>().swap(pieces_);
    account_.change(ANSWERS, -(i64)std::exchange(counted_, 0));
    taken_ = appended_;
    is_piece_closed_ = true;
}

void Subscriber::wake() {
    if (is_over_ || std::exchange(is_woken_, true)) return;
    thread_.post([thread = &thread_, id = connection_] {
        if (Connection* const connection = thread->find(id)) connection->want_fill();
    });
}

void Subscribers::add(std::shared_ptr<Subscriber> subscriber) {
    std::lock_guard<std::mutex> guard(mutex_);
    all_.insert(std::move(subscriber));
}

void Subscribers::remove(const std::shared_ptr<Subscriber>& subscriber) {
    std::lock_guard<std::mutex> guard(mutex_);
    all_.erase(subscriber);
}

void Subscribers::tell(u64 database, u64 n, const u8* kinds, const u8* keys, const u32* key_lengths) {
    std::vector<std::shared_ptr<Subscriber>> all;
    {
        std::lock_guard<std::mutex> guard(mutex_);
        all.assign(all_.begin(), all_.end());
    }
    const std::string keyspace = "__keyspace@" + std::to_string(database) + "__:";
    std::string of_events[std::size(EVENTS)];
    for (u64 kind = 0; kind < std::size(EVENTS); kind++)
        of_events[kind] = "__keyevent@" + std::to_string(database) + "__:" + std::string(EVENTS[kind]);
    std::string of_key;
    Subscriptions::Found found;
    for (const std::shared_ptr<Subscriber>& subscriber : all) {
        const char* key = (const char*)keys;
        for (u64 row = 0; row < n; key += key_lengths[row++]) {
            of_key.assign(keyspace).append(key, key_lengths[row]);
            messages.add(subscriber->tell(of_key, EVENTS[kinds[row]], found));
            messages.add(subscriber->tell(of_events[kinds[row]], {key, key_lengths[row]}, found));
        }
    }
}

}  // namespace door
