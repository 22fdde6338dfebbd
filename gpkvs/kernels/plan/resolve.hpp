// Operations that look before they act (conditions, checks, increments, appends, sums of rows, those on expiries, and the
// door's own for clients of Redis) become plain ones, in arrival order.
//
// A planner folds each key by itself. A check that fails takes back what its request does to other keys, so this pass
// is serial. It only decides: every operation stays in its place, as a SET, a DELETE, a GET or an EXISTS. Values come
// after it, and only those that somebody can see. But what an ADD, a SETRANGE or an INCREMENT_DECIMAL leaves is made at once.
// Where a key's value stays the one that the table has in a blob, none is made: the key's new record will name that blob.
#pragma once
#include "plan/decimal.hpp"
#include "base/record.cuh"
#include "plan/row_elements.hpp"

static const u8 AS_PLANNED = 255;    // the status is what the plain operation gets
static const u8 NOT_DONE = 254;      // of an operation that changes nothing, and is no failure: it gets the same
static const u32 NUMBER_TEXT_MAX = 20;  // characters of a signed number of 64 bits
static const u32 DIGITS_SURE = 18;      // of a number that fits into 64 bits whatever they are
// To read and write a digit of a long number with a point takes so many times what it takes to copy a byte, and more.
static const u64 DECIMAL_TEXT_USUAL = 64, DECIMAL_WORK = 64;
// What is rare, and large, is not to be in the way of the others.
#define GPKVS_RARE __attribute__((noinline))

// How many operations before its turn what an operation needs of its chain is asked for, and its record.
static const u64 CHAIN_SOON = 96, RECORD_SOON = 48;

#define CONDITION(name, number) CONDITION_##name = number,
enum ConditionCode { PROTOCOL_CONDITIONS(CONDITION) };

// Of the record that the table holds for a chain's key, and of its value. A blob is looked at where its value is needed.
enum Verdict {
    NOT_LOOKED_AT = 0,
    SOUND = 1,
    DAMAGED = 2,
    NAMES_BLOB = 3,  // it is sound, and nobody has looked at the blob that it names
    BLOB_DAMAGED = 4
};

// What the pass counts.
enum Resolved {
    RESOLVED_VALUE_BYTES,  // of all values that are to be written out
    RESOLVED_MADE_BYTES,   // of them, those that are made of others: no request brought them; with what is read for conditions
    RESOLVED_ROOM_BYTES,   // how much `made` must have; with less nothing counts
    RESOLVED_KEPT,         // whether `kept` names any record
    RESOLVED_COUNT
};

// An operation that leaves a value: it begins with what `base` left (an APPEND or EXPIRE), or is that (a COPY), or is its own.
// NO_OP as a base: the table's. A COPY takes it from the key of the operation before. What an ADD, a SETRANGE or an
// INCREMENT_DECIMAL leaves lies in `made`, from where `numbers` says. `row_element`: of the table's rows (RowElement). No key
// that has expired is there any more: the engine has removed those that the batch meets. `kept`: of each operation that keeps
// the blob of its key, the record of the table that names it; else 0.
// `refused`: of each request, whether nothing of it is done; null: all are.
#define RESOLVE_ARGS(F)                                                                     \
    F(u64, n) F(const u8*, ops) F(const u8*, values) F(const u64*, value_offsets) F(const u32*, value_lengths) \
    F(u64, has_records) F(u64, row_element) F(const u32*, chain) F(const u64*, old_word) F(const u8*, heap) \
    F(u8*, plain_ops) F(u8*, is_seen) F(u32*, base) F(u32*, lengths) F(u64*, numbers) F(u8*, made) \
    F(u64, requests) F(const u32*, request_ops) F(u64, table_id) F(const u8*, refused) \
    F(const u8*, conditions) F(const u64*, expected) F(const u64*, expiries) F(const u64*, versions) \
    F(const u8*, keys) F(const u64*, key_offsets) F(const u32*, key_lengths)                \
    F(const u64*, slot) F(const u64*, old_meta) F(u64, heap_bytes) F(u64, record_format) BLOB_FILE_ARGS(F) F(u64, value_bytes_max) F(u64, made_bytes) F(u64, work_bytes_max) \
    F(u32*, writer) F(u8*, verdict) F(u64*, plain_expiries) F(u64*, kept) F(u8*, status) F(u32*, failed_check) F(u64*, resolved)

