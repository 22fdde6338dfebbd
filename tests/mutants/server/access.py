"""Mistakes in who is let in, and in what they may do."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LOGIN, _RIGHTS = "server/access/login.py", "server/access/rights.py"
_LOGIN_TESTS, _RIGHTS_TESTS, _SESSIONS_TESTS = (
    f"server/access/test_{name}.py::" for name in ("login", "rights", "sessions")
)

MUTANTS = (
    Mutant(
        "rights-after-the-table",
        "server/calls/pipeline.py",
        """        if not self._logins.is_open:
            require_batch(self._caller, message)
        if message.request_ops:
            raise InvalidArgumentError("a message of a Pipeline is one request", field="request_ops")
        table = codec.table_of(message, self._serving.store)
""",
        """        table = codec.table_of(message, self._serving.store)
        require_batch(self._caller, message)
""",
        "who has no right learns which tables there are",
        (f"{_RIGHTS_TESTS}test_rights_of_calls",),
    ),
    Mutant(
        "method-without-a-right",
        _RIGHTS,
        '"gpkvs.v1.KV.MultiGet": _reads',
        '"gpkvs.v1.KV.MultiGet": open_to_all',
        "everybody reads every table",
        (f"{_RIGHTS_TESTS}test_rights_of_calls", f"{_RIGHTS_TESTS}test_every_method_says_what_it_needs"),
    ),
    Mutant(
        "condition-without-a-right",
        _RIGHTS,
        ' or message.conditions.strip(b"\\0")',
        "",
        "who may only write finds out with conditions what is there",
        (f"{_RIGHTS_TESTS}test_columns_against_a_plain_model",),
    ),
    Mutant(
        "login-of-the-connection",
        _LOGIN,
        "        header = None\n",
        "        if used := self._sessions._callers.get(context.peer()):\n            return next(iter(used))\n"
        "        header = None\n",
        "whoever shares a connection, behind a proxy or after its port is used again, has the rights of another user",
        (f"{_RIGHTS_TESTS}test_no_name_is_the_default_table",),
    ),
    Mutant(
        "token-by-its-id",
        _LOGIN,
        "return found if found and compare_digest(sha256(text.encode()).digest(), found[1].sha256) else None",
        "return found",
        "an id, which is no secret, lets in",
        (f"{_LOGIN_TESTS}test_a_token_takes_all_of_its_text",),
    ),
    Mutant(
        "token-without-an-end",
        _LOGIN,
        "return caller if time.time() < caller.ends else None",
        "return caller",
        "a token lets in after its end",
        (f"{_LOGIN_TESTS}test_a_token_that_has_ended_says_so",),
    ),
    Mutant(
        "removed-users-stay-in-streams",
        _LOGIN,
        "            self._end_calls()\n",
        "",
        "a user who was removed keeps an open stream",
        (f"{_SESSIONS_TESTS}test_a_connection_that_others_use_stays",),
    ),
    Mutant(
        "connections-of-removed-users-stay",
        _LOGIN,
        "            self._sessions.close_unused()\n",
        "",
        "a user who was removed keeps connections that others need",
        (f"{_SESSIONS_TESTS}test_streams_and_connections_of_a_removed_user_end",),
    ),
    Mutant(
        "connections-closed-before-the-answer",
        "server/access/sessions.py",
        "{peer for peer in unused if not self._is_busy(peer)}",
        "set(unused)",
        "a write that was executed has no answer, because its user was removed meanwhile",
        (f"{_SESSIONS_TESTS}test_a_connection_is_closed_when_what_waits_is_answered",),
    ),
    Mutant(
        "rights-of-the-first-day",
        "server/access/caller.py",
        "            return\n        self._take(user)\n",
        "            return\n",
        "rights that were taken away last as long as the server",
        (f"{_SESSIONS_TESTS}test_rights_that_are_taken_away_are_gone_at_the_next_message",),
    ),
    Mutant(
        "file-that-is-wrong-removes-all",
        "server/access/users_file.py",
        'extra={"event": "users_changed", "good": False})\n                return False\n',
        'extra={"event": "users_changed", "good": False})\n                users = Users(())\n',
        "a typing error in the file throws everybody out",
        (f"{_SESSIONS_TESTS}test_a_file_that_is_wrong_changes_nothing",),
    ),
    Mutant(
        "guesses-of-one-moment",
        _LOGIN,
        "self._throttle.begin(address, name)  # not in the task",
        "pass  # in the task",
        "whoever sends many guesses at once is not slowed",
        ("server/access/test_attempts.py::test_guesses_of_one_moment_are_slowed",),
    ),
    Mutant(
        "older-users-come-last",
        "server/access/users_file.py",
        "self._loop.call_soon_threadsafe(self._hand_over)",
        "self._loop.call_soon_threadsafe(self._take, users)",
        "of two readings the older one counts, and a user who was removed is let in",
        ("server/access/test_users_file.py::test_a_reading_that_comes_late_brings_no_older_users",),
    ),
    Mutant(
        "names-of-tables-for-all",
        _LOGIN,
        "        if self.is_open or not isinstance(error, UnknownTableError):",
        "        if True:",
        "who has a right to tables of some names learns all other names",
        (f"{_RIGHTS_TESTS}test_who_may_use_a_missing_table_is_told_no_names_of_others",),
    ),
)
