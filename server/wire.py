"""The check of a message as it came, which gRPC leaves to its users."""

from __future__ import annotations

from gpkvs.errors import GpkvsError


class UnsupportedError(GpkvsError):
    """A call that has no message: this server takes none such. It was not executed."""


def require_message(received: object) -> bytes:
    """Return the message of a call (None: it has none).

    Raises
    ------
    UnsupportedError
        If the call has no message.
    """
    if received is None:
        raise UnsupportedError("the call ended without a message: send exactly one")
    assert isinstance(received, bytes)
    return received