struct ResolveArgs {
    RESOLVE_ARGS(GPKVS_FIELD)
};

// How many characters a number has as decimal text.
static u32 number_characters(long long number) {
    u64 left = number < 0 ? 0 - (u64)number : (u64)number;
    u32 count = 1 + (number < 0);
    for (; left >= 10000; left /= 10000) count += 4;
    return count + (left >= 10) + (left >= 100) + (left >= 1000);
}

// Writes a number as decimal text, from its last digit on, two at a time (`snprintf` takes many times as long).
static void write_number(long long number, u8* text) {
    u64 left = number < 0 ? 0 - (u64)number : (u64)number;
    u32 at = number_characters(number);
    if (number < 0) text[0] = '-';
    for (; left >= 100; left /= 100) {
        const u32 pair = (u32)(left % 100);
        text[--at] = (u8)('0' + pair % 10);
        text[--at] = (u8)('0' + pair / 10);
    }
    text[--at] = (u8)('0' + left % 10);
    if (left >= 10) text[--at] = (u8)('0' + left / 10);
}

// What such an operation leaves lies in `made`; else values are made after the pass.
static bool is_made_at_once(u32 kind) { return kind == OP_ADD || kind >= OP_SETRANGE; }

// The value that the table has for an operation's key.
template <class Args>
static const u8* table_value(const Args& a, u32 op) {
    return record_value(read_record(a.heap + reference_offset(a.old_word[a.chain[op]]) * UNIT_BYTES, a.record_format), blob_file_of(a));
}

// Gives away the value that an operation leaves, in pieces from the last one to the first, until `take` wants no more: where
// each begins, and its bytes.
template <class Args, class Take>
static void give_value(const Args& a, u32 op, Take take) {
    u64 size = a.lengths[op];
    for (u32 piece = op;;) {
        const u8 kind = a.ops[piece];
        if (is_made_at_once(kind)) {
            take(0, a.made + a.numbers[piece], size);
            return;
        }
        if (kind == OP_INCREMENT) {
            u8 text[NUMBER_TEXT_MAX];
            write_number((long long)a.numbers[piece], text);
            take(0, text, number_characters((long long)a.numbers[piece]));
            return;
        }
        const u8* const brought = a.values + a.value_offsets[piece];
        if (kind == OP_SET) {
            take(0, brought, a.value_lengths[piece]);
            return;
        }
        const u64 held = a.numbers[piece];  // by what it begins with
        if (kind != OP_COPY && !take(held, brought, a.value_lengths[piece])) return;
        if (a.base[piece] == NO_OP) {
            if (held) take(0, table_value(a, kind == OP_COPY ? piece - 1 : piece), held);
            return;
        }
        piece = a.base[piece];
        size = held;
    }
}

template <class Args>
static void copy_value(const Args& a, u32 op, u8* to) {
    give_value(a, op, [to](u64 at, const u8* data, u64 bytes) {
        copy_bytes(to + at, data, bytes);
        return true;
    });
}

// The states of all keys, as the operations so far leave them.
template <class Args>
class Resolver {
  public:
    // `adds_later`: all operations are sums, whose rows are added up after the run, by `add_rows_of`.
    explicit Resolver(const Args& args, bool adds_later = false) : a(args), adds_later_(adds_later) {}

