"""What a server takes, for commands that look at records before they send them."""

from __future__ import annotations

from gpkvs.client import AccessDeniedError, Client
from gpkvs.config import Limits


def limits_of(client: Client) -> Limits | None:
    """Return the limits of a server; None for a user whom it does not tell them."""
    try:
        info = client.info()
    except AccessDeniedError:
        return None
    return Limits(key_bytes_max=info.key_bytes_max, value_bytes_max=info.value_bytes_max)
