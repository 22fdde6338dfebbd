// How checkpoints bring bytes to arrays of the host (gpkvs/gpm/checkpoint.py).
#include "gpm/gpm.cuh"

static const u64 GPM_LOADED_AT_ONCE = 64 << 10;  // bytes, by one thread of the host

// gpm_load: item i copies the i-th part.
#define GPM_LOAD_ARGS(F) F(const u8*, source) F(u8*, target) F(u64, bytes)
GPKVS_KERNEL(gpm_load, GPM_LOAD_ARGS) {
    const u64 first = i * GPM_LOADED_AT_ONCE, rest = a.bytes - first;
    memcpy(a.target + first, a.source + first, rest < GPM_LOADED_AT_ONCE ? rest : GPM_LOADED_AT_ONCE);
}
