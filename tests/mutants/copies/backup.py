"""Mistakes in backups: copies that are no state of their source and look whole, files that should be gone or there."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_COPIER, _FILLED, _READER, _PLACE, _KEPT = (
    f"gpkvs/backup/{name}.py" for name in ("copier", "filled", "reader", "place", "kept")
)
_TESTS, _REFUSALS, _COMMAND = (f"backup/test_{name}.py::" for name in ("backup", "refusals", "command"))
_MEANWHILE = (f"{_TESTS}test_tables_come_and_go_meanwhile",)
_STATE = (f"{_TESTS}test_a_backup_is_what_the_store_was_at_its_position",)
_VERSIONS = (f"{_TESTS}test_conditions_on_versions_hold_in_a_backup",)

MUTANTS = (
    Mutant(
        "backup-applies-half-a-transaction",
        "gpkvs/backup/reader.py",
        "return Told(position, whole, time_ms)",
        "return Told(position, spill.count, time_ms)",
        "a backup has a part of a transaction that came behind its position",
        ("backup/test_backup.py::test_a_part_of_an_entry_is_not_applied",),
    ),
    Mutant(
        "backup-mixes-layouts",
        _FILLED,
        "return piece.layout == self.layout",
        "return self.is_of_numbers != bool(len(piece.versions))",
        "a backup has records of a table in another one of its name, of another layout",
        (f"{_TESTS}test_a_table_of_another_layout_must_have_been_dropped",),
    ),
    Mutant(
        "backup-applies-bytes-to-rows",
        _FILLED,
        "        if (rows := row_layout_of(self.layout)) is None:",
        "        if (rows := row_layout_of(self.layout)) or not rows:",
        "a backup has values in a table of rows that are no rows",
        (f"{_TESTS}test_what_is_no_row_was_of_a_table_that_was_dropped",),
    ),
    Mutant(
        "backup-followed-late",
        _COPIER,
        """    with closing(following), ChangesReader(following, place.changes) as reader:
        tables = source.tables()  # the source is followed: those that come or go later are told
        keys, done = max(sum(table.records for table in tables), 1), 0
        for table in tables:
            if table.name != DEFAULT_TABLE:
                filled.add_table(table.name, table.layout, table.index_bytes, table.index_bytes_max)
            for piece in _pieces(source, table.name, filled):
""",
        """    from itertools import chain
    tables = source.tables()
    scans = {table.name: source.pieces(table.name) for table in tables}
    first = {name: next(scan) for name, scan in scans.items()}
    following = source.follow()
    with closing(following), ChangesReader(following, place.changes) as reader:
        keys, done = max(sum(table.records for table in tables), 1), 0
        for table in tables:
            if table.name != DEFAULT_TABLE:
                filled.add_table(table.name, table.layout, table.index_bytes, table.index_bytes_max)
            for piece in chain([first[table.name]], scans[table.name]):
""",
        "what changes behind the first step of the scan, before its changes are read, is missing",
        (f"{_TESTS}test_what_changes_right_before_the_first_position_is_scanned",),
    ),
    Mutant(
        "backup-applied-before-it-was-scanned",
        _COPIER,
        """        told = _copy(source, following, filled, place, on_progress)
        changes = _apply(filled, place, told, on_progress)
""",
        """        pieces = []
        add, filled.add_piece = filled.add_piece, lambda *piece: pieces.append(piece) or True
        told = _copy(source, following, filled, place, on_progress)
        changes = _apply(filled, place, told, on_progress)
        for piece in pieces:
            add(*piece)
