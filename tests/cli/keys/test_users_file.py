"""A file of users is changed whole, by one at a time, and its comments stay."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from errno import ENOSPC
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpkvs.cli.keys.users_file import edit_users
from gpkvs.server.access.users import UsersError, load_users

TOKEN = f"""
sha256 = "{"0" * 64}"
created = 2026-11-22T10:00:00Z
ends = 2027-02-20T10:00:00Z
"""
OLD = f"""# Users of the shop.

# Alice sells.
[users.alice] # since 2024
read = [
    "*",  # all of it
]
[users.alice.tokens.3f9a0c12]{TOKEN}
# Bob buys.
[users.bob]
write = ["orders"]  # and nothing else
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "users.toml"
    path.touch(0o600)
    path.write_text(OLD)
    return path


def add_carol(users: dict[str, Any]) -> None:
    users["carol"] = {"read": ["*"]}


def _add(name: str, users: dict[str, Any]) -> None:
    users[name] = {}


def names(file: Path) -> list[str]:
    return list(load_users(file).by_name)


def test_comments_and_order_stay(file: Path) -> None:
    edit_users(file, add_carol)
    edit_users(file, lambda users: users["alice"].update(write=["a"], metrics=True))
    edit_users(
        file, lambda users: users["alice"]["tokens"].update({"00000000": dict(users["alice"]["tokens"]["3f9a0c12"])})
    )
    expected = OLD.replace("]\n[users.alice.tokens", ']\nwrite = ["a"]\nmetrics = true\n\n[users.alice.tokens')
    expected = expected.replace("# Bob buys.", f"[users.alice.tokens.00000000]{TOKEN}\n# Bob buys.")
    assert file.read_text() == expected + '\n[users.carol]\nread = ["*"]\n'


def test_the_comment_of_a_user_goes_with_the_user(file: Path) -> None:
    edit_users(file, lambda users: users.pop("alice"))
    begin, end = OLD.index("# Alice sells."), OLD.index("# Bob buys.")
    assert file.read_text() == OLD[:begin] + OLD[end:]


@pytest.mark.parametrize(
    "text",
    [
        "[users.alice]\n",
        "[users]\nalice = {}\n",
        "users = {alice = {read = ['*']}}\n",
        "users.alice.read = []\n",
        "users.alice.read = []\nusers.alice.write = []\n",
        "[users.alice]\r\nread = []\r\n",
        "[ users . 'alice' ]\n",
        f"[users.alice.tokens.3f9a0c12]{TOKEN}[users.x]\n[users.alice]\n",
        f"[users.x]\n[users.alice]\n[users.alice.tokens]\n[users.alice.tokens.3f9a0c12]{TOKEN}",
    ],
)
@pytest.mark.parametrize(
    "change",
    [
        add_carol,
        lambda users: users["alice"].update(admin=["a", "b"]),
        lambda users: users.pop("alice"),
        lambda users: users.clear(),
    ],
    ids=["add", "update", "pop", "clear"],
)
def test_layouts_of_a_file(file: Path, text: str, change: Callable[[dict[str, Any]], None]) -> None:
    """An unusual layout may be refused, but never be changed in another way than asked for."""
    file.write_bytes(text.encode())
    expected: dict[str, Any] = {name: {} for name in load_users(file).by_name}
    expected.setdefault("alice", {})
    change(expected)
    try:
        edit_users(file, change)
    except UsersError:
        assert text.startswith("users.alice.read")
        assert file.read_text() == text
    else:
        assert set(names(file)) == set(expected)


