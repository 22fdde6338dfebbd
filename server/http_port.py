"""The port for operators, over HTTP: metrics, and whether the server lives and serves.

    GET /metrics    the metrics, for Prometheus
    GET /healthz    200 while the process lives
    GET /readyz     200 while the server serves, else 503 and why

The event loop keeps the connections; they take no thread. A connection carries one request and has one deadline, the
handshake of TLS included. If too many are open, the server ends the one that has waited longest for its client: for the
handshake, for the request, or until the response is read. A client that opens many connections and sends nothing, or
does not read, keeps nobody out. If none waits for its client, the one goes whose response has taken longest to make.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from email.message import Message
from email.parser import Parser
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, make_wsgi_app

from gpkvs.errors import GpkvsError
from gpkvs.server.access.caller import LoginError
from gpkvs.server.access.connections import plain_address
from gpkvs.server.access.login import Logins, Shown
from gpkvs.server.access.rights import RightsError
from gpkvs.server.gate import Gate, NotServingError
from gpkvs.server.ports.address import Address, bound_socket
from gpkvs.server.ports.open_files import is_kept, kept
from gpkvs.server.ports.tls import Tls, names_of_certificate
from gpkvs.server.signs.refused_connections import Reasons
from gpkvs.server.threads import begun_threads

CONNECTIONS_MAX = 128
CONNECTION_SECONDS_MAX = 10.0
_HEAD_BYTES_MAX = 16 << 10
_ACCEPT_AGAIN_SECONDS = 0.1
_METHODS = ("GET", "HEAD")
_CHALLENGES = (("WWW-Authenticate", 'Basic realm="gpkvs"'), ("WWW-Authenticate", 'Bearer realm="gpkvs"'))
_PATHS = ("/metrics", "/healthz", "/readyz")
# Of connections that end before they are of use.
REASONS: Reasons = {
    "gave_way": (
        logging.WARNING,
        "the metrics port was full, they had waited longest for their clients, and newer ones needed their places",
    ),
    "slow": (
        logging.INFO,
        f"no request came to the metrics port within {CONNECTION_SECONDS_MAX:g} s, or nobody read the answer",
    ),
    "handshake": (logging.DEBUG, "the handshake of TLS with the metrics port failed"),
    "invalid": (logging.DEBUG, "no request of HTTP/1 came to the metrics port"),
    "memory_full": (logging.WARNING, "the process got no memory for them, or for the metrics (ulimit -v, MemoryMax)"),
}

_Task: TypeAlias = "asyncio.Task[None]"


class _Response(NamedTuple):
    status: HTTPStatus
    body: bytes
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "text/plain; charset=utf-8"),)

    def pack(self, *, with_body: bool) -> bytes:
        """Return the bytes to send; the response to a HEAD has the headers only."""
        headers = (
            *self.headers,
            ("Content-Length", str(len(self.body))),
            ("Date", formatdate(usegmt=True)),
            ("Connection", "close"),
        )
        lines = [f"HTTP/1.1 {self.status.value} {self.status.phrase}", *(f"{name}: {value}" for name, value in headers)]
        return "\r\n".join([*lines, "\r\n"]).encode("latin-1") + (self.body if with_body else b"")


def _text(status: HTTPStatus, text: str, *headers: tuple[str, str]) -> _Response:
    return _Response(status, f"{text}\n".encode(), _Response._field_defaults["headers"] + headers)


class HttpPort:
    """Serves operators; used inside its event loop.

    Parameters
    ----------
    registry
        The metrics.
    gate
        Says whether the server serves.
    logins
        Says who may read the metrics.
    tls
        Makes it HTTPS. With a client CA, only who shows a certificate of it gets the metrics.
    connection_seconds_max
        How long a connection may take, from its start to the last byte of the response.

    Attributes
    ----------
    refused
        How many connections ended before they were of use, by reason: `gave_way` to newer ones, `slow`, `handshake` of
        TLS failed, `invalid` as a request, `memory_full` where the process got no memory for it.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        gate: Gate,
        logins: Logins,
        tls: Tls | None = None,
        *,
        connection_seconds_max: float = CONNECTION_SECONDS_MAX,
    ) -> None:
        self._metrics = make_wsgi_app(registry)
        self._gate = gate
        self._logins = logins
        self._tls = tls
        self._connection_seconds_max = connection_seconds_max
        # Collecting takes milliseconds, too long for the event loop; any thread may read a store's numbers.
        self._scraper = begun_threads("metrics")
        self.refused = dict.fromkeys(REASONS, 0)
        # Connections that wait for their client, and those whose response is being made; each has the longest first.
        self._waiting: dict[_Task, None] = {}
        self._responding: dict[_Task, None] = {}
        self._accepting: _Task | None = None
        self._is_closing = False

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._waiting) + len(self._responding)

    async def listen(self, address: Address) -> Address:
        """Open the port; return the address it got.

        Raises
        ------
        ListenError
            If the operating system refuses.
        """
        listener = bound_socket(address, "metrics")
        listener.setblocking(False)
        port = listener.getsockname()[1]
        self._accepting = asyncio.create_task(self._accept(listener))
        return Address(address.host, port)

    def close(self) -> None:
        """Close the port and every connection."""
        self._is_closing = True
        if self._accepting:
            self._accepting.cancel()
        for connection in (*self._waiting, *self._responding):
            connection.cancel()
        self._scraper.shutdown(wait=False, cancel_futures=True)

    async def _accept(self, listener: socket.socket) -> None:
        """Take connections until the port is closed; end the oldest that waits if there are too many."""
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                try:
                    self._take(*await loop.sock_accept(listener))
                    await asyncio.sleep(0)  # the system may have one more at once: everything else would wait
                except (OSError, MemoryError) as error:  # the process has as many open files as it may
                    self.refused["memory_full"] += isinstance(error, MemoryError)
                    await asyncio.sleep(_ACCEPT_AGAIN_SECONDS)

    def _take(self, accepted: socket.socket, _address: object) -> None:
        connection = asyncio.get_running_loop().create_task(self._serve(accepted))
        connection.add_done_callback(self._forget)
        self._make_room(kept() // 2 if is_kept(accepted) else CONNECTIONS_MAX)
        self._waiting[connection] = None

    def _make_room(self, connections_max: int) -> None:
        """End connections until there may be one more."""
        while connections := self._waiting or self._responding:
            if len(self._waiting) + len(self._responding) < connections_max:
                return
            self._end(next(iter(connections)))

    def _end(self, connection: _Task) -> None:
        self._forget(connection)
        self.refused["gave_way"] += 1
        connection.cancel()

    def _forget(self, connection: _Task) -> None:
        self._waiting.pop(connection, None)
        self._responding.pop(connection, None)

    async def _serve(self, accepted: socket.socket) -> None:
        """Respond to one connection's request."""
        connection: Any = asyncio.current_task()
        try:
            async with (
                asyncio.timeout(self._connection_seconds_max) as deadline,
                self._streams(accepted) as (reader, writer),
            ):
                try:
                    head = await _request(reader)
                except asyncio.CancelledError:
                    await self._say_why(writer, is_late=deadline.expired())
                    raise
                self._waiting.pop(connection)
                self._responding[connection] = None
                response = await self._respond(head, writer.get_extra_info)
                self._responding.pop(connection)
                self._waiting[connection] = None
                writer.write(response)
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except TimeoutError:
            self.refused["slow"] += 1
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client went, or cannot speak TLS
        except MemoryError:
            self.refused["memory_full"] += 1

    async def _say_why(self, writer: asyncio.StreamWriter, *, is_late: bool) -> None:
        """Tell a client that it is not served, as far as its socket takes that at once."""
        if self._is_closing:
            word = self._readiness()
        elif is_late:
            word = _text(HTTPStatus.REQUEST_TIMEOUT, f"no request within {self._connection_seconds_max:g} s")
        else:
            word = _text(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections: closed for a newer one")
        writer.write(word.pack(with_body=True))
        await asyncio.sleep(0)  # TLS, and uvloop, send it at the end of this turn of the loop

    @asynccontextmanager
    async def _streams(
        self, accepted: socket.socket
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Open a connection, with the TLS of now, and end it at once when the block ends."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(_HEAD_BYTES_MAX)
        protocol = asyncio.StreamReaderProtocol(reader)
        context = self._tls.context if self._tls else None
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, accepted, ssl=context)
        except BaseException as error:
            self.refused["handshake"] += isinstance(error, OSError)
            accepted.close()  # the error keeps it: its client would wait
            raise
        try:
            yield reader, asyncio.StreamWriter(transport, protocol, reader, loop)
        finally:
            transport.abort()

    async def _respond(self, head: bytes, info: Callable[[str], Any]) -> bytes:
        """Return the response to a request; the body of the request, if any, is not read.

        Parameters
        ----------
        head
            The request's first line and headers.
        info
            Tells of its connection.
        """
        try:
            line, _, fields = head.decode("latin-1").partition("\r\n")
            method, target, version = line.split(" ")
            if not version.startswith("HTTP/1."):
                raise ValueError(version)
            path, query = urlsplit(target)[2:4]
        except ValueError:
            self.refused["invalid"] += 1
            return _text(HTTPStatus.BAD_REQUEST, "this is no request of HTTP/1").pack(with_body=True)
        if path not in _PATHS:
            response = _text(HTTPStatus.NOT_FOUND, f"there are {', '.join(_PATHS)}")
        elif method not in _METHODS:
            response = _text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD", ("Allow", ", ".join(_METHODS)))
        elif path == "/healthz":
            response = _text(HTTPStatus.OK, "alive")
        elif path == "/readyz":
            response = self._readiness()
        elif self._tls and self._tls.files.client_ca and not info("peercert"):
            response = _text(HTTPStatus.FORBIDDEN, "show a client certificate")
        else:
            headers = Parser().parsestr(fields, headersonly=True)
            response = await self._metrics_for(query, headers, info)
        return response.pack(with_body=method != "HEAD")

    async def _metrics_for(self, query: str, headers: Message, info: Callable[[str], Any]) -> _Response:
        """Return the metrics, or why somebody may not read them."""
        peer = info("peername")
        address = plain_address(peer[0]) if peer else ""  # it has gone
        names = names_of_certificate(info("peercert") or {})
        try:
            await self._logins.require_metrics(Shown(headers.get_all("Authorization", []), names, address))
        except (LoginError, RightsError) as error:
            self._logins.note_refusal(error, address, "/metrics")
            if isinstance(error, LoginError):
                return _text(HTTPStatus.UNAUTHORIZED, str(error), *_CHALLENGES)
            return _text(HTTPStatus.FORBIDDEN, str(error))
        try:
            return await asyncio.get_running_loop().run_in_executor(self._scraper, self._scrape, query, headers)
        except MemoryError:
            self.refused["memory_full"] += 1
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, "the server has no memory to collect the metrics")

    def _readiness(self) -> _Response:
        try:
            self._gate.serving()
        except NotServingError as error:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        return _text(HTTPStatus.OK, "serving")

    def _scrape(self, query: str, headers: Message) -> _Response:
        """Collect the metrics, in the form that the client asks for; in the scraper's thread."""
        environment = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": "/metrics",
            "QUERY_STRING": query,
            "HTTP_ACCEPT": headers.get("Accept"),
            "HTTP_ACCEPT_ENCODING": headers.get("Accept-Encoding"),
        }
        started: list[tuple[str, list[tuple[str, str]]]] = []
        try:
            body = b"".join(self._metrics(environment, lambda status, fields: started.append((status, fields))))
        except GpkvsError as error:  # the store was closed meanwhile
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        (_, fields), *_ = started
        return _Response(HTTPStatus.OK, body, tuple(fields))


async def _request(reader: asyncio.StreamReader) -> bytes:
    """Return the first line and the headers of a request; nothing if it is too long."""
    head = await reader.readexactly(1)
    if not head.isalpha():  # it may be TLS where none is spoken, and its client waits
        return head
    try:
        return head + await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return b""
