"""Passwords: hashed slowly with argon2id, verified two at a time, and the right ones remembered for some minutes.

The parameters are those that RFC 9106 (section 4) recommends second, "if much less memory is available": three passes
over 64 MiB in four lanes, a salt of 128 bits, a hash of 256. https://www.rfc-editor.org/rfc/rfc9106#section-4

A verification takes a tenth of a second or more: it runs in a thread. What is remembered is an HMAC under a key that
only this process has, of the hash in the file and of the password: a new password changes the hash, and the old one is
no longer known.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import os
import time
from collections.abc import Callable
from functools import partial

from gpkvs.errors import GpkvsError, InvalidArgumentError
from gpkvs.server.access.users import User
from gpkvs.server.threads import begun_threads

PASSWORD_BYTES_MAX = 1024
PASSWORD_CHARACTERS_MIN = 8  # as NIST SP 800-63B asks for; a shorter one in the file is still taken

_PASSES, _KIB, _LANES, _SALT_BYTES, _HASH_BYTES = 3, 64 * 1024, 4, 16, 32

_TOGETHER = 2  # each takes 64 MiB and four threads
_CHECKS_MAX = 64  # under way or waiting for it
_KNOWN_MAX = 1024
KNOWN_SECONDS = 300.0


class PasswordsBusyError(GpkvsError):
    """A password that could not be verified now: too many are, or there was no memory for it."""


def hash_password(text: str) -> str:
    """Hash a password for a file of users; it takes a tenth of a second or more.

    Raises
    ------
    InvalidArgumentError
        If it is too short or too long.
    """
    from argon2.low_level import Type, hash_secret  # noqa: PLC0415 - a command that hashes nothing does not wait for it

    secret = _secret(text)
    if secret is None or len(text) < PASSWORD_CHARACTERS_MIN:
        raise InvalidArgumentError(
            f"at least {PASSWORD_CHARACTERS_MIN} characters are needed, and {PASSWORD_BYTES_MAX} bytes are allowed",
            field="password",
        )
    return hash_secret(
        secret,
        os.urandom(_SALT_BYTES),
        time_cost=_PASSES,
        memory_cost=_KIB,
        parallelism=_LANES,
        hash_len=_HASH_BYTES,
        type=Type.ID,
    ).decode()


class Passwords:
    """Verifies passwords; for one event loop.

    Parameters
    ----------
    clock
        Seconds, for the end of what is remembered.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._key = os.urandom(32)
        self._nobody = _hash_of_nothing()
        self._known: dict[bytes, float] = {}  # until when; the one that was used last is the last
        self._checks: dict[bytes, asyncio.Future[bool]] = {}
        self._threads = begun_threads("gpkvs-password", _TOGETHER)

    def prepare(self) -> None:
        """Load what verifies them: later there may be no memory for it. A server without users does not wait for it."""
        import argon2.exceptions  # noqa: PLC0415
        import argon2.low_level  # noqa: F401, PLC0415

    def known(self, user: User | None, password: str) -> bool:
        """Return whether a password was right some minutes ago; each use makes it known for some minutes more."""
        if user is None or user.password is None or (secret := _secret(password)) is None:
            return False
        return self._remembered(self._digest(user.password, user.name, secret))

    async def verify(self, user: User | None, name: str, password: str) -> bool:
        """Return whether a password is right; for no user, or one without a password, it takes as long to say no.

        Calls with one password at the same time wait for one verification. The user may be removed, or get a new
        password, while this waits: a caller has to look again.

        Parameters
        ----------
        user
            Who has the name, or None.
        name
            The name as it was given.
        password
            The password; what was no UTF-8 in it as Python's ``surrogateescape`` decodes it.

        Raises
        ------
        PasswordsBusyError
            If it cannot be verified now.
        """
        secret = _secret(password)
        if secret is None:
            return False
        hashed = self._hash_of(user)
        digest = self._digest(hashed, name, secret)
        if self._remembered(digest):
            return True
        check = self._checks.get(digest)
        if check is None:
            if len(self._checks) >= _CHECKS_MAX:
                raise PasswordsBusyError("too many passwords are being verified: try again in some seconds")
            check = asyncio.get_running_loop().run_in_executor(self._threads, _is_right, hashed, secret)
            self._checks[digest] = check
            check.add_done_callback(partial(self._finish, digest))
        # One caller that gives up does not end it for the others.
        return await asyncio.shield(check)

    def close(self) -> None:
        """Verify nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _hash_of(self, user: User | None) -> str:
        return self._nobody if user is None or user.password is None else user.password

    def _digest(self, hashed: str, name: str, secret: bytes) -> bytes:
        given = name.encode(errors="backslashreplace")
        return hmac.digest(self._key, b"\0".join((hashed.encode(), given, secret)), "sha256")

    def _remembered(self, digest: bytes) -> bool:
        until = self._known.pop(digest, 0.0)
        now = self._clock()
        if now >= until:
            return False
        self._known[digest] = now + KNOWN_SECONDS
        return True

    def _finish(self, digest: bytes, check: asyncio.Future[bool]) -> None:
        del self._checks[digest]
        if check.cancelled() or check.exception() or not check.result():
            return
        if len(self._known) >= _KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[digest] = self._clock() + KNOWN_SECONDS


def _secret(password: str) -> bytes | None:
    """Return the bytes of a password, or None if none can be of that length."""
    if not 0 < len(password) <= PASSWORD_BYTES_MAX:
        return None
    try:
        secret = password.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return None
    return secret if len(secret) <= PASSWORD_BYTES_MAX else None


def _hash_of_nothing() -> str:
    """Return a hash that nobody knows a password for, which takes as long to verify as that of a user."""
    salt, digest = (base64.b64encode(os.urandom(size)).rstrip(b"=").decode() for size in (_SALT_BYTES, _HASH_BYTES))
    return f"$argon2id$v=19$m={_KIB},t={_PASSES},p={_LANES}${salt}${digest}"


def _is_right(hashed: str, secret: bytes) -> bool:
    from argon2.exceptions import VerificationError, VerifyMismatchError  # noqa: PLC0415 - a server without users
    from argon2.low_level import Type, verify_secret  # noqa: PLC0415

    try:
        return verify_secret(hashed.encode(), secret, Type.ID)
    except VerifyMismatchError:
        return False
    except (VerificationError, MemoryError) as error:  # there was no memory, or no thread
        raise PasswordsBusyError(f"a password cannot be verified now: {error}") from error
