"""What other machines can reach: nothing plain and nobody unknown, unless the settings say so."""

from __future__ import annotations

import logging

from gpkvs.config import ServerConfig
from gpkvs.errors import InvalidArgumentError
from gpkvs.server.address import Address

_log = logging.getLogger("gpkvs.server")


def require_protection(config: ServerConfig, listen: Address, metrics: Address, resp: Address | None = None) -> None:
    """Check that what listens beyond this machine has TLS and knows its clients.

    Raises
    ------
    InvalidArgumentError
        If it does not, and the settings do not allow that.
    """
    for option, address in (("listen", listen), ("metrics", metrics), *((("resp", resp),) if resp else ())):
        missing = _missing(config, address)
        if missing and not config.insecure_listen:
            raise InvalidArgumentError(
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