    void run() {
        u64 first = 0;
        for (u64 request = 0; request < a.requests; request++) {
            const u64 last = first + a.request_ops[request];
            const bool is_refused = a.refused && a.refused[request];
            const u32 failed = a.failed_check[request] = is_refused ? NO_OP : failed_check(first, last);
            is_required_ = true;
            is_in_row_ = false;
            for (u64 op = first; op < last; op++) {
                prefetch_soon(op);
                a.status[op] = AS_PLANNED;
                a.plain_ops[op] = failed == NO_OP && !is_refused ? plain((u32)op) : (u8)OP_EXISTS;
                if (a.ops[op] >= OP_ADD && is_too_much()) break;
            }
            if (failed != NO_OP && is_present(failed)) {
                a.status[failed] = STATUS_CONDITION_FAILED;
                a.numbers[failed] = compared(failed);
            }
            first = last;
            if (is_too_much()) break;
        }
        a.resolved[RESOLVED_VALUE_BYTES] = 0;
        a.resolved[RESOLVED_MADE_BYTES] = made_ + looked_at_;
        a.resolved[RESOLVED_ROOM_BYTES] = made_;
        a.resolved[RESOLVED_KEPT] = 0;
        if (is_too_much()) return;
        for (u64 op = 0; op < a.n; op++) {
            a.kept[op] = 0;
            if (a.plain_ops[op] != OP_SET || (a.has_records && !is_last(op) && !a.is_seen[op])) continue;
            a.is_seen[op] = 1;
            if (keeps_blob((u32)op)) {
                a.kept[op] = a.old_word[a.chain[op]];
                a.resolved[RESOLVED_KEPT] = 1;
                continue;
            }
            a.resolved[RESOLVED_VALUE_BYTES] += a.lengths[op];
            if (a.ops[op] != OP_SET && !is_made_at_once(a.ops[op])) a.resolved[RESOLVED_MADE_BYTES] += a.lengths[op];
        }
    }

    // Adds up the rows of one key, whose operations are these, in arrival order. All lie in one place: nobody has seen the sums
    // between. Threads do that for several keys.
    void add_rows_of(const u32* ops, u64 count) const {
        u8* to = nullptr;
        for (u64 i = 0; i < count; i++) {
            const u32 op = ops[i];
            const u64 bytes = a.value_lengths[op];
            if (a.plain_ops[op] != OP_SET) continue;
            if (!to) {
                to = a.made + a.numbers[op];
                if (a.slot[a.chain[op]] == NO_SLOT) memset(to, 0, bytes);
                else copy_bytes(to, table_value(a, op), bytes);
            }
            add_row(a.row_element, to, a.values + a.value_offsets[op], bytes);
        }
    }

    // Looks at the record that the table has for the key of an operation. Threads may do that for several keys before the run.
    void look_at_record(u32 op) const {
        if (a.slot[a.chain[op]] != NO_SLOT) (void)record_of(op);
    }

  private:
    // A record is read where something is added to its value: each would wait for memory.
    void prefetch_soon(u64 op) const {
        if (op + CHAIN_SOON < a.n) {
            const u32 chain = a.chain[op + CHAIN_SOON];
            prefetch(a.writer + chain);
            prefetch(a.slot + chain);
            prefetch(a.old_word + chain);
        }
        if (op + RECORD_SOON >= a.n) return;
        const u64 soon = op + RECORD_SOON;
        const u8 kind = a.ops[soon];
        if (!a.has_records || (kind != OP_INCREMENT && kind != OP_APPEND && kind != OP_ADD)) return;
        const u64 reference = a.old_word[a.chain[soon]];
        const u8* record = a.heap + reference_offset(reference) * UNIT_BYTES;
        prefetch(record);
        prefetch(record + reference_length(reference) * UNIT_BYTES - 1);
    }

    bool is_last(u64 op) const { return a.writer[a.chain[op]] == op; }
    u32 writer_of(u32 op) const { return a.writer[a.chain[op]]; }
    bool is_present(u32 op) const {
        const u32 writer = writer_of(op);
        return writer == NO_OP ? a.slot[a.chain[op]] != NO_SLOT : a.plain_ops[writer] == OP_SET;
    }

    // Whether an operation with a condition wants the value sound. One that changes an expiry does not: the value stays, and
    // whoever reads it sees the damage.
    bool wants_value(u32 op) const {
        const u8 condition = a.conditions[op];
        if (a.ops[op] == OP_REQUIRE) return condition == CONDITION_HOLDS || condition == CONDITION_READABLE;
        return a.ops[op] != OP_EXPIRE;
    }

