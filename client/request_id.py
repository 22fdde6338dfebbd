"""The id that a client gives its calls: the server's log and its slow log name them by it, and so do errors.

It belongs to a context (`contextvars`): to a thread, or to a task and those that it starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TypeAlias

from gpkvs.errors import InvalidArgumentError
from gpkvs.proto.metadata import REQUEST_ID_BYTES_MAX, REQUEST_ID_KEY
from gpkvs.text import quoted

Metadata: TypeAlias = tuple[tuple[str, str], ...]

_CURRENT: Final[ContextVar[str]] = ContextVar("request_id", default="")


@contextmanager
def request_id(name: str) -> Iterator[None]:
    """Give the calls of a block an id, such as that of the request which your service serves.

    All calls of both clients that begin in the block have it, in this thread, or in this task and those that it starts.
    A `pipeline` or a scan has the id of the block in which it was begun. Concurrent calls of an `AsyncClient` share
    messages with those of the same id alone. Blocks may be nested: the inner id counts.

    Parameters
    ----------
    name
        1 to 64 characters of printable ASCII, without spaces. It need not be unique.

    Raises
    ------
    InvalidArgumentError
        If it is anything else.

    Examples
    --------
    >>> from gpkvs.client import Client, request_id
    >>> with Client() as client, request_id("order-4711"):  # doctest: +SKIP
    ...     client.set(b"answer", b"42")
    """
    if not 0 < len(name) <= REQUEST_ID_BYTES_MAX or not all("!" <= letter <= "~" for letter in name):
        raise InvalidArgumentError(
            f"{quoted(name)}, it must be 1 to {REQUEST_ID_BYTES_MAX} characters of printable ASCII without spaces",
            field="request_id",
        )
    token = _CURRENT.set(name)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_request_id() -> str:
    """Return the id of the calls that begin now; empty if they have none."""
    return _CURRENT.get()


def named_metadata(metadata: Metadata | None) -> Metadata | None:
    """Return the metadata of a call that begins now, with its id."""
    name = _CURRENT.get()
    return (*(metadata or ()), (REQUEST_ID_KEY, name)) if name else metadata
