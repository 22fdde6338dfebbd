"""What gRPC leaves to its users to check of a message as it came."""

from __future__ import annotations

import grpc

from gpkvs.errors import GpkvsError

# How a message begins that is compressed with gzip. No message of ours does: it would be a field of a kind that
# protobuf does not have.
_GZIP = b"\x1f\x8b"
# With deflate: of zlib's two bytes the first says how, and both together are a multiple of 31. A message of ours would
# begin so with a field 15, which none has.
_ZLIB, _ZLIB_MULTIPLE = 0x78, 31


class UnsupportedError(GpkvsError):
    """A call that is not as this server takes it, compressed or without a message; it was not executed."""


def require_message(received: object) -> bytes:
    """Return the message of a call, if it has one that is not compressed.

    A compressed message of some KiB may hold GiB, and gRPC bounds each message but not their sum. So gRPC is told to
    decompress none (``grpc.per_message_decompression``); here they are seen and refused.

    Raises
    ------
    UnsupportedError
        If it has none, or one that is compressed.
    """
    if received is grpc.aio.EOF:
        raise UnsupportedError("the call ended without a message: send exactly one")
    assert isinstance(received, bytes)
    if received.startswith(_GZIP) or (
        len(received) > 1 and received[0] == _ZLIB and int.from_bytes(received[:2], "big") % _ZLIB_MULTIPLE == 0
    ):
        raise UnsupportedError("compressed messages are not accepted: send grpc-encoding identity")
    return received