    // Nobody counts what is read for this but here.
    bool is_damaged(u32 op) {
        const u32 chain = a.chain[op], writer = writer_of(op);
        const bool reads = wants_value(op);
        if (!is_present(op) || (writer != NO_OP && !(reads && leaves_table_value(writer)))) return false;
        if (a.verdict[chain] == NOT_LOOKED_AT) look_at(reference_length(a.old_word[chain]) * UNIT_BYTES);
        const Record record = record_of(op);
        if (reads && a.verdict[chain] == NAMES_BLOB) look_at(value_bytes_of(record));
        return !(reads ? whole_record_of(op) : record).words;
    }

    // Whether the table's record is longer, or shorter, than one with the value that an operation brings.
    bool differs_in_length(u32 op) const {
        const u32 chain = a.chain[op];
        if (writer_of(op) != NO_OP || !is_present(op)) return false;
        const bool expires = has_expiry(a.old_meta[chain]);
        return reference_length(a.old_word[chain]) != record_units(a.record_format, expires, a.key_lengths[op], a.value_lengths[op]);
    }

    // What a condition compares: the version, or the number. The request tells what it found.
    u64 compared(u32 op) const {
        const u32 writer = writer_of(op);
        if (!a.has_records) return writer == NO_OP ? a.old_word[a.chain[op]] : a.numbers[writer];
        return writer == NO_OP ? slot_version(a.old_meta[a.chain[op]]) : a.versions[writer];
    }

    bool holds(u32 op) const { return a.conditions[op] == CONDITION_NONE || meets_condition(op); }

    bool meets_condition(u32 op) const {
        const bool present = is_present(op);
        switch (a.conditions[op]) {
            case CONDITION_ABSENT: return !present;
            case CONDITION_PRESENT: return present;
            case CONDITION_EQUALS: return present && compared(op) == a.expected[op];
            case CONDITION_READABLE: return present;
            case CONDITION_EXPIRES: return present && expiry_of(op);
            case CONDITION_LASTS: return present && !expiry_of(op);
            case CONDITION_LATER: return present && expiry_of(op) && a.expiries[op] > expiry_of(op);
            case CONDITION_SOONER: return present && (!expiry_of(op) || a.expiries[op] < expiry_of(op));
            case CONDITION_HOLDS: return present && has_value_of(op);
            case CONDITION_REQUIRED:
            case CONDITION_PROLONGS: return is_required_;
        }
        return true;
    }

    // Whether its key, whose record is sound, holds the value that an operation brings.
    bool has_value_of(u32 op) const {
        const u32 writer = writer_of(op);
        const u8* const wanted = a.values + a.value_offsets[op];
        const u64 size = a.value_lengths[op];
        if (writer == NO_OP) return value_bytes_of(record_of(op)) == size && same_bytes(table_value(a, op), wanted, size);
        bool is_same = a.lengths[writer] == size;
        if (!is_same) return false;
        give_value(a, writer, [&](u64 at, const u8* data, u64 bytes) {
            return is_same = is_same && same_bytes(data, wanted + at, bytes);
        });
        return is_same;
    }

    u32 failed_check(u64 first, u64 last) const {
        for (u64 op = first; op < last; op++)
            if (a.ops[op] == OP_CHECK && !holds((u32)op)) return (u32)op;
        return NO_OP;
    }

    u8 plain(u32 op) {
        const u8 kind = a.ops[op];
        a.lengths[op] = 0;
        a.is_seen[op] = 0;
        a.base[op] = NO_OP;
        a.plain_expiries[op] = 0;
        if (kind != OP_REQUIRE) is_in_row_ = false;
        if (kind == OP_EXPIRY) {
            a.status[op] = expiry(op);
            return OP_EXISTS;
        }
        if (kind == OP_LENGTH) {
            a.status[op] = length(op);
            return OP_EXISTS;
        }
        if (kind == OP_CHECK || kind == OP_EXISTS) return OP_EXISTS;
        if (kind == OP_REQUIRE) {
            a.status[op] = require(op);
            return OP_EXISTS;
        }
        const u32 writer = writer_of(op);
        if (kind == OP_GET) {
            if (writer != NO_OP) a.is_seen[writer] = 1;
            return OP_GET;
        }
        if (const u8 refused = refusal(op)) {
            if (refused != NOT_DONE) a.status[op] = refused;
            is_required_ = false;
            return OP_EXISTS;
        }
        a.writer[a.chain[op]] = op;
        return kind == OP_DELETE ? OP_DELETE : OP_SET;
    }

