"""Who calls: a user who has logged in with one token, password or certificate.

All calls that show the same one share a `Caller`. A change of the users' file changes it: calls under way see it at
their next message.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

from gpkvs.errors import GpkvsError
from gpkvs.server.access.patterns import Patterns
from gpkvs.server.access.users import Rights, Token, User, Users

Method = Literal["token", "password", "certificate", "none"]


class LoginError(GpkvsError):
    """A call of somebody who has not logged in; nothing was executed.

    Parameters
    ----------
    message
        What to do; it does not tell which users there are.
    reason, user, method
        For the audit log: why, in one word; whom the call named, without any secret, and what it showed.
    """

    table: None = None  # of all tables

    def __init__(self, message: str, reason: str, user: str = "", method: Method = "none") -> None:
        super().__init__(message)
        self.reason = reason
        self.user = user
        self.method = method


class Caller:
    """A user who has logged in.

    Parameters
    ----------
    user
        Who it is.
    method
        How the user logged in.
    credential
        With which token (its id) or certificate (its name).
    """

    __slots__ = ("_refusal", "credential", "ends", "method", "user")

    def __init__(self, user: User, method: Method, credential: str = "") -> None:
        self.method = method
        self.credential = credential
        self._refusal: Callable[[], LoginError] | None = None
        self._take(user)

    def __repr__(self) -> str:
        return f"<Caller {self.name} by {self.method}>"

    @property
    def name(self) -> str:
        """The user's name."""
        return self.user.name

    @property
    def rights(self) -> Rights:
        """What the user may do now."""
        return self.user.rights

    @property
    def is_gone(self) -> bool:
        """Whether the login no longer counts."""
        return self._refusal is not None

    def require(self) -> None:
        """Refuse a login that no longer counts.

        Raises
        ------
        LoginError
            Saying why.
        """
        if self._refusal is not None:
            raise self._refusal()

    def follow(self, users: Users, now: float) -> None:
        """Take what the users' file says now: other rights, or that this login no longer counts."""
        user = users.by_name.get(self.name)
        if user is None or not self._is_of(user, users):
            self._refusal = self._removed
            return
        self._take(user)
        self.expire(now)

    def expire(self, now: float) -> None:
        """End the login if its token has ended."""
        if now >= self.ends:
            self._refusal = partial(token_ended, self.user, self.user.tokens[self.credential])

    def _removed(self) -> LoginError:
        return LoginError(
            f"this {self.method} of user {self.name} no longer counts: log in again", "removed", self.name, self.method
        )

    def _take(self, user: User) -> None:
        self.user = user
        self.ends = user.tokens[self.credential].ends.timestamp() if self.method == "token" else math.inf

    def _is_of(self, user: User, users: Users) -> bool:
        """Return whether the user still has what this login showed."""
        match self.method:
            case "token":
                token = user.tokens.get(self.credential)
                return token is not None and token.sha256 == self.user.tokens[self.credential].sha256
            case "password":
                return user.password == self.user.password
        return users.by_certificate.get(self.credential) is user


def token_ended(user: User, token: Token) -> LoginError:
    """Return why a user's token is refused that has ended."""
    return LoginError(f"this token ended on {token.ends.date()}: make a new one", "ended", user.name, "token")


_ALL = Patterns(("*",))
ANYONE = Caller(User("", None, (), {}, Rights(_ALL, _ALL, _ALL, metrics=True, backup=True)), "none")
"""Whoever reaches a server that has no users."""
