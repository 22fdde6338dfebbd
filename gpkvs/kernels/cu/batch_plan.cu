// What a plan for a GPU needs beside the kernels of the host's planner, since no host looks on between them (batch_plan.hpp): each
// `mark_` marks items with two numbers of 32 bits, a running sum over the marks numbers them, and each `pick_` puts the marked
// items side by side.
#include "cu/place.cuh"

// Where a key lies, as a word whose lower bits have room for the number of an operation (`numbers`): a key that is there has the
// number of its slot there, and so comes in the order of slots. One that is not has the upper bits of its fingerprint behind a 1,
// and comes after all of those, in the order of blocks. A key of another shard has neither.
static const u64 NOT_THERE = 1ull << 63, OF_ANOTHER_SHARD = ~0ull;

// How a key is known: numbers by themselves, in `keys`; the keys of records by their fingerprints, which are hashed once.
#define IDENTITY_ARGS(F) \
    F(const u8*, keys) F(u64, hash_key0) F(u64, hash_key1) F(const u64*, fingerprint0) F(const u64*, fingerprint1)

template <class Args>
GPKVS_DEVICE Hash128 fingerprint_of_op(const Args& a, u64 op) {
    if (a.fingerprint0) return {a.fingerprint0[op], a.fingerprint1[op]};
    return siphash128_word(a.hash_key0, a.hash_key1, load_unaligned(a.keys + 8 * op));
}

template <class Args>
GPKVS_DEVICE bool have_one_key(const Args& a, u64 op, u64 other) {
    if (a.fingerprint0) return a.fingerprint0[op] == a.fingerprint0[other] && a.fingerprint1[op] == a.fingerprint1[other];
    return load_unaligned(a.keys + 8 * op) == load_unaligned(a.keys + 8 * other);
}

GPKVS_DEVICE u64 place_of_slot(u64 slot, u64 numbers) { return slot * (numbers + 1); }
GPKVS_DEVICE u64 slot_of_place(u64 place, u64 numbers) { return place / (numbers + 1); }
GPKVS_DEVICE u64 place_of_absent(Hash128 fingerprint, u64 numbers) { return (NOT_THERE | fingerprint.low >> 1) & ~numbers; }

// locate: the place of each key, with the operation's number below it in `packed`; whether some key is `absent`; and what the table
// holds for each. Without `status` nobody asks for that.
#define LOCATE_NUMBERS_ARGS(F)                                                              \
    F(const u8*, keys) F(u64, hash_key0) F(u64, hash_key1) F(const U64Bucket*, index) GEOMETRY_ARGS(F) SHARD_ARGS(F) \
    F(u64, numbers) F(u64*, packed) F(u8*, status) F(u64*, source_word) F(u64*, absent)

template <class Args>
GPKVS_DEVICE void locate_soon(const Args& a, u64 i) {
    prefetch_candidates(a.index, geometry_of(a), siphash128_word(a.hash_key0, a.hash_key1, load_unaligned(a.keys + 8 * i)));
}

GPKVS_KERNEL_SOON(locate_numbers, LOCATE_NUMBERS_ARGS, locate_soon) {
    const u64 key = load_unaligned(a.keys + 8 * i);
    const Hash128 fingerprint = siphash128_word(a.hash_key0, a.hash_key1, key);
    const Candidates at = candidate_buckets<U64Slot>(fingerprint, geometry_of(a));
    const bool own = is_own(a, fingerprint);
    u64 value = 0;
    const u32 pair = find_pair8((const u64*)&a.index[at.bucket0], (const u64*)&a.index[at.bucket1], key, own, value);
    const u64 slot = (pair < WAYS ? at.bucket0 : at.bucket1) * WAYS + pair % WAYS;
    const u64 place = pair == NO_PAIR ? place_of_absent(fingerprint, a.numbers) : place_of_slot(slot, a.numbers);
    a.packed[i] = own ? place | i : OF_ANOTHER_SHARD;
    if (own && pair == NO_PAIR) set_mark(a.absent, 1);
    if (!own || !a.status) return;
    a.status[i] = pair == NO_PAIR ? STATUS_NOT_FOUND : STATUS_OK;
    a.source_word[i] = value;
}

// The same for the keys of records.
#define LOCATE_RECORDS_ARGS(F)                                                              \
    F(const u64*, fingerprint0) F(const u64*, fingerprint1) F(const BytesBucket*, index) GEOMETRY_ARGS(F) \
    F(u64, numbers) F(u64*, packed) F(u8*, status) F(u64*, source_word) F(u64*, versions) F(u64*, absent)

