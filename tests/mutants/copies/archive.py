"""Mistakes in archives: stores that are restored to another moment than was asked for, and holes that nobody sees."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_ARCHIVER, _CONTENTS, _RECORDER, _SEGMENT, _RESTORE = (
    f"gpkvs/archive/{name}.py" for name in ("archiver", "contents", "recorder", "segment", "restore")
)
_TESTS, _REFUSALS = "archive/test_archive.py::", "archive/test_refusals.py::"
_ONE_TIME = (f"{_TESTS}test_changes_of_one_time_are_all_in_it_or_none",)
_FRAMES = (f"{_REFUSALS}test_every_frame_that_is_not_what_was_written",)
_MISSING = (f"{_REFUSALS}test_segments_that_are_missing_or_foreign",)
_HOLE = (f"{_REFUSALS}test_a_hole_is_no_moment",)
_BASES = (f"{_REFUSALS}test_bases_that_are_damaged",)
_WHOLE = (f"{_TESTS}test_a_segment_ends_behind_a_whole_entry",)

MUTANTS = (
    Mutant(
        "archive-begins-behind-its-base",
        _ARCHIVER,
        """        self.recorder.__enter__()
        self._noting.start()
        return self
""",
        """        back_up(self._source, self._folder / _free_name(self._folder), Store, lambda *_: None)
        self.recorder.__enter__()
        while self.recorder.begin is None:
            pass
        self._begin = self._tried = self.recorder.begin
        self._next_at = time.monotonic() + self._config.base_seconds
        self._noting.start()
        return self
""",
        "what changes between the base and the first segment is missing in every restored store",
        (f"{_TESTS}test_a_base_comes_behind_where_the_archive_follows",),
    ),
    Mutant(
        "archive-cut-before-its-time",
        _CONTENTS,
        "takewhile(lambda entry: entry.time_ms <= time_ms, segment.entries())",
        "takewhile(lambda entry: entry.time_ms < time_ms, segment.entries())",
        "transactions of the millisecond that was asked for are left out",
        _ONE_TIME,
    ),
    Mutant(
        "archive-cut-amid-a-time",
        _CONTENTS,
        "                for entry in takewhile(lambda entry: entry.time_ms <= time_ms, segment.entries()):\n"
        "                    number = entry.number\n",
        "                for entry in takewhile(lambda entry: entry.time_ms <= time_ms, segment.entries()):\n"
        "                    number = entry.number\n"
        "                    if entry.time_ms == time_ms:\n"
        "                        break\n",
        "of several transactions of one millisecond some are in the restored store",
        _ONE_TIME,
    ),
    Mutant(
        "archive-base-behind-the-moment",
        _CONTENTS,
        "[base for base in run.bases if base.position.number <= number][-1]",
        "run.bases[-1]",
        "a store is restored to a later moment than was asked for",
        (f"{_TESTS}test_any_moment_is_restored",),
    ),
    Mutant(
        "archive-seals-a-part-of-an-entry",
        _SEGMENT,
        "        self._take_back(self._whole)\n        state = self._whole\n",
        "        state = self._whole._replace(size=self.size, crc=self._crc, entries=self._entries)\n",
        "a segment that is whole is refused, or an entry is restored in part",
        _WHOLE,
    ),
    Mutant(
        "archive-reads-a-part-of-an-entry",
        _SEGMENT,
        "            if entry.is_whole:\n                last, time_ms, at",
        "            if entry.number:\n                last, time_ms, at",
        "a killed archiver leaves half of a transaction, which is restored, and the rest of it is never asked for",
        _WHOLE,
    ),
    Mutant(
        "archive-passes-over-a-missing-segment",
        _CONTENTS,
        """        if before and serial_of(path) != before + 1:
            loss = loss or f"{folder}: a segment is missing before {path.name}"
""",
        "",
        "the newest state is restored as if nothing were missing, and the list does not say what is",
        _MISSING,
    ),
    Mutant(
        "archive-goes-on-behind-a-hole",
        _CONTENTS,
        "            if runs[-1].end.number == header.first.number:\n",
        "            if runs:\n",
        "a store is restored without the changes of a segment that was cut",
        _FRAMES,
    ),
    Mutant(
        "archive-frames-alone",
        "gpkvs/backup/spill.py",
        "        frame, before = pack_frame(ENTRY_MAGIC, before, _body(entry))\n",
        "        frame, _ = pack_frame(ENTRY_MAGIC, before, _body(entry))\n",
        "frames do not go on from each other, so nothing that was archived can be read, or none that is gone is missed",
        (f"{_TESTS}test_any_moment_is_restored",),
    ),
    Mutant(
        "archive-any-name",
        _SEGMENT,
        "    if header.name != path.name:\n",
        "    if not header.name:\n",
        "a segment of another archive, or of another place, is taken for one of this",
        _MISSING,
    ),
    Mutant(
        "archive-moments-behind-the-end",
        _CONTENTS,
        "0 < first_ms <= time_ms <= opening.last_ms",
        "0 < first_ms <= time_ms",
        "a moment in a hole is restored as the state before the hole",
        _HOLE,
    ),
    Mutant(
        "archive-knows-one-clock",
        _CONTENTS,
        "groupby(self.segments, lambda one: one.header.first.timeline)]",
        'groupby(self.segments, lambda one: "")]',
        "where a clock was set back between two openings, a time is restored as a later one",
        ("archive/test_archive.py::test_a_clock_that_goes_back_between_two_openings",),
    ),
    Mutant(
        "archive-begins-anew-always",
        _RECORDER,
        "self._since = runs[-1].end if is_right else None",
        "self._since = None",
        "each restart of the archiver leaves a hole",
        (f"{_TESTS}test_an_archive_goes_on_where_it_ended",),
    ),
    Mutant(
        "archive-manifest-unchecked",
        "gpkvs/backup/manifest.py",
        'described.pop("crc32c") != _crc_of(described) or ',
        "",
        "a position that has rotted has changes left out",
        _BASES,
    ),
    Mutant(
        "archive-base-that-was-served",
        _RESTORE,
        "    if (copied.keys, next_version) != (manifest.keys, manifest.next_version):\n",
        "    if copied.keys != manifest.keys:\n",
        "what somebody wrote to a base is in every store that is restored of it",
        _BASES,
    ),
    Mutant(
        "archive-removes-a-base-too-many",
        _ARCHIVER,
        "    oldest = order[old[-1]]",
        "    old[-1] = min(old[-1] + 1, len(order) - 1)\n    oldest = order[old[-1]]",
        "the first moments of the days that are kept cannot be restored",
        (f"{_REFUSALS}test_what_no_restore_needs_is_removed",),
    ),
    Mutant(
        "archive-goes-on-behind-what-its-disk-has-lost",
        "gpkvs/archive/recorder.py",
        "        if self._since is None or self._since.number != first.number:\n",
        "        if False:\n",
        "an archive has a hole, and its next segment says that it has none",
        ("archive/test_archive.py::test_what_a_full_disk_has_not_kept_is_archived_again",),
    ),
    Mutant(
        "archive-removes-a-segment-too-many",
        _ARCHIVER,
        "segment.last >= oldest.position.number or",
        "segment.header.first.number >= oldest.position.number or",
        "what changed right behind the oldest base is gone",
        (f"{_REFUSALS}test_what_no_restore_needs_is_removed",),
    ),
)
