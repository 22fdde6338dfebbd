"""Mistakes in exports and imports: files that look whole, records that are twice or not there."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_WRITER, _READER, _IMPORTER = "gpkvs/export/writer.py", "gpkvs/export/reader.py", "gpkvs/export/importer.py"
_REDIS_READER = "gpkvs/export/redis_reader.py"
_TESTS, _REDIS_TESTS = "export/test_export.py::", "export/test_redis_import.py::"

MUTANTS = (
    Mutant(
        "export-keeps-torn-bytes",
        _WRITER,
        "            os.ftruncate(self._descriptor, state.bytes + END_BYTES)\n",
        "",
        "what an interrupted export left behind the end stays in the file",
        (f"{_TESTS}test_an_export_is_not_finished_twice",),
    ),
    Mutant(
        "export-resumes-unchecked",
        _WRITER,
        "            self._check(found)\n",
        "",
        "an export goes on behind a damaged part, or one of another table",
        (f"{_TESTS}test_an_interrupted_export_is_neither_mixed_nor_lost",),
    ),
    Mutant(
        "export-scans-again",
        _WRITER,
        "is_scanned=not piece.cursor,",
        "is_scanned=False,",
        "an export that was ended when all was scanned begins anew behind it",
        (f"{_TESTS}test_an_export_is_not_finished_twice", f"{_TESTS}test_an_export_goes_on_behind_what_is_saved"),
    ),
    Mutant(
        "export-two-writers",
        _WRITER,
        "                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "",
        "two processes write one file",
        (f"{_TESTS}test_an_interrupted_export_is_neither_mixed_nor_lost",),
    ),
    Mutant(
        "export-stopped-unsaved",
        "gpkvs/cli/export_run.py",
        "            writer.save()\n",
        "",
        "an export that is ended by a signal forgets what came since the last save",
        (f"{_TESTS}test_a_signal_saves_what_came",),
    ),
    Mutant(
        "import-trusts-the-file",
        _READER,
        "            self._check()\n",
        "            self._crc32 = 0\n",
        "a file that was changed is imported",
        (f"{_TESTS}test_a_file_that_was_cut_or_changed_anywhere_is_refused",),
    ),
    Mutant(
        "import-overwrites",
        _IMPORTER,
        "Condition.ABSENT, np.uint8) if if_absent else None",
        "Condition.ABSENT, np.uint8) if not if_absent else None",
        "--if-absent overwrites, and without it nothing is",
        (f"{_TESTS}test_an_import_may_leave_what_is_there",),
    ),
    Mutant(
        "import-forgets-expiries",
        _IMPORTER,
        "if any(expiries) else None",
        "if not any(expiries) else None",
        "imported records never expire",
        (f"{_TESTS}test_an_import_keeps_the_expiries",),
    ),
    Mutant(
        "import-gives-up",
        "gpkvs/cli/import_run.py",
        "                if isinstance(error, TlsError) or time.monotonic() + delay_s > give_up:",
        "                if delay_s:",
        "an import does not wait for a server that is restarted",
        (f"{_TESTS}test_a_restart_of_the_server_is_waited_for",),
    ),
    Mutant(
        "import-connects-again",
        _REDIS_READER,
        "            single_connection_client=True,\n",
        "",
        "after a restart of Redis a cursor that it does not know goes on, and keys are missed",
        (f"{_REDIS_TESTS}test_a_lost_connection_is_not_made_again",),
    ),
    Mutant(
        "import-takes-time-left-for-a-time",
        _REDIS_READER,
        "now = 0 if self._has_pexpiretime else",
        "now = 0 and",
        "keys of an older Redis expired in 1970",
        (f"{_REDIS_TESTS}test_a_redis_older_than_pexpiretime",),
    ),
    Mutant(
        "import-needs-to-read",
        "gpkvs/cli/typed_keys.py",
        "        if error.code() is not grpc.StatusCode.PERMISSION_DENIED:\n            raise\n",
        "        raise\n",
        "who restores a table must be able to read it",
        ("cli/test_access_options.py::test_who_may_read_exports_and_who_may_write_imports",),
    ),
    Mutant(
        "export-makes-a-store",
        "gpkvs/cli/export_run.py",
        "gpkvs.open(asked.data, create=False)",
        "gpkvs.open(asked.data)",
        "an export of a directory that was mistyped makes a store there",
        (f"{_TESTS}test_a_store_without_a_server_is_exported",),
    ),
    Mutant(
        "import-makes-tables-of-bytes",
        "gpkvs/cli/import_run.py",
        "client.create_table(name, layout=source.layout, exist_ok=True)",
        "client.create_table(name, exist_ok=True)",
        "--create makes a table into which numbers cannot be imported",
        (f"{_TESTS}test_an_import_makes_its_table",),
    ),
    Mutant(
        "scan-begins-again",
        "gpkvs/cli/scan_run.py",
        "cursor=behind, ",
        "",
        "gpkvs scan --cursor shows the same keys again",
        ("cli/test_scan_commands.py::test_a_scan_goes_on_at_its_cursor",),
    ),
    Mutant(
        "packed-without-expiry",
        "gpkvs/kernels/pack.hpp",
        "if (expiries && expiries[i])",
        "if (expiries && !expiries[i])",
        "an exported record has another's expiry",
        (f"{_TESTS}test_a_prefix_and_expiries",),
    ),
)