template <class Args>
GPKVS_DEVICE void locate_record_soon(const Args& a, u64 i) {
    prefetch_candidates(a.index, geometry_of(a), {a.fingerprint0[i], a.fingerprint1[i]});
}

GPKVS_GROUP_KERNEL_SOON(locate_records, LOCATE_RECORDS_ARGS, locate_record_soon) {
    const Hash128 fingerprint = {a.fingerprint0[i], a.fingerprint1[i]};
    const u64 slot = find_slot(a.index, geometry_of(a), fingerprint, BytesSlot{fingerprint.low, fingerprint.high, 0, 0});
    if (!leader()) return;
    const bool is_there = slot != NO_SLOT;
    a.packed[i] = (is_there ? place_of_slot(slot, a.numbers) : place_of_absent(fingerprint, a.numbers)) | i;
    if (!is_there) set_mark(a.absent, 1);
    if (!a.status) return;
    const BytesSlot old = is_there ? a.index[slot / WAYS].ways[slot % WAYS] : BytesSlot{0, 0, NO_RECORD, 0};
    a.status[i] = is_there ? STATUS_OK : STATUS_NOT_FOUND;
    a.source_word[i] = old.reference;
    a.versions[i] = slot_version(old.meta);
}

// In a batch with many GETs most keys are not written, and a GET of such a key needs no order. mark_written_places marks the
// places of keys that writes name, by some bits of a hash: a mark may stand for several keys, and then a GET is ordered without
// need.
#define MARK_WRITTEN_PLACES_ARGS(F) F(const u8*, ops) F(const u64*, packed) F(u64, numbers) F(u64, places) F(u8*, written)

template <class Args>
GPKVS_DEVICE u8* mark_of_place(const Args& a, u64 packed) {
    return (u8*)a.written + (mix64(packed & ~a.numbers) & (a.places - 1));
}

GPKVS_KERNEL(mark_written_places, MARK_WRITTEN_PLACES_ARGS) {
    if (is_write(a.ops[i])) mark_place(mark_of_place(a, a.packed[i]));
}

// mark_needed: the operations of a shard that are to be ordered: writes, and those whose keys some write may name, or all where
// nothing marks what is written; in the upper half, the SETs of the batch. Without `ops` all operations are SETs.
#define MARK_NEEDED_ARGS(F)                                                                 \
    F(const u8*, ops) F(const u64*, packed) F(u64, numbers) F(u64, places) F(const u8*, written) F(u32*, source_op) F(u64*, marks)

GPKVS_KERNEL(mark_needed, MARK_NEEDED_ARGS) {
    const u64 packed = a.packed[i];
    const u32 kind = a.ops ? a.ops[i] : (u32)OP_SET;
    const bool own = packed != OF_ANOTHER_SHARD;
    const bool needed = own && (!a.written || is_write(kind) || *mark_of_place(a, packed));
    if (own && a.source_op) a.source_op[i] = NO_OP;
    a.marks[i] = (u64)(kind == OP_SET) << 32 | needed;
}

// pick_needed: their numbers and columns, packed anew; and where the value of each SET begins. What stands at other operations
// means nothing.
#define PICK_NEEDED_ARGS(F)                                                                 \
    F(const u64*, marks) F(const u64*, sums) F(const u8*, ops) F(const u64*, packed) F(u64, numbers) \
    F(u32*, op_numbers) F(u64*, taken) F(u8*, taken_ops) F(u64*, value_offsets)

GPKVS_KERNEL(pick_needed, PICK_NEEDED_ARGS) {
    if (a.value_offsets) a.value_offsets[i] = 8 * (a.sums[i] >> 32) - 8;
    if (!a.op_numbers || !(u32)a.marks[i]) return;
    const u32 at = (u32)a.sums[i] - 1;
    a.op_numbers[at] = (u32)i;
    a.taken[at] = (a.packed[i] & ~a.numbers) | at;
    if (a.taken_ops) a.taken_ops[at] = a.ops[i];
}

// The operation that a packed word names. With `op_numbers`, what was sorted is a part of a batch's operations: their numbers in it.
template <class Args>
GPKVS_DEVICE u32 op_of_packed(const Args& a, u64 packed) {
    const u64 at = packed & a.numbers;
    return a.op_numbers ? a.op_numbers[at] : (u32)at;
}

