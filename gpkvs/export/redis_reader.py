"""Reads the keys of a Redis or Valkey server, with their expiries. It needs the extra ``redis``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gpkvs.config import Limits
from gpkvs.credentials import TlsCredentials
from gpkvs.export.file_format import ExportError
from gpkvs.export.reader import Record
from gpkvs.text import counted, quoted

_SCAN_KEYS = 1000
_PART_BYTES_MAX = 4 << 20  # of the values that are asked for at once; one value at least
_NAMES_MAX = 3
_CONNECT_SECONDS_MAX = 10.0  # a Redis in plain lets a TLS handshake wait


@dataclass(frozen=True)
class RedisServer:
    """Where a Redis is, and what it needs to let us in."""

    host: str
    port: int
    database: int = 0
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: TlsCredentials | None = None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass
class LeftOut:
    """Keys that gpkvs cannot hold: how many for each reason, and the names of the first."""

    counts: dict[str, int] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)

    def add(self, reason: str, key: bytes) -> None:
        """Count a key."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        names = self.names.setdefault(reason, [])
        if len(names) < _NAMES_MAX:
            names.append(quoted(key))

    def __len__(self) -> int:
        return sum(self.counts.values())

    def __str__(self) -> str:
        return "; ".join(
            f"{counted(count, 'key')} {reason}: {', '.join(self.names[reason])}{' ...' * (count > _NAMES_MAX)}"
            for reason, count in self.counts.items()
        )


