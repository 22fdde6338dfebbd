"""Checks of a message as it came, which gRPC leaves to its users."""

from __future__ import annotations

from gpkvs.errors import GpkvsError

# A message that is compressed with gzip begins so. No message of ours does: protobuf has no field of that kind.
_GZIP = b"\x1f\x8b"
# A message that is compressed with deflate begins with this byte, and its first two bytes are a multiple of 31. A
# message of ours begins so with a field 15. Only BatchRequest has one, and libraries write its operations before.
_ZLIB, _ZLIB_MULTIPLE = 0x78, 31


class UnsupportedError(GpkvsError):
    """A call that is compressed or has no message: this server takes none such. It was not executed."""


def require_message(received: object) -> bytes:
    """Return the message of a call (None: it has none), if it has one that is not compressed.

    A compressed message of some KiB may hold GiB, and gRPC bounds each message but not their sum. So gRPC decompresses
    none (``grpc.per_message_decompression``), and this function refuses them.

    Raises
    ------
    UnsupportedError
        If the call has no message, or a compressed one.
    """
    if received is None:
        raise UnsupportedError("the call ended without a message: send exactly one")
    assert isinstance(received, bytes)
    if received.startswith(_GZIP) or (
        len(received) > 1 and received[0] == _ZLIB and int.from_bytes(received[:2], "big") % _ZLIB_MULTIPLE == 0
    ):
        raise UnsupportedError("compressed messages are not accepted: send grpc-encoding identity")
    return received
