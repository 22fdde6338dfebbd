// A step of compaction: the live records of victim segments, and where they go. It only reads.
//
// A record is live only if its slot holds exactly this reference. `walk_victims` goes from header to header, and looks each
// key up. Rot may hide a record from it, so `sweep_index` looks for what is left: slots that refer to the first victim.
//
// Records that survive are appended to a segment of their own, behind the last one, so that those of one age stay
// together. When it is full, the segment with most room above its last record is the next one, else a free one. A large
// record goes where least room is left. A long record, which has its own segments, moves only where it is told to.
#pragma once
#include <algorithm>

#include "base/hash.cuh"
#include "space/heap_state.hpp"
#include "base/pool.hpp"
#include "base/probe.cuh"
#include "base/record.cuh"

// Of each table with records: its id, where its index begins, and its geometry. `user_tail`: the segment that users' records
// are appended to. `ends`: of each segment, 0 if it is free; changed in place; victims have no room. `survivors`: changed in
// place. `long_to`: the free segment where a long record goes, or NO_SEGMENT. `victims`: the segments to empty, one after the
// other; `victim_ends`: where their last records end; `victim_charges`: what their records are charged. `moves`: how many
// there are, whether the call ended for want of room, and where it ended.
#define MOVES_ARGS(F)                                                                       \
    F(const u8*, heap) F(u64, heap_units) F(u64, record_format) SEGMENTS_ARGS(F) F(u64*, ends) F(u64*, survivors)                    \
    F(u64, user_tail) F(u64, long_to) F(const u64*, victims) F(const u64*, victim_ends) F(const u64*, victim_charges) \
    F(u64, tables) F(const u64*, table_ids) F(const u64*, table_index) F(const u64*, table_blocks) F(const u64*, table_unmoved) \
    F(u64, moves_max) F(u64, units_max)                                                     \
    F(u64*, moves) F(u32*, table) F(u64*, slot) F(u64*, moved_from) F(u64*, moved_to)

enum Moves {
    MOVES_COUNT,
    MOVES_LACK_ROOM,
    MOVES_VICTIM,  // the number of the last victim that was looked at; those before it are emptied
    MOVES_AT,      // and where: a unit of it, or a slot of the index
    MOVES_WORDS
};

template <class Args>
GPKVS_DEVICE Geometry geometry_of_table(const Args& a, u64 table) {
    return {a.table_blocks[table], a.table_unmoved[table]};
}

// A segment with less room than this part of it is not worth filling up.
static const u64 ROOM_SHARE_MIN = 8;

template <class Args>
class Mover {
  public:
    explicit Mover(const Args& args) : a(args), survivors_(args.survivors[0]) {}

    void begin_victim(u64 victim) { charge_left_ = a.victim_charges[victim]; }
    bool is_emptied() const { return !charge_left_; }

    // Whether the step may go on.
    bool goes_on() const {
        const bool is_full = a.moves[MOVES_COUNT] == a.moves_max || units_ >= a.units_max;
        // One long record has a place: rot may have made two of it.
        const bool is_placed = a.long_to != NO_SEGMENT && a.moves[MOVES_COUNT];
        return !is_full && !is_placed && !a.moves[MOVES_LACK_ROOM];
    }

    // Moves the record of a slot; false if there is no room for it.
    bool move(u32 table, u64 slot, u64 reference) {
        const u64 units = reference_length(reference), segment = units > a.segment_units ? a.long_to : place(units);
        if (segment == NO_SEGMENT) {
            a.moves[MOVES_LACK_ROOM] = 1;
            return false;
        }
        const u64 i = a.moves[MOVES_COUNT]++;
        a.table[i] = table;
        a.slot[i] = slot;
        a.moved_from[i] = reference;
        if (units > a.segment_units) {
            a.moved_to[i] = make_reference(segment * a.segment_units, units);
            charge_left_ -= std::min(charge_left_, a.segment_units);  // of the victim
        } else {
            a.moved_to[i] = make_reference(segment * a.segment_units + a.ends[segment], units);
            a.ends[segment] += units;
            charge_left_ -= std::min(charge_left_, record_charge(units, a.segment_units));
        }
        units_ += units;
        return true;
    }

    u64 moved_units() const { return units_; }
    void end() const { a.survivors[0] = survivors_; }