class RedisReader:
    """The keys of one database.

    Parameters
    ----------
    server
        Whose.
    limits
        Keys that are over them are left out.
    timeout
        Seconds to wait for a response.

    Attributes
    ----------
    keys
        How many there were at the beginning.
    left_out
        What was left out so far.

    Raises
    ------
    ExportError
        If it cannot be read, or redis-py is missing; the message says what to do.
    """

    def __init__(self, server: RedisServer, limits: Limits, *, timeout: float) -> None:
        try:
            import redis  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise ExportError(f"to read Redis needs redis-py ({error}): run pip install 'gpkvs[redis]'") from error
        self._redis = redis
        self._server = server
        self._limits = limits
        self.left_out = LeftOut()
        with self._explained():
            self._client = self._connected(timeout)
            if self._is_of_cluster():
                raise ExportError(
                    f"{server} is a node of a Redis Cluster, and its keys are a part: for each master, load what "
                    "`redis-cli --rdb` writes into a Redis of its own, and import from that"
                )
            self._has_pexpiretime = self._knows_pexpiretime()
            self.keys: int = self._client.dbsize()

    def chunks(self) -> Iterator[list[Record]]:
        """Yield the records, some at a time: each key's value and expiry of one moment.

        Raises
        ------
        ExportError
            If the server is away or refuses: then the whole is read again.
        """
        cursor = 0
        with self._explained():
            while True:
                cursor, keys = self._client.scan(cursor, count=_SCAN_KEYS)
                for part in self._parts(list(dict.fromkeys(keys))):
                    yield self._records(part)
                if cursor == 0:
                    return

    def _connected(self, timeout: float) -> Any:
        """Return a client whose SCAN keeps to one connection: after a restart of Redis a cursor would miss keys."""
        from redis.backoff import NoBackoff  # noqa: PLC0415 - an extra
        from redis.retry import Retry  # noqa: PLC0415

        server, tls = self._server, self._server.tls
        arguments: dict[str, Any] = {}
        if tls is not None:
            tls.context()  # its errors name the file
            arguments = {
                "ssl": True,
                "ssl_check_hostname": True,
                "ssl_ca_certs": tls.ca,
                "ssl_certfile": tls.cert,
                "ssl_keyfile": tls.key,
            }
        return self._redis.Redis(
            host=server.host,
            port=server.port,
            db=server.database,
            username=server.user,
            password=server.password,
            socket_timeout=timeout,
            socket_connect_timeout=min(timeout, _CONNECT_SECONDS_MAX),
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            single_connection_client=True,
            **arguments,
        )

    def _is_of_cluster(self) -> bool:
        try:
            return bool(self._client.info("cluster").get("cluster_enabled"))
        except self._redis.exceptions.NoPermissionError:
            return False  # then the first transaction on keys of several slots is refused

    def _knows_pexpiretime(self) -> bool:
        """Whether it is as new as Redis 7."""
        try:
            self._client.pexpiretime(b"gpkvs")
        except self._redis.ResponseError as error:
            if "unknown command" not in str(error):
                raise
            return False
        return True

    def _parts(self, keys: list[bytes]) -> Iterator[list[bytes]]:
        """Yield the keys that fit, as many at a time as their values allow."""
        part: list[bytes] = []
        held = 0
        for key, length in self._of_strings(keys, self._piped(keys, "strlen")):
            if not self._fits(key, length):
                continue
            if part and held + length > _PART_BYTES_MAX:
                yield part
                part, held = [], 0
            part.append(key)
            held += length
        if part:
            yield part

    def _fits(self, key: bytes, length: int) -> bool:
        limits = self._limits
        if not limits.key_bytes_min <= len(key) <= limits.key_bytes_max:
            self.left_out.add(f"not of {limits.key_bytes_min} to {limits.key_bytes_max:,} bytes", key)
        elif length > limits.value_bytes_max:
            self.left_out.add(f"with a value of more than {limits.value_bytes_max:,} bytes", key)
        else:
            return True
        return False

    def _records(self, keys: list[bytes]) -> list[Record]:
        """Read values and expiries in one transaction; a key that has gone has none."""
        with self._client.pipeline(transaction=True) as pipe:
            pipe.time()
            for key in keys:
                pipe.get(key)
                (pipe.pexpiretime if self._has_pexpiretime else pipe.pttl)(key)
            (seconds, microseconds), *replies = pipe.execute(raise_on_error=False)
        now = 0 if self._has_pexpiretime else seconds * 1000 + microseconds // 1000
        values = list(zip(replies[::2], replies[1::2], strict=True))
        return [
            (key, value, now + expiry if expiry >= 0 else 0)
            for key, (value, expiry) in self._of_strings(keys, values)
            if value is not None and self._fits(key, len(value))
        ]

    def _of_strings(self, keys: list[bytes], replies: list[Any]) -> list[tuple[bytes, Any]]:
        """Return the keys that hold strings, with the replies about them; leave out the others, by their types."""
        found = []
        others = []
        for key, reply in zip(keys, replies, strict=True):
            error = reply[0] if isinstance(reply, tuple) else reply
            if not isinstance(error, Exception):
                found.append((key, reply))
            elif str(error).startswith("WRONGTYPE"):
                others.append(key)
            else:
                raise error
        for key, kind in zip(others, self._piped(others, "type"), strict=True):
            if kind != b"none":  # else it has gone
                self.left_out.add(f"of the type {kind.decode()}", key)
        return found

    def _piped(self, keys: list[bytes], command: str) -> list[Any]:
        with self._client.pipeline(transaction=False) as pipe:
            for key in keys:
                getattr(pipe, command)(key)
            replies: list[Any] = pipe.execute(raise_on_error=False)
        return replies

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise an error of the server as one that says what to do."""
        kinds = self._redis.exceptions
        try:
            yield
        except kinds.RedisError as error:
            raise ExportError(f"{self._server}: {str(error).rstrip('.')}{self._advice(error)}") from error

    def _advice(self, error: Exception) -> str:
        kinds = self._redis.exceptions
        match error:
            case kinds.NoPermissionError():
                return ": give the user +info +dbsize +scan +type +strlen +get +pexpiretime +time +multi +exec ~*"
            case kinds.AuthenticationError():
                return ": put the password in GPKVS_REDIS_PASSWORD, or with the user in the file of --redis-credentials"
            case kinds.BusyLoadingError():
                return ": try again later"
            case kinds.ConnectionError() | kinds.TimeoutError():
                return ": is a Redis there, and does it speak TLS or plain?"
        return ""
