// Rows that a GPU keeps in its own memory, so that it reads them without the host.
//
// They lie in cells, 16 to a set. A key has two sets where its row may lie, and a tag says whose row a cell has. What else is known of
// a cell is the version that the row's SET gave its key, and the slot where the key was then. Whether the row is still the key's, the
// index says, each time: another row has another version, whatever happens to table, index or heap. So nobody tells the cells of
// writes, of compaction or of growth. A key that has moved is looked for in the index, as any key that has no cell.
#include "base/probe.cuh"

// A tag: 48 bits of the key's fingerprint; the round in which the cell was filled (15 bits, never 0 of a filled one); whether it was
// read since. Two keys with one tag have one cell: each loses it to the other one, and is not mistaken for it.
static const u64 TAG_KEY = (1ull << 48) - 1, TAG_ROUND = (1ull << 15) - 1, TAG_USED = 1ull << 63, NO_CELL = ~0ull;
static const u32 TAG_ROUND_SHIFT = 48;
GPKVS_DEVICE u64 tag_round(u64 tag) { return tag >> TAG_ROUND_SHIFT & TAG_ROUND; }
GPKVS_DEVICE u64 tag_key(Hash128 fingerprint) { return fingerprint.high & TAG_KEY; }

// Of a row that a cell has.
struct KnownRow {
    u64 version, slot;
};

#define ROW_CELLS_ARGS(F) F(u64*, tags) F(KnownRow*, known) F(u8*, cells) F(u64, sets) F(u64, cell_bytes)

// Of a set. With 16, and two sets to choose from, nearly all cells can be filled before some row finds none. Until a set has as many
// as the second number says, its rows go to no other one: to look at one set takes half the time.
static const u32 SET_CELLS = 16, SET_CELLS_FIRST = 12;

// What is known of each row that is asked for.
enum SeenRow { ROW_ABSENT = 0, ROW_THERE = 1, ROW_LEFT = 2, ROW_EXPIRES = 3 };  // the last two: the host is to read it

// The first cell of each of the two sets.
template <class Args>
GPKVS_DEVICE void sets_of(const Args& a, Hash128 fingerprint, u64* first) {
    first[0] = mul_high(mix64(fingerprint.low), a.sets) * SET_CELLS;
    first[1] = mul_high(mix64(~fingerprint.low), a.sets) * SET_CELLS;
}

// The cell with the tag of a key, or NO_CELL. There may be no sets.
template <class Args>
GPKVS_DEVICE u64 tagged_cell(const Args& a, Hash128 fingerprint) {
    if (!a.sets) return NO_CELL;
    u64 first[2];
    sets_of(a, fingerprint, first);
    const u64 key = tag_key(fingerprint);
    const u32 in_first = find_word16(a.tags + first[0], TAG_KEY, key, true);
    const u32 in_second = find_word16(a.tags + first[1], TAG_KEY, key, in_first == NO_PAIR);
    const u64 cell = in_first != NO_PAIR ? first[0] + in_first : in_second != NO_PAIR ? first[1] + in_second : NO_CELL;
    return cell != NO_CELL && tag_round(a.tags[cell]) ? cell : NO_CELL;  // an empty one has the tag 0
}

// Where a key is, and the upper word of its slot; without one, KIND_EMPTY.
struct FoundKey {
    u64 slot, meta;
};

template <class Args>
GPKVS_DEVICE FoundKey key_in_slot(const Args& a, Hash128 fingerprint, u64 slot) {
    const BytesSlot& held = a.index[slot / WAYS].ways[slot % WAYS];
    return {slot, holds(held, {fingerprint.low, fingerprint.high, 0, 0}) ? held.meta : 0};
}

template <class Args>
GPKVS_DEVICE FoundKey find_key(const Args& a, Hash128 fingerprint, bool looks) {
    const Candidates at = candidate_buckets<BytesSlot>(fingerprint, geometry_of(a));
    const u64 *first = (const u64*)&a.index[at.bucket0], *then = (const u64*)&a.index[at.bucket1];
    const u32 way = find_quad8(first, then, fingerprint.low, fingerprint.high, looks);
    if (way == NO_PAIR) return {NO_SLOT, 0};
    return key_in_slot(a, fingerprint, (way < WAYS ? at.bucket0 : at.bucket1) * WAYS + way % WAYS);
}

