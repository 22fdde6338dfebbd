"""The users' file of a server, read again when it changes."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gpkvs.process.garbage import without_collections
from gpkvs.server.access.audit import AuditLog
from gpkvs.server.access.users import User, Users, UsersError, load_users
from gpkvs.server.signs.exporter import Metrics
from gpkvs.server.watched_files import WatchedFiles, look_at
from gpkvs.text import counted

_log = logging.getLogger("gpkvs.server")


class UsersFile:
    """Reads the users' file; used inside an event loop.

    Parameters
    ----------
    path
        The file.
    metrics
        Says whether it is in force as it is.
    audit
        Notes its changes.

    Attributes
    ----------
    users
        Those in force.

    Raises
    ------
    UsersError
        If the file cannot be used.
    """

    def __init__(self, path: Path, metrics: Metrics, audit: AuditLog) -> None:
        self._path = path
        self._metrics = metrics
        self._audit = audit
        self._reading = threading.Lock()
        self._take: Callable[[Users], None] = lambda _: None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched: WatchedFiles | None = None
        self._seen = look_at((path,))
        self.users = load_users(path)
        metrics.users_file_good.set(1)
        metrics.token_end.set_function(lambda: self.users.first_token_end(time.time()))

    def begin(self, take: Callable[[Users], None]) -> None:
        """Read the file again from now on when it changes.

        Parameters
        ----------
        take
            Is given the new users, in the event loop.
        """
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._watched = WatchedFiles((self._path,), self.reload, seen=self._seen)

    def close(self) -> None:
        """Look at the file no more."""
        self._take = lambda _: None
        if self._watched:
            self._watched.close()

    def reload(self) -> bool:
        """Read the file, in any thread, and return whether it can be used. If not, log that; those in force stay."""
        with self._reading:
            try:
                with without_collections():
                    users = load_users(self._path)
            except UsersError as error:
                self._metrics.users_file_good.set(0)
                _log.error("%s; the users stay as they were", error, extra={"event": "users_changed", "good": False})
                return False
            self._metrics.users_file_good.set(1)
            changes = changes_between(self.users, users)
            self.users = users
        if any(changes.values()):
            self._log_changes(len(users.by_name), len(changes["removed"]))
            self._audit.note("users_changed", **changes)
        if self._loop:  # else the watch, once it begins, sees that the file has changed
            self._loop.call_soon_threadsafe(self._hand_over)
        return True

    def _log_changes(self, users: int, removed: int) -> None:
        """Log a change; a warning if users are gone, which somebody may not have meant."""
        _log.log(
            logging.WARNING if removed else logging.INFO,
            "users read again: %s%s",
            counted(users, "user"),
            f", {counted(removed, 'user')} removed: their calls end" if removed else "",
            extra={"event": "users_changed", "good": True, "users": users, "removed": removed},
        )

    def _hand_over(self) -> None:
        """Give away the newest users: two threads that read the file may come here in any order."""
        self._take(self.users)


def changes_between(old: Users, new: Users) -> dict[str, list[str] | dict[str, list[str]]]:
    """Return which users were added and removed, and which fields of which users have changed."""
    before, after = old.by_name, new.by_name
    changed = {name: _fields(before[name], after[name]) for name in sorted(before.keys() & after.keys())}
    return {
        "added": sorted(after.keys() - before.keys()),
        "removed": sorted(before.keys() - after.keys()),
        "changed": {name: fields for name, fields in changed.items() if fields},
    }


def _fields(old: User, new: User) -> list[str]:
    fields = [name for name in ("password", "certificates", "tokens") if getattr(old, name) != getattr(new, name)]
    rights = ("read", "write", "admin", "metrics", "backup")
    return fields + [name for name in rights if getattr(old.rights, name) != getattr(new.rights, name)]