    // Why an operation that would change its key does not: the status of that, or NOT_DONE.
    u8 refusal(u32 op) {
        const u8 kind = a.ops[op], condition = a.conditions[op];
        const bool asks = condition == CONDITION_REQUIRED || condition == CONDITION_PROLONGS, may_act = !asks || is_required_;
        if (may_act && condition >= CONDITION_SOUND && is_damaged(op)) return STATUS_CORRUPT;
        if (!holds(op)) {
            if (!is_present(op)) return NOT_DONE;
            a.numbers[op] = compared(op);
            return STATUS_CONDITION_FAILED;
        }
        switch (kind) {
            case OP_DELETE: return STATUS_OK;
            case OP_SET: return set(op);
            case OP_INCREMENT: return increment(op);
            case OP_ADD: return add(op);
            case OP_COPY: return copy(op);
            case OP_SETRANGE: return set_range(op);
            case OP_INCREMENT_DECIMAL: return increment_decimal(op);
        }
        return append(op);
    }

    // What a key's expiry is; of a record of the table, once that is checked.
    u64 expiry_of(u32 op, const Record& record) const {
        return record.words ? record.expiry_ms : a.plain_expiries[writer_of(op)];
    }

    u64 expiry_of(u32 op) const { return expiry_of(op, writer_of(op) == NO_OP ? record_of(op) : no_record()); }

    // What is kept where a key is there is given where it is not.
    void keep_expiry(u32 op, const Record& record) {
        a.plain_expiries[op] = is_present(op) ? expiry_of(op, record) : a.expiries[op];
    }

    u8 expiry(u32 op) {
        Record record = no_record();
        u64 held;
        a.numbers[op] = 0;
        if (!measure(op, false, &held, &record)) return STATUS_CORRUPT;
        if (is_present(op)) a.numbers[op] = expiry_of(op, record);
        return AS_PLANNED;
    }

    // In a table with records. The value itself need not be made for it.
    u8 length(u32 op) {
        Record record = no_record();
        return measure(op, false, a.numbers + op, &record) ? AS_PLANNED : (u8)STATUS_CORRUPT;
    }

    u8 set(u32 op) {
        a.lengths[op] = a.value_lengths[op];
        a.plain_expiries[op] = a.conditions[op] == CONDITION_KEEPS && is_present(op) ? expiry_of(op) : a.expiries[op];
        if (!a.has_records) a.numbers[op] = load_unaligned(a.values + a.value_offsets[op]);
        return STATUS_OK;
    }

    // Several in a row are required together.
    GPKVS_RARE u8 require(u32 op) {
        const bool is_other = a.conditions[op] == CONDITION_HOLDS && differs_in_length(op);
        const bool damaged = !is_other && a.conditions[op] >= CONDITION_SOUND && is_damaged(op);
        const bool met = !is_other && !damaged && holds(op);
        is_required_ = met && (is_required_ || !is_in_row_);
        is_in_row_ = true;
        a.numbers[op] = 0;
        return damaged ? STATUS_CORRUPT : met ? STATUS_OK : STATUS_CONDITION_FAILED;
    }

    // What the key of the operation before has.
    GPKVS_RARE u8 copy(u32 op) {
        const u32 from = op - 1, writer = writer_of(from);
        Record record = no_record();
        u64 held;
        if (!is_present(from)) return STATUS_NOT_FOUND;
        if (!measure(from, true, &held, &record)) return STATUS_CORRUPT;
        a.base[op] = adds_nothing(writer) ? a.base[writer] : writer;
        if (a.base[op] != NO_OP) a.is_seen[a.base[op]] = 1;
        a.plain_expiries[op] = expiry_of(from);
        a.lengths[op] = (u32)held;
        a.numbers[op] = held;
        return STATUS_OK;
    }

    // Whether what an operation leaves lies in `made`.
    bool is_made(u32 op) const { return op != NO_OP && is_made_at_once(a.ops[op]); }

