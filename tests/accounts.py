"""A users' file for tests of a server that has one."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gpkvs.server.access.passwords import hash_password
from gpkvs.server.access.users import make_token

Header = tuple[tuple[str, str], ...]


@dataclass
class Account:
    """A user of the file; without tokens, which `Accounts.token` gives."""

    password: str = ""
    certificates: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()
    metrics: bool = False
    backup: bool = False
    tokens: dict[str, tuple[str, datetime]] = field(default_factory=dict)


class Accounts:
    """The users of a file, which `save` writes.

    Parameters
    ----------
    path
        The file.
    users
        The users by name.
    """

    def __init__(self, path: Path, **users: Account) -> None:
        self.path = path
        self.users = users
        self._hashes: dict[str, str] = {}

    def token(self, user: str, *, seconds: float = 3600) -> Header:
        """Make a token; return the header that shows it."""
        text, token_id, digest = make_token()
        self.users[user].tokens[token_id] = (digest.hex(), datetime.now(UTC) + timedelta(seconds=seconds))
        return bearer(text)

    def save(self) -> None:
        """Write the file anew, in place of the old one."""
        part = self.path.with_name(f"{self.path.name}.new")
        part.touch(0o600)
        part.write_text("[users]\n" + "\n".join(self._lines()))
        part.replace(self.path)

    def _lines(self) -> list[str]:
        lines = []
        for name, user in self.users.items():
            lines += [f"[users.{name}]", f"metrics = {str(user.metrics).lower()}"]
            lines.append(f"backup = {str(user.backup).lower()}")
            lines += [
                f"{kind} = {list(getattr(user, kind))}".replace("'", '"')
                for kind in ("certificates", "read", "write", "admin")
            ]
            if user.password:
                lines.append(f'password = "{self._hash(user.password)}"')
            for token_id, (digest, ends) in user.tokens.items():
                lines += [f"[users.{name}.tokens.{token_id}]", f'sha256 = "{digest}"']
                lines += ["created = 2026-01-01T00:00:00Z", f"ends = {ends.isoformat()}"]
        return lines

    def _hash(self, password: str) -> str:
        if password not in self._hashes:
            self._hashes[password] = hash_password(password)
        return self._hashes[password]


def bearer(token: str) -> Header:
    return (("authorization", f"Bearer {token}"),)


def basic(user: str, password: str) -> Header:
    return (("authorization", f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"),)