// The fingerprint of a packed operation. Of keys that are there nobody asks: each has a place of its own, and what is equal but
// for the operation's number is in order.
template <class Args>
GPKVS_DEVICE Hash128 fingerprint_of_packed(const Args& a, u64 packed) {
    return packed & NOT_THERE ? fingerprint_of_op(a, op_of_packed(a, packed)) : Hash128{0, 0};
}

// Ties are of keys that are not there, of which the upper bits of their fingerprints are equal: words that are equal but for the
// operation's number. Whether the sort could not tell this position and the one before it apart.
template <class Args>
GPKVS_DEVICE bool is_tied(const Args& a, u64 i) {
    return i && !((a.packed[i - 1] ^ a.packed[i]) & ~a.numbers);
}

// Whether one packed operation belongs before another that it is tied with: by its fingerprint, then by its number.
template <class Args>
GPKVS_DEVICE bool belongs_before(const Args& a, u64 left, u64 right) {
    const Hash128 fingerprint = fingerprint_of_packed(a, left), of_other = fingerprint_of_packed(a, right);
    if (fingerprint.low != of_other.low) return fingerprint.low < of_other.low;
    if (fingerprint.high != of_other.high) return fingerprint.high < of_other.high;
    return (left & a.numbers) < (right & a.numbers);
}

// tell_descents: where a position belongs before the one that it follows.
#define TIES_ARGS(F) F(u64*, packed) F(u64, numbers) F(const u32*, op_numbers) IDENTITY_ARGS(F) F(u8*, descents)

GPKVS_KERNEL(tell_descents, TIES_ARGS) {
    a.descents[i] = is_tied(a, i) && belongs_before(a, a.packed[i], a.packed[i - 1]);
}

// sort_tied: the first of tied positions puts all of them in order, if they have a descent. Ties stay what they are meanwhile, so
// no thread needs what another one stores. One thread does it, so longer ties are left as they are, and `left` counts that: a hot
// key that ties with another one.
static const u64 TIED_MAX = 64;
#define SORT_TIED_ARGS(F) TIES_ARGS(F) F(u64, count) F(u64*, left)

GPKVS_KERNEL(sort_tied, SORT_TIED_ARGS) {
    if (a.descents[i]) {  // ascending as they are, positions so far apart are alike if all between them are
        if (i >= TIED_MAX && !((a.packed[i - TIED_MAX] ^ a.packed[i]) & ~a.numbers)) atomic_add(a.left, 1);
        return;
    }
    if (is_tied(a, i)) return;
    u64 last = i + 1;
    bool descends = false;
    for (; last < a.count && last - i < TIED_MAX && is_tied(a, last); last++) descends |= a.descents[last] != 0;
    if (!descends) return;
    if (last < a.count && is_tied(a, last)) {
        atomic_add(a.left, 1);
        return;
    }
    for (u64 next = i + 1; next < last; next++) {
        const u64 moving = a.packed[next];
        u64 at = next;
        for (; at > i && belongs_before(a, moving, a.packed[at - 1]); at--) a.packed[at] = a.packed[at - 1];
        a.packed[at] = moving;
    }
}

// mark_chains: 1 << 32 where a chain (all operations of one key) starts, 1 where an operation writes. Without `ops` all do.
#define MARK_CHAINS_ARGS(F)                                                                 \
    F(const u64*, packed) F(u64, numbers) F(const u32*, op_numbers) IDENTITY_ARGS(F) F(const u8*, ops) F(u32*, order) F(u64*, marks)

GPKVS_KERNEL(mark_chains, MARK_CHAINS_ARGS) {
    const u64 packed = a.packed[i];
    const u32 op = op_of_packed(a, packed);
    bool starts = !is_tied(a, i);
    if (!starts && packed & NOT_THERE) starts = !have_one_key(a, op, op_of_packed(a, a.packed[i - 1]));
    a.order[i] = op;
    a.marks[i] = (u64)starts << 32 | (!a.ops || is_write(a.ops[packed & a.numbers]));
}

// spread: of each position its chain, the start of each chain, and the position after each write; `sums` is the running sum of the
// marks, this position's included.
#define SPREAD_ARGS(F) \
    F(const u64*, marks) F(const u64*, sums) F(u64, count) F(u32*, chain_of) F(u32*, chain_start) F(u32*, write_end)

