"""What is wrong with what a server is given, found before it starts; `gpkvs.config_checks` has the store's part.

`gpkvs serve` and `gpkvs config show` ask here, and say all that is wrong at once.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from gpkvs.config import ServerConfig, StoreConfig
from gpkvs.config_checks import faults_of, store_faults, value_faults
from gpkvs.errors import GpkvsError, InvalidArgumentError
from gpkvs.server.address import Address, parse_address
from gpkvs.server.bounds import bounds_of, memory_bytes_of
from gpkvs.server.exposure import exposure_faults
from gpkvs.server.serve_options import ServeOptions


def setting_faults(store: StoreConfig, server: ServerConfig) -> Iterator[GpkvsError]:
    """Return what is wrong with the settings, without a look at what they name."""
    yield from store_faults(store)
    yield from value_faults(server, by_option=True)
    yield from address_faults(server)
    yield from tls_faults(server)
    limits, memory_bytes = store.limits, memory_bytes_of(server)
    yield from faults_of(bounds_of, server, limits, store.batch_result_bytes_max, memory_bytes, store.changes_bytes)


def address_faults(server: ServerConfig) -> Iterator[GpkvsError]:
    """Return what is wrong with the addresses that a server listens at."""
    taken: dict[Address, str] = {}
    for option in ("listen", "metrics", "resp"):
        text = getattr(server, option)
        if text is None:
            continue
        try:
            address = parse_address(text, option)
        except InvalidArgumentError as error:
            yield error
            continue
        yield from exposure_faults(server, option, address)
        if address.port and address in taken:
            yield InvalidArgumentError(
                f"{address} is that of --{taken[address]}: each has a port of its own", field=option
            )
        taken[address] = option


def tls_faults(server: ServerConfig) -> Iterator[InvalidArgumentError]:
    """Return what is wrong with the choice of files for TLS."""
    if (server.tls_cert or server.tls_key or server.tls_client_ca) and not (server.tls_cert and server.tls_key):
        yield InvalidArgumentError(
            "TLS takes a certificate (--tls-cert) and its key (--tls-key), and --tls-client-ca only beside them",
            field="tls_key" if server.tls_cert else "tls_cert",
        )


def file_faults(options: ServeOptions) -> Iterator[GpkvsError]:
    """Return what is wrong with the files that the settings name; changes none of them."""
    for name, written in (("ready_file", options.ready_file), ("audit_log", options.server.audit_log)):
        if written and (reason := _no_writing(written)):
            yield InvalidArgumentError(f"cannot write {written}: {reason}", field=name)
    if options.server.users:
        from gpkvs.server.access.users import load_users  # noqa: PLC0415 - a server without users needs none of it

        yield from faults_of(load_users, options.server.users)
    if options.server.tls_cert and options.server.tls_key:
        from gpkvs.server.certificates import load  # noqa: PLC0415 - the same for TLS
        from gpkvs.server.tls import tls_files  # noqa: PLC0415

        yield from faults_of(load, tls_files(options.server))


def _no_writing(path: Path) -> str:
    """Return why a file cannot be written, by its own rights and those of its folder; else nothing."""
    found = path if path.exists() else path.parent
    if not found.exists():
        return os.strerror(errno.ENOENT)
    if found is path and found.is_dir():
        return os.strerror(errno.EISDIR)
    if found is not path and not found.is_dir():
        return os.strerror(errno.ENOTDIR)
    return "" if os.access(found, os.W_OK) else os.strerror(errno.EACCES)