  private:
    u64 room(u64 segment) const {
        const u64 end = segment_end(segment, a.segment_units, a.heap_units);
        return a.ends[segment] < end ? end - a.ends[segment] : 0;
    }
    bool is_free(u64 segment) const { return !a.ends[segment] && !a.live_units[segment]; }

    u64 place(u64 units) {
        if (survivors_ != NO_SEGMENT && room(survivors_) >= units) return survivors_;
        u64 fullest = NO_SEGMENT, emptiest = NO_SEGMENT, free = NO_SEGMENT;
        for (u64 segment = 0; segment < a.segments; segment++) {
            if (segment == a.user_tail) continue;
            if (is_free(segment)) {
                if (free == NO_SEGMENT && room(segment) >= units) free = segment;
            } else if (room(segment) >= units) {
                if (fullest == NO_SEGMENT || room(segment) < room(fullest)) fullest = segment;
                if (emptiest == NO_SEGMENT || room(segment) > room(emptiest)) emptiest = segment;
            }
        }
        if (units * CHARGED_AS_IT_IS > a.segment_units && fullest != NO_SEGMENT) return fullest;
        // After a crash it is the segment that was filled before: its number is stored nowhere.
        if (emptiest != NO_SEGMENT && room(emptiest) * ROOM_SHARE_MIN >= a.segment_units) return survivors_ = emptiest;
        if (free == NO_SEGMENT) return fullest;
        if (survivors_ == NO_SEGMENT || room(survivors_) < a.segment_units - units) survivors_ = free;
        return free;
    }

    const Args& a;
    u64 survivors_, units_ = 0, charge_left_ = 0;
};

// A record on the way: where it begins, in units of the segment, and the slot that holds exactly this reference, or NO_SLOT.
struct Walked {
    u64 at, reference, table, slot;  // `table`: its number, or `tables` if it is of none that has records
};

// walk_victims: the records of the first victim from `moves[MOVES_AT]` on, in units of the segment. A walk ends where no record
// can be. When a victim is emptied, the next one follows, until `wanted_units` are free, or `units_max` or `walked_max` records
// were looked at. `walked` is scratch memory.
#define WALK_VICTIMS_ARGS(F)                                                                \
    MOVES_ARGS(F) F(u64, victim_count) F(u64, wanted_units) F(u64, hash_key0) F(u64, hash_key1) F(Pool*, pool) F(u64*, walked) F(u64, walked_max)

static const u64 HEADERS_AHEAD = 16;

// Reads headers of a victim up to the unit `until`; returns how many records there are, and sets `next` to where the walk goes
// on.
template <class Args>
GPKVS_DEVICE u64 read_headers(const Args& a, u64 victim, u64& next, u64 until, u64 records_max) {
    Walked* walked = (Walked*)a.walked;
    const u64 begin = a.victims[victim] * a.segment_units, end = a.victim_ends[victim];
    u64 count = 0;
    while (count < records_max && next < until) {
        const Record record = read_record(a.heap + (begin + next) * UNIT_BYTES, a.record_format);
        const u64 units = record.units;
        const bool is_long = next == 0 && is_in_segments(0, units, a.segment_units) && units > a.segment_units;
        const bool is_inside = next + units <= end || (is_long && begin + units <= a.heap_units);
        if (units < RECORD_UNITS_MIN || !is_inside) {
            next = end;
            break;
        }
        prefetch(a.heap + (begin + next + HEADERS_AHEAD * units) * UNIT_BYTES);  // most are as long as this one
        u64 table = 0;
        while (table < a.tables && a.table_ids[table] != record.table_id) table++;
        walked[count++] = {next, make_reference(begin + next, units), table, NO_SLOT};
        next += units;
    }
    return count;
}

// So many are looked up together: their cache lines come at the same time. One by one, each would be waited for.
static const u64 LOOKED_UP_AT_ONCE = 32;