GPKVS_KERNEL(spread, SPREAD_ARGS) {
    const u32 chain = (u32)(a.sums[i] >> 32) - 1;
    a.chain_of[i] = chain;
    if (a.marks[i] >> 32) a.chain_start[chain] = (u32)i;
    if (i + 1 == a.count) a.chain_start[chain + 1] = (u32)a.count;
    if ((u32)a.marks[i]) a.write_end[(u32)a.sums[i] - 1] = (u32)i + 1;
}

#define LAST_WRITES_ARGS(F) F(const u64*, sums) F(const u32*, write_end) F(u32*, last_write)

GPKVS_KERNEL(last_writes, LAST_WRITES_ARGS) {
    const u32 writes = (u32)a.sums[i];
    a.last_write[i] = writes ? a.write_end[writes - 1] : 0;
}

// chain_numbers: what each chain has: its slot, or its fingerprint and block where it has none; and with `old_word` what the table
// holds for it. In a batch of SETs (`only_sets`) each chain changes by its last one. One item a chain.
#define CHAIN_ARGS(F, Buckets)                                                              \
    F(const u64*, packed) F(u64, numbers) F(const u32*, order) F(const u32*, chain_start) F(const u32*, chains) IDENTITY_ARGS(F) \
    F(const Buckets*, index) GEOMETRY_ARGS(F)                                               \
    F(u64*, chain_fingerprint0) F(u64*, chain_fingerprint1) F(u32*, block) F(u64*, slot) F(u64*, old_word) \
    F(u64, only_sets) F(u8*, change) F(u32*, final_op) F(u32*, changed_chain) F(u64*, changes)

template <class Args>
GPKVS_DEVICE u64 chain_slot(const Args& a, u64 i, bool names_all) {
    const u32 start = a.chain_start[i];
    const u64 packed = a.packed[start];
    const bool is_there = !(packed & NOT_THERE);
    const u64 slot = is_there ? slot_of_place(packed, a.numbers) : NO_SLOT;
    if (names_all || !is_there) {
        const Hash128 fingerprint = fingerprint_of_op(a, a.order[start]);
        a.chain_fingerprint0[i] = fingerprint.low;
        a.chain_fingerprint1[i] = fingerprint.high;
        a.block[i] = (u32)block_of(fingerprint, geometry_of(a));
    }
    a.slot[i] = slot;
    if (a.only_sets) {
        a.change[i] = CHANGE_PUT;
        a.final_op[i] = a.order[a.chain_start[i + 1] - 1];
        a.changed_chain[i] = (u32)i;
        if (i == 0) *a.changes = *a.chains;
    }
    return slot;
}

#define CHAIN_NUMBERS_ARGS(F) CHAIN_ARGS(F, U64Bucket)
GPKVS_KERNEL(chain_numbers, CHAIN_NUMBERS_ARGS) {
    const u64 slot = chain_slot(a, i, false);
    if (a.old_word) a.old_word[i] = slot == NO_SLOT ? 0 : a.index[slot / WAYS].ways[slot % WAYS].value;
}

// chain_records: the same; slots hold the fingerprints.
#define CHAIN_RECORDS_ARGS(F) CHAIN_ARGS(F, BytesBucket) F(u64*, old_meta)
GPKVS_KERNEL(chain_records, CHAIN_RECORDS_ARGS) {
    const u64 slot = chain_slot(a, i, true);
    const BytesSlot old = slot == NO_SLOT ? BytesSlot{0, 0, NO_RECORD, 0} : a.index[slot / WAYS].ways[slot % WAYS];
    a.old_word[i] = old.reference;
    a.old_meta[i] = old.meta;
}

// mark_changes: the chains that change a slot; in the upper half, those that remove a key.
#define MARK_CHANGES_ARGS(F) F(const u8*, change) F(u64*, marks)

GPKVS_KERNEL(mark_changes, MARK_CHANGES_ARGS) {
    a.marks[i] = (u64)(a.change[i] == CHANGE_REMOVE) << 32 | (a.change[i] != CHANGE_NONE);
}

#define PICK_CHANGES_ARGS(F) F(const u64*, marks) F(const u64*, sums) F(u32*, changed_chain)

GPKVS_KERNEL(pick_changes, PICK_CHANGES_ARGS) {
    if ((u32)a.marks[i]) a.changed_chain[(u32)a.sums[i] - 1] = (u32)i;
}

