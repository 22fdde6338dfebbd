"""Ports of this machine, for servers that want to be told one."""

from __future__ import annotations

import secrets
import socket

# Linux gives none of them to a connection, nor to who asks for port 0, unless ip_local_port_range says otherwise.
_PORTS = range(20_000, 32_000)
_claims: list[socket.socket] = []  # kept as long as the process


def free_port() -> int:
    """Return a port that nobody has, and that nobody gets here again before this process ends."""
    while True:
        port = secrets.choice(_PORTS)  # whatever the seed of a test: two of them may run
        if _take(port):
            return port


def _take(port: int) -> bool:
    claim = socket.socket(socket.AF_UNIX)
    with socket.socket() as probe:
        try:
            claim.bind(f"\0gpkvs-port-{port}")  # an abstract name: it goes with the process
            probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            return False
    _claims.append(claim)
    return True
