"""What other machines can reach: nothing plain and nobody unknown, unless the settings say so."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from gpkvs.config import ServerConfig
from gpkvs.errors import InvalidArgumentError
from gpkvs.server.ports.address import Address

_log = logging.getLogger("gpkvs.server")


def exposure_faults(config: ServerConfig, option: str, address: Address) -> Iterator[InvalidArgumentError]:
    """Return what is wrong with an address beyond this machine: it has no TLS, or does not know its clients.

    The settings may allow that.
    """
    missing = _missing(config, address)
    if missing and not config.insecure_listen:
        yield InvalidArgumentError(
            f"other machines reach {address}, and there is {missing}: give the server --tls-cert, --tls-key, and "
            "--users or --tls-client-ca; or say --insecure-listen if you trust everybody on that network",
            field=option,
        )


def warn_of_exposure(config: ServerConfig, listen: Address, metrics: Address, resp: Address | None = None) -> None:
    """Log what listens beyond this machine without protection."""
    for what, address in (("gRPC", listen), ("metrics", metrics), *((("Redis protocol", resp),) if resp else ())):
        missing = _missing(config, address)
        if missing:
            _log.warning(
                "%s on %s: there is %s (--insecure-listen): trust everybody on that network",
                what,
                address,
                missing,
                extra={"event": "unprotected", "port": what, "address": str(address), "missing": missing},
            )


def _missing(config: ServerConfig, address: Address) -> str:
    """Return what an address lacks, in words."""
    if address.is_loopback:
        return ""
    lacks = [] if config.tls_cert else ["no TLS"]
    if not (config.users or config.tls_client_ca):
        lacks.append("no login by users or client certificates")
    return ", and ".join(lacks)