template <class Args>
static void look_up_run(const void* args, u64 first, u64 last) {
    const Args& a = *(const Args*)args;
    Walked* walked = (Walked*)a.walked;
    Hash128 fingerprints[LOOKED_UP_AT_ONCE];
    for (; first < last; first += LOOKED_UP_AT_ONCE) {
        const u64 count = std::min(last - first, LOOKED_UP_AT_ONCE);
        for (u64 k = 0; k < count; k++) {
            const Walked& at = walked[first + k];
            if (at.table == a.tables) continue;
            const Record record = read_record(a.heap + reference_offset(at.reference) * UNIT_BYTES, a.record_format);
            fingerprints[k] = siphash128(a.hash_key0, a.hash_key1, record.key, record.key_bytes);
            prefetch_candidates((const BytesBucket*)a.table_index[at.table], geometry_of_table(a, at.table), fingerprints[k]);
        }
        for (u64 k = 0; k < count; k++) {
            Walked& record = walked[first + k];
            if (record.table == a.tables) continue;
            const BytesBucket* index = (const BytesBucket*)a.table_index[record.table];
            const BytesSlot key = {fingerprints[k].low, fingerprints[k].high, 0, 0};
            const u64 slot = find_slot(index, geometry_of_table(a, record.table), fingerprints[k], key);
            if (slot == NO_SLOT || index[slot / WAYS].ways[slot % WAYS].reference != record.reference) continue;
            record.slot = slot;
        }
    }
}

// How many keys a look-up counts for, when threads share them: it waits for memory.
static const u64 LOOK_UP_KEYS = 8;

// What a step may still look at.
struct Looks {
    u64 units, records;
};

// Moves records of a victim from the unit `at` on; says in `at` where it ended.
template <class Args>
static void move_records_of(u64 victim, const Args& a, Mover<Args>& mover, u64& at, Looks& left) {
    static const Kernel look_up = {sizeof(a), "", look_up_run<Args>, 1, 0, 0};
    const Walked* walked = (const Walked*)a.walked;
    const u64 from = at;
    u64 next = at;
    const u64 count = read_headers(a, victim, next, std::min(a.victim_ends[victim], at + left.units), left.records);
    left.units -= std::min(left.units, next - from);
    left.records -= count;
    a.pool->run(&look_up, &a, count, LOOK_UP_KEYS);
    for (u64 k = 0; k < count; k++) {
        at = walked[k].at;
        if (mover.is_emptied() || !mover.goes_on()) return;
        if (walked[k].slot != NO_SLOT && !mover.move((u32)walked[k].table, walked[k].slot, walked[k].reference)) return;
    }
    at = next;
}

GPKVS_SERIAL_KERNEL(walk_victims, WALK_VICTIMS_ARGS) {
    if (i != 0) return;
    Mover<walk_victims_args> mover(a);
    u64 &victim = a.moves[MOVES_VICTIM], &at = a.moves[MOVES_AT], freed = 0;
    Looks left = {a.units_max, a.walked_max};
    for (;; victim++, at = 0) {
        const u64 moved = mover.moved_units();
        mover.begin_victim(victim);
        move_records_of(victim, a, mover, at, left);
        freed += segment_end(a.victims[victim], a.segment_units, a.heap_units) - (mover.moved_units() - moved);
        if (!mover.is_emptied() || !mover.goes_on() || !left.units || !left.records || freed >= a.wanted_units) break;
        if (victim + 1 == a.victim_count) break;
    }
    mover.end();
}

// sweep_index: the slots of one table from `moves[MOVES_AT]` on to `end` that refer to the first victim.
#define SWEEP_INDEX_ARGS(F) MOVES_ARGS(F) F(u64, swept) F(u64, end)

GPKVS_SERIAL_KERNEL(sweep_index, SWEEP_INDEX_ARGS) {
    if (i != 0) return;
    Mover<sweep_index_args> mover(a);
    const BytesBucket* index = (const BytesBucket*)a.table_index[a.swept];
    const Geometry geometry = geometry_of_table(a, a.swept);
    u64& at = a.moves[MOVES_AT];
    mover.begin_victim(0);
    for (; at < a.end && !mover.is_emptied() && mover.goes_on(); at++) {
        // A dead block of an index that grows still has the slots that moved from it.
        if (!is_live_block(at / WAYS / BytesBucket::IN_BLOCK, geometry)) continue;
        const BytesSlot& slot = index[at / WAYS].ways[at % WAYS];
        if (slot_kind(slot.meta) == KIND_EMPTY) continue;
        const u64 offset = reference_offset(slot.reference), units = reference_length(slot.reference);
        if (offset / a.segment_units != a.victims[0] || !is_in_segments(offset % a.segment_units, units, a.segment_units)) continue;
        if (!units || offset + units > a.heap_units) continue;
        if (!mover.move((u32)a.swept, at, slot.reference)) break;
    }
    mover.end();
}
