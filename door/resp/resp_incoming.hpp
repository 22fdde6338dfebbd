// A value of a command that comes in pieces: first there must be room for it, then it is received straight to its place. Where
// there is none, its bytes are thrown away, and the command is answered by that error.
#pragma once
#include <memory>
#include <string>

#include "request/request.hpp"
#include "request/upload.hpp"

namespace door {

struct RespIncoming {
    RespIncoming(u64 bytes, u64 head_bytes, ConnectionAccount& account)
        : upload(std::make_unique<Upload>(bytes, account)), bytes(bytes), head_bytes(head_bytes) {
        reservation.reserve_bytes = bytes;
    }

    // The engine has said whether there is room; without it there is no upload any more.
    bool is_decided = false;
    std::unique_ptr<Upload> upload;
    std::string refusal;

    bool is_whole() const { return received == bytes + END_BYTES; }
    // Takes bytes of the value, and of its end; returns how many.
    u64 receive(const u8* data, u64 size, u64 now_ns) {
        heard_ns = now_ns;
        const u64 value = std::min(size, bytes - std::min(received, bytes));
        if (upload) upload->append(data, value);
        received += value;
        const u64 end = received < bytes ? 0 : std::min(size - value, bytes + END_BYTES - received);
        received += end;
        return value + end;
    }

    static constexpr u64 END_BYTES = 2;

    const u64 bytes;
    const u64 head_bytes;  // of the command, before the value
    u64 received = 0;      // with the value's end
    u64 heard_ns = 0, ends_ns = NEVER;
    Request reservation;
};

}  // namespace door
