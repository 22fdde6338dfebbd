"""Mistakes in what followers are told, and in stores that are made of it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LOG, _NATIVE = "gpkvs/engine/host/change_log.py", "gpkvs/kernels/commit/changes.hpp"
_TESTS = "store/test_follow.py::"
_ANEW = (f"{_TESTS}test_nothing_is_held_when_nobody_follows",)
_EACH = (f"{_TESTS}test_each_effect_is_told_with_what_it_leaves",)
_DURABLE = (f"{_TESTS}test_only_what_is_durable_is_told",)
_SLOW = (f"{_TESTS}test_who_reads_too_slowly_hears_of_it_and_nobody_waits",)
_BLOB = (f"{_TESTS}test_a_large_value_is_told_where_only_its_expiry_changes",)
_ROT = (f"{_TESTS}test_a_damaged_value_is_told_to_nobody",)
_MAKING = (f"{_TESTS}test_a_store_in_the_making_takes_versions",)
_REPLAYED = (f"{_TESTS}test_what_a_store_in_the_making_has_is_there_after_a_crash_of_its_disk_cache",)

_POSITIONS = "store/test_positions.py::"

MUTANTS = (
    Mutant(
        "positions-go-on-wherever-their-opening-ended",
        _LOG,
        "if position.timeline in opened.ended and position.number == opened.number:",
        "if position.timeline in opened.ended:",
        "who was told what a power failure took away goes on, and does not hear of it",
        (f"{_POSITIONS}test_what_the_store_has_lost_is_no_position",),
    ),
    Mutant(
        "tables-take-no-number",
        "gpkvs/store.py",
        """                self._engine.committer.take_number()
                changes = self._engine.changes
""",
        "                changes = self._engine.changes\n",
        "who goes on after an opening does not hear of a table that was made meanwhile",
        (f"{_POSITIONS}test_tables_that_came_unseen_are_seen_in_the_position",),
    ),
    Mutant(
        "timelines-outlive-a-change",
        "gpkvs/media/layout.py",
        "*(self.ended if number == self.number else ())",
        "*self.ended",
        "a position of an opening that ended elsewhere may be taken for this one's",
        (f"{_POSITIONS}test_so_many_openings_without_a_change",),
    ),
    Mutant(
        "timelines-are-not-kept",
        "gpkvs/store.py",
        "            self._keep_timeline(changes.timeline)\n",
        "",
        "whoever follows has to begin anew after each restart of the server",
        (f"{_POSITIONS}test_who_has_read_all_goes_on_after_an_opening",),
    ),
    Mutant(
        "what-was-lost-is-gone-on-from",
        "gpkvs/recovery/startup/recover.py",
        "    if was_unsafe:  # something may be lost of what was told\n",
        "    if False:\n",
        "a follower of a store without a log goes on behind what a crash has taken away",
        (f"{_POSITIONS}test_what_was_lost_without_a_log_is_not_gone_on_from",),
    ),
    Mutant(
        "who-wants-little-is-not-told-how-far-it-is",
        "gpkvs/server/calls/watch.py",
        "                if watch.following.position != told:\n",
        "                if False:\n",
        "a watch of a table or of some keys has to begin anew after each restart of the server",
        ("server/calls/test_watch.py::test_who_wants_little_is_told_how_far_it_is_before_a_stop",),
    ),
    Mutant(
        "transactions-that-leave-nothing-have-no-position",
        _NATIVE,
        "if (collect(a, *entry, gone)) add(std::move(entry), number, gate);",
        "if (collect(a, *entry, gone)) { if (entry->n) add(std::move(entry), number, gate); }",
        "who has read everything has to begin anew",
        (f"{_POSITIONS}test_a_transaction_that_leaves_nothing_has_a_position",),
    ),
    Mutant(
        "fields-of-a-newer-root-are-dropped",
        "gpkvs/media/layout.py",
        "if any(body[_ROOT.size",
        "if False and any(body[_ROOT.size",
        "an older gpkvs removes what a newer one has put into the root",
        ("recovery/copy/test_formats.py::test_an_unknown_field_is_refused_untouched",),
    ),
    Mutant(
        "a-stop-tells-not-all",
        "gpkvs/server/calls/watch.py",
        "            if found is None and is_over:",
        "            if self._gate.is_over or not self._gate._serving:",
        "who watches a server that is started again has to begin anew",
        ("server/calls/test_watch.py::test_a_server_that_stops_tells_everything_before",),
    ),
    Mutant(
        "positions-of-a-log-that-ended",
        _LOG,
        "if not self.is_on and position != self.newest:",
        "if False:",
        "what was changed while nobody followed is missing, and nobody hears of it",
        _ANEW,
    ),
    Mutant(
        "changes-before-they-are-durable",
        _NATIVE,
        "if (entry->gate > durable) {",
        "if (false) {",
        "followers hear of what a crash takes back",
        _DURABLE,
    ),
    Mutant(
        "followers-miss-what-is-gone",
        _NATIVE,
        "if (behind < held_behind_ || behind > newest_) return READ_LOST;",
        "behind = std::max(behind, held_behind_);",
        "who falls behind goes on behind a gap, and does not hear of it",
        _SLOW,
    ),
    Mutant(
        "changes-without-bound",
        _NATIVE,
        "while (bytes_ > bytes_max_) forget_oldest(old);",
        "while (false) forget_oldest(old);",
        "a follower that does not read has the store take memory for ever",
        _SLOW,
    ),
    Mutant(
        "expired-keys-count-as-deleted",
        "gpkvs/engine/host/native_engine.py",
        "ChangeKind.EXPIRED if is_within else ChangeKind.DELETED,",
        "ChangeKind.DELETED,",
        "nobody can tell an expired key from one that somebody deleted",
        _EACH,
    ),
    Mutant(
        "values-that-are-kept-are-told-wrong",
        _NATIVE,
        "        if (!is_kept(a, op)) return a.values + a.value_offsets[op];\n",
        "        if (a.n) return a.values + a.value_offsets[op];\n",
        "where only the expiry of a large value changes, other bytes are told",
        _BLOB,
    ),
    Mutant(
        "damaged-values-are-told",
        _NATIVE,
        "return is_blob_sound(a, record) ? record_value(record, blob_file_of(a)) : nullptr;",
        "return record_value(record, blob_file_of(a));",
        "a copy has a damaged value with a checksum that fits it",
        _ROT,
    ),
    Mutant(
        "copies-with-versions-of-their-own",
        "gpkvs/kernels/base/layout.cuh",
        "return a.given_versions ? a.given_versions[op] : a.first_sequence + op;",
        "return a.first_sequence + op;",
        "a copy's versions are not those of its source",
        _MAKING,
    ),
    Mutant(
        "frames-of-a-copy-are-cut",
        "gpkvs/kernels/space/write_set.hpp",
        "            if (w.given_versions) continue;  // replay takes records with low versions for older ones\n",
        "",
        "the last batches of a copy that was closed in haste are missing when it is opened",
        _REPLAYED,
    ),
    Mutant(
        "keys-expire-in-the-making",
        "gpkvs/store.py",
        "counted_time.NEVER if config.making else counted_time.MACHINE,",
        "counted_time.MACHINE,",
        "a copy lacks keys that expired by the clock of whoever made it",
        _MAKING,
    ),
)