// Where rows go, and whether each is there (SeenRow). A row that is not there becomes `absent`, if that is not null. Bytes are copied
// `step` at a time.
#define ROWS_ARGS(F) F(u64, row_bytes) F(u64, step) F(const u8*, absent) F(u8*, rows) F(u8*, seen)

// locate_rows: the cell of each key's row, or none; how many rows are left to the host: those that are in no cell, and those that
// expire, which are never in one; and how many keys are above `keys_max`. One item a key.
#define LOCATE_ROWS_ARGS(F)                                                                 \
    F(const u8*, keys) F(u64, keys_max) F(u64, hash_key0) F(u64, hash_key1) F(const BytesBucket*, index) GEOMETRY_ARGS(F) \
    ROW_CELLS_ARGS(F) F(u8*, seen) F(u64*, cell) F(u64*, left) F(u64*, wrong)

template <class Args>
GPKVS_DEVICE void locate_rows_soon(const Args& a, u64 i) {
    prefetch_candidates(a.index, geometry_of(a), siphash128_word(a.hash_key0, a.hash_key1, load_unaligned(a.keys + 8 * i)));
}

GPKVS_KERNEL_SOON(locate_rows, LOCATE_ROWS_ARGS, locate_rows_soon) {
    const u64 key = load_unaligned(a.keys + 8 * i);
    const Hash128 fingerprint = siphash128_word(a.hash_key0, a.hash_key1, key);
    u64 cell = tagged_cell(a, fingerprint);
    KnownRow known = {0, NO_SLOT};
    FoundKey found = {NO_SLOT, 0};
    if (cell != NO_CELL) {
        known = {a.known[cell].version, load_word(&a.known[cell].slot)};
        // Where the key was it mostly still is. A block that has moved has slots that mean nothing any more.
        if (is_live_block(known.slot / (WAYS * BytesBucket::IN_BLOCK), geometry_of(a))) found = key_in_slot(a, fingerprint, known.slot);
    }
    const bool is_elsewhere = slot_kind(found.meta) == KIND_EMPTY;
    const FoundKey looked_up = find_key(a, fingerprint, is_elsewhere);
    if (is_elsewhere) found = looked_up;

    const bool is_there = slot_kind(found.meta) != KIND_EMPTY, expires = has_expiry(found.meta);
    if (!is_there || expires || slot_version(found.meta) != known.version) cell = NO_CELL;
    if (cell != NO_CELL) {
        if (is_elsewhere) set_mark(&a.known[cell].slot, found.slot);
        const u64 tag = load_word(a.tags + cell);
        if (!(tag & TAG_USED)) set_mark(a.tags + cell, tag | TAG_USED);
    }
    const bool is_left = is_there && cell == NO_CELL;
    a.cell[i] = cell;
    a.seen[i] = !is_there ? ROW_ABSENT : !is_left ? ROW_THERE : expires ? ROW_EXPIRES : ROW_LEFT;
    count_where(a.left, is_left);
    count_where(a.wrong, key > a.keys_max);
}

// gather_rows: the rows of which it is known where they are. One item a key.
#define GATHER_ROWS_ARGS(F) F(const u64*, cell) F(const u8*, cells) F(u64, cell_bytes) ROWS_ARGS(F)

template <class Args>
GPKVS_DEVICE void gather_rows_soon(const Args& a, u64 i) {
    if (a.cell[i] != NO_CELL) prefetch(a.cells + a.cell[i] * a.cell_bytes);
}

GPKVS_GROUP_KERNEL_SOON(gather_rows, GATHER_ROWS_ARGS, gather_rows_soon) {
    const u8* const from = a.cell[i] != NO_CELL ? a.cells + a.cell[i] * a.cell_bytes : a.seen[i] == ROW_ABSENT ? a.absent : nullptr;
    if (from) copy_by_group(a.rows + i * a.row_bytes, from, a.row_bytes, a.step);
}

