"""The users of a server: a TOML file that says who they are, how they log in and what they may do.

::

    [users.alice]
    password = "$argon2id$v=19$..."
    certificates = ["DNS:alice.example", "URI:spiffe://example/alice"]
    read = ["*"]
    write = ["orders", "orders.*"]
    admin = []
    metrics = true
    backup = false

    [users.alice.tokens.3f9a0c12]
    sha256 = "..."
    created = 2026-11-22T10:00:00Z
    ends = 2027-02-20T10:00:00Z
    note = "ci"

All fields of a user may be left out. `gpkvs user` edits the file. No error repeats a password's or a token's hash.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
import math
import os
import re
import secrets
import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from gpkvs.config import DEFAULT_TABLE
from gpkvs.errors import GpkvsError
from gpkvs.server.access.patterns import Patterns, is_pattern
from gpkvs.text import quoted

TOKEN_PREFIX = "gpkvs_"

USER_NAME = re.compile(r"[A-Za-z0-9_.@][A-Za-z0-9_.@-]{0,63}")
USER_NAME_RULE = "1 to 64 of A-Z a-z 0-9 _ . @ -, not beginning with -"
CERTIFICATE_NAME_RULE = "DNS:, URI:, EMAIL: or IP: and a name that stands in the certificate as subjectAltName"

_TOKEN = re.compile(TOKEN_PREFIX + r"([0-9a-f]{8})_[A-Za-z0-9_-]{43}")
_TOKEN_ID = re.compile(r"[0-9a-f]{8}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NUMBER, _BASE64 = "([1-9][0-9]{0,9})", "([A-Za-z0-9+/]+)"
_ARGON2 = re.compile(rf"\$argon2id\$v=19\$m={_NUMBER},t={_NUMBER},p={_NUMBER}\${_BASE64}\${_BASE64}")
_ARGON2_KIB_MAX, _ARGON2_ROUNDS_MAX, _ARGON2_LANES_MAX = 1 << 20, 100, 64  # what a login may cost a server

_USER_FIELDS = ("password", "certificates", "read", "write", "admin", "metrics", "backup", "tokens")
_TOKEN_FIELDS = ("sha256", "created", "ends", "note")
_NOTE_CHARACTERS_MAX = 200
# Whoever makes a new file in place of a lost one removes all users of a running server.
_MISSING = ": restore it from a backup; for a new file without its users, `gpkvs user add --create`"
_OTHERS_OR_GROUP_WRITE = stat.S_IRWXO | stat.S_IWGRP

_Kind = TypeVar("_Kind")


class UsersError(GpkvsError):
    """A file of users that cannot be used: none of it counts."""


@dataclass(frozen=True)
class Token:
    """A token of a user; its text is nowhere.

    Parameters
    ----------
    id
        What its text begins with, behind `TOKEN_PREFIX`; one token of the file has it.
    sha256
        Of the whole text.
    created, ends
        When it was made, and from when it is no longer taken.
    note
        What it is for.
    """

    id: str
    sha256: bytes = field(repr=False)
    created: datetime
    ends: datetime
    note: str


@dataclass(frozen=True)
class Rights:
    """What a user may do: in which tables, by patterns of their names.

    Parameters
    ----------
    read, write, admin
        The patterns.
    metrics
        Whether the user may read the metrics without being an administrator of all tables.
    backup
        Whether the user may read all tables by scans and watches, and describe them and the server.
    """

    read: Patterns = field(default_factory=Patterns)
    write: Patterns = field(default_factory=Patterns)
    admin: Patterns = field(default_factory=Patterns)
    metrics: bool = False
    backup: bool = False

    def may_read(self, table: str) -> bool:
        """Return whether the user may read a table; an empty name stands for the default table."""
        return self.read.match(table or DEFAULT_TABLE)

    def may_write(self, table: str) -> bool:
        """Return whether the user may write a table; an empty name stands for the default table."""
        return self.write.match(table or DEFAULT_TABLE)

    def may_admin(self, table: str) -> bool:
        """Return whether the user may make and drop a table; an empty name stands for the default table."""
        return self.admin.match(table or DEFAULT_TABLE)

    @property
    def admin_everywhere(self) -> bool:
        """Whether the user is an administrator of all tables, and so of the server."""
        return self.admin.everywhere


@dataclass(frozen=True)
class User:
    """A user.

    Parameters
    ----------
    name
        The name.
    password
        The argon2id hash of the password, if the user has one.
    certificates
        The names of client certificates that are the user's, as `certificate_name` writes them.
    tokens
        The user's tokens by id.
    rights
        What the user may do.
    """

    name: str
    password: str | None = field(repr=False)
    certificates: tuple[str, ...]
    tokens: Mapping[str, Token]
    rights: Rights


class Users:
    """The users of a file.

    Parameters
    ----------
    users
        The users; names, names of certificates and ids of tokens are there once.

    Attributes
    ----------
    by_name
        The users by name.
    by_certificate
        The users by the names of their certificates, as `certificate_name` writes them.
    """

    def __init__(self, users: Iterable[User]) -> None:
        self.by_name: Mapping[str, User] = {user.name: user for user in users}
        self.by_certificate: Mapping[str, User] = {
            name: user for user in self.by_name.values() for name in user.certificates
        }
        self._tokens = {token.id: (user, token) for user in self.by_name.values() for token in user.tokens.values()}

    def token(self, token_id: str) -> tuple[User, Token] | None:
        """Return the token of an id and whose it is, or None."""
        return self._tokens.get(token_id)

    def first_token_end(self, now: float) -> float:
        """Return when the first token that has not ended ends, in seconds since 1970; infinity if there is none."""
        ends = (token.ends.timestamp() for _, token in self._tokens.values())
        return min((end for end in ends if end > now), default=math.inf)


def make_token() -> tuple[str, str, bytes]:
    """Make a token: 256 random bits.

    Returns
    -------
    tuple[str, str, bytes]
        Its text, its id, and the SHA-256 of its text.
    """
    token_id = secrets.token_hex(4)
    text = f"{TOKEN_PREFIX}{token_id}_{secrets.token_urlsafe(32)}"
    return text, token_id, _sha256(text)


def parse_token(text: str) -> tuple[str, bytes] | None:
    """Return the id of a token and the SHA-256 of its text; None if this is no text of a token."""
    found = _TOKEN.fullmatch(text)
    return (found[1], _sha256(text)) if found else None


def _sha256(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def certificate_name(text: str) -> str | None:
    """Return a name of a certificate as it is looked up; None if it is no such name.

    Two spellings of one host or one address become one; all else stays as it is.
    """
    kind, _, name = text.partition(":")
    if not name or not name.isprintable() or name != name.strip():
        return None
    if kind == "DNS":
        return f"DNS:{name.lower()}"
    if kind == "IP":
        try:
            return f"IP:{ipaddress.ip_address(name)}"
        except ValueError:
            return None
    return text if kind in ("URI", "EMAIL") else None


def load_users(path: Path) -> Users:
    """Read a file of users.

    Raises
    ------
    UsersError
        If it cannot be read, if others may read it or somebody else may change it, or if anything in it is wrong. It
        names the file, the user and the field.
    """
    return parse_users(path, read_users(path))


def read_users(path: Path) -> str:
    """Return the text of a file of users.

    Raises
    ------
    UsersError
        If it cannot be read, or if others may read it or somebody else may change it.
    """
    file = _Place(path)
    try:
        with open(path, "rb", opener=_open_at_once) as opened:
            status = os.fstat(opened.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise file.error("it is not a regular file")
            if status.st_mode & _OTHERS_OR_GROUP_WRITE:
                mode = f"{stat.S_IMODE(status.st_mode):04o}"
                raise file.error(f"its mode {mode} lets others read it, or change it: chmod 600 {path}")
            return opened.read().decode()
    except UnicodeDecodeError as error:
        raise file.error(f"byte {error.start} is not UTF-8") from None
    except OSError as error:
        hint = _MISSING if isinstance(error, FileNotFoundError) else ""
        raise UsersError(f"cannot read {path}: {error.strerror}{hint}") from error


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe without a writer must not hold up the start


def parse_users(path: Path, text: str) -> Users:
    """Return the users that the text of a file names.

    Raises
    ------
    UsersError
        If anything in it is wrong. It names the file, the user and the field.
    """
    file = _Place(path)
    try:
        content = tomllib.loads(text)
    except RecursionError:
        raise file.error("it is nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError is one, and so is that of a number of too many digits
        raise file.error(f"it is not TOML: {error}") from None
    if "users" not in content:  # an editor may empty a file before it writes it: that must not remove everybody
        raise file.error("it has no [users]; a file without users has this line and nothing else")
    users = _Table(file, content, ("users",)).take("users", dict)
    return _without_doubles(file, [_user(file, name, table) for name, table in users.items()])


@dataclass(frozen=True)
class _Place:
    """A place in a file of users, for its errors."""

    path: Path
    user: str = ""
    prefix: str = ""

    def error(self, message: str, name: str = "") -> UsersError:
        """Return an error about the place, or a field in it."""
        user = f"user {self.user}: " if self.user else ""
        where = ".".join(filter(None, (self.prefix, name)))
        return UsersError(f"{self.path}: {user}{f'{where}: ' if where else ''}{message}")


class _Table:
    """A table of a file of users. Its errors do not repeat values: one may be a secret in a wrong place."""

    def __init__(self, place: _Place, values: object, known: tuple[str, ...]) -> None:
        if not isinstance(values, dict):
            raise place.error(f"it has to be {_KINDS[dict]}")
        self._place = place
        self._values = values
        for name in values:
            if name not in known:
                raise self.error(quoted(name), f"unknown; there are {', '.join(known)}")

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def error(self, name: str, message: str) -> UsersError:
        return self._place.error(message, name)

    def take(self, name: str, kind: type[_Kind], default: _Kind | None = None) -> _Kind:
        """Return a field; without a default it must be there."""
        value = self._values.get(name, default)
        if value is None:
            raise self.error(name, "missing")
        if not isinstance(value, kind):
            raise self.error(name, f"it has to be {_KINDS[kind]}")
        return value

    def texts(self, name: str) -> list[str]:
        """Return a field that is a list of texts; it may be missing."""
        found = self.take(name, list, [])
        if not all(isinstance(text, str) for text in found):
            raise self.error(name, f"it has to be {_KINDS[list]}")
        return found


_KINDS: Mapping[type, str] = {
    str: "a text",
    bool: "true or false",
    list: "a list of texts",
    dict: "a table",
    datetime: "a time, such as 2027-02-20T10:00:00Z",
}


def _user(file: _Place, name: str, values: object) -> User:
    if not USER_NAME.fullmatch(name):
        raise file.error(f"user {quoted(name)}: a name has {USER_NAME_RULE}")
    place = _Place(file.path, name)
    table = _Table(place, values, _USER_FIELDS)
    tokens = table.take("tokens", dict, {})
    return User(
        name,
        _password(table) if "password" in table else None,
        tuple(_certificate(table, text) for text in table.texts("certificates")),
        {token_id: _token(place, token_id, token) for token_id, token in tokens.items()},
        Rights(
            read=_patterns(table, "read"),
            write=_patterns(table, "write"),
            admin=_patterns(table, "admin"),
            metrics=table.take("metrics", bool, False),
            backup=table.take("backup", bool, False),
        ),
    )


def _password(table: _Table) -> str:
    text = table.take("password", str)
    if not _is_argon2(text):
        raise table.error("password", "it has to be an argon2id hash: `gpkvs user password` makes one")
    return text


def _is_argon2(text: str) -> bool:
    """Return whether this is a hash that can be verified at a cost that a server can bear."""
    found = _ARGON2.fullmatch(text)
    if not found:
        return False
    kib, rounds, lanes = (int(number) for number in found.groups()[:3])
    if not (8 * lanes <= kib <= _ARGON2_KIB_MAX and rounds <= _ARGON2_ROUNDS_MAX and lanes <= _ARGON2_LANES_MAX):
        return False
    salt, digest = (_unpadded(part) for part in found.groups()[3:])
    return salt is not None and digest is not None and 8 <= len(salt) <= 64 and 16 <= len(digest) <= 64


def _unpadded(text: str) -> bytes | None:
    """Decode base64 as argon2 writes it, in its one right spelling."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        return None
    return data if base64.b64encode(data).rstrip(b"=") == text.encode() else None


