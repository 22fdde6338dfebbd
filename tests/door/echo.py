"""A door whose calls Python answers at once, with what it is sent."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable
from types import TracebackType

from gpkvs.config import Limits, ServerConfig
from gpkvs.server.account.bounds import bounds_of
from gpkvs.server.calls.context import Opened
from gpkvs.server.door.library import Event, EventKind, Library, Protocol

MIB = 1 << 20
FAILURE = "what is wrong: 100 % of it, naïve\n"
TRAILERS = [("gpkvs-executed", "no"), ("gpkvs-full", "memory")]
LARGE_BYTES = MIB


class Echo:
    """Serves ``/echo/*`` on a free port of 127.0.0.1, until it is left.

    ``Unary`` and ``Stream`` send back what comes, ``Fail`` fails, ``Hold`` reads one message and waits, ``Ignore``
    reads none, and ``Large`` answers much.

    Parameters
    ----------
    settings
        Of the server.
    """

    def __init__(self, memory_bytes_max: int = 4 << 30, **settings: float) -> None:
        config = ServerConfig(**settings)  # type: ignore[arg-type]
        self.bounds = bounds_of(config, Limits(), 64 << 10, memory_bytes_max)
        self.library = Library(self.bounds.config, self.bounds)
        self.opened: dict[int, Opened] = {}
        self.over: set[int] = set()
        self.sent = 0  # responses of streams
        self.changed = threading.Condition()
        self._stopping = threading.Event()
        self.port = self.library.listen("127.0.0.1", 0, Protocol.GRPC)
        self.target = f"127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def __enter__(self) -> Echo:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.library.stop()
        self._stopping.set()
        self._thread.join()

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until an event makes something true."""
        with self.changed:
            assert self.changed.wait_for(condition, 10), "waited 10 s in vain"

    def _run(self) -> None:
        while not self._stopping.is_set():
            select.select([self.library.events_file()], [], [], 0.05)
            for event in self.library.events():
                with self.changed:
                    self._take(event)
                    self.changed.notify_all()

    def _take(self, event: Event) -> None:
        library, call = self.library, event.call
        if event.opened:
            self.opened[call] = event.opened
        method = self.opened[call].path.rpartition("/")[2]
        match event.kind, method:
            case EventKind.OVER, _:
                self.over.add(call)
            case EventKind.OPEN, "Unary" | "Stream" | "Hold":
                library.ask(call)
            case EventKind.OPEN, "Large":
                library.respond(call, bytes(LARGE_BYTES))
                library.finish(call, 0, "", [])
            case EventKind.OPEN, "Fail":
                library.finish(call, 9, FAILURE, TRAILERS)
            case EventKind.OPEN, "Ignore":
                pass
            case EventKind.OPEN, _:
                library.finish(call, 12, "unknown", [])
            case EventKind.MESSAGE, "Unary":
                library.respond(call, event.message)
                library.finish(call, 0, "", [])
            case EventKind.MESSAGE, "Stream":
                library.respond(call, event.message)
            case EventKind.SENT, "Stream":
                self.sent += 1
                library.ask(call)
            case EventKind.HALF_CLOSED, "Unary":
                library.finish(call, 12, "no message", [])
            case EventKind.HALF_CLOSED, "Stream":
                library.finish(call, 0, "", [])
