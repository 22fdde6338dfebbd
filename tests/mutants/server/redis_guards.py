"""Mistakes with who may do what over the Redis protocol, and how much one client makes Python hold."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_SESSION, _CONNECTION, _TABLES = (
    "server/redis/sessions/session.py",
    "server/redis/commands/connection.py",
    "server/redis/commands/tables.py",
)
_ACCESS_TESTS, _BOUNDS_TESTS, _TLS_TESTS = (
    f"server/redis/test_redis_{name}.py::" for name in ("access", "bounds", "tls")
)

MUTANTS = (
    Mutant(
        "redis-watches-for-anybody",
        _SESSION,
        """        \"\"\"Remember the versions of keys.\"\"\"\n        self.require_read()\n""",
        """        \"\"\"Remember the versions of keys.\"\"\"\n""",
        "who may not read a table learns when its keys change",
        (f"{_ACCESS_TESTS}test_each_command_needs_its_rights",),
    ),
    Mutant(
        "redis-selects-for-anybody",
        _CONNECTION,
        "        session.require_any()\n",
        "",
        "who has no right learns which tables there are",
        (f"{_ACCESS_TESTS}test_nobody_is_told_of_other_tables",),
    ),
    Mutant(
        "redis-describes-all-tables",
        "server/redis/commands/server.py",
        "        if not session.may_read(table.name):\n            continue\n",
        "",
        "INFO tells everybody of all tables, and how many keys they have",
        (f"{_ACCESS_TESTS}test_nobody_is_told_of_other_tables",),
    ),
    Mutant(
        "redis-flushes-by-name",
        _TABLES,
        "    session.require_write_everywhere()\n",
        "",
        "whoever may do nothing empties the tables of others",
        (f"{_ACCESS_TESTS}test_nobody_is_told_of_other_tables",),
    ),
    Mutant(
        "redis-lists-everybody",
        _SESSION,
        "caller.rights.admin_everywhere or other.user_name == self.user_name",
        "True",
        "each user learns who else is connected, and from where",
        (f"{_ACCESS_TESTS}test_nobody_is_told_of_other_users",),
    ),
    Mutant(
        "redis-copies-for-anybody",
        "server/redis/commands/copying.py",
        "        session.require_read(name)\n",
        "        pass\n",
        "who may only write a table learns which keys are there",
        (f"{_ACCESS_TESTS}test_a_copy_needs_rights_to_both_tables",),
    ),
    Mutant(
        "redis-keeps-who-is-gone",
        _SESSION,
        "self.caller is not None and not self.caller.is_gone",
        "self.caller is not None",
        "a user who was removed goes on beside another user of the same connection",
        (f"{_ACCESS_TESTS}test_a_user_who_is_removed_is_out",),
    ),
    Mutant(
        "redis-notes-nobody",
        _SESSION,
        "        if isinstance(error, LoginError | RightsError):",
        "        if False:",
        "who guesses passwords leaves nothing in the audit log",
        (f"{_ACCESS_TESTS}test_refusals_are_noted",),
    ),
    Mutant(
        "redis-forgets-certificates",
        _SESSION,
        "self.caller = self._by_certificate() if",
        "self.caller = None if",
        "a client certificate is no login for the Redis protocol",
        (f"{_TLS_TESTS}test_a_certificate_is_a_login",),
    ),
    Mutant(
        "redis-knows-one-port",
        "server/app.py",
        "for one in (address, resp_address) if one]",
        "for one in (address,) if one]",
        "after many connections a user who was removed keeps those of the Redis protocol",
        (f"{_ACCESS_TESTS}test_a_user_who_is_removed_is_out_after_many_connections",),
    ),
    Mutant(
        "redis-queues-without-an-end",
        _SESSION,
        "        if transaction.message_bytes > most:",
        "        if False:",
        "one transaction takes the memory of all clients",
        (f"{_BOUNDS_TESTS}test_a_transaction_has_as_many_bytes_as_a_message",),
    ),
    Mutant(
        "redis-counts-nothing-for-exec",
        _SESSION,
        """        self.account.connection.change("calls", size)\n        self._held_bytes += size\n""",
        "",
        "what clients queue and watch is no part of --memory-max",
        (f"{_BOUNDS_TESTS}test_what_is_watched_is_counted",),
    ),
    Mutant(
        "redis-replies-without-an-end",
        "server/redis/execution/executor.py",
        "            room.take(held_bytes(reply))\n",
        "",
        "a short command with a long reply ends the process",
        (f"{_BOUNDS_TESTS}test_what_would_have_a_reply_without_room_is_not_executed",),
    ),
    Mutant(
        "redis-undoes-nothing",
        "server/redis/execution/executor.py",
        "        overlay.undo()\n",
        "",
        "a command that fails has changed keys",
        (f"{_BOUNDS_TESTS}test_a_command_that_fails_undoes_what_it_has_done",),
    ),
    Mutant(
        "redis-keeps-all-spellings",
        "server/redis/commands/scripts.py",
        "        if len(self._known) >= _LOADED_MAX:",
        "        if False:",
        "a client that spaces a script anew each time takes all memory",
        (f"{_BOUNDS_TESTS}test_few_spellings_of_a_script_are_kept",),
    ),
    Mutant(
        "redis-takes-long-patterns",
        "server/redis/protocol/pattern.py",
        "    if size > _BYTES_MAX:",
        "    if False:",
        "patterns of megabytes stay in memory, and take seconds to read",
        (f"{_BOUNDS_TESTS}test_what_is_kept_is_short",),
    ),
    Mutant(
        "redis-runs-a-failed-round-again",
        "server/redis/execution/rounds.py",
        "            _fail(taken, error)\n",
        "            _fail(taken, _AloneError())\n",
        "commands of which nobody knows what was stored are stored twice",
        ("server/redis/execution/test_rounds.py::test_if_a_round_fails_all_hear_of_it_and_nothing_runs_again",),
    ),
)
