"""Who makes a call: a token, a user and password, or a client certificate becomes a `Caller`.

A header wins over the certificate. Whoever shows nothing that counts is refused before a message is received. What is
known already (a token, a certificate, a password that was right a moment ago) takes microseconds and is never slowed;
other passwords are checked in threads, and their failures slow the next attempt down (`gpkvs.server.access.throttle`).
"""

from __future__ import annotations

import asyncio
import base64
import math
import time
from collections.abc import Callable, Collection, Sequence
from hashlib import sha256
from hmac import compare_digest
from typing import NamedTuple

from gpkvs.errors import UnknownTableError
from gpkvs.server.access.audit import AuditLog
from gpkvs.server.access.caller import ANYONE, Caller, LoginError, Method, token_ended
from gpkvs.server.access.connections import end_of
from gpkvs.server.access.passwords import Passwords, PasswordsBusyError
from gpkvs.server.access.rights import RightsError
from gpkvs.server.access.sessions import Sessions
from gpkvs.server.access.throttle import Throttle
from gpkvs.server.access.users import TOKEN_PREFIX, Token, User, Users, certificate_name, parse_token
from gpkvs.server.calls import CallContext
from gpkvs.server.exporter import Metrics
from gpkvs.text import without_names

_TOKEN_ID = slice(len(TOKEN_PREFIX), len(TOKEN_PREFIX) + 8)  # in its text
_HEADER = "authorization"
_MISSING = "log in: send a token, a user and password, or a client certificate of a known user"
_NOTED_MAX: int = _TOKEN_ID.stop  # characters of the name of nobody: of a token no more than its id
_WRONG = "wrong user, password or token"

# Tokens end also while calls are open.
_LOOK_SECONDS = 0.25
# Prometheus makes a connection for each scrape: one login of each user and address is enough to note.
_SCRAPERS_MAX = 1024


class Shown(NamedTuple):
    """What somebody shows who wants to come in."""

    authorizations: Sequence[str]  # the headers
    certificate: Sequence[str]  # the names of the client's
    address: str