// How many cells of a set are filled.
GPKVS_DEVICE u32 filled_of(const u64* tags) {
    u32 filled = 0;
    for (u32 cell = 0; cell < SET_CELLS; cell++) filled += load_word(tags + cell) != 0;
    return filled;
}

// A cell for the row of a key, or NO_CELL. Its tag says so at once: of those that ask side by side, one gets it, and none gives it up
// in the same round.
template <class Args>
GPKVS_DEVICE u64 take_cell(const Args& a, Hash128 fingerprint) {
    u64 first[2];
    sets_of(a, fingerprint, first);
    const u64 key = tag_key(fingerprint), tag = a.round << TAG_ROUND_SHIFT | key;
    const u32 filled = filled_of(a.tags + first[0]);
    const bool is_other_first = filled >= SET_CELLS_FIRST && filled_of(a.tags + first[1]) < filled;
    // Where any cell will do, not always the same one.
    const u32 begin[] = {0, is_other_first ? SET_CELLS : 0, 0, (u32)key % (2 * SET_CELLS)};
    enum Wanted { OWN, EMPTY, UNUSED, ANY, KINDS };
    for (u32 wanted = OWN; wanted < KINDS; wanted++)
        for (u32 at = 0; at < 2 * SET_CELLS; at++) {
            const u32 turn = (begin[wanted] + at) % (2 * SET_CELLS);
            const u64 cell = first[turn / SET_CELLS] + turn % SET_CELLS;
            const u64 seen = load_word(a.tags + cell);
            const bool is_filled = tag_round(seen), may_go = is_filled && tag_round(seen) != a.round;
            if (is_filled && (seen & TAG_KEY) == key && !may_go) return NO_CELL;  // the same key, asked for twice
            const bool fits = wanted == OWN ? may_go && (seen & TAG_KEY) == key
                              : wanted == EMPTY ? !is_filled : may_go && (wanted == ANY || !(seen & TAG_USED));
            if (fits && swap_word(a.tags + cell, seen, tag)) return cell;
            if (wanted == UNUSED && seen & TAG_USED) swap_word(a.tags + cell, seen, seen & ~TAG_USED);  // to be read again
        }
    return NO_CELL;
}

// keep_rows: rows go to cells, of keys with these numbers, or of all, if `numbers` is null. `there` says which there are. Where `seen`
// is not null, they were left to the host, and go to `rows`, too. One item a row.
#define KEEP_ROWS_ARGS(F)                                                                   \
    F(const u32*, numbers) F(const u8*, given) F(const u8*, there) F(const u64*, versions) \
    F(const u8*, keys) F(u64, hash_key0) F(u64, hash_key1) F(const BytesBucket*, index) GEOMETRY_ARGS(F) \
    ROW_CELLS_ARGS(F) F(u64, round) ROWS_ARGS(F)

GPKVS_GROUP_KERNEL(keep_rows, KEEP_ROWS_ARGS) {
    const u32 number = a.numbers ? a.numbers[i] : (u32)i;
    const u8* const given = a.there[i] ? a.given + i * a.row_bytes : a.absent;
    const bool is_kept = a.there[i] && (!a.seen || a.seen[number] == ROW_LEFT);
    const Hash128 fingerprint = siphash128_word(a.hash_key0, a.hash_key1, load_unaligned(a.keys + 8ull * number));
    const u64 slot = find_slot(a.index, geometry_of(a), fingerprint, BytesSlot{fingerprint.low, fingerprint.high, 0, 0});
    const u64 cell = of_leader(leader() && is_kept && a.sets && slot != NO_SLOT ? take_cell(a, fingerprint) : NO_CELL);
    if (a.seen) {
        if (given) copy_by_group(a.rows + number * a.row_bytes, given, a.row_bytes, a.step);
        if (leader()) a.seen[number] = a.there[i] ? ROW_THERE : ROW_ABSENT;
    }
    if (cell == NO_CELL) return;
    if (leader()) a.known[cell] = {a.versions[i], slot};
    copy_by_group(a.cells + cell * a.cell_bytes, given, a.row_bytes, a.step);
}
