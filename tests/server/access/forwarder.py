"""Connections that come from another address of this machine: gRPC lets no client choose its own."""

from __future__ import annotations

import socket
from contextlib import suppress
from threading import Thread


class Forwarder:
    """Forwards connections to a server from an address such as 127.0.1.7; `target` is where it listens."""

    def __init__(self, server: str, address: str) -> None:
        host, port = server.rsplit(":", 1)
        self._server, self._address = (host, int(port)), address
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open = [self._listener]
        self.target = f"127.0.0.1:{self._listener.getsockname()[1]}"
        Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Forwarder:
        return self

    def __exit__(self, *exception: object) -> None:
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server, source_address=(self._address, 0))
                self._open += [client, server]
                for one, other in ((client, server), (server, client)):
                    Thread(target=_pump, args=(one, other), daemon=True).start()


def _pump(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while data := one.recv(1 << 16):
            other.sendall(data)
    with suppress(OSError):
        other.shutdown(socket.SHUT_RDWR)
