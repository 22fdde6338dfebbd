// Which requests of a batch are refused when not all fit. They are taken in arrival order, each whole or not at all.
#pragma once
#include "cu/place.cuh"

// admit: a way for each new key, request by request. If one key of a request finds no way, the request is refused and
// what it had taken is given back. `set_*` are the SETs of new keys in arrival order. `taken` and `pinned` have one byte
// for each bucket of the blocks that change, zero at first.
#define ADMIT_ARGS(F, Slots)                                                                \
    F(u64, sets) F(const u32*, set_change) F(const u32*, set_request)                       \
    F(u64, changes) F(const u32*, changed_chain) F(const u32*, change_block)                \
    F(const u64*, chain_fingerprint0) F(const u64*, chain_fingerprint1)                     \
    F(const Slots*, index) GEOMETRY_ARGS(F) F(u64, hash_key0) F(u64, hash_key1)              \
    F(u8*, taken) F(u8*, pinned) F(u32*, placed) F(u64*, slot) F(u64*, moved_to) F(u8*, refused)
#define ADMIT_BYTES_ARGS(F) ADMIT_ARGS(F, BytesBucket)
#define ADMIT_U64_ARGS(F) ADMIT_ARGS(F, U64Bucket)

template <class Slot>
GPKVS_DEVICE void give_back(BlockState<Slot>& state, u64 slot) {
    of_bucket<Slot>(state.taken, slot / WAYS) &= (u8)~(1u << slot % WAYS);
    of_bucket<Slot>(state.pinned, slot / WAYS) &= (u8)~(1u << slot % WAYS);
}

template <class Slot, class Args>
GPKVS_DEVICE BlockState<Slot> block_of_change(const Args& a, const TableKey& table, u32 change) {
    const u64 at = (u64)a.change_block[change] * Bucket<Slot>::IN_BLOCK;
    return {a.taken + at, a.pinned + at, table, geometry_of(a), a.index};
}

template <class Slot, class Args>
GPKVS_DEVICE void admit_all(const Args& a) {
    const TableKey table = table_key<Slot>(a.hash_key0, a.hash_key1);
    for (u32 change = 0; change < a.changes; change++) {
        const u64 slot = a.slot[a.changed_chain[change]];
        BlockState<Slot> state = block_of_change<Slot>(a, table, change);
        if (slot != NO_SLOT) of_bucket<Slot>(state.pinned, slot / WAYS) |= (u8)(1u << slot % WAYS);
    }
    u32 request = ~0u, placed = 0;
    for (u64 s = 0; s < a.sets; s++) {
        if (a.set_request[s] != request) placed = 0;
        request = a.set_request[s];
        const u32 change = a.set_change[s];
        const u32 chain = a.changed_chain[change];
        if (a.refused[request] || a.slot[chain] != NO_SLOT) continue;
        BlockState<Slot> state = block_of_change<Slot>(a, table, change);
        u64 moved_to = NO_SLOT;
        const u64 slot = place_new(state, {a.chain_fingerprint0[chain], a.chain_fingerprint1[chain]}, &moved_to);
        if (slot != NO_SLOT) {
            a.slot[chain] = slot;
            a.moved_to[change] = moved_to;
            a.placed[placed] = change;
        } else {
            a.refused[request] = 1;
            for (u32 p = 0; p < placed; p++) {
                const u32 undone = a.placed[p];
                BlockState<Slot> its = block_of_change<Slot>(a, table, undone);
                give_back(its, a.slot[a.changed_chain[undone]]);
                if (a.moved_to[undone] != NO_SLOT) give_back(its, a.moved_to[undone]);
                a.slot[a.changed_chain[undone]] = NO_SLOT;
                a.moved_to[undone] = NO_SLOT;
            }
        }
        placed += slot != NO_SLOT;
    }
}

GPKVS_SERIAL_KERNEL(admit_bytes, ADMIT_BYTES_ARGS) { if (i == 0) admit_all<BytesSlot>(a); }
GPKVS_SERIAL_KERNEL(admit_u64, ADMIT_U64_ARGS) { if (i == 0) admit_all<U64Slot>(a); }

// admit_records: which requests would raise what all records are charged above the limit, in arrival order. A request may
// take `room` (of the limit, which is already exceeded if it is negative, in two's complement); one that raises nothing is
// always accepted. A write costs what it adds to the record that an accepted request, or the table, holds for the key.
#define ADMIT_RECORDS_ARGS(F)                                                               \
    F(u64, writes) F(const u32*, write_chain) F(const u32*, write_request) F(const u64*, write_charge) F(u64, room) \
    F(u64*, held) F(u64*, before) F(u8*, refused)

GPKVS_SERIAL_KERNEL(admit_records, ADMIT_RECORDS_ARGS) {
    if (i != 0) return;
    long long used = 0;
    for (u64 first = 0, last; first < a.writes; first = last) {
        const long long used_before = used;
        for (last = first; last < a.writes && a.write_request[last] == a.write_request[first]; last++) {
            u64& held = a.held[a.write_chain[last]];
            a.before[last] = held;
            used += (long long)a.write_charge[last] - (long long)held;
            held = a.write_charge[last];
        }
        if (used <= (long long)a.room || used <= used_before) continue;
        a.refused[a.write_request[first]] = 1;
        for (u64 w = last; w-- > first;) a.held[a.write_chain[w]] = a.before[w];
        used = used_before;
    }
}
