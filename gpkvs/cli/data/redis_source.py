"""A Redis or Valkey server as the source of `gpkvs import`: its keys."""

from __future__ import annotations

import os
from typing import Any

from gpkvs.cli.data.server_limits import limits_of
from gpkvs.cli.options.access import read_credentials
from gpkvs.cli.options.redis_options import Redis
from gpkvs.client import Client
from gpkvs.config import DEFAULT_TABLE, Limits
from gpkvs.credentials import Access, TlsCredentials
from gpkvs.errors import InvalidArgumentError
from gpkvs.export.importer import Execute, Imported, import_records
from gpkvs.export.redis_reader import LeftOut, RedisReader, RedisServer
from gpkvs.media.layout import BYTES_LAYOUT
from gpkvs.server.ports.address import parse_address


def redis_server(asked: Redis, access: Access) -> RedisServer:
    """Return a Redis as options, environment and a file describe it.

    Raises
    ------
    InvalidArgumentError
        If they make no sense, or a password would leave this machine in plain.
    """
    where = parse_address(asked.address, "from_redis")
    given: dict[str, Any] = {} if asked.credentials is None else read_credentials(asked.credentials)
    password = os.environ.get("GPKVS_REDIS_PASSWORD") or given.get("password") or given.get("token")
    files = [given.get(name) for name in ("tls_ca", "tls_cert", "tls_key")]
    tls = TlsCredentials(*files) if any(files) or given.get("tls") else None
    if password and tls is None and not where.is_loopback and not access.insecure_secrets:
        raise InvalidArgumentError(
            f"the password would go to {where} unencrypted: say tls = true in the file of --redis-credentials, or "
            "allow it (--insecure-secrets)",
            field="redis_credentials",
        )
    return RedisServer(where.host, where.port, asked.database, given.get("user"), password, tls)


class RedisSource:
    """The keys of a database of Redis."""

    layout = BYTES_LAYOUT.name

    def __init__(self, server: RedisServer, client: Client, timeout: float) -> None:
        self._reader = RedisReader(server, limits_of(client) or Limits(), timeout=timeout)
        self.table, self.records = str(server.database) if server.database else DEFAULT_TABLE, self._reader.keys

    @property
    def left_out(self) -> LeftOut:
        """The keys that gpkvs cannot hold."""
        return self._reader.left_out

    def store(self, execute: Execute, *, if_absent: bool, batch_ops: int) -> Imported:
        """Store the records."""
        return import_records(self._reader.chunks(), execute, if_absent=if_absent, batch_ops=batch_ops)
