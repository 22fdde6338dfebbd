// Rows that a GPU keeps in its own memory, so that it reads them without the host.
//
// They lie in cells, 16 to a set, each with a tag. A row is known by the version that its SET gave its key: no other one of the
// table ever has that, so a cell is never wrong, whatever happens to table, index or heap. A row that changes or goes leaves a cell
// that nobody asks for, and that another row gets in time. A version has two sets where its row may lie.
#include "probe.cuh"

// A tag: the version; the round in which the cell was filled (3 bits, never 0 of a filled one); whether it was read since.
static const u64 TAG_VERSION = (1ull << 60) - 1, TAG_USED = 1ull << 63, NO_CELL = ~0ull;
static const u32 TAG_ROUND_SHIFT = 60;
GPKVS_DEVICE u64 tag_round(u64 tag) { return tag >> TAG_ROUND_SHIFT & 7; }

#define ROW_CELLS_ARGS(F) F(u64*, tags) F(u8*, cells) F(u64, sets) F(u64, cell_bytes)

// Of a set. With 16, and two sets to choose from, nearly all cells can be filled before some row finds none.
static const u32 SET_CELLS = 16;

// What is known of each row that is asked for.
enum SeenRow { ROW_ABSENT = 0, ROW_THERE = 1, ROW_LEFT = 2, ROW_EXPIRES = 3 };  // the last two: the host is to read it

// The first cell of each of the two sets.
template <class Args>
GPKVS_DEVICE void sets_of(const Args& a, u64 version, u64* first) {
    first[0] = mul_high(mix64(version), a.sets) * SET_CELLS;
    first[1] = mul_high(mix64(~version), a.sets) * SET_CELLS;
}

// The cell that has a row, or NO_CELL; it is noted as used. A tag without a version is that of an empty cell.
template <class Args>
GPKVS_DEVICE u64 find_cell(const Args& a, u64 version) {
    u64 first[2];
    sets_of(a, version, first);
    for (u32 set = 0; set < 2; set++) {
        const u64* const tags = a.tags + first[set];
        const u32 low = GPKVS_WAYS8(way, version && (tags[way] & TAG_VERSION) == version);
        const u32 high = GPKVS_WAYS8(way, version && (tags[WAYS + way] & TAG_VERSION) == version);
        if (!(low | high)) continue;
        const u64 cell = first[set] + first_bit(low | high << WAYS);
        if (leader() && !(a.tags[cell] & TAG_USED)) set_mark(a.tags + cell, a.tags[cell] | TAG_USED);
        return cell;
    }
    return NO_CELL;
}

// read_rows: the rows of keys, as far as cells have them, and how many are left to the host: those that are in no cell, and those
// that expire, which are never in one; and how many keys are above `keys_max`. A row that is not there becomes `absent`, if that is not null. Bytes are copied `step` at a time. One item a key.
#define READ_ROWS_ARGS(F)                                                                   \
    F(const u8*, keys) F(u64, keys_max) F(u64, hash_key0) F(u64, hash_key1) F(const BytesBucket*, index) GEOMETRY_ARGS(F) \
    ROW_CELLS_ARGS(F) F(u64, row_bytes) F(u64, step) F(const u8*, absent) F(u8*, rows) F(u8*, seen) F(u64*, left) F(u64*, wrong)

