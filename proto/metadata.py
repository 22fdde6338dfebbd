"""Trailing metadata of a call, the part of the wire contract that the .proto files cannot hold.

A call that failed says with it whether its request may have been executed, what is full, and which check failed.
"""

from __future__ import annotations

from typing import Final

EXECUTED_KEY: Final = "gpkvs-executed"
"""Whether the request was executed. Only `NOT_EXECUTED` is ever sent: it is then safe to send the request again.

At the end of a stream it speaks of the requests without a response.
"""

NOT_EXECUTED: Final = "no"

FULL_KEY: Final = "gpkvs-full"
"""What is full, of a request that was refused for want of room (`gpkvs.errors.NoSpaceError.resource`)."""

FAILED_CHECK_KEY: Final = "gpkvs-failed-check"
"""The number of the first CHECK of a request that failed, decimal, where the request was aborted for it."""

FOUND_KEY: Final = "gpkvs-found"
"""The version or number that the key of that CHECK has, decimal; not there if the key is not."""

REQUEST_ID_KEY: Final = "gpkvs-request-id"
"""The id of a call: a client may send one, and each call that failed ends with it. The server's log and its slow log
have it, too. Where the client gives none that may be one, the server makes it."""

REQUEST_ID_BYTES_MAX: Final = 64
"""How long it may be: characters of printable ASCII, without spaces."""
