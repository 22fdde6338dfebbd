"""Whether a watcher was told exactly what was done: nothing else, nothing twice, nothing in part, and nothing left out.

taken back   it is told of no request that the store has not, nor of one that was never sent
order        of each writer it is told of all that was done, in order, each request whole
real time    no request is left out whose answer came before one was sent that it is told of
all          if it goes on, it has all that was acknowledged; if it hears that changes are lost, it begins anew
state        what it read at first and what it was told make what the store holds
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpkvs.changes import ChangeKind, Position
from gpkvs.text import quoted
from tests.watched.record import Fate, Request, Written
from tests.watched.told import Began, Change, Entry, Heard, Lost, Row, Told, WentOn


def writer_of(key: bytes) -> int:
    """Return whose key it is."""
    return int(key.split(b"-", 1)[0])


class Judge:
    """Judges what a watcher has kept, part by part; each part when all requests are decided.

    Parameters
    ----------
    writers
        By their numbers.

    Attributes
    ----------
    problems
        What is wrong.
    losses, beginnings, resumptions, entries
        How often it heard that changes were lost, began anew, and went on in a new process; and what it was told.
    """

    def __init__(self, writers: Sequence[Written]) -> None:
        self._writers = writers
        self.problems: list[str] = []
        self.losses = self.beginnings = self.resumptions = self.entries = self.in_parts = 0
        self._position: Position | None = None
        self._forget()

    def _forget(self) -> None:
        self._next = [len(writer.requests) for writer in self._writers]  # of each writer, what may be told next
        self._sure = list(self._next)  # from here on all must be told
        self._rows: dict[bytes, Row] = {}
        self._parts: list[Entry] = []
        self._newest_sent_s = float("-inf")

    def hear(self, news: Iterable[Heard]) -> None:
        """Take what it has kept since the last time."""
        for heard in news:
            match heard:
                case Began():
                    self._begin(heard)
                case WentOn(position):
                    self.resumptions += 1
                    self._parts = []
                    self._position = position
                case Lost():
                    self.losses += 1
                    self._end()
                    self._position = None
                case Told():
                    self._take(heard)

    def require_all(self) -> None:
        """Say what it was not told, now that it has read everything."""
        if self._position is None:
            self.problems.append("all: it has read everything, and never began")
            return
        for writer in self._writers:
            for request in self._left(writer):
                self._say("all", writer, request, "it was not told of this, and heard of no loss")
            held = {key: row for key, row in writer.held.items() if row}
            found = {key: row for key, row in self._rows.items() if writer_of(key) == writer.number}
            if found != held:
                keys = [key for key in held.keys() | found.keys() if held.get(key) != found.get(key)]
                self.problems.append(f"state: {len(keys)} keys of writer {writer.number}, such as {quoted(keys[0])}")

    def _left(self, writer: Written) -> list[Request]:
        """Return what must be told still."""
        begin = max(self._next[writer.number], self._sure[writer.number])
        return [request for request in writer.requests[begin:] if request.fate is Fate.DONE]

    def _begin(self, began: Began) -> None:
        self.beginnings += 1
        self._forget()
        self._position, self._rows = began.position, dict(began.rows)
        for writer in self._writers:
            requests = writer.requests
            # A writer sends one at a time: all before an answered one is over, too.
            over = [at for at, one in enumerate(requests) if one.answered_s and one.answered_s < began.asked_s]
            behind = [at for at, one in enumerate(requests) if one.sent_s > began.answered_s]
            self._next[writer.number] = over[-1] + 1 if over else 0
            self._sure[writer.number] = behind[0] if behind else len(requests)

    def _end(self) -> None:
        """It hears no more: what it has not must be behind all that it has."""
        for writer in self._writers:
            for request in self._left(writer):
                if request.answered_s is not None and request.answered_s < self._newest_sent_s:
                    self._say("real time", writer, request, "it was told of a request that was sent after the answer")

    def _take(self, told: Told) -> None:
        if self._position is None:
            self.problems.append("all: it was told something before it began")
            return
        for entry in told.entries:
            # Of an entry in parts the first part may come again, after the connection was lost.
            if self._parts and (self._parts[0].number != entry.number or _meet(self._parts, entry)):
                self._parts = []
            self._parts.append(entry)
            self.in_parts += not entry.is_whole
            if entry.is_whole:
                if entry.number <= self._position.number and told.position.timeline == self._position.timeline:
                    self.problems.append(f"order: entry {entry.number} came behind {self._position}")
                self._judge([change for part in self._parts for change in part.changes])
                self._parts = []
                self.entries += 1
        self._position = told.position

    def _judge(self, changes: list[Change]) -> None:
        for change in changes:
            if change.kind is ChangeKind.SET:
                self._rows[change.key] = (change.value, change.version)
            else:
                self._rows.pop(change.key, None)
        for number in sorted({writer_of(change.key) for change in changes}):
            mine = [change for change in changes if writer_of(change.key) == number]
            while mine:
                mine = mine[self._match(self._writers[number], mine) :]

    def _match(self, writer: Written, changes: list[Change]) -> int:
        """Find the request that the first changes are of; return how many they are."""
        at = self._find(writer, changes, Fate.DONE)
        if at is None:
            if (not_done := self._find(writer, changes, Fate.NOT_DONE)) is None:
                what = f"writer {writer.number} has sent no request that does this next"
                self.problems.append(f"taken back: {what}: {changes[0]}")
                return len(changes)
            self._say("taken back", writer, writer.requests[not_done], "it was told of this, which the store has not")
            at = not_done
        request = writer.requests[at]
        for left in writer.requests[max(self._next[writer.number], self._sure[writer.number]) : at]:
            if left.fate is Fate.DONE:
                self._say("order", writer, left, "it was told of a later one, and not of this")
        self._next[writer.number] = self._sure[writer.number] = at + 1
        self._newest_sent_s = max(self._newest_sent_s, request.sent_s)
        return len(request.effects)

    def _find(self, writer: Written, changes: list[Change], fate: Fate) -> int | None:
        """Return the first request of a fate that the first changes are of; what was not done may be sent again."""
        for at in range(self._next[writer.number], len(writer.requests)):
            request = writer.requests[at]
            if request.fate is fate and _is_of(changes[: len(request.effects)], request):
                return at
        return None

    def _say(self, rule: str, writer: Written, request: Request, text: str) -> None:
        at = writer.requests.index(request)
        keys = ", ".join(quoted(key) for key in list(request.effects)[:3])
        self.problems.append(f"{rule}: writer {writer.number}, request {at} ({request.fate.name}; {keys}): {text}")


def _meet(parts: list[Entry], entry: Entry) -> bool:
    keys = {change.key for part in parts for change in part.changes}
    return any(change.key in keys for change in entry.changes)


def _is_of(changes: list[Change], request: Request) -> bool:
    """Whether changes are just what a request does."""
    if len(changes) != len(request.effects):
        return False
    return all(_does(request, change) for change in changes)


def _does(request: Request, change: Change) -> bool:
    value = request.effects.get(change.key, b"")
    if value is None:
        return change.kind is ChangeKind.DELETED
    is_set = (change.kind, change.value) == (ChangeKind.SET, value)
    return is_set and request.versions.get(change.key, change.version) == change.version
