"""Mistakes in scans."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_KERNEL, _SCAN = "gpkvs/kernels/plan/scan.hpp", "gpkvs/engine/tables/scan.py"
_TESTS, _INSIDE = "engine/tables/test_scan.py::", "server/calls/test_scans_inside.py::"
_PARTS = (f"{_TESTS}test_each_step_has_the_fingerprints_of_its_part",)
_DAMAGE = (f"{_TESTS}test_damaged_records_are_counted_and_not_returned",)
_EXPIRED = (f"{_TESTS}test_expired_keys_are_removed_before_a_piece_is_seen",)

MUTANTS = (
    Mutant(
        "scan-skips-moved-blocks",
        _KERNEL,
        "number < geometry.unmoved ? number : number + geometry.unmoved;",
        "number;",
        "a scan of a table that grows leaves out the keys of blocks that have moved",
        _PARTS,
    ),
    Mutant(
        "scan-begins-with-its-block",
        _KERNEL,
        "fingerprints[way].low >= a.begin",
        "true",
        "a scan returns keys twice, those before its cursor in the same block",
        _PARTS,
    ),
    Mutant(
        "scan-goes-on-behind-the-blocks",
        _SCAN,
        "return int(known[len(taken)]) if len(taken) < len(known) else end",
        "return end",
        "a scan leaves out the keys that a piece had no room for",
        _PARTS,
    ),
    Mutant(
        "scan-unsorted",
        _KERNEL,
        "placed < to[at - 1]",
        "false",
        "keys are lost or come twice where a piece ends",
        _PARTS,
    ),
    Mutant(
        "scan-cuts-ties",
        _SCAN,
        "fingerprint0[count] == fingerprint0[count - 1]",
        "False",
        "of two keys with one fingerprint, the second is left out",
        (f"{_TESTS}test_where_a_part_is_cut",),
    ),
    Mutant(
        "scan-believes-any-key",
        _KERNEL,
        "if (own.low != slot.fingerprint0 || own.high != slot.fingerprint1) return SCANNED_DAMAGED;",
        "(void)own;",
        "a scan returns keys that were never stored",
        _DAMAGE,
    ),
    Mutant(
        "scan-believes-any-value",
        _KERNEL,
        "a.with_values ? checked_record(a.heap, a.heap_bytes, a.record_format, reference)",
        "a.with_values ? fitting_record(a, reference)",
        "a scan returns values that fail their checksum",
        _DAMAGE,
    ),
    Mutant(
        "scan-returns-what-no-get-finds",
        _KERNEL,
        "if (!is_in_bucket || block_of(fingerprints[way], geometry) != block) misplaced++;",
        "if (false) misplaced++;",
        "a scan returns keys that a GET does not find",
        _DAMAGE,
    ),
    Mutant(
        "scan-believes-any-expiry",
        _KERNEL,
        "if (expires && !checked_record(a.heap, a.heap_bytes, a.record_format, slot.reference).words) "
        "return SCANNED_DAMAGED;",
        "",
        "a key whose expiry is rotten is taken as expired",
        (f"{_TESTS}test_a_record_that_only_looks_expired_is_damaged_and_stays",),
    ),
    Mutant(
        "scan-shows-expired-keys",
        "gpkvs/engine/engine.py",
        "piece = self._scanner.step(table, cursor, wanted, now)",
        "piece = self._scanner.step(table, cursor, wanted, 0)",
        "a scan returns keys that have expired",
        _EXPIRED,
    ),
    Mutant(
        "scan-seen-before-it-is-durable",
        "gpkvs/store.py",
        "        self._engine.committer.wait(gate)\n        return piece\n",
        "        return piece\n",
        "a scan returns what a power failure takes back (I4)",
        (f"{_TESTS}test_records_and_pieces_are_durable_when_they_are_returned",),
    ),
    Mutant(
        "scan-in-large-steps-beside-batches",
        _SCAN,
        "if self._traffic.is_lately():",
        "if False:",
        "batches wait for milliseconds, again and again, while somebody scans",
        (f"{_TESTS}test_a_step_is_small_while_others_use_the_store",),
    ),
    Mutant(
        "scan-leaves-no-time-to-batches",
        "server/calls/scan.py",
        "self._thread.pause(serving.store.is_in_use)",
        "pass",
        "who writes keeps a fifth of the rate while somebody scans",
        (f"{_INSIDE}test_beside_batches_a_piece_has_small_steps_with_time_between_them",),
    ),
    Mutant(
        "scan-sends-each-step-alone",
        "server/calls/scan.py",
        "len(pieces) == _STEPS_MAX",
        "len(pieces) == 1",
        "a scan beside batches takes a message for each small step",
        (f"{_INSIDE}test_beside_batches_a_piece_has_small_steps_with_time_between_them",),
    ),
    Mutant(
        "scan-forgets-its-limit-between-steps",
        "server/calls/scan.py",
        "            keys_left -= len(piece)\n",
        "",
        "a scan returns more keys than its limit",
        (f"{_INSIDE}test_a_limit_counts_for_all_steps_of_a_piece",),
    ),
    Mutant(
        "scan-joins-keys-without-their-expiries",
        "gpkvs/scan.py",
        "expire = any(len(piece.expiries) for piece in pieces)",
        "expire = False",
        "keys of a backup that was taken beside batches never expire",
        (f"{_INSIDE}test_pieces_are_joined",),
    ),
    Mutant(
        "scan-with-the-cursor-of-another-store",
        _SCAN,
        "if of_store != store_id:",
        "if False:",
        "a scan with the cursor of another store leaves out keys",
        (f"{_TESTS}test_cursors_of_other_tables_and_stores",),
    ),
)
