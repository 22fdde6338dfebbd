"""Values as Python objects, packed with msgpack: a codec on top of whatever has keys and values.

MessagePack, because clients in every language that gRPC knows can read it. It holds None, bool, int of 64 bits, float,
str, bytes, lists, maps, and times with a zone.

`get` returns an object that is equal to the one that `set` was given. There are four exceptions: a tuple becomes a
list, a bytearray becomes bytes, a NaN stays one, and a time keeps its moment but gets the zone UTC. What could not be
read back so is refused before anything is stored.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgpack

from gpkvs.client.async_face import AsyncKeyValues
from gpkvs.errors import InvalidArgumentError
from gpkvs.face import KeyValues
from gpkvs.operations import Bytes, Ttl
from gpkvs.process.own_timeout import OWN_TIMEOUT, Timeout

_TOO_DEEP: Final = "it is nested too deeply, or holds itself"
_REFUSALS: Final = (TypeError, ValueError, OverflowError, RecursionError, msgpack.UnpackException)


def pack(value: object) -> bytes:
    """Return the bytes that are stored for an object.

    Raises
    ------
    InvalidArgumentError
        If msgpack has no form for it, or one that would be read as something else; with the place in the object.
    """
    try:
        packed: bytes = msgpack.packb(value, datetime=True)
        found = _read(packed)
        if found == value or _is_same(found, value):
            return packed
        reason = "it would come back as another object"
    except _REFUSALS as error:
        reason = _TOO_DEEP if isinstance(error, RecursionError) else str(error)
    try:
        reason = _fault(value, "") or reason
    except RecursionError:
        reason = _TOO_DEEP
    raise InvalidArgumentError(f"msgpack cannot hold it: {reason}", field="value")


def unpack(value: bytes) -> Any:
    """Return the object that was packed into bytes.

    Raises
    ------
    InvalidArgumentError
        If they were not packed with msgpack, or hold what Python has no object for, as a map with lists as keys.
    """
    try:
        return _read(value)
    except _REFUSALS as error:
        raise InvalidArgumentError(
            f"the stored value is no msgpack that Python can read ({type(error).__name__}: {error}): read it with the "
            "client itself",
            field="value",
        ) from error


def _read(packed: bytes) -> Any:
    return msgpack.unpackb(packed, timestamp=3, strict_map_key=False)


def _is_same(found: Any, value: Any) -> bool:
    """Whether an object that was read stands for one that was written."""
    if isinstance(value, dict):
        # A key must be found again, so it must be equal.
        return len(found) == len(value) and all(
            key == before and _is_same(item, value[before])
            for (key, item), before in zip(found.items(), value, strict=True)
        )
    if isinstance(found, list):
        return len(found) == len(value) and all(map(_is_same, found, value))
    if isinstance(value, datetime):
        return bool(found == value.astimezone(UTC))  # in an hour that comes twice, no time equals one of another zone
    return bool(found == value or (found != found and value != value))  # noqa: PLR0124 - NaN


def _fault(value: object, place: str) -> str:
    """Say what in an object cannot be read back, and where; nothing if all parts can, each for itself."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            there = f"{place}[{reprlib.repr(key)}]"
            if found := _part_fault(key, there, is_key=True) or _fault(item, there):
                return found
    elif isinstance(value, (list, tuple)) and not isinstance(value, msgpack.ExtType):
        for number, item in enumerate(value):
            if found := _fault(item, f"{place}[{number}]"):
                return found
    else:
        return _part_fault(value, place, is_key=False)
    return ""


def _part_fault(value: object, place: str, *, is_key: bool) -> str:
    where = f"{place}: " if place else ""
    try:
        found = _read(msgpack.packb(value, datetime=True))
    except _REFUSALS as error:
        return f"{where}{error}"
    if found == value if is_key else _is_same(found, value):
        return ""
    kind = f"{type(value).__name__}{' as a key' if is_key else ''}"
    return f"{where}a {kind} would come back as {reprlib.repr(found)}"


