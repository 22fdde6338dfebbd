"""What a server logs when it starts: each line is text for people, and has the same as fields for machines."""

from __future__ import annotations

import logging
import os
import platform
from typing import NamedTuple

from gpkvs.config import MIB, Limits, ServerConfig
from gpkvs.info import StoreInfo, package_version
from gpkvs.server.access.users import Users
from gpkvs.server.address import Address
from gpkvs.server.bounds import CONNECTION_CALLS_MAX, Bounds
from gpkvs.store import Store
from gpkvs.text import counted

_log = logging.getLogger("gpkvs.server")


def log_start() -> None:
    """Say which server starts."""
    fields = {"event": "start", "version": package_version(), "pid": os.getpid(), "python": platform.python_version()}
    _log.info("gpkvs %(version)s, process %(pid)d, Python %(python)s", fields, extra=fields)


def log_store(store: Store, message_bytes_max: int) -> None:
    """Say what was opened or created, what it holds, and what its persistence domain promises."""
    info = store.info()
    _log_opening(info, is_new=store.is_new)
    records = sum(table.records for table in info.tables)
    _log.info(
        "%s in %s, heap %s of %s MiB, backend %s",
        counted(records, "record"),
        counted(len(info.tables), "table"),
        f"{info.heap_live_bytes / MIB:,.1f}",
        f"{info.heap_bytes / MIB:,.0f}",
        info.backend,
        extra={
            "event": "contents",
            "records": records,
            "tables": len(info.tables),
            "heap_live_bytes": info.heap_live_bytes,
            "heap_bytes": info.heap_bytes,
            "heap_bytes_max": info.heap_bytes_max,
            "backend": info.backend,
        },
    )
    _log.log(
        logging.INFO if store.domain.survives_power_loss else logging.WARNING,
        "persistence domain %s: %s",
        info.domain,
        info.domain_note,
        extra={"event": "domain", "domain": info.domain, "domain_found": info.domain_found},
    )
    _log_commit(info)
    _log_limits(info.limits, message_bytes_max)


def log_memory(memory_bytes_max: int, bounds: Bounds) -> None:
    """Say how much memory clients may take, and how many connections and calls fit into it."""
    fields = {
        "event": "memory",
        "memory_bytes_max": memory_bytes_max,
        "connections_max": bounds.connections_max,
        "connection_calls_max": CONNECTION_CALLS_MAX,
    }
    _log.info(
        "clients may take %s MiB of memory, on %d connections of %d calls each",
        f"{memory_bytes_max / MIB:,.0f}",
        bounds.connections_max,
        CONNECTION_CALLS_MAX,
        extra=fields,
    )


def _log_opening(info: StoreInfo, *, is_new: bool) -> None:
    recovery = info.recovery
    fields: dict[str, object] = {"path": str(info.path), "seconds": recovery.seconds}
    if is_new:
        reserved_bytes = (
            info.heap_bytes + info.log_bytes + info.journal_bytes + sum(table.index_bytes for table in info.tables)
        )
        fields |= {"event": "created", "reserved_bytes": reserved_bytes}
        _log.info("store %s: created, %s MiB reserved", info.path, f"{reserved_bytes / MIB:,.0f}", extra=fields)
    else:
        fields |= {"event": "opened", "undone": recovery.undone, "undone_entries": recovery.undone_entries}
        _log.info("store %s: opened; %s", info.path, recovery.text, extra=fields)


def _log_commit(info: StoreInfo) -> None:
    fields: dict[str, object] = {"event": "commit", "commit": info.commit}
    if info.journal:
        fields |= {"journal_bytes": info.journal_bytes, "journal_is_direct": info.journal.is_direct}
        how = "past" if info.journal.is_direct else "through"
        text = f"a journal of {info.journal_bytes / MIB:,.0f} MiB, written {how} the page cache"
    else:
        fields |= {"log_bytes": info.log_bytes}
        text = f"an undo log of {info.log_bytes / MIB:,.0f} MiB"
    _log.info("batches commit by %s", text, extra=fields)


def _log_limits(limits: Limits, message_bytes_max: int) -> None:
    fields = {
        "event": "limits",
        "key_bytes_max": limits.key_bytes_max,
        "value_bytes_max": limits.value_bytes_max,
        "request_ops_max": limits.request_ops_max,
        "message_bytes_max": message_bytes_max,
    }
    _log.info(
        "limits: key %s B, value %s B, %s operations a request, message %s B",
        *(f"{fields[name]:,}" for name in list(fields)[1:]),
        extra=fields,
    )


def log_access(config: ServerConfig, users: Users | None) -> None:
    """Say who may come in and where that is noted, and warn of names of certificates that nobody can show."""
    _log.info(
        "logins: %s; client certificates: %s; audit log: %s",
        "not asked for" if users is None else f"{counted(len(users.by_name), 'user')} of {config.users}",
        f"of {config.tls_client_ca}" if config.tls_client_ca else "not asked for",
        config.audit_log or "none",
        extra={
            "event": "access",
            "users": None if users is None else len(users.by_name),
            "tls_client_ca": config.tls_client_ca,
            "audit_log": config.audit_log,
        },
    )
    if users and users.by_certificate and not config.tls_client_ca:
        owners = len({user.name for user in users.by_certificate.values()})
        _log.warning(
            "%s of %s cannot log in with certificates: the server takes none without --tls-client-ca",
            counted(owners, "user"),
            config.users,
            extra={"event": "certificates_unused", "users": owners},
        )


class Addresses(NamedTuple):
    """Where the server listens."""

    listen: Address
    metrics: Address
    resp: Address | None  # the Redis protocol


def log_addresses(addresses: Addresses, *, tls: bool) -> None:
    """Say where it serves; the last lines of a start."""
    listen, metrics, resp = addresses
    how = " with TLS" if tls else ""
    _log.info("gRPC%s on %s", how, listen, extra=_listening("gRPC", listen, tls=tls))
    if resp:
        _log.info("Redis protocol%s on %s", how, resp, extra=_listening("Redis protocol", resp, tls=tls))
    _log.info("metrics%s on %s", how, metrics, extra=_listening("metrics", metrics, tls=tls))


def _listening(port: str, address: Address, *, tls: bool) -> dict[str, object]:
    return {"event": "listening", "port": port, "address": str(address), "tls": tls}
