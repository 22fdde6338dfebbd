"""gpkvs user: what it prints, and what it writes."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gpkvs.cli.main import app
from gpkvs.server.access.passwords import Passwords
from gpkvs.server.access.users import User, load_users, parse_token
from tests.serving import COMMAND

PASSWORD = "correct horse"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "users.toml"
    assert gpkvs(path, "add", "alice", "--create").exit_code == 0
    return path


def gpkvs(file: Path, *words: str, stdin: str | bytes = "") -> Result:
    return CliRunner().invoke(
        app, ["user", *words], input=stdin, env={"GPKVS_USERS": str(file), "COLUMNS": "200", "TERM": "dumb"}
    )


def ok(file: Path, *words: str, stdin: str | bytes = "") -> str:
    result = gpkvs(file, *words, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(file: Path, *words: str, stdin: str | bytes = "") -> str:
    before = file.read_bytes()
    result = gpkvs(file, *words, stdin=stdin)
    assert (result.exit_code, result.stdout) == (2, "")
    assert file.read_bytes() == before
    return " ".join(result.stderr.split())


def alice(file: Path) -> User:
    return load_users(file).by_name["alice"]


def rights(file: Path) -> tuple[object, ...]:
    found = alice(file).rights
    return found.read.texts, found.write.texts, found.admin.texts, found.metrics


def is_right(user: User, password: str) -> bool:
    passwords = Passwords()
    try:
        return asyncio.run(passwords.verify(user, user.name, password))
    finally:
        passwords.close()


def test_add(file: Path) -> None:
    assert file.stat().st_mode & 0o777 == 0o600
    assert rights(file) == ((), (), (), False)
    result = gpkvs(
        file, "add", "b.ob@x", "--read", "*", "--write", "a", "--write", "b.*", "--admin", "b.*", "--metrics"
    )
    assert (result.exit_code, result.stdout) == (0, "")
    assert "b.ob@x cannot log in yet: gpkvs user token" in result.stderr
    bob = load_users(file).by_name["b.ob@x"].rights
    assert (bob.read.texts, bob.write.texts, bob.admin.texts, bob.metrics) == (("*",), ("a", "b.*"), ("b.*",), True)
    assert "gpkvs: there is a user 'alice' already: `gpkvs user rights`" in refused(file, "add", "alice")
    assert "name: 'a b': allowed are 1 to 64 of A-Z" in refused(file, "add", "a b")
    assert "user carol: read: no table's name matches 'A'" in refused(file, "add", "carol", "--read", "A")


def test_rights(file: Path) -> None:
    ok(file, "rights", "alice", "--read", "*", "--write", "a", "--write", "a", "--metrics")
    assert rights(file) == (("*",), ("a",), (), True)
    ok(file, "rights", "alice", "--write", "", "--admin", "*")
    assert rights(file) == (("*",), (), ("*",), True)
    ok(file, "rights", "alice", "--no-metrics", "--backup")
    assert load_users(file).by_name["alice"].rights.backup
    ok(file, "rights", "alice", "--no-backup")
    assert not load_users(file).by_name["alice"].rights.backup
    assert rights(file) == (("*",), (), ("*",), False)
    assert "rights: say what the user may do: --read" in refused(file, "rights", "alice")
    assert "there is no user 'bob'; there are alice" in refused(file, "rights", "bob", "--read", "*")
    assert "no table's name matches ''" in refused(file, "rights", "alice", "--read", "", "--read", "a")


def test_token(file: Path) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    result = gpkvs(file, "token", "alice", "--note", "ci")
    assert result.exit_code == 0
    text = result.stdout.removesuffix("\n")
    parsed = parse_token(text)
    assert parsed is not None
    found = load_users(file).token(parsed[0])
    assert found is not None
    user, token = found
    assert (user.name, token.sha256, token.note) == ("alice", parsed[1], "ci")
    assert before <= token.created <= datetime.now(UTC)
    assert token.ends == token.created + timedelta(days=90)
    assert f"this is token {parsed[0]} of alice until {token.ends:%Y-%m-%d}; it is not shown again" in result.stderr
    assert text not in result.stderr
    assert text.removeprefix(f"gpkvs_{token.id}_") not in file.read_text()
    second = ok(file, "token", "alice", "--days", "1").split("_")[1]
    assert alice(file).tokens[second].ends - alice(file).tokens[second].created == timedelta(days=1)
    assert refused(file, "token", "alice", "--remove", "00000000").startswith(
        f"gpkvs: there is no token of alice '00000000'; there are {token.id}, {second}"
    )
    assert ok(file, "token", "alice", "--remove", token.id) == ""
    assert list(alice(file).tokens) == [second]
    ok(file, "token", "alice", "--remove", second)
    assert alice(file).tokens == {}
    assert "there are none" in refused(file, "token", "alice", "--remove", second)
    assert "there is no user 'bob'" in refused(file, "token", "bob")
    assert "--days" in refused(file, "token", "alice", "--days", "0")
    assert "note: it has to be one line" in refused(file, "token", "alice", "--note", "a\nb")


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_password_of_stdin(file: Path, end: bytes) -> None:
    secret = b"\xff: \xe9\n" + PASSWORD.encode()
    ok(file, "password", "alice", stdin=secret + end)
    assert is_right(alice(file), secret.decode(errors="surrogateescape"))
    assert PASSWORD not in file.read_text()


def test_password_of_a_file(file: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(f"{PASSWORD}\n")
    secret.chmod(0o640)
    assert f"chmod 600 {secret}" in refused(file, "password", "alice", "--password-file", str(secret))
    secret.chmod(0o600)
    ok(file, "password", "alice", "--password-file", str(secret))
    assert is_right(alice(file), PASSWORD)
    ok(file, "password", "alice", "--remove")
    ok(file, "password", "alice", "--remove")
    assert alice(file).password is None
    for text in ("", "\n", "hunter2\n", "x" * 1025):
        secret.write_text(text)
        assert "password: at least 8 characters are needed" in refused(
            file, "password", "alice", "--password-file", str(secret)
        )
    secret.unlink()
    assert "No such file" in refused(file, "password", "alice", "--password-file", str(secret))
    assert "there is no user 'bob'" in refused(file, "password", "bob", stdin=PASSWORD)


def test_no_password_on_the_command_line(file: Path) -> None:
    assert "No such option" in refused(file, "password", "alice", "--password", PASSWORD)
    assert "unexpected extra argument" in refused(file, "password", "alice", PASSWORD)


def test_password_of_a_terminal(file: Path) -> None:
    """It is asked for twice, and the terminal does not show it."""
    ours, theirs = pty.openpty()
    command = subprocess.Popen(
        [*COMMAND, "user", "password", "alice", "--users", str(file)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    try:
        for asked in (1, 2):
            while shown.count(b": ") < asked:
                shown += os.read(ours, 1000)
            os.write(ours, f"{PASSWORD}\n".encode())
        with suppress(OSError):  # the other end is closed
            while more := os.read(ours, 1000):
                shown += more
        assert command.wait(30) == 0
    finally:
        command.kill()
        command.wait()
        os.close(ours)
    assert b"Password of alice: " in shown
    assert PASSWORD.encode() not in shown
    assert is_right(alice(file), PASSWORD)


def test_certificate(file: Path) -> None:
    ok(file, "certificate", "alice", "DNS:A.example", "URI:x:y")
    ok(file, "certificate", "alice", "DNS:a.EXAMPLE", "IP:::1")
    assert alice(file).certificates == ("DNS:a.example", "URI:x:y", "IP:::1")
    ok(file, "certificate", "alice", "--remove", "URI:x:y", "IP:0::1")
    assert alice(file).certificates == ("DNS:a.example",)
    assert "there is no certificate of alice 'IP:::1'; there are DNS:a" in refused(
        file, "certificate", "alice", "IP:::1", "--remove"
    )
    assert "'CN:alice': it has to be DNS:, URI:" in refused(file, "certificate", "alice", "CN:alice")
    ok(file, "add", "bob")
    assert "user bob: certificates: 'DNS:a.example' is there twice; user alice has it too" in refused(
        file, "certificate", "bob", "DNS:a.example"
    )


def test_remove(file: Path) -> None:
    result = gpkvs(file, "remove", "alice", stdin="n\n")
    assert result.exit_code == 1
    assert f"Remove user alice of {file}?" in result.stderr
    assert list(load_users(file).by_name) == ["alice"]
    unanswered = gpkvs(file, "remove", "alice")
    assert (unanswered.exit_code, "--yes" in unanswered.stderr) == (2, True)
    ok(file, "remove", "alice", stdin="y\n")
    assert load_users(file).by_name == {}
    assert "there is no user 'alice'; there are none" in refused(file, "remove", "alice", "--yes")


def test_list(file: Path) -> None:
    ok(file, "rights", "alice", "--read", "*", "--write", "orders.*")
    ok(file, "certificate", "alice", "DNS:a.example")
    ok(file, "password", "alice", stdin=PASSWORD)
    token = ok(file, "token", "alice", "--note", "[red]ci")
    ok(file, "add", "bob", "--admin", "*")
    ends = f"{next(iter(alice(file).tokens.values())).ends:%Y-%m-%d}"
    shown = ok(file, "list")
    assert shown.splitlines() == [
        "alice",
        "  password    yes",
        "  certificate DNS:a.example",
        f"  token       {token.split('_')[1]} until {ends}: [red]ci",
        "  read        *",
        "  write       orders.*",
        "bob",
        "  admin       *",
        "  metrics     yes",
    ]
    as_json = ok(file, "list", "--json")
    first, second = json.loads(as_json)
    assert first["password"] is True
    assert [first[name] for name in ("name", "certificates", "read", "write", "admin", "metrics")] == [
        "alice", ["DNS:a.example"], ["*"], ["orders.*"], [], False,
    ]  # fmt: skip
    assert first["tokens"][0].keys() == {"id", "created", "ends", "has_ended", "note"}
    assert second["tokens"] == []
    for text in (shown, as_json):
        assert "argon2" not in text
        assert alice(file).tokens[token.split("_")[1]].sha256.hex() not in text
    file.write_text(file.read_text().replace(ends, "2026-01-01"))
    assert f"{token.split('_')[1]} ended 2026-01-01: [red]ci" in ok(file, "list")


def test_the_file_has_to_be_named_and_right(file: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["user", "list"], env={"GPKVS_USERS": ""})
    assert result.exit_code == 2
    assert "Missing option '--users'" in result.stderr
    file.chmod(0o644)
    assert f"chmod 600 {file}" in refused(file, "list")
    assert "chmod 600" in refused(file, "add", "bob")


def test_a_lost_file_is_not_begun_anew_by_accident(tmp_path: Path) -> None:
    lost = tmp_path / "lost.toml"
    for words in (("list",), ("token", "alice"), ("add", "alice")):
        result = gpkvs(lost, *words)
        assert result.exit_code == 2
        assert "restore it from a backup; for a new file" in " ".join(result.stderr.split())
    assert not lost.exists()
    ok(lost, "add", "alice", "--create")
    ok(lost, "add", "bob", "--create")
    assert list(load_users(lost).by_name) == ["alice", "bob"]
