"""Where it is noted who logged in, was refused, or changed what."""

from __future__ import annotations

from gpkvs.errors import GpkvsError


class AuditError(GpkvsError):
    """Something cannot be noted, and so is not done."""


class AuditLog:
    """A log that keeps nothing."""

    def note(self, event: str, **fields: object) -> None:
        """Note what has happened."""

    async def require(self, event: str, **fields: object) -> None:
        """Note what is about to happen.

        Raises
        ------
        AuditError
            If that is not possible.
        """

    def reopen(self) -> None:
        """Open the path again: the file may have been renamed."""

    def close(self) -> None:
        """Note that the server stops, and nothing more."""


NO_AUDIT = AuditLog()
