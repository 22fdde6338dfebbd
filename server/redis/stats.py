"""What the connections of the Redis protocol did: the commands that Python ran, and those that the door did."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpkvs.server.redis.execution.command import COMMANDS
from gpkvs.server.redis.protocol.reply import Error, Reply

_UNKNOWN = "unknown"


class DoorCounts(NamedTuple):
    """What the door has counted.

    Attributes
    ----------
    commands, errors
        Those that it answered with by itself, by name.
    opened, closed
        Connections.
    messages
        Of keys that changed.
    behind
        Connections that were closed because they did not read these.
    """

    commands: Mapping[str, int]
    errors: Mapping[str, int]
    opened: int
    closed: int
    messages: int
    behind: int


class Stats(Collector):
    """Counts commands and errors, and tells of both, and of connections, at each scrape.

    Parameters
    ----------
    door
        Returns what the door has counted.
    """

    def __init__(self, door: Callable[[], DoorCounts]) -> None:
        self._door = door
        self._commands: dict[str, int] = {}
        self._errors: dict[str, int] = {}
        self.subscribers: set[int] = set()  # the sessions that have subscribed to something
        self._lost = 0

    def note_lost(self, connections: int) -> None:
        """Note connections that had subscribed and were closed, because the server could not tell them of all."""
        self._lost += connections

    def note(self, name: bytes, reply: Reply) -> None:
        """Note a command that a client has sent, and the errors in its reply; EXEC's may have several."""
        command = COMMANDS.get(name.lower())
        _count(self._commands, command.name if command else _UNKNOWN)
        for part in reply if isinstance(reply, list) else (reply,):
            if isinstance(part, Error):
                _count(self._errors, str(part).partition(" ")[0])

    def connections(self) -> int:
        """Return how many there are."""
        counts = self._door()
        return counts.opened - counts.closed

    def connections_opened(self) -> int:
        """Return how many there were."""
        return self._door().opened

    def commands(self) -> int:
        """Return how many commands clients have sent."""
        return sum(self._commands.values()) + sum(self._door().commands.values())

    def collect(self) -> Iterator[Metric]:
        """Return the families; a command that nobody has sent is there only if the door knows it."""
        door = self._door()
        for name, text, label, own, doors in (
            (
                "commands",
                "Commands of the Redis protocol, by name; those that there are not are unknown",
                "command",
                self._commands,
                door.commands,
            ),
            (
                "errors",
                "Errors in replies of the Redis protocol, by their first word",
                "kind",
                self._errors,
                door.errors,
            ),
        ):
            family = CounterMetricFamily(f"gpkvs_redis_{name}", text, labels=[label])
            counts = own.copy()  # another thread counts on
            for key in doors.keys() | counts.keys():
                family.add_metric([key], doors.get(key, 0) + counts.get(key, 0))
            yield family
        yield GaugeMetricFamily(
            "gpkvs_redis_connections", "Connections of the Redis protocol", door.opened - door.closed
        )
        yield CounterMetricFamily(
            "gpkvs_redis_connections_opened", "Connections of the Redis protocol that were opened", door.opened
        )
        yield GaugeMetricFamily(
            "gpkvs_redis_subscribers",
            "Connections of the Redis protocol that have subscribed to keys that change",
            len(self.subscribers),
        )
        yield CounterMetricFamily(
            "gpkvs_redis_messages", "Messages of keys that changed, to all connections", door.messages
        )
        yield CounterMetricFamily(
            "gpkvs_redis_subscribers_lost",
            "Connections that were closed because they could not be told of all to which they had subscribed",
            door.behind + self._lost,
        )


def _count(counts: dict[str, int], key: str) -> None:
    counts[key] = counts.get(key, 0) + 1
