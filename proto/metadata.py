"""Trailing metadata of a call, the part of the wire contract that the .proto files cannot hold.

A call that failed says with it whether its request may have been executed, and what is full.
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
