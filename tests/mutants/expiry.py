"""Mistakes with keys that expire."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_EXPIRY, _KERNEL = "gpkvs/engine/expiry.py", "gpkvs/kernels/expiry.hpp"
_RESOLVE = "gpkvs/kernels/resolve.hpp"


def _tests(*names: str) -> tuple[str, ...]:
    return tuple(f"engine/test_expiry.py::{name}" for name in names)


MUTANTS = (
    Mutant(
        "native-planner-serves-expired-keys",
        "gpkvs/kernels/native_planner.hpp",
        "if (a.now && meets_expired(a, chains)) {",
        "if (false && meets_expired(a, chains)) {",
        "a key is there after its time",
        _tests("test_a_key_expires_when_its_time_has_come"),
    ),
    Mutant(
        "phase-planner-serves-expired-keys",
        "gpkvs/engine/phases_bytes.py",
        "        if met[0]:\n",
        "        if met[0] > 1:\n",
        "a key is there after its time, in large batches",
        _tests("test_a_key_expires_when_its_time_has_come"),
    ),
    Mutant(
        "gone-before-it-is-durable",
        "gpkvs/engine/engine.py",
        "return planned.result, self._read_gate(planned.result)",
        "return planned.result, 0",
        "a key is told to be gone, and is there again after a crash",
        _tests("test_nobody_is_told_that_a_key_is_gone_before_its_removal_is_durable"),
    ),
    Mutant(
        "expired-keys-of-one-table",
        "gpkvs/engine/expiry.py",
        "        for number in ids:\n",
        "        for number in ids[:1]:\n",
        "a batch on several tables is told a key that has expired",
        _tests("test_a_batch_meets_expired_keys_of_several_tables"),
    ),
    Mutant(
        "reads-give-expiries",
        "gpkvs/batch.py",
        "_GIVES_EXPIRY[self.ops] & (self.expiries != 0)",
        "self.expiries != 0",
        "a GET that comes with an expiry is refused in a table of numbers, and else older versions refuse the store",
        _tests("test_operations_that_give_no_expiry_do_not_look_at_theirs"),
    ),
    Mutant(
        "dropped-tables-are-swept",
        "gpkvs/engine/expiry.py",
        "            del self._ranges[number]\n        self.is_used",
        "            pass\n        self.is_used",
        "maintenance fails after a table with expiring keys is dropped",
        _tests("test_the_sweep_forgets_a_dropped_table"),
    ),
    Mutant(
        "conditions-see-expired-keys",
        "gpkvs/engine/resolve.py",
        "        if met[0]:\n            raise ExpiredKeysError\n",
        "",
        "a SET if absent is refused for a key that has expired",
        _tests("test_conditions_see_no_expired_key"),
    ),
    Mutant(
        "rot-deletes",
        _KERNEL,
        "const RecordHeader* record = checked_record(a.heap, a.heap_bytes, slot.reference);",
        "const RecordHeader* record = header;",
        "an expiry that rots deletes its key",
        _tests("test_a_damaged_record_is_not_removed"),
    ),
    Mutant(
        "kind-lost",
        "gpkvs/kernels/layout.cuh",
        "expiry_ms ? KIND_EXPIRING : KIND_RECORD",
        "expiry_ms ? KIND_RECORD : KIND_RECORD",
        "no write sees that a key has expired, and the sweep finds none",
        _tests("test_conditions_see_no_expired_key"),
    ),
    Mutant(
        "append-loses-the-expiry",
        _RESOLVE,
        "        else keep_expiry(op, record);\n",
        "",
        "a key that is appended to stays for ever",
        _tests("test_operations_of_one_batch_see_the_expiries_before_them"),
    ),
    Mutant(
        "increment-loses-the-expiry",
        _RESOLVE,
        "        if (a.has_record[op]) keep_expiry(op, record);\n",
        "",
        "a counter stays for ever",
        _tests("test_operations_of_one_batch_see_the_expiries_before_them"),
    ),
    Mutant(
        "a-time-that-goes-back",
        _EXPIRY,
        "return take_time(self.latest_address, self.clock())",
        "return self.clock()",
        "a clock that jumps back has keys live again that a transaction took for expired",
        _tests("test_nothing_revives_when_the_clock_goes_back"),
    ),
    Mutant(
        "root-says-nothing",
        _EXPIRY,
        "                    self._files.roots.change(flags=self._files.root.flags | EXPIRES)\n",
        "                    pass\n",
        "an older gpkvs opens the store, and takes what expires for damage",
        _tests("test_only_a_store_with_expiries_has_the_version_that_older_ones_refuse"),
    ),
    Mutant(
        "sweep-hears-of-no-expiry",
        _EXPIRY,
        "        if self.is_used and not self._files.root.may_expire:\n",
        "        self._ranges.clear()\n        if self.is_used and not self._files.root.may_expire:\n",
        "keys that nobody asks for stay for ever",
        _tests("test_the_sweep_removes_what_nobody_asks_for"),
    ),
    Mutant(
        "sweep-forgets-what-batches-add",
        _EXPIRY,
        "min(int(self.earliest[swept]), int(self._found[_NEXT]))",
        "int(self._found[_NEXT])",
        "a key that is set while its range is swept stays until the next opening",
        _tests("test_what_is_set_while_a_range_is_swept_is_not_forgotten"),
    ),
    Mutant(
        "sweep-skips-half-of-a-moved-block",
        _KERNEL,
        "(first + 1 + has_moved) * SLOTS_IN_BLOCK",
        "(first + 1) * SLOTS_IN_BLOCK",
        "while a table grows, keys are not swept",
        _tests("test_the_sweep_finds_the_keys_of_a_table_that_grows"),
    ),
    Mutant(
        "copy-forgets-that-keys-expire",
        "recovery/copy/copy.py",
        "        root = replace(root, flags=source.files.root.flags & EXPIRES)\n",
        "",
        "in a copy no key expires, and gpkvs check finds it damaged",
        _tests("test_a_copy_keeps_expiries"),
    ),
    Mutant(
        "replay-takes-expiring-records-for-none",
        "gpkvs/kernels/redo.cu",
        "slot_kind(slot.meta) == KIND_EMPTY ||",
        "slot_kind(slot.meta) != 1 ||",
        "the last acknowledged batch before a crash is lost",
        _tests("test_the_last_batch_before_a_crash_keeps_its_expiries"),
    ),
    Mutant(
        "audit-passes-any-kind",
        "gpkvs/kernels/audit.cu",
        "    if (expires != (record->expiry_ms != 0)) return AUDIT_EXPIRY;\n",
        "",
        "`gpkvs check` passes a slot that never expires though its record does",
        _tests("test_check_compares_kind_and_expiry"),
    ),
)
