"""Values as Python objects, packed with msgpack: a codec on top of either client.

MessagePack, because clients in every language that gRPC knows can read it. It holds None, bool, int of 64 bits, float,
str, bytes, lists, maps, and times with a zone.
"""

from __future__ import annotations

from typing import Any

import msgpack

from gpkvs.client.aio import AsyncClient
from gpkvs.client.sync import Client
from gpkvs.errors import InvalidArgumentError


def pack(value: object) -> bytes:
    """Return the bytes that are stored for an object.

    Raises
    ------
    InvalidArgumentError
        If msgpack has no form for it.
    """
    try:
        packed: bytes = msgpack.packb(value, datetime=True)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgumentError(f"msgpack cannot hold it: {error}", field="value") from error
    return packed


def unpack(value: bytes) -> Any:
    """Return the object that was packed into bytes.

    Raises
    ------
    InvalidArgumentError
        If they were not packed with msgpack.
    """
    try:
        return msgpack.unpackb(value, timestamp=3, strict_map_key=False)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise InvalidArgumentError(
            f"the stored value is no msgpack ({type(error).__name__}): read it with the client itself", field="value"
        ) from error


class Objects:
    """A blocking client's keys with Python objects as values.

    Parameters
    ----------
    client
        The caller closes it.

    Examples
    --------
    >>> from gpkvs.client import Client, Objects
    >>> with Client("127.0.0.1:7171") as client:  # doctest: +SKIP
    ...     objects = Objects(client)
    ...     objects.set(b"user:1", {"name": "Ada", "born": 1815})
    ...     print(objects.get(b"user:1")["name"])
    Ada
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def get(self, key: bytes, default: Any = None) -> Any:
        """Return a key's object, or `default` if there is none.

        Raises
        ------
        InvalidArgumentError
            If the stored value is no msgpack. Further errors as `Client.get`.
        """
        value = self._client.get(key)
        return default if value is None else unpack(value)

    def set(self, key: bytes, value: object) -> int:
        """Write a key durably and return its new version.

        Raises
        ------
        InvalidArgumentError
            If msgpack cannot hold the object. Further errors as `Client.set`.
        """
        return self._client.set(key, pack(value))

    def delete(self, key: bytes) -> bool:
        """Remove a key, durably, and return whether it was there; errors as `Client.delete`."""
        return self._client.delete(key)


class AsyncObjects:
    """An `AsyncClient`'s keys with Python objects as values; as `Objects`."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def get(self, key: bytes, default: Any = None) -> Any:
        """Return a key's object, or `default` if there is none; errors as `Objects.get`."""
        value = await self._client.get(key)
        return default if value is None else unpack(value)

    async def set(self, key: bytes, value: object) -> int:
        """Write a key durably and return its new version; errors as `Objects.set`."""
        return await self._client.set(key, pack(value))

    async def delete(self, key: bytes) -> bool:
        """Remove a key, durably, and return whether it was there."""
        return await self._client.delete(key)