// mark_blocks: where the new keys of each block begin among the changes, of which those of keys that are there come first, in the
// order of their slots; in the upper half, the new keys.
#define MARK_BLOCKS_ARGS(F) \
    F(const u32*, changed_chain) F(const u32*, block) F(const u64*, slot) F(u64*, moved_to) F(u64*, marks)

GPKVS_KERNEL(mark_blocks, MARK_BLOCKS_ARGS) {
    const u32 chain = a.changed_chain[i];
    const bool is_new = a.slot[chain] == NO_SLOT;
    const u32 before = i ? a.changed_chain[i - 1] : 0;
    const bool begins = is_new && (i == 0 || a.slot[before] != NO_SLOT || a.block[chain] != a.block[before]);
    a.moved_to[i] = NO_SLOT;
    a.marks[i] = (u64)is_new << 32 | begins;
}

// pick_blocks: the first new key of each block, and the end.
#define PICK_BLOCKS_ARGS(F) F(const u64*, marks) F(const u64*, sums) F(const u32*, changes) F(u32*, block_first)

GPKVS_KERNEL(pick_blocks, PICK_BLOCKS_ARGS) {
    const u32 blocks = (u32)a.sums[i];
    if ((u32)a.marks[i]) a.block_first[blocks - 1] = (u32)i;
    if (i + 1 == *a.changes) a.block_first[blocks] = (u32)i + 1;
}

// place_numbers, place_records: a way for each new key of a block (place.cuh). `news` of the changes are new. One item a block.
#define PLACE_NEWS_ARGS(F, Buckets)                                                         \
    F(const u32*, block_first) F(const u32*, changed_chain) F(const u32*, changes) F(const u32*, news) F(const u32*, block) \
    F(const u64*, chain_fingerprint0) F(const u64*, chain_fingerprint1) F(const Buckets*, index) GEOMETRY_ARGS(F) \
    F(u64, hash_key0) F(u64, hash_key1) F(u64*, slot) F(u64*, moved_to)
#define PLACE_NUMBERS_ARGS(F) PLACE_NEWS_ARGS(F, U64Bucket)
#define PLACE_RECORDS_ARGS(F) PLACE_NEWS_ARGS(F, BytesBucket)

// The first change of a key that is there whose slot is not before another one.
template <class Args>
GPKVS_DEVICE u32 first_change_from(const Args& a, u64 slot) {
    u32 first = 0, last = *a.changes - *a.news;
    while (first < last) {
        const u32 middle = (first + last) / 2;
        if (a.slot[a.changed_chain[middle]] < slot) first = middle + 1;
        else last = middle;
    }
    return first;
}

template <class Slot, class Args>
GPKVS_DEVICE void place_news(const Args& a, u64 i) {
    const u32 in_block = Bucket<Slot>::IN_BLOCK;
    GPKVS_OF_GROUP(u8, taken, in_block);
    GPKVS_OF_GROUP(u8, pinned, in_block);
    clear_of_group(taken, in_block);
    clear_of_group(pinned, in_block);
    BlockState<Slot> state = {taken, pinned, table_key<Slot>(a.hash_key0, a.hash_key1), geometry_of(a), a.index};

    const u32 first = a.block_first[i], last = a.block_first[i + 1], olds = *a.changes - *a.news;
    const u64 slots = in_block * WAYS, begin = a.block[a.changed_chain[first]] * slots;
    for (u32 change = first_change_from(a, begin); change < olds; change++) {
        const u64 slot = a.slot[a.changed_chain[change]];
        if (slot >= begin + slots) break;
        mark_way<Slot>(pinned, slot / WAYS, slot % WAYS);
    }
    for (u32 change = first; change < last; change++) {
        const u32 chain = a.changed_chain[change];
        u64 moved_to = NO_SLOT;
        const u64 slot = place_new(state, {a.chain_fingerprint0[chain], a.chain_fingerprint1[chain]}, &moved_to);
        if (slot == NO_SLOT) return;  // the plan is in vain: a million more keys would find none in a small table, slowly
        if (!leader()) continue;
        a.slot[chain] = slot;
        a.moved_to[change] = moved_to;
    }
}

GPKVS_GROUP_KERNEL(place_numbers, PLACE_NUMBERS_ARGS) { place_news<U64Slot>(a, i); }
GPKVS_GROUP_KERNEL(place_records, PLACE_RECORDS_ARGS) { place_news<BytesSlot>(a, i); }