""",
        "keys get back what they had when they were scanned",
        _MEANWHILE,
    ),
    Mutant(
        "backup-ends-with-the-scan",
        _READER,
        "if newest and newest.timeline == position.timeline and position.reaches(newest):",
        "if newest:",
        "a backup has a part of what the last transactions changed: those keys that the scan met late",
        (f"{_TESTS}test_whatever_the_scan_has_seen_is_in_it_with_what_came_before",),
    ),
    Mutant(
        "backup-leaves-the-last-entry-out",
        _COPIER,
        "enumerate(read_spill(place.changes, told.entries), 1):",
        "enumerate(read_spill(place.changes, told.entries - 1), 1):",
        "a transaction is in the backup in part",
        (f"{_TESTS}test_whatever_the_scan_has_seen_is_in_it_with_what_came_before",),
    ),
    Mutant(
        "backup-applies-a-part-of-an-entry",
        _FILLED,
        "        entries = table.take()\n",
        "        entries = table.take()\n        entries = [entry for entry in entries if (entry.kinds == 1).any()]\n"
        "        if not entries:\n            return\n",
        "keys that were deleted meanwhile come back",
        _MEANWHILE,
    ),
    Mutant(
        "backup-drops-what-waits",
        _FILLED,
        "            if table.waiting:\n                self._apply_waiting(name)\n",
        "            if False:\n                self._apply_waiting(name)\n",
        "the last changes of each table are missing",
        _MEANWHILE,
    ),
    Mutant(
        "backup-scans-without-versions",
        _FILLED,
        "versions=piece.versions if len(piece.versions) else None,",
        "versions=None,",
        "keys have other versions in a backup, and conditions on them fail",
        _VERSIONS,
    ),
    Mutant(
        "backup-applies-without-versions",
        _FILLED,
        "versions=None if table.is_of_numbers else _joined(entries, lambda entry: entry.versions),",
        "versions=None,",
        "keys that were changed meanwhile have other versions in a backup",
        _MEANWHILE,
    ),
    Mutant(
        "backup-applies-without-expiries",
        _FILLED,
        "expiries=_joined(entries, _expiries_of) if has_expiries else None,",
        "expiries=None,",
        "keys whose expiry changed meanwhile never expire in a backup",
        _MEANWHILE,
    ),
    Mutant(
        "backup-gives-versions-twice",
        _COPIER,
        "Making(_first_version(like.next_version, time.time()))",
        "Making(like.next_version)",
        "a restored store gives versions that its source gave after the backup, to other values",
        _VERSIONS,
    ),
    Mutant(
        "backup-expires-by-its-own-clock",
        "gpkvs/store.py",
        "counted_time.NEVER if config.making else counted_time.MACHINE,",
        "counted_time.MACHINE,",
        "keys that live are missing in a backup that was made where the clock is ahead",
        (f"{_TESTS}test_no_key_expires_by_the_clock_of_who_makes_the_backup",),
    ),
    Mutant(
        "backup-keeps-what-a-dropped-table-had",
        _FILLED,
        '''        """Make an empty table, in the place of one that is there."""
        self._drop(name)
''',
        '''        """Make an empty table, in the place of one that is there."""
        if name in self._tables:
            return
''',
        "a table that came back with another layout meanwhile cannot be backed up",
        (f"{_TESTS}test_a_table_that_is_listed_is_made_by_a_later_entry",),
    ),
    Mutant(
        "backup-without-a-table-that-went",
        _FILLED,
        "        if self._incomplete:\n",
        "        if False:\n",
        "a table whose scan broke off is in the backup in part, and nobody hears of it",
        (f"{_TESTS}test_a_table_that_nobody_has_dropped_may_not_be_missing",),
    ),
    Mutant(
        "backup-of-half-a-heap",
        _COPIER,
        "min(_HEAP_ROOM * like.heap_bytes_max, HEAP_BYTES_MAX)",
        "like.heap_bytes_max",
        "a store that is nearly full cannot be backed up while it changes",
        (f"{_TESTS}test_a_heap_that_is_nearly_full_becomes_another_one_like_it",),
    ),
    Mutant(
        "backup-leaves-damage-out",
        _COPIER,
        "    if piece.damaged:\n",
        "    if False:\n",
        "a backup that lacks records looks whole",
        (f"{_REFUSALS}test_records_that_are_damaged",),
    ),
    Mutant(
        "backup-unchecked",
        _COPIER,
        "    if not found.is_clean or found.records != keys:\n",
        "    if False:\n",
        "a backup that the disk did not keep looks whole",
        (f"{_REFUSALS}test_a_new_store_that_rots",),
    ),
    Mutant(
        "backup-numbers-that-rotted",
        "gpkvs/archive/restore.py",
        "if table.digest and digests.get(table.name) != table.digest:",
        "if False:",
        "a number that has rotted in a backup is restored as it is, without a word",
        ("backup/test_damage.py::test_a_number_that_has_rotted",),
    ),
    Mutant(
        "backup-unmarked",
        _COPIER,
        "        mark.touch(mode=0o600)\n",
        "",
        "what a killed backup has left opens as a store, which its source never was",
        (f"{_REFUSALS}test_a_store_that_is_filled_is_refused_by_whoever_opens_it", f"{_COMMAND}test_a_killed_backup"),
    ),
    Mutant(
        "backup-two-at-a-time",
        _PLACE,
        "fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
        "two backups of one name write into one store",
        (f"{_REFUSALS}test_one_backup_at_a_time_has_a_name",),
    ),
    Mutant(
        "backup-removes-whatever-is-there",
        _PLACE,
        "        if others:\n",
        "        if False:\n",
        "files of somebody else are removed",
        (f"{_REFUSALS}test_what_no_backup_has_made_is_not_removed",),
    ),
    Mutant(
        "backup-removes-what-serves",
        _KEPT,
        "        lock = lock_store(backup, shared=False)\n",
        "        lock = open(__file__)\n        lock.release = lock.close\n",
        "a backup goes while a server serves it",
        (f"{_COMMAND}test_the_last_ones_are_kept",),
    ),
    Mutant(
        "backup-removes-what-is-none",
        _KEPT,
        "if _NAME.fullmatch(path.name) and (path / MANIFEST_FILE).is_file())",
        "if _NAME.fullmatch(path.name))",
        "a folder that happens to have such a name is counted, and removed",
        (f"{_COMMAND}test_the_last_ones_are_kept",),
    ),
)