class Objects:
    """Keys with Python objects as values.

    Parameters
    ----------
    client
        A blocking `Client`, or the handle of one of its tables, or a store of this process. The caller closes it.

    Examples
    --------
    >>> from gpkvs.client import Client, Objects
    >>> with Client("127.0.0.1:7171") as client:  # doctest: +SKIP
    ...     objects = Objects(client)
    ...     objects.set(b"user:1", {"name": "Ada", "born": 1815})
    ...     print(objects.get(b"user:1")["name"])
    Ada
    """

    def __init__(self, client: KeyValues) -> None:
        self._client = client

    def get(self, key: Bytes, default: Any = None, *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT) -> Any:
        """Return a key's object, or `default` if there is none.

        Raises
        ------
        InvalidArgumentError
            If the stored value is no msgpack. Further errors as `Client.get`.
        """
        value = self._client.get(key, table=table, timeout=timeout)
        return default if value is None else unpack(value)

    def get_with_version(
        self, key: Bytes, *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT
    ) -> tuple[Any, int] | None:
        """Return a key's object and its version, which `if_version` asks for, or None; errors as `get`."""
        found = self._client.get_with_version(key, table=table, timeout=timeout)
        return None if found is None else (unpack(found[0]), found[1])

    def set(
        self,
        key: Bytes,
        value: object,
        *,
        ttl: Ttl = None,
        if_absent: bool = False,
        if_present: bool = False,
        if_version: int | None = None,
        table: str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> int:
        """Store an object, durably when this returns; return its version.

        Parameters
        ----------
        key
            Bytes.
        value
            An object of which all parts can be read back.
        ttl, if_absent, if_present, if_version, table, timeout
            As `Client.set` has them.

        Raises
        ------
        InvalidArgumentError
            If msgpack cannot hold the object, with the place in it. Further errors as `Client.set`.
        """
        return self._client.set(
            key,
            pack(value),
            ttl=ttl,
            if_absent=if_absent,
            if_present=if_present,
            if_version=if_version,
            table=table,
            timeout=timeout,
        )

    def delete(
        self,
        key: Bytes,
        *,
        if_version: int | None = None,
        table: str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> bool:
        """Remove a key, durably, and return whether it was there; parameters and errors as `Client.delete`."""
        return self._client.delete(key, if_version=if_version, table=table, timeout=timeout)


class AsyncObjects:
    """Keys of an `AsyncClient`, or of the handle of one of its tables, with Python objects as values; as `Objects`."""

    def __init__(self, client: AsyncKeyValues) -> None:
        self._client = client

    async def get(
        self, key: Bytes, default: Any = None, *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT
    ) -> Any:
        """Return a key's object, or `default` if there is none; errors as `Objects.get`."""
        value = await self._client.get(key, table=table, timeout=timeout)
        return default if value is None else unpack(value)

    async def get_with_version(
        self, key: Bytes, *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT
    ) -> tuple[Any, int] | None:
        """Return a key's object and its version, or None; as `Objects.get_with_version`."""
        found = await self._client.get_with_version(key, table=table, timeout=timeout)
        return None if found is None else (unpack(found[0]), found[1])

    async def set(
        self,
        key: Bytes,
        value: object,
        *,
        ttl: Ttl = None,
        if_absent: bool = False,
        if_present: bool = False,
        if_version: int | None = None,
        table: str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> int:
        """Store an object, durably when this returns; return its version. Parameters and errors as `Objects.set`."""
        return await self._client.set(
            key,
            pack(value),
            ttl=ttl,
            if_absent=if_absent,
            if_present=if_present,
            if_version=if_version,
            table=table,
            timeout=timeout,
        )

    async def delete(
        self,
        key: Bytes,
        *,
        if_version: int | None = None,
        table: str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> bool:
        """Remove a key, durably, and return whether it was there; parameters and errors as `AsyncClient.delete`."""
        return await self._client.delete(key, if_version=if_version, table=table, timeout=timeout)