GPKVS_GROUP_KERNEL(read_rows, READ_ROWS_ARGS) {
    const u64 key = load_unaligned(a.keys + 8 * i);
    const Hash128 fingerprint = siphash128_word(a.hash_key0, a.hash_key1, key);
    const u64 slot = find_slot(a.index, geometry_of(a), fingerprint, BytesSlot{fingerprint.low, fingerprint.high, 0, 0});
    u8* const row = a.rows + i * a.row_bytes;
    u8 seen = ROW_ABSENT;
    if (slot == NO_SLOT) {
        if (a.absent) copy_by_group(row, a.absent, a.row_bytes, a.step);
    } else {
        const u64 meta = a.index[slot / WAYS].ways[slot % WAYS].meta;
        const u64 cell = has_expiry(meta) ? NO_CELL : find_cell(a, slot_version(meta));
        seen = has_expiry(meta) ? ROW_EXPIRES : cell == NO_CELL ? ROW_LEFT : ROW_THERE;
        if (cell != NO_CELL) copy_by_group(row, a.cells + cell * a.cell_bytes, a.row_bytes, a.step);
    }
    if (leader()) a.seen[i] = seen;
    count_where(a.left, leader() && seen >= ROW_LEFT);
    count_where(a.wrong, leader() && key > a.keys_max);
}

// How many cells of a set are filled.
GPKVS_DEVICE u32 filled_of(const u64* tags) {
    u32 filled = 0;
    for (u32 cell = 0; cell < SET_CELLS; cell++) filled += load_word(tags + cell) != 0;
    return filled;
}

// A cell for a row, or NO_CELL. Its tag says so at once: of those that ask side by side, one gets it, and none gives it up in the
// same round.
template <class Args>
GPKVS_DEVICE u64 take_cell(const Args& a, u64 version) {
    u64 first[2];
    sets_of(a, version, first);
    const u64 tag = a.round << TAG_ROUND_SHIFT | version;
    // The emptier set first, so that both fill up; where any cell will do, not always the same one.
    const u32 begin[] = {filled_of(a.tags + first[1]) < filled_of(a.tags + first[0]) ? SET_CELLS : 0, 0,
                         (u32)version % (2 * SET_CELLS)};
    enum Wanted { EMPTY, UNUSED, ANY, KINDS };
    for (u32 wanted = version ? EMPTY : KINDS; wanted < KINDS; wanted++)
        for (u32 at = 0; at < 2 * SET_CELLS; at++) {
            const u32 turn = (begin[wanted] + at) % (2 * SET_CELLS);
            const u64 cell = first[turn / SET_CELLS] + turn % SET_CELLS;
            const u64 seen = load_word(a.tags + cell);
            if ((seen & TAG_VERSION) == version) return NO_CELL;  // it has one
            const bool fits = wanted == EMPTY ? !seen : tag_round(seen) != a.round && (wanted == ANY || !(seen & TAG_USED));
            if (fits && swap_word(a.tags + cell, seen, tag)) return cell;
            if (wanted == UNUSED && seen & TAG_USED) swap_word(a.tags + cell, seen, seen & ~TAG_USED);  // to be read again
        }
    return NO_CELL;
}

// keep_rows: rows that were left to the host, and that it has read, go to where they are wanted (`numbers`), and to cells. `there`
// says which there are. One item a row.
#define KEEP_ROWS_ARGS(F)                                                                   \
    F(const u32*, numbers) F(const u8*, given) F(const u8*, there) F(const u64*, versions) ROW_CELLS_ARGS(F) F(u64, round) \
    F(u64, row_bytes) F(u64, step) F(const u8*, absent) F(u8*, rows) F(u8*, seen)

GPKVS_GROUP_KERNEL(keep_rows, KEEP_ROWS_ARGS) {
    const u32 number = a.numbers[i];
    u8* const row = a.rows + number * a.row_bytes;
    const u8* const given = a.there[i] ? a.given + i * a.row_bytes : a.absent;
    if (given) copy_by_group(row, given, a.row_bytes, a.step);
    const bool is_kept = a.there[i] && a.seen[number] == ROW_LEFT;
    const u64 cell = of_leader(leader() && is_kept ? take_cell(a, a.versions[i]) : NO_CELL);
    if (leader()) a.seen[number] = a.there[i] ? ROW_THERE : ROW_ABSENT;
    if (cell != NO_CELL) copy_by_group(a.cells + cell * a.cell_bytes, given, a.row_bytes, a.step);
}