    // Room for a value that is made at once. Null: there is none, and the batch is too large. What nobody has seen of the operation
    // before gives its room away, and lies there.
    u8* make(u32 op, u64 bytes) {
        const u32 writer = writer_of(op);
        u64 at = made_;
        if (is_made(writer) && is_present(op) && !a.is_seen[writer]) {
            const bool is_last = a.numbers[writer] + a.lengths[writer] == made_;
            if (is_last || bytes <= a.lengths[writer]) at = a.numbers[writer];
        }
        a.numbers[op] = at;
        a.lengths[op] = (u32)bytes;
        if (at + bytes > made_) made_ = at + bytes;
        return at + bytes <= a.made_bytes ? a.made + at : nullptr;
    }

    // The longest value that is looked at counts for nothing: one may be as long as values may be.
    void look_at(u64 bytes) {
        looked_at_ += std::min(bytes, longest_);
        longest_ = std::max(longest_, bytes);
    }

    // Whether more is made or read than may be: the rest does not matter then.
    bool is_too_much() const { return made_ > a.made_bytes || made_ + looked_at_ > a.work_bytes_max; }

    // How long the value of a key is; and the record, if it is the table's. False: it is damaged; of a value that nobody `reads`
    // only the record counts.
    bool measure(u32 op, bool reads, u64* bytes, Record* record) const {
        const u32 writer = writer_of(op);
        *bytes = 0;
        if (!is_present(op)) return true;
        if (reads && leaves_table_value(writer) && !whole_record_of(op).words) return false;
        if (writer == NO_OP && !(*record = reads ? whole_record_of(op) : record_of(op)).words) return false;
        *bytes = record->words ? value_bytes_of(*record) : a.lengths[writer];
        return true;
    }

    void copy_held(u32 op, const Record& record, u64 bytes, u8* to) const {
        if (record.words) copy_bytes(to, record_value(record, blob_file_of(a)), bytes);
        else if (bytes) copy_value(a, writer_of(op), to);
    }

    // Adds a row to the one that the key has; a missing one is zeros. Each sum is rounded, in arrival order.
    u8 add(u32 op) {
        const u64 bytes = a.value_lengths[op];
        Record record = no_record();
        u64 held;
        if (!measure(op, true, &held, &record) || (is_present(op) && held != bytes)) return STATUS_CORRUPT;
        keep_expiry(op, record);
        u8* const to = make(op, bytes);
        if (!to) return NOT_DONE;
        if (adds_later_) return STATUS_OK;
        if (!is_present(op)) memset(to, 0, bytes);
        else if (!lies_there(op)) copy_held(op, record, held, to);
        add_row(a.row_element, to, a.values + a.value_offsets[op], bytes);
        return STATUS_OK;
    }

    // Whether what an operation makes lies where the value that it is made of does.
    bool lies_there(u32 op) const {
        const u32 writer = writer_of(op);
        return is_made(writer) && a.numbers[writer] == a.numbers[op];
    }

    // Writes over a part of the value, from the byte that `expected` says; zeros fill what is between.
    GPKVS_RARE u8 set_range(u32 op) {
        const u64 first = a.expected[op], bytes = a.value_lengths[op];
        Record record = no_record();
        u64 held;
        if (!bytes) return NOT_DONE;
        if (first > a.value_bytes_max || first + bytes > a.value_bytes_max) return STATUS_OVERFLOW;
        if (!measure(op, true, &held, &record)) return STATUS_CORRUPT;
        keep_expiry(op, record);
        u8* const to = make(op, first + bytes > held ? first + bytes : held);
        if (!to) return NOT_DONE;
        if (!lies_there(op)) copy_held(op, record, held, to);
        if (first > held) memset(to + held, 0, first - held);
        copy_bytes(to + first, a.values + a.value_offsets[op], bytes);
        return STATUS_OK;
    }

