// Which requests of a batch the native planner refuses, where the index or the heap does not grow (admit.hpp). `refused` has a
// reason for each of them (EngineLeft), 0 for the others. Refused ones are no SETs and DELETEs any more when the batch is planned
// again (native_resolve.hpp).
#pragma once
#include <vector>

#include "plan/admit.hpp"
#include "plan/allocate.hpp"
#include "engine_batch.h"
#include "base/order.hpp"

// The operations' requests and chains; std::bad_alloc.
struct OwnersOfOperations {
    std::vector<u32> request, chain;

    template <class Args>
    explicit OwnersOfOperations(const Args& a) : request(a.n), chain(a.n) {
        u64 op = 0;
        for (u64 number = 0; number < a.requests; number++)
            for (u64 left = a.request_ops[number]; left; left--) request[op++] = (u32)number;
        for (u64 position = 0; position < a.n; position++) chain[a.order[position]] = a.chain_of[position];
    }
};

template <class Args>
static bool note_refused(const Args& a, const std::vector<u8>& refused, EngineLeft reason) {
    bool is_any = false;
    for (u64 request = 0; request < a.requests; request++) {
        if (!refused[request]) continue;
        a.refused[request] = (u8)reason;
        is_any = true;
    }
    return is_any;
}

static void run_admit(const admit_bytes_args& taken) { admit_all<BytesSlot>(taken); }
static void run_admit(const admit_u64_args& taken) { admit_all<U64Slot>(taken); }

// Places the new keys of the chains that change again, in arrival order; returns whether some request is refused.
template <class Args>
static bool admit_keys(const Args& a, u64 chains, u64 changes) {
    typedef typename Args::Slot Slot;
    const OwnersOfOperations owners(a);
    std::vector<u32> change_of(chains, NO_OP), change_block(changes), set_change, set_request;
    u32 blocks = 0;
    for (u64 change = 0; change < changes; change++) {
        const u32 chain = a.changed_chain[change];
        blocks += !change || a.block[chain] != a.block[a.changed_chain[change - 1]];
        change_block[change] = blocks - 1;
        a.slot[chain] = a.found[chain];
        a.moved_to[change] = NO_SLOT;
        if (a.slot[chain] == NO_SLOT) change_of[chain] = (u32)change;
    }
    for (u64 op = 0; op < a.n; op++) {
        const u32 change = change_of[owners.chain[op]];
        if (a.ops[op] != OP_SET || change == NO_OP) continue;
        set_change.push_back(change);
        set_request.push_back(owners.request[op]);
    }
    std::vector<u8> taken(blocks * Bucket<Slot>::IN_BLOCK), pinned(taken.size()), refused(a.requests);
    std::vector<u32> placed(set_change.size());
    run_admit({set_change.size(), set_change.data(), set_request.data(), changes, a.changed_chain, change_block.data(),
               a.chain_fingerprint0, a.chain_fingerprint1, a.index, a.blocks, a.unmoved, a.hash_key0, a.hash_key1,
               taken.data(), pinned.data(), placed.data(), a.slot, a.moved_to, refused.data()});
    return note_refused(a, refused, LEFT_GROW_INDEX);
}

// Refuses the requests that would raise what all records are charged above its limit; returns whether it refuses any. The charge
// of a key that stays depends on its SETs, that of one that goes on its DELETEs.
template <class Args>
static bool admit_charges(const Args& a, u64 chains, u64 changes) {
    const OwnersOfOperations owners(a);
    std::vector<u64> held(chains), charge;
    std::vector<u32> chain, request;
    for (u64 change = 0; change < changes; change++) {
        const u32 changed = a.changed_chain[change];
        if (a.found[changed] != NO_SLOT) held[changed] = record_charge(reference_length(a.old_word[changed]), a.segment_units);
    }
    for (u64 op = 0; op < a.n; op++) {
        const u8 becomes = a.change[owners.chain[op]];
        const bool stays = a.ops[op] == OP_SET && becomes == CHANGE_PUT;
        if (!stays && !(a.ops[op] == OP_DELETE && becomes == CHANGE_REMOVE)) continue;
        chain.push_back(owners.chain[op]);
        request.push_back(owners.request[op]);
        charge.push_back(stays ? record_charge(units_of_op(a, op), a.segment_units) : 0);
    }
    std::vector<u64> before(chain.size());
    std::vector<u8> refused(a.requests);
    const admit_records_args taken = {chain.size(), chain.data(), request.data(), charge.data(),
                                      a.heap_state[HEAP_CHARGED_MAX] - a.heap_state[HEAP_CHARGED],
                                      held.data(), before.data(), refused.data()};
    gpkvs_kernel_admit_records.run(&taken, 0, 1);
    return note_refused(a, refused, LEFT_GROW_HEAP);
}
