"""Mistakes in the audit log: what is lost unseen, and what others can make of it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_FILE, _TESTS = "server/access/audit_file.py", "server/access/test_audit.py::"

MUTANTS = (
    Mutant(
        "audit-never-required",
        "server/calls/admin.py",
        'await self._audit.require("admin", **fields)',
        'self._audit.note("admin", **fields)',
        "tables are dropped while the disk of the audit log is full, and nobody can tell who did it",
        ("server/access/test_audited_server.py::test_a_full_disk_stops_changes_of_tables_and_no_data",),
    ),
    Mutant(
        "audit-durable-after-failed-rotation",
        _FILE,
        "                    waiting += required\n                    required.clear()\n",
        "                    pass\n",
        "a table is dropped although the disk lost the line that says so",
        (f"{_TESTS}test_a_rotation_that_fails_refuses_what_was_written_before_it",),
    ),
    Mutant(
        "audit-folds-everything",
        "server/access/fold.py",
        "if span is None and len(self._kinds) < _KEYS_MAX:",
        "if span is None:",
        "whoever logs in under other names all the time fills the disk and the memory",
        (f"{_TESTS}test_a_flood_of_names_takes_bounded_memory_and_few_lines",),
    ),
    Mutant(
        "audit-goes-on-in-a-torn-line",
        "server/access/rotated_file.py",
        'os.write(file, b"\\n")',
        "pass",
        "the first event after a crash cannot be read",
        (f"{_TESTS}test_a_torn_last_line_is_ended",),
    ),
    Mutant(
        "audit-cuts-nothing",
        _FILE,
        "if len(value) <= _TEXT_MAX else",
        "if True else",
        "a login with a name of a megabyte writes a megabyte",
        (f"{_TESTS}test_a_hostile_name_is_one_short_line",),
    ),
    Mutant(
        "audit-tells-no-loss",
        _FILE,
        '            self._file.append(_pack("lost", {"count": lost}))\n',
        "            pass\n",
        "lines are missing, and the log does not say so",
        (f"{_TESTS}test_a_full_disk_refuses_and_what_was_lost_is_told",),
    ),
    Mutant(
        "audit-notes-never-durable",
        _FILE,
        "if required or is_last or time.monotonic() >= self._sync_at:",
        "if required or is_last:",
        "a power cut takes the logins and refusals of the last days",
        (f"{_TESTS}test_notes_are_durable_soon",),
    ),
)
