// What checkpoints do with the bytes of arrays (gpkvs/gpm/checkpoint.py).
#include "gpm.cuh"

static const u64 GPM_COPIED_AT_ONCE = 64 << 10;  // bytes, by one thread of the host

// gpm_copy: bytes to persistent memory, past the caches. Item i copies the i-th part; `target` is a multiple of 16.
#define GPM_COPY_ARGS(F) F(const u8*, source) F(u8*, target) F(u64, bytes)
GPKVS_PM_KERNEL(gpm_copy, GPM_COPY_ARGS) {
    const u64 first = i * GPM_COPIED_AT_ONCE, rest = a.bytes - first;
    const u64 bytes = rest < GPM_COPIED_AT_ONCE ? rest : GPM_COPIED_AT_ONCE, pairs = bytes / 16 * 16;
    const u8* source = a.source + first;
    u8* target = a.target + first;
    for (u64 at = 0; at < pairs; at += 16) {
        const u64 words[2] = {load_unaligned(source + at), load_unaligned(source + at + 8)};
        pm_stream_pair((u64*)(target + at), words);
    }
    for (u64 at = pairs; at < bytes; at++) gpm_store(target + at, source[at]);
}

// gpm_load: bytes to memory of the host, in the same parts.
#define GPM_LOAD_ARGS(F) F(const u8*, source) F(u8*, target) F(u64, bytes)
GPKVS_KERNEL(gpm_load, GPM_LOAD_ARGS) {
    const u64 first = i * GPM_COPIED_AT_ONCE, rest = a.bytes - first;
    memcpy(a.target + first, a.source + first, rest < GPM_COPIED_AT_ONCE ? rest : GPM_COPIED_AT_ONCE);
}