    GPKVS_RARE u8 increment_decimal(u32 op) {
        u8 text[DECIMAL_TEXT_MAX];
        Record record = no_record();
        u64 held;
        if (!measure(op, true, &held, &record)) return STATUS_CORRUPT;
        if (held >= sizeof text) return STATUS_NOT_A_NUMBER;
        looked_at_ += held > DECIMAL_TEXT_USUAL ? held * DECIMAL_WORK : 0;
        copy_held(op, record, held, text);
        long double number = 0, added;
        if (is_present(op) && !parse_decimal(text, held, &number)) return STATUS_NOT_A_NUMBER;
        if (!parse_decimal(a.values + a.value_offsets[op], a.value_lengths[op], &added)) return STATUS_NOT_A_NUMBER;
        if (!std::isfinite(number += added)) return STATUS_OVERFLOW;
        keep_expiry(op, record);
        const u64 bytes = write_decimal(number, (char*)text);
        if (bytes > a.value_bytes_max) return STATUS_OVERFLOW;
        u8* const to = make(op, bytes);
        if (!to) return NOT_DONE;
        memcpy(to, text, bytes);
        return STATUS_OK;
    }

    u8 increment(u32 op) {
        long long number = 0, sum;
        Record record = no_record();
        const u8 status = is_present(op) ? number_of(op, &number, &record) : (u8)STATUS_OK;
        if (status != STATUS_OK) return status;
        if (__builtin_add_overflow(number, (long long)load_unaligned(a.values + a.value_offsets[op]), &sum))
            return STATUS_OVERFLOW;
        const u32 bytes = a.has_records ? number_characters(sum) : 8;
        if (a.has_records && bytes > a.value_bytes_max) return STATUS_OVERFLOW;
        if (a.has_records) keep_expiry(op, record);
        a.numbers[op] = (u64)sum;
        a.lengths[op] = bytes;
        return STATUS_OK;
    }

    // Whether an operation leaves what its base has left. A base never does: else a thousand EXPIREs, each seen by a GET,
    // would be walked through a thousand times.
    bool adds_nothing(u32 op) const {
        if (op == NO_OP) return false;
        // A COPY of what the table has says of which key that is.
        if (a.ops[op] == OP_COPY) return a.base[op] != NO_OP;
        return a.ops[op] == OP_EXPIRE || (a.ops[op] == OP_APPEND && !a.value_lengths[op]);
    }

    // Whether an operation leaves the value that the table has for its key. It is longer than nothing: that may be of a key that
    // the batch has deleted and made again.
    bool leaves_table_value(u32 op) const { return adds_nothing(op) && a.base[op] == NO_OP && a.lengths[op]; }
    bool keeps_blob(u32 op) const { return a.has_records && leaves_table_value(op) && has_blob(a.old_meta[a.chain[op]]); }

    // An EXPIRE appends nothing, to a key that is there.
    u8 append(u32 op) {
        u64 held;
        const u32 writer = writer_of(op);
        const bool is_expire = a.ops[op] == OP_EXPIRE;
        Record record = no_record();
        if (is_expire && !is_present(op)) return STATUS_NOT_FOUND;
        if (!measure(op, a.value_lengths[op], &held, &record)) return STATUS_CORRUPT;
        if (is_present(op)) a.base[op] = adds_nothing(writer) ? a.base[writer] : writer;
        if (!is_expire && held + a.value_lengths[op] > a.value_bytes_max) return STATUS_OVERFLOW;
        if (is_expire && a.conditions[op] == CONDITION_PROLONGS) a.plain_expiries[op] = expiry_of(op) + a.expected[op];
        else if (is_expire) a.plain_expiries[op] = a.expiries[op];
        else keep_expiry(op, record);
        a.lengths[op] = (u32)(held + a.value_lengths[op]);
        a.numbers[op] = held;
        return STATUS_OK;
    }

    // The number that a key holds; and the record, if it is the table's.
    u8 number_of(u32 op, long long* number, Record* record) const {
        if (!a.has_records) {
            *number = (long long)compared(op);
            return STATUS_OK;
        }
        const u32 writer = writer_of(op);
        if (writer == NO_OP) {
            *record = whole_record_of(op);
            if (!record->words) return STATUS_CORRUPT;
            return parsed(record_value(*record, blob_file_of(a)), value_bytes_of(*record), number);
        }
        if (a.ops[writer] == OP_INCREMENT) {
            *number = (long long)a.numbers[writer];
            return STATUS_OK;
        }
        u8 text[NUMBER_TEXT_MAX];
        if (a.lengths[writer] > NUMBER_TEXT_MAX) return STATUS_NOT_A_NUMBER;
        copy_value(a, writer, text);
        return parsed(text, a.lengths[writer], number);
    }

