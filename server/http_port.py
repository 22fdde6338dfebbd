"""The port for operators, over HTTP: metrics, and whether the server lives and serves.

    GET /metrics    the metrics, for Prometheus
    GET /healthz    200 while the process lives
    GET /readyz     200 while the server serves, else 503 and why

The event loop keeps the connections; they take no thread. A connection carries one request and has one deadline. If too
many are open, the server ends the one that has waited longest for its request: a client that opens many connections and
sends nothing, or sends slowly, keeps nobody out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from email.message import Message
from email.parser import Parser
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, make_wsgi_app

from gpkvs.errors import GpkvsError
from gpkvs.server.access.caller import LoginError
from gpkvs.server.access.login import Access, Shown
from gpkvs.server.access.rights import RightsError
from gpkvs.server.address import Address, bound_socket
from gpkvs.server.gate import Gate, NotServingError
from gpkvs.server.tls import names_of_certificate

CONNECTIONS_MAX = 128
CONNECTION_SECONDS_MAX = 10.0
_HEAD_BYTES_MAX = 16 << 10
_METHODS = ("GET", "HEAD")
_CHALLENGES = (("WWW-Authenticate", 'Basic realm="gpkvs"'), ("WWW-Authenticate", 'Bearer realm="gpkvs"'))
_PATHS = ("/metrics", "/healthz", "/readyz")


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
    access
        Says who may read the metrics.
    connection_seconds_max
        How long a connection may take, from its start to the last byte of the response.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        gate: Gate,
        access: Access,
        *,
        connection_seconds_max: float = CONNECTION_SECONDS_MAX,
    ) -> None:
        self._metrics = make_wsgi_app(registry)
        self._gate = gate
        self._access = access
        self._connection_seconds_max = connection_seconds_max
        # Collecting takes milliseconds, too long for the event loop; any thread may read a store's numbers.
        self._scraper = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metrics")
        self._waiting: dict[asyncio.StreamWriter, None] = {}  # for a request; the oldest first
        self._responding: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, address: Address) -> Address:
        """Open the port; return the address it got.

        Raises
        ------
        ListenError
            If the operating system refuses.
        """
        listener = bound_socket(address, "metrics")
        port = listener.getsockname()[1]
        self._server = await asyncio.start_server(self._serve, sock=listener, limit=_HEAD_BYTES_MAX)
        return Address(address.host, port)

    def close(self) -> None:
        """Close the port and every connection."""
        if self._server:
            self._server.close()
        for writer in (*self._waiting, *self._responding):
            writer.transport.abort()
        self._scraper.shutdown(wait=False, cancel_futures=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Respond to one connection's request."""
        try:
            with self._place(writer):
                async with asyncio.timeout(self._connection_seconds_max):
                    try:
                        head = await reader.readuntil(b"\r\n\r\n")
                    except asyncio.LimitOverrunError:
                        head = b""
                    self._waiting.pop(writer, None)
                    self._responding.add(writer)
                    writer.write(await self._respond(head, writer.get_extra_info))
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client went, was too slow, or had to make room
        except asyncio.CancelledError:
            writer.transport.abort()  # the event loop ends; a task that ends as cancelled is logged as a failure

    @contextmanager
    def _place(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        """Count a connection while it is open, and end the oldest that waits if there are too many."""
        self._waiting[writer] = None
        if len(self._waiting) + len(self._responding) > CONNECTIONS_MAX:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.transport.abort()
        try:
            yield
        finally:
            self._waiting.pop(writer, None)
            self._responding.discard(writer)
            writer.transport.abort()

    async def _respond(self, head: bytes, info: Callable[[str], Any]) -> bytes:
        """Return the response to a request; the body of the request, if any, is not read.

        Parameters
        ----------
        head
            The request.
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
            return _text(HTTPStatus.BAD_REQUEST, "this is no request of HTTP/1").pack(with_body=True)
        if path not in _PATHS:
            response = _text(HTTPStatus.NOT_FOUND, f"there are {', '.join(_PATHS)}")
        elif method not in _METHODS:
            response = _text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD", ("Allow", ", ".join(_METHODS)))
        elif path == "/healthz":
            response = _text(HTTPStatus.OK, "alive")
        elif path == "/readyz":
            response = self._readiness()
        else:
            headers = Parser().parsestr(fields, headersonly=True)
            response = await self._metrics_for(query, headers, info)
        return response.pack(with_body=method != "HEAD")

    async def _metrics_for(self, query: str, headers: Message, info: Callable[[str], Any]) -> _Response:
        """Return the metrics, or why somebody may not read them."""
        address = info("peername")[0]
        names = names_of_certificate(info("peercert") or {})
        try:
            await self._access.require_metrics(Shown(headers.get_all("Authorization", []), names, address))
        except (LoginError, RightsError) as error:
            self._access.note_refusal(error, address, "/metrics")
            if isinstance(error, LoginError):
                return _text(HTTPStatus.UNAUTHORIZED, str(error), *_CHALLENGES)
            return _text(HTTPStatus.FORBIDDEN, str(error))
        return await asyncio.get_running_loop().run_in_executor(self._scraper, self._scrape, query, headers)

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
