"""Edits a file of users so that a server never sees half of it, and two edits at once lose nothing.

An edit holds a lock of the file's directory. It writes the whole text to a new file, syncs it, gives it the name, and
syncs the directory: a crash leaves the old file or the new one. Comments and the order of what is there stay.
"""

from __future__ import annotations

import fcntl
import os
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gpkvs.server.access.users import UsersError, parse_users, read_users

_NEW_FILE = """\
# Users of a gpkvs server. `gpkvs user` edits this file; a running server reads it again when it changes.

[users]
"""


def edit_users(path: Path, change: Callable[[dict[str, Any]], object], *, create: bool = False) -> None:
    """Change a file of users; the change is durable when this returns.

    Parameters
    ----------
    path
        The file. What a symbolic link leads to is changed, and the link stays.
    change
        Changes the users' tables, by name; it is called twice.
    create
        Whether to make the file if it is missing.

    Raises
    ------
    UsersError
        If the file is wrong, before or after the change, or the operating system refuses; then it is as it was.
    """
    try:
        target = path.resolve()
        with _locked(target.parent):
            old = _NEW_FILE if create and not target.exists() else read_users(path)
            parse_users(path, old)
            new = _changed(path, old, change)
            parse_users(path, new)
            _replace(target, new.encode())
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself
        raise UsersError(f"cannot change {path}: {getattr(error, 'strerror', None) or error}") from error


def _changed(path: Path, old: str, change: Callable[[dict[str, Any]], object]) -> str:
    """Return the text after a change, if it says just that."""
    # A command that changes nothing does not wait for tomlkit.
    import tomlkit  # noqa: PLC0415
    from tomlkit.exceptions import TOMLKitError  # noqa: PLC0415

    expected = tomllib.loads(old)
    change(expected["users"])
    with suppress(TOMLKitError, ValueError):  # ValueError: tomlkit has written what is no TOML
        text, comments = _without_comments(old)
        document = tomlkit.parse(text)
        change(document["users"])
        if not document.get("users"):  # with the last user, its heading has gone
            document.pop("users", None)
            document["users"] = tomlkit.table()
        new = _with_comments(tomlkit.dumps(document), comments)
        if tomllib.loads(new) == expected:
            return new
    raise UsersError(f"{path}: its layout is too unusual to be changed here: change it in an editor")


def _without_comments(text: str) -> tuple[str, dict[str, list[str]]]:
    """Return the text without the comments above its headings, and these by heading.

    tomlkit takes such a comment for the end of the table before it.
    """
    lines: list[str] = []
    comments: list[str] = []
    above: dict[str, list[str]] = {}
    for line in text.split("\n"):
        if line.startswith("#"):
            comments.append(line)
            continue
        if line.startswith("["):
            above[line] = comments
        else:
            lines += comments
        lines.append(line)
        comments = []
    return "\n".join(lines + comments), above


def _with_comments(text: str, above: dict[str, list[str]]) -> str:
    """Return the text with the comments of the headings that are still there, and an empty line before each heading."""
    lines: list[str] = []
    for line in text.split("\n"):
        if line.startswith("["):
            if lines and lines[-1].strip():
                lines.append("")
            lines += above.get(line, [])
        lines.append(line)
    return "\n".join(lines)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Wait until nobody else changes a file in a directory."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(target: Path, data: bytes) -> None:
    """Give a new file the name of an old one, and its mode and owner; the caller has the lock."""
    new = target.with_name(f".{target.name}.new")
    new.unlink(missing_ok=True)  # a crash left it
    try:
        _write(new, data, target.stat() if target.exists() else None)
        new.replace(target)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise
    _sync_names(target.parent)


def _write(new: Path, data: bytes, like: os.stat_result | None) -> None:
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor has no path
        if like is not None:
            made = os.fstat(descriptor)
            if (made.st_uid, made.st_gid) != (like.st_uid, like.st_gid):
                os.fchown(descriptor, like.st_uid, like.st_gid)
        os.fchmod(descriptor, 0o600 if like is None else like.st_mode & 0o777)
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def _sync_names(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
