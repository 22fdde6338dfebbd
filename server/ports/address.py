"""Where the server listens: HOST:PORT, and a clear error when that is not possible."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from gpkvs.errors import GpkvsError, InvalidArgumentError
from gpkvs.text import quoted


class ListenError(GpkvsError):
    """The operating system does not let the server listen at an address."""


@dataclass(frozen=True)
class Address:
    """A TCP address; port 0 stands for any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_address(text: str, option: str) -> Address:
    """Parse ``HOST:PORT`` or ``[IPV6]:PORT``.

    Raises
    ------
    InvalidArgumentError
        Naming the option.
    """
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65_535
    if not colon or not host or not is_port or (":" in host) != bracketed:
        raise InvalidArgumentError(
            f"{quoted(text)} is not HOST:PORT with a port of 0 to 65535 (0 takes a free one), such as 127.0.0.1:7171",
            field=option,
        )
    return Address(host, int(port))


def require_free(address: Address, option: str) -> None:
    """Try an address out: gRPC does not say why it cannot listen, the operating system does.

    Raises
    ------
    ListenError
        Naming the option.
    """
    bound_socket(address, option).close()


def bound_socket(address: Address, option: str) -> socket.socket:
    """Return a socket that listens at an address.

    Raises
    ------
    ListenError
        Naming the option.
    """
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            listener.listen()
        except BaseException:
            listener.close()
            raise
        return listener
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that no host can have
        reason = getattr(error, "strerror", None) or error
        raise ListenError(
            f"cannot listen on {address} ({option}): {reason}; choose another address, or port 0 for a free one"
        ) from error