// mark_placed: new keys without a way; in the upper half, changes that displace an occupant.
#define MARK_PLACED_ARGS(F) F(const u32*, changed_chain) F(const u64*, slot) F(const u64*, moved_to) F(u64*, marks)

GPKVS_KERNEL(mark_placed, MARK_PLACED_ARGS) {
    a.marks[i] = (u64)(a.moved_to[i] != NO_SLOT) << 32 | (a.slot[a.changed_chain[i]] == NO_SLOT);
}

// pick_moved: what is displaced, as it is, behind the changes. `sums` are those of `mark_placed`.
#define PICK_MOVED_ARGS(F, Slots, Buckets)                                                  \
    F(const u32*, changed_chain) F(const u64*, slot) F(const u64*, moved_to) F(const u64*, sums) F(const Buckets*, index) \
    F(u64, changes) F(u64*, changed_slot) F(Slots*, contents)
#define PICK_MOVED_NUMBERS_ARGS(F) PICK_MOVED_ARGS(F, U64Slot, U64Bucket)
#define PICK_MOVED_RECORDS_ARGS(F) PICK_MOVED_ARGS(F, BytesSlot, BytesBucket)

template <class Args>
GPKVS_DEVICE void pick_moved(const Args& a, u64 i) {
    if (a.moved_to[i] == NO_SLOT) return;
    const u64 at = a.changes + (a.sums[i] >> 32) - 1, slot = a.slot[a.changed_chain[i]];
    a.changed_slot[at] = a.moved_to[i];
    a.contents[at] = a.index[slot / WAYS].ways[slot % WAYS];
}

GPKVS_KERNEL(pick_moved_numbers, PICK_MOVED_NUMBERS_ARGS) { pick_moved(a, i); }
GPKVS_KERNEL(pick_moved_records, PICK_MOVED_RECORDS_ARGS) { pick_moved(a, i); }

// mark_kept: the SETs whose records are kept, the last one of each key that stays; and what each change frees: the record that its
// slot named before, and what the slot said of it. pick_kept: their numbers, in arrival order.
#define MARK_KEPT_ARGS(F)                                                                   \
    F(const u32*, changed_chain) F(const u8*, change) F(const u32*, final_op) F(const u64*, old_word) F(const u64*, old_meta) \
    F(u64*, marks) F(u64*, freed) F(u64*, freed_meta)

GPKVS_KERNEL(mark_kept, MARK_KEPT_ARGS) {
    const u32 chain = a.changed_chain[i];
    if (a.change[chain] == CHANGE_PUT) a.marks[a.final_op[chain]] = 1;
    a.freed[i] = a.old_word[chain];
    a.freed_meta[i] = a.old_meta[chain];
}

#define PICK_KEPT_ARGS(F) F(const u64*, marks) F(const u64*, sums) F(u32*, kept)

GPKVS_KERNEL(pick_kept, PICK_KEPT_ARGS) {
    if (a.marks[i]) a.kept[a.sums[i] - 1] = (u32)i;
}

// name_records: the new record of each operation that keeps one.
#define NAME_RECORDS_ARGS(F) F(const u32*, kept) F(const u64*, records) F(u64*, reference)

GPKVS_KERNEL(name_records, NAME_RECORDS_ARGS) { a.reference[a.kept[i]] = a.records[i]; }

// mark_values: the GETs that found a value; pick_values: those values, side by side.
#define MARK_VALUES_ARGS(F) F(const u8*, ops) F(const u8*, status) F(u64*, marks)

GPKVS_KERNEL(mark_values, MARK_VALUES_ARGS) { a.marks[i] = a.ops[i] == OP_GET && a.status[i] == STATUS_OK; }

#define PICK_VALUES_ARGS(F) F(const u64*, marks) F(const u64*, sums) F(const u64*, source_word) F(u64*, found_values)

GPKVS_KERNEL(pick_values, PICK_VALUES_ARGS) {
    if (a.marks[i]) a.found_values[a.sums[i] - 1] = a.source_word[i];
}

// tell: counts to where the host reads them.
#define TELL_ARGS(F) F(const u64*, counts) F(u64*, told)

GPKVS_KERNEL(tell, TELL_ARGS) { a.told[i] = a.counts[i]; }

// widen: bytes as words, which can be added up by tiles.
#define WIDEN_ARGS(F) F(const u8*, bytes) F(u64*, words)

GPKVS_KERNEL(widen, WIDEN_ARGS) { a.words[i] = a.bytes[i]; }
