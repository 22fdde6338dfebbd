"""Mistakes with the audit log: what is lost unseen, and what happens before it is noted."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LOG, _FILE, _FOLD = "server/access/audit_file.py", "server/access/rotated_file.py", "server/access/fold.py"
_TESTS, _SERVER_TESTS = "server/access/test_audit.py::", "server/access/test_audited_server.py::"

MUTANTS = (
    Mutant(
        "tables-without-a-line",
        "server/admin.py",
        'await self._audit.require("admin", **fields)',
        'self._audit.note("admin", **fields)',
        "a full disk hides who drops tables",
        (f"{_SERVER_TESTS}test_a_full_disk_stops_changes_of_tables_and_no_data",),
    ),
    Mutant(
        "required-not-durable",
        _LOG,
        "                self._file.sync()",
        "                pass",
        "a power failure takes the line of a table that was dropped",
        (f"{_TESTS}test_what_is_required_is_durable_first_and_many_share_an_fsync",),
    ),
    Mutant(
        "lines-lost-unseen",
        _LOG,
        "        self._tell_lost()\n        required",
        "        required",
        "nobody sees that lines are missing",
        (f"{_TESTS}test_a_full_disk_refuses_and_what_was_lost_is_told",),
    ),
    Mutant(
        "lines-in-part",
        _FILE,
        "os.ftruncate(self._file, size)",
        "pass",
        "a full disk leaves half a line, and the next one goes on in it",
        (f"{_TESTS}test_a_full_disk_refuses_and_what_was_lost_is_told",),
    ),
    Mutant(
        "torn-line-goes-on",
        _FILE,
        '!= b"\\n":',
        '== b"":',
        "after a crash the first line is part of a torn one, and no program reads it",
        (f"{_TESTS}test_a_torn_last_line_is_ended",),
    ),
    Mutant(
        "names-without-end",
        _LOG,
        "value if len(value) <= _TEXT_MAX else",
        "value if value else",
        "a client writes a megabyte into the log with each refusal",
        (f"{_TESTS}test_a_hostile_name_is_one_short_line",),
    ),
    Mutant(
        "kinds-without-end",
        _FOLD,
        "len(self._kinds) < _KEYS_MAX",
        "True",
        "random names of users take all memory, and push all else out of the log",
        (f"{_TESTS}test_a_flood_of_names_takes_bounded_memory_and_few_lines",),
    ),
)
