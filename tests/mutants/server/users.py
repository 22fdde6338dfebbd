"""Mistakes with users: who they are, what they may do, passwords, failed logins, changes of their file."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_USERS, _PATTERNS = "server/access/users.py", "server/access/patterns.py"
_PASSWORDS, _THROTTLE = "server/access/passwords.py", "server/access/throttle.py"
_FILE = "gpkvs/cli/keys/users_file.py"
_USERS_TESTS, _PASSWORDS_TESTS = "server/access/test_users.py::", "server/access/test_passwords.py::"
_THROTTLE_TESTS, _FILE_TESTS = "server/access/test_throttle.py::", "cli/keys/test_users_file.py::"

MUTANTS = (
    Mutant(
        "patterns-of-beginnings",
        _PATTERNS,
        "return pattern == name",
        "return name.startswith(pattern)",
        "who may write orders may write orders_archive too",
        (f"{_USERS_TESTS}test_a_pattern_is_no_regular_expression_and_no_prefix",),
    ),
    Mutant(
        "patterns-overlap-themselves",
        _PATTERNS,
        "len(name) - at >= len(end) and ",
        "",
        "the pattern a*a matches the table a",
        (f"{_USERS_TESTS}test_patterns_match_as_file_names_do",),
    ),
    Mutant(
        "patterns-remember-everything",
        _PATTERNS,
        "            if len(self._known) >= _KNOWN_MAX:",
        "            if False:",
        "a client that asks for other tables all the time makes the server take all memory",
        (f"{_USERS_TESTS}test_patterns_remember_so_much",),
    ),
    Mutant(
        "users-for-everybody",
        _USERS,
        "if status.st_mode & _OTHERS_OR_GROUP_WRITE:",
        "if status.st_mode & stat.S_IWOTH:",
        "everybody on the machine reads the hashes of the passwords, and nobody is told",
        (f"{_USERS_TESTS}test_others_may_neither_read_nor_change_it",),
    ),
    Mutant(
        "users-all-gone",
        _USERS,
        'if "users" not in content:',
        "if False:",
        "an editor that empties the file before it writes it throws everybody out",
        (f"{_USERS_TESTS}test_what_is_refused[empty]",),
    ),
    Mutant(
        "certificates-of-two",
        _USERS,
        "                if name in owners:",
        "                if False:",
        "two users have one certificate, and the last one in the file wins",
        (f"{_USERS_TESTS}test_what_is_refused[certificate of two]",),
    ),
    Mutant(
        "passwords-known-for-ever",
        _PASSWORDS,
        "(hashed.encode(), given, secret)",
        "(given, secret)",
        "an old password is taken after it was changed",
        (f"{_PASSWORDS_TESTS}test_a_known_password_is_known_for_its_hash_and_its_user_alone",),
    ),
    Mutant(
        "wrong-passwords-known",
        _PASSWORDS,
        " or not check.result()",
        "",
        "a wrong password is right when it is tried again",
        (f"{_PASSWORDS_TESTS}test_a_wrong_password_is_never_known",),
    ),
    Mutant(
        "unknown-users-refused-at-once",
        _PASSWORDS,
        "        hashed = self._hash_of(user)\n",
        "        if user is None:\n            return False\n        hashed = self._hash_of(user)\n",
        "the time that a refusal takes tells who is a user",
        (f"{_PASSWORDS_TESTS}test_no_user_costs_as_much_as_a_user",),
    ),
    Mutant(
        "passwords-verified-all-at-once",
        _PASSWORDS,
        'begun_threads("gpkvs-password", _TOGETHER)',
        'begun_threads("gpkvs-password", _CHECKS_MAX)',
        "who sends wrong passwords takes 4 GiB and all processors",
        (f"{_PASSWORDS_TESTS}test_two_are_verified_at_a_time_and_so_many_wait",),
    ),
    Mutant(
        "attempts-at-once-are-free",
        _THROTTLE,
        "        self._use(key).attempts += 1",
        "        pass",
        "who guesses passwords in many calls at once is not slowed",
        (f"{_THROTTLE_TESTS}test_attempts_at_once_do_not_get_round_it",),
    ),
    Mutant(
        "guesses-from-many-addresses-are-free",
        _THROTTLE,
        "max(self._addresses.blocked_s(network), self._users.blocked_s(name))",
        "self._addresses.blocked_s(network)",
        "a password is guessed from many addresses, none of which is slowed",
        (f"{_THROTTLE_TESTS}test_one_user_guessed_from_many_addresses",),
    ),
    Mutant(
        "guesses-of-many-users-are-free",
        _THROTTLE,
        "max(self._addresses.blocked_s(network), self._users.blocked_s(name))",
        "self._users.blocked_s(name)",
        "one password is tried for all users, none of whom is slowed",
        (f"{_THROTTLE_TESTS}test_many_users_guessed_from_one_address",),
    ),
    Mutant(
        "users-locked-out",
        _THROTTLE,
        "        if self._clock() - self._trusted.get(pair, -_TRUSTED_S) < _TRUSTED_S:",
        "        if False:",
        "who guesses a user's password locks the user out",
        (f"{_THROTTLE_TESTS}test_an_attacker_cannot_lock_a_user_out_at_home",),
    ),
    Mutant(
        "own-login-forgives-guesses",
        _THROTTLE,
        "        self._addresses.end(network, failures)",
        "        self._addresses.end(network, 1 << 30)",
        "who has a user of his own logs in between two guesses for others, and is not slowed",
        (f"{_THROTTLE_TESTS}test_a_login_forgives_its_own_failures_alone",),
    ),
    Mutant(
        "addresses-without-number",
        _THROTTLE,
        "    return str(ip.ipv4_mapped or ipaddress",
        "    return str(ip) or str(ipaddress",
        "one machine with IPv6 guesses from an address of its own each time",
        (f"{_THROTTLE_TESTS}test_a_network_of_ipv6_is_one_address",),
    ),
    Mutant(
        "users-changed-without-a-lock",
        _FILE,
        "        fcntl.flock(descriptor, fcntl.LOCK_EX)",
        "        pass",
        "of two users who are made at once, one is lost",
        (f"{_FILE_TESTS}test_two_changes_at_once_lose_nothing",),
    ),
    Mutant(
        "users-named-before-they-are-durable",
        _FILE,
        "        file.flush()\n        os.fsync(descriptor)",
        "        file.flush()",
        "after a power failure the file of users is empty, and nobody can log in",
        (f"{_FILE_TESTS}test_the_new_file_is_durable_before_it_has_the_name",),
    ),
    Mutant(
        "users-removed-until-a-crash",
        _FILE,
        "    _sync_names(target.parent)\n",
        "",
        "a user who was removed is there again after a power failure",
        (f"{_FILE_TESTS}test_the_new_file_is_durable_before_it_has_the_name",),
    ),
    Mutant(
        "users-that-no-server-reads",
        _FILE,
        "            parse_users(path, new)\n",
        "",
        "a command writes a file that the server refuses at its next start",
        (f"{_FILE_TESTS}test_what_a_server_would_refuse_is_not_written",),
    ),
)