    // The record that the table holds for a key; none if it is damaged. It is checked once: a thousand operations may
    // ask for one of 16 MiB. Its blob, if it has one, may be damaged.
    Record record_of(u32 op) const {
        const u32 chain = a.chain[op];
        if (a.verdict[chain] == DAMAGED) return no_record();
        if (a.verdict[chain] != NOT_LOOKED_AT) return record_at(a.heap, a.heap_bytes, a.record_format, a.old_word[chain]);
        const Record record = checked_record(a.heap, a.heap_bytes, a.record_format, a.old_word[chain]);
        const bool good = record.words && record.table_id == a.table_id && record.key_bytes == a.key_lengths[op] &&
                          record.version == slot_version(a.old_meta[chain]) &&
                          same_bytes(record.key, a.keys + a.key_offsets[op], record.key_bytes) &&
                          has_blob(a.old_meta[chain]) == (record.blob != nullptr) && is_blob_placed(record, blob_file_of(a));
        a.verdict[chain] = !good ? DAMAGED : record.blob ? NAMES_BLOB : SOUND;
        return good ? record : no_record();
    }

    // The same, and none either where its blob is damaged. That is looked at once, too.
    Record whole_record_of(u32 op) const {
        const Record record = record_of(op);
        u8& verdict = a.verdict[a.chain[op]];
        if (verdict == NAMES_BLOB) verdict = is_blob_sound(record, blob_file_of(a)) ? SOUND : BLOB_DAMAGED;
        return verdict == SOUND ? record : no_record();
    }

    // Decimal text as increments write it: digits, a minus before them, no zeros that mean nothing. Redis asks for the same.
    static u8 parsed(const u8* text, u64 bytes, long long* number) {
        if (!bytes || bytes > NUMBER_TEXT_MAX) return STATUS_NOT_A_NUMBER;
        const bool is_negative = text[0] == '-';
        if ((is_negative && bytes == 1) || (text[is_negative] == '0' && bytes > 1)) return STATUS_NOT_A_NUMBER;
        long long sum = 0;
        bool overflows = false;
        if (bytes <= DIGITS_SURE) {
            for (u32 at = is_negative; at < bytes; at++) {
                const u32 digit = text[at] - (u32)'0';
                if (digit > 9) return STATUS_NOT_A_NUMBER;
                sum = 10 * sum + digit;
            }
            *number = is_negative ? -sum : sum;
            return STATUS_OK;
        }
        for (u32 at = is_negative; at < bytes; at++) {
            if (text[at] < '0' || text[at] > '9') return STATUS_NOT_A_NUMBER;
            const long long digit = text[at] - '0';
            overflows |= __builtin_mul_overflow(sum, 10ll, &sum);
            overflows |= __builtin_add_overflow(sum, is_negative ? -digit : digit, &sum);
        }
        *number = sum;
        return overflows ? STATUS_NOT_A_NUMBER : STATUS_OK;
    }

    const Args& a;
    const bool adds_later_;
    u64 made_ = 0, looked_at_ = 0, longest_ = 0;
    bool is_in_row_ = false;    // the operation before is a REQUIRE
    bool is_required_ = true;  // what the last of them ask for holds
};

// The values of the plain SETs, one after the other, to `to`. One that nobody can see is left out: it is empty. One that stays in
// its blob is left out, too, and has its length.
static void make_values(const ResolveArgs& a, u8* to) {
    for (u64 op = 0; op < a.n; op++) {
        if (a.plain_ops[op] != OP_SET || a.kept[op]) continue;
        if (a.has_records && !a.is_seen[op]) a.lengths[op] = 0;
        else if (a.has_records) copy_value(a, (u32)op, to);
        else store_unaligned(to, a.numbers[op]);
        to += a.lengths[op];
    }
}