class Logins:
    """Lets users in whom a file names, or everybody if there is none.

    Parameters
    ----------
    users
        The users; None lets everybody in.
    sessions
        Which connections they have used.
    metrics
        Counts logins.
    audit
        Notes them.
    """

    def __init__(self, users: Users | None, sessions: Sessions, metrics: Metrics, audit: AuditLog) -> None:
        self.is_open = users is None
        self._users = Users(()) if users is None else users
        self._audit = audit
        self._sessions = sessions
        self._metrics = metrics
        self._passwords = Passwords()
        self._throttle = Throttle()
        self._callers: dict[tuple[Method, str], Caller] = {}
        self._attempts: dict[tuple[str, str, str], asyncio.Task[str | None]] = {}
        self._scrapers: set[tuple[str, Caller]] = set()
        self._next_end = math.inf
        self._end_calls: Callable[[], None] = lambda: None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, ports: Collection[int], end_calls: Callable[[], None]) -> None:
        """Look from now on for tokens that end.

        Parameters
        ----------
        ports
            Where gRPC and the Redis protocol are spoken.
        end_calls
            Ends calls that wait for a message and whose caller is gone.
        """
        self._sessions.begin(ports)
        self._end_calls = end_calls
        if not self.is_open:
            self._passwords.prepare()
            self._look()

    async def stop(self) -> None:
        """Look no more: the event loop is about to end."""
        if self._timer:
            self._timer.cancel()
        self._passwords.close()
        await self._sessions.stop()

    def change(self, users: Users) -> None:
        """Let these users in from now on; calls and connections of users who are gone end."""
        self._users = users
        now = time.time()
        for caller in self._callers.values():
            caller.follow(users, now)
        self.end_gone()

    def end_gone(self) -> None:
        """Forget the callers who are gone, and end their calls and connections."""
        count = len(self._callers)
        self._callers = {key: caller for key, caller in self._callers.items() if not caller.is_gone}
        self._next_end = min((caller.ends for caller in self._callers.values()), default=math.inf)
        if len(self._callers) < count:
            self._end_calls()
            self._sessions.close_unused()

    def for_caller(self, error: Exception) -> Exception:
        """Return an error as a caller may know it: a user is told no names of other tables."""
        if self.is_open or not isinstance(error, UnknownTableError):
            return error
        return UnknownTableError(without_names(str(error)))

    def known(self, context: CallContext) -> Caller | None:
        """Return who makes a call, if it can be told at once and the login is right."""
        header = None
        for name, value in context.invocation_metadata():
            if name == _HEADER:
                if header is not None:
                    return None
                header = value
        caller = self._by_certificate(context.certificate) if header is None else self._at_once(header)
        if caller is not None and self._sessions.is_new(peer := context.peer(), caller):
            self._logged_in(caller, end_of(peer).address)
        return caller

    async def caller(self, context: CallContext) -> Caller:
        """Return who makes a call; of every call, if there are no users.

        Raises
        ------
        LoginError
            If it shows nothing that counts.
        """
        return ANYONE if self.is_open else self.known(context) or await self.log_in(context)

    async def log_in(self, context: CallContext) -> Caller:
        """Return who makes a call.

        Raises
        ------
        LoginError
            If it shows nothing that counts.
        """
        headers = [value for name, value in context.invocation_metadata() if name == _HEADER]
        peer = context.peer()
        address = end_of(peer).address
        caller = await self._log_in(Shown(headers, context.certificate, address))
        if self._sessions.is_new(peer, caller):
            self._logged_in(caller, address)
        return caller

    async def require_metrics(self, shown: Shown) -> None:
        """Refuse somebody who may not read the metrics.

        Raises
        ------
        LoginError, RightsError
        """
        if self.is_open:
            return
        caller = await self._log_in(shown)
        if (shown.address, caller) not in self._scrapers:
            if len(self._scrapers) >= _SCRAPERS_MAX:
                self._scrapers.clear()
            self._scrapers.add((shown.address, caller))
            self._logged_in(caller, shown.address)
        if not (caller.rights.metrics or caller.rights.admin_everywhere):
            raise RightsError(caller, "read the metrics of", None)

    def note_refusal(self, error: LoginError | RightsError, address: str, place: str) -> None:
        """Note who was refused, and where: the RPC or the path."""
        self._audit.note(
            "refused",
            address=address,
            user=error.user,
            method=error.method,
            reason=error.reason,
            rpc=place,
            table=error.table,
        )

    def _at_once(self, header: str) -> Caller | None:
        """Return whose header this is, if it takes no check of a password to tell, and the login is right."""
        if header.startswith("Bearer "):  # as nearly all write it, at each call
            return self._by_token(header[7:])
        shown = _parse(header)
        if isinstance(shown, str):
            return self._by_token(shown)
        if shown is not None:
            name, password = shown
            user = self._users.by_name.get(name)
            if user is not None and self._passwords.known(user, password):
                return self._caller(user, "password")
        return None

    def _by_token(self, text: str) -> Caller | None:
        found = self._token(text)
        if found is None:
            return None
        caller = self._caller(found[0], "token", found[1].id)
        return caller if time.time() < caller.ends else None

    def _token(self, text: str) -> tuple[User, Token] | None:
        """Return the token of a text and whose it is, also if it has ended."""
        # `parse_token` would look at each character first: what has the right SHA-256 has the right form.
        found = self._users.token(text[_TOKEN_ID])
        return found if found and compare_digest(sha256(text.encode()).digest(), found[1].sha256) else None

    def _by_certificate(self, names: Sequence[str]) -> Caller | None:
        for text in names:
            name = certificate_name(text)
            user = name and self._users.by_certificate.get(name)
            if name and user:
                return self._caller(user, "certificate", name)
        return None

    def _caller(self, user: User, method: Method, credential: str = "") -> Caller:
        key = method, credential or user.name
        caller = self._callers.get(key)
        if caller is None:
            caller = self._callers[key] = Caller(user, method, credential)
            self._next_end = min(self._next_end, caller.ends)
        return caller

    async def _log_in(self, shown: Shown) -> Caller:
        try:
            return await self._checked(shown)
        except LoginError as error:
            self._metrics.login(error.method, "slowed" if error.reason == "slowed" else "refused")
            raise

    async def _checked(self, shown: Shown) -> Caller:
        if not shown.authorizations:
            caller = self._by_certificate(shown.certificate)
            if caller is None:
                method: Method = "certificate" if shown.certificate else "none"
                raise LoginError(_MISSING, "missing", ", ".join(shown.certificate), method)
            return caller
        header, *more = shown.authorizations
        caller = None if more else self._at_once(header)
        if caller is not None:
            return caller
        match None if more else _parse(header):
            case str(text):
                raise self._token_refusal(text)
            case (name, password):
                return await self._by_password(name, password, shown.address)
        raise LoginError(_WRONG, "malformed")

    def _token_refusal(self, text: str) -> LoginError:
        """Return why a token is refused. Nobody guesses 256 bits: a wrong one slows nobody down."""
        found = self._token(text)
        if found is not None:
            return token_ended(*found)
        return LoginError(_WRONG, "wrong" if parse_token(text) else "malformed", method="token")

    async def _by_password(self, name: str, password: str, address: str) -> Caller:
        """Check a password. Calls that show the same at the same time share one attempt, which none of them ends."""
        key = address, name, password
        attempt = self._attempts.get(key)
        if attempt is None:
            self._require_patience(address, name)
            self._throttle.begin(address, name)  # not in the task: others of the same moment would not see it
            attempt = self._attempts[key] = asyncio.create_task(self._verify(name, password, address))
            attempt.add_done_callback(lambda _: self._attempts.pop(key))
        hashed = await asyncio.shield(attempt)
        user = self._users.by_name.get(name)  # of now: the file may have changed meanwhile
        if hashed is None or user is None or user.password != hashed:
            raise LoginError(_WRONG, "wrong", self._noted(name), "password")
        return self._caller(user, "password")

    async def _verify(self, name: str, password: str, address: str) -> str | None:
        """End an attempt that has begun; return the hash of the password if it is the user's."""
        user = self._users.by_name.get(name)
        end = self._throttle.failed
        try:
            if await self._passwords.verify(user, name, password) and user is not None:
                end = self._throttle.succeeded
                return user.password
            return None
        except PasswordsBusyError as error:
            end = self._throttle.dropped
            raise LoginError(str(error), "slowed", self._noted(name), "password") from None
        finally:
            end(address, name)

    def _require_patience(self, address: str, name: str) -> None:
        """Refuse an attempt too soon after failures."""
        seconds = self._throttle.blocked_s(address, name)
        if seconds > 0:
            raise LoginError(
                # Clients that try again by themselves show the last answer alone: it says what was wrong, too.
                "too many failed logins, as this user or from this address, with a wrong user, password or token: try "
                f"again in {math.ceil(seconds)} s",
                "slowed",
                self._noted(name),
                "password",
            )

    def _noted(self, name: str) -> str:
        """Return a name as it may be noted: a token, nearly right, or a password may have been given as one."""
        if name in self._users.by_name or len(name) <= _NOTED_MAX:
            return name
        return f"{name[:_NOTED_MAX]}..."

    def _logged_in(self, caller: Caller, address: str) -> None:
        self._metrics.login(caller.method, "ok")
        self._audit.note("login", user=caller.name, method=caller.method, address=address)

    def _look(self) -> None:
        """End the logins with tokens that have ended."""
        self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)
        now = time.time()
        if now >= self._next_end:
            for caller in self._callers.values():
                caller.expire(now)
            self.end_gone()


def _parse(header: str) -> str | tuple[str, str] | None:
    """Return the token of a header, or its user and password; None if it has neither."""
    scheme, _, text = header.partition(" ")
    match scheme.lower():
        case "bearer":
            return text.strip()
        case "basic":
            try:
                name, colon, password = base64.b64decode(text.strip(), validate=True).decode().partition(":")
            except ValueError:
                return None
            return (name, password) if colon else None
    return None