def _certificate(table: _Table, text: str) -> str:
    name = certificate_name(text)
    if name is None:
        raise table.error("certificates", f"{quoted(text)}: it has to be {CERTIFICATE_NAME_RULE}")
    return name


def _patterns(table: _Table, name: str) -> Patterns:
    texts = table.texts(name)
    for text in texts:
        if not is_pattern(text):
            raise table.error(name, f"no table's name matches {quoted(text)}: allowed are 1 to 64 of a-z 0-9 _ . - *")
    return Patterns(tuple(texts))


def _token(user: _Place, token_id: str, values: object) -> Token:
    if not _TOKEN_ID.fullmatch(token_id):
        raise user.error("an id has 8 of 0-9 a-f", f"tokens.{quoted(token_id)}")
    table = _Table(_Place(user.path, user.user, f"tokens.{token_id}"), values, _TOKEN_FIELDS)
    sha256 = table.take("sha256", str)
    if not _SHA256.fullmatch(sha256):
        raise table.error("sha256", "it has to be 64 of 0-9 a-f: `gpkvs user token` makes a token")
    return Token(token_id, bytes.fromhex(sha256), _time(table, "created"), _time(table, "ends"), _note(table))


def _note(table: _Table) -> str:
    note = table.take("note", str, "")
    if len(note) > _NOTE_CHARACTERS_MAX or not note.isprintable():
        raise table.error("note", f"it has to be one line of at most {_NOTE_CHARACTERS_MAX} characters")
    return note


def _time(table: _Table, name: str) -> datetime:
    time = table.take(name, datetime)
    if time.tzinfo is None:
        raise table.error(name, "it has no time zone: write Z behind it for UTC")
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise table.error(name, "it is not between the years 1 and 9999 in UTC") from None


def _without_doubles(file: _Place, users: list[User]) -> Users:
    """Return the users if each certificate's name and each id of a token is there once."""
    owners: dict[str, str] = {}
    for user in users:
        place = _Place(file.path, user.name)
        for what, names in (("certificates", user.certificates), ("tokens", user.tokens)):
            for name in names:
                if name in owners:
                    raise place.error(f"{quoted(name)} is there twice; user {owners[name]} has it too", what)
                owners[name] = user.name
    return Users(users)
