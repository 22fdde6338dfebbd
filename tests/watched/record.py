"""What writers did, and what of it a watcher must have been told.

Each writer has keys of its own and one request at a time. So the order of its requests is known, and a watcher hears of
them in that order. A request whose answer a kill has cut is decided by what the store holds afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from gpkvs.batch import Op

State = dict[bytes, tuple[bytes, int] | None]  # for each key value and version (0: not known), or None: absent


class Fate(Enum):
    """What became of a request."""

    UNKNOWN = auto()
    DONE = auto()
    NOT_DONE = auto()


@dataclass
class Request:
    """A transaction of one writer."""

    sent_s: float
    effects: dict[bytes, bytes | None]  # None: the key goes
    answered_s: float | None = None
    versions: dict[bytes, int] = field(default_factory=dict)  # of the keys that it sets, if that is known
    fate: Fate = Fate.UNKNOWN

    @property
    def operations(self) -> list[tuple[Op, bytes, bytes]]:
        """What is sent."""
        return [(Op.DELETE, key, b"") if value is None else (Op.SET, key, value) for key, value in self.effects.items()]


@dataclass
class Written:
    """The requests of one writer, and what its keys hold."""

    number: int
    requests: list[Request] = field(default_factory=list)
    held: State = field(default_factory=dict)

    def acknowledge(self, request: Request, versions: dict[bytes, int], now_s: float) -> None:
        """Take note of an answer."""
        request.answered_s, request.versions = now_s, versions
        self._do(request)

    def _do(self, request: Request) -> None:
        request.fate = Fate.DONE
        for key, value in request.effects.items():
            if value is None:
                self.held.pop(key, None)
            else:
                self.held[key] = (value, request.versions.get(key, 0))

    def settle(self, found: State) -> str:
        """Decide the last request by what its keys hold after a crash; return what is wrong, if anything."""
        if not self.requests or self.requests[-1].fate is not Fate.UNKNOWN:
            return ""
        request = self.requests[-1]
        if all((row and row[0]) == request.effects[key] for key, row in found.items()):
            request.versions = {key: row[1] for key, row in found.items() if row}
            self._do(request)
        elif all(row == self.held.get(key) for key, row in found.items()):
            request.fate = Fate.NOT_DONE
        else:
            return f"writer {self.number}: the store holds a part of a request: {found}"
        return ""

    @property
    def undecided(self) -> list[bytes]:
        """The keys of the request that waits for `settle`."""
        is_open = self.requests and self.requests[-1].fate is Fate.UNKNOWN
        return [*self.requests[-1].effects] if is_open else []