def test_a_change_that_does_something_else_is_not_written(file: Path) -> None:
    calls = []

    def change(users: dict[str, Any]) -> None:
        calls.append(users)
        users["carol"] = {"read": ["a" if len(calls) == 1 else "b"]}

    with pytest.raises(UsersError, match="too unusual"):
        edit_users(file, change)
    assert file.read_text() == OLD


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda users: users["alice"].update(read=["A"]), "user alice: read: no table's name matches 'A'"),
        (lambda users: users["bob"].update(secret="s"), "user bob: 'secret': unknown"),
        (lambda users: users.update({"a b": {}}), "user 'a b': a name has"),
    ],
)
def test_what_a_server_would_refuse_is_not_written(
    file: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    with pytest.raises(UsersError, match=message):
        edit_users(file, change)
    assert file.read_text() == OLD
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("old", ["[users", "[users.alice]\nsecret = 1"])
def test_a_file_that_is_wrong_is_not_changed(file: Path, old: str) -> None:
    file.write_text(old)
    with pytest.raises(UsersError, match=str(file)):
        edit_users(file, add_carol, create=True)
    assert file.read_text() == old


def test_a_file_that_others_may_read_is_not_changed(file: Path) -> None:
    file.chmod(0o644)
    with pytest.raises(UsersError, match="chmod 600"):
        edit_users(file, add_carol, create=True)
    assert file.read_text() == OLD


def test_a_file_is_made_where_it_may_be(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    with pytest.raises(UsersError, match="No such file or directory: restore it from a backup"):
        edit_users(file, add_carol)
    old = os.umask(0)
    try:
        edit_users(file, add_carol, create=True)
    finally:
        os.umask(old)
    assert file.stat().st_mode & 0o777 == 0o600
    assert names(file) == ["carol"]
    edit_users(file, lambda users: users.clear())
    assert names(file) == []
    edit_users(file, add_carol)
    assert names(file) == ["carol"]
    with pytest.raises(UsersError, match=r"cannot change .*none/users.toml: No such file or directory"):
        edit_users(tmp_path / "none" / "users.toml", add_carol, create=True)


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o640])
def test_mode_and_owner_stay(file: Path, mode: int) -> None:
    file.chmod(mode)
    if os.geteuid() == 0:
        os.chown(file, 12, 34)
    before = file.stat()
    edit_users(file, add_carol)
    after = file.stat()
    assert after.st_ino != before.st_ino
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


def test_a_link_stays_and_leads_to_the_new_file(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    link = folder / "link.toml"
    link.symlink_to("../users.toml")
    edit_users(link, add_carol)
    assert link.is_symlink()
    assert names(file) == ["alice", "bob", "carol"]
    assert list(folder.iterdir()) == [link]
    link.unlink()
    link.symlink_to("link.toml")
    with pytest.raises(UsersError, match="cannot change"):
        edit_users(link, add_carol, create=True)


def test_two_changes_at_once_lose_nothing(file: Path) -> None:
    errors: list[UsersError] = []

    def add(number: int) -> None:
        try:
            for each in range(4):
                edit_users(file, partial(_add, f"user{number}-{each}"))
        except UsersError as error:
            errors.append(error)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(names(file)) == 2 + 16


class Calls:
    """Notes what is done to files and directories, in order; one of them, and what comes later, fails."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, fails_at: int = 1 << 30, fail: Callable[[], object] = lambda: None
    ) -> None:
        self.done: list[str] = []
        self._fails_at = fails_at
        self._fail = fail
        monkeypatch.setattr(os, "fsync", self._noted("fsync", os.fsync))
        monkeypatch.setattr(os, "fchmod", self._noted("chmod", os.fchmod))
        monkeypatch.setattr(Path, "replace", self._noted("rename", Path.replace))

    def _noted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(where: Any, *rest: Any) -> Any:
            path = where if isinstance(where, Path) else Path(f"/proc/self/fd/{where}").resolve()
            if len(self.done) >= self._fails_at:
                self._fail()
            self.done.append(f"{name} {path.name}")
            return call(where, *rest)

        return noted


def test_the_new_file_is_durable_before_it_has_the_name(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch)
    edit_users(file, add_carol)
    new = ".users.toml.new"
    assert calls.done == [f"chmod {new}", f"fsync {new}", f"rename {new}", f"fsync {file.parent.name}"]


def _no_space() -> None:
    raise OSError(ENOSPC, os.strerror(ENOSPC))


@pytest.mark.parametrize("fails_at", range(4))
def test_a_failure_leaves_the_old_file_or_the_new_one(
    file: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    with monkeypatch.context() as patched:
        Calls(patched, fails_at, _no_space)
        with pytest.raises(UsersError, match=r"cannot change .*users\.toml: No space left on device"):
            edit_users(file, add_carol)
    assert list(file.parent.iterdir()) == [file]
    assert names(file) == ["alice", "bob"] + ["carol"] * (fails_at == 3)


@pytest.mark.parametrize("dies_at", range(4))
def test_a_crash_leaves_the_old_file_or_the_new_one(file: Path, monkeypatch: pytest.MonkeyPatch, dies_at: int) -> None:
    child = os.fork()
    if not child:
        try:
            Calls(monkeypatch, dies_at, lambda: os._exit(77))
            edit_users(file, add_carol)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 77
    assert names(file) == ["alice", "bob"] + ["carol"] * (dies_at == 3)
    edit_users(file, lambda users: users.update(dave={}))
    assert names(file) == ["alice", "bob"] + ["carol"] * (dies_at == 3) + ["dave"]
    assert list(file.parent.iterdir()) == [file]
