"""How long a call may take: of a client seconds, None for ever, or what the client says itself."""

from __future__ import annotations

from typing import Final


class OwnTimeout:
    """Stands for the client's own timeout; None means that there is no deadline."""

    def __repr__(self) -> str:
        return "<the client's>"


OWN_TIMEOUT: Final = OwnTimeout()
Timeout = float | None | OwnTimeout
