"""The connections to ports of this process, by their other end."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

_DESCRIPTORS = Path("/proc/self/fd")
_FAMILIES = (socket.AF_INET, socket.AF_INET6)


class End(NamedTuple):
    """The other end of a connection."""

    address: str
    port: int


def end_of(peer: str) -> End:
    """Return the other end of a connection by its name in gRPC: ``ipv4:127.0.0.1:5000``, ``ipv6:%5B::1%5D:5000``."""
    host, _, port = unquote(peer.partition(":")[2]).rpartition(":")
    return End(plain_address(host.strip("[]")), int(port))


def plain_address(host: str) -> str:
    """Return an IP address in its one spelling, whether gRPC or the system has written it."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def open_ends(ports: Collection[int]) -> set[End]:
    """Return the other ends of all connections to some ports."""
    return {end for _, end in _connections(ports)}


def _connections(ports: Collection[int]) -> Iterator[tuple[socket.socket, End]]:
    for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208 - as paths ten thousand take longer than all the rest
        with suppress(OSError), _socket(int(name)) as found:  # it listens, or has ended
            if found.family in _FAMILIES and found.getsockname()[1] in ports:
                host, other_port = found.getpeername()[:2]
                yield found, End(plain_address(host), other_port)


def _socket(descriptor: int) -> socket.socket:
    """Return a socket for a descriptor of one, with a descriptor of its own: the door may close the other at any time.

    Raises
    ------
    OSError
        If it is none.
    """
    own = os.dup(descriptor)
    try:
        return socket.socket(fileno=own)
    except OSError:
        os.close(own)
        raise
