"""A backup of a store that runs, and a replica that follows it: `Backup`. The rules are in ``stream.py``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import NamedTuple, TypeAlias

from tests.models.followed import (
    GAP,
    Commit,
    CutError,
    Effect,
    GoneError,
    Image,
    Key,
    LostError,
    Message,
    Piece,
    Position,
    Row,
    Store,
    Stream,
    Watched,
    World,
)
from tests.models.memory import WrongError

Steps: TypeAlias = Generator[None, None, None]


def _go_on(steps: Steps) -> bool:
    """Take a step; return whether there was one."""
    for _ in steps:
        return True
    return False


class FailedError(Exception):
    """There is no backup this time."""


class Told(NamedTuple):
    """What was told at once, whole: the number behind it."""

    number: int
    told: list[tuple[Commit, tuple[Effect, ...]]]


class Backup:
    """A backup that is under way, or whole.

    Parameters
    ----------
    source
        What it is of.
    stays
        Whether it goes on as a follower's replica when it is whole.

    Attributes
    ----------
    is_named
        Whether people take it for whole.
    """

    def __init__(self, world: World, source: Store, reached: Counter[str], *, stays: bool) -> None:
        self.world, self.source, self.stays = world, source, stays
        self._reached = reached
        self._skew = world.random.randint(-20, 20)  # of the copier's clock
        self.asked = source.history.durable
        self.history = source.history
        self.is_named = False
        self._stream: Stream | None = None
        self._position = self._p1 = Position(0, 0)  # p1 is not known yet
        self._p1_place = 0
        self._is_scanned = False
        self._pieces: dict[Key, Row] = {}
        self._spill: list[Message] = []
        self._behind: list[Told] = []
        self.place = self._time = 0
        self.rows: dict[Key, Row] = {}
        self.tables: dict[int, str] = {}
        self.first_version = 0
        self._steps = self._run()

    def step(self) -> bool:
        """Take a step; return whether there was one.

        Raises
        ------
        FailedError, LostError
            If there will be no backup.
        """
        return _go_on(self._steps)

    def _run(self) -> Steps:
        world = self.world
        if world.is_wrong("lists_before_p0"):
            self.tables = dict(self.source.tables)
            yield
        if not world.is_wrong("p0_late"):
            self._follow(None)
        if not world.is_wrong("lists_before_p0"):
            yield
            self.tables = dict(self.source.tables)
        running = [self._scan(), self._read()]
        while running:
            yield
            one = world.random.choice(running)
            if not _go_on(one):
                running.remove(one)
        yield from self._make()
        if self.stays:
            yield from self._stay()

    def cut(self) -> None:
        """Lose the connection."""
        if self._stream:
            self._stream.close()

    def _follow(self, since: Position | None) -> None:
        self._stream = self.source.follow(since, Watched())
        self._position = self._stream.first
        if since is None:
            self.history = self.source.history
            self._time = self.source.now
            self.first_version = self._first_version()

    def _first_version(self) -> int:
        return self.source.next_version + (0 if self.world.is_wrong("no_gap") else GAP)

    # The scan.

    def _scan(self) -> Steps:
        for table, name in list(self.tables.items()):
            cursor: tuple[int, int] | None = None
            while True:
                yield
                try:
                    piece = self.source.scan(name, cursor)
                except GoneError:
                    self._reached["a table goes while it is scanned"] += 1
                    break
                if self.world.is_wrong("p1_early"):
                    self._take_p1()
                if not (yield from self._is_durable(piece)):
                    continue
                self._take_piece(table, piece)
                if self._stream is None:
                    self._follow(None)
                if (cursor := piece.cursor) is None:
                    break
        yield
        if self._stream is None:
            self._follow(None)
        self._is_scanned = True
        if self.world.is_wrong("p1_early") and self._knows_p1:
            return
        self._take_p1()

    @property
    def _knows_p1(self) -> bool:
        """Whether it is known, and of the timeline in which the changes come."""
        are_one = self._p1.timeline == self._position.timeline or self.world.is_wrong("timelines_compared")
        return self._p1 != (0, 0) and are_one

    def _is_durable(self, piece: Piece) -> Generator[None, None, bool]:
        """Wait for a piece; False: the server has gone, so it must be asked for again."""
        while piece.gate > piece.history.durable and not self.world.is_wrong("piece_without_gate"):
            if piece.history is not self.source.history:
                return False
            self._reached["a piece waits"] += 1
            yield
        return True

    def _take_piece(self, table: int, piece: Piece) -> None:
        rows = {(table, key): row for key, row in piece.rows.items()}
        (self.rows if self.world.is_wrong("applied_beside") else self._pieces).update(rows)

    def _take_p1(self) -> None:
        """Ask for the newest position, by a second watch."""
        source, stores = self.source, self.world.stores
        if self.world.chance(0.03) and stores:
            source = self.world.random.choice(stores)  # another server answers
        stream = source.follow(None, Watched())
        stream.close()
        self._p1, self._p1_place = stream.first, self.source.history.last.place
        self._reached["p1 of another timeline"] += self._p1.timeline != self._position.timeline

    # What changes meanwhile.

    def _read(self) -> Steps:
        while not self._is_reached():
            yield
            if self._stream is not None:
                self._receive()
            if self._is_scanned and not self._knows_p1:  # the source was opened anew meanwhile
                self._take_p1()

    def _is_reached(self) -> bool:
        if not self._knows_p1:
            return False
        if self._spill and self._spill[-1].more and not self.world.is_wrong("cut_in_entry"):
            return False
        return self.world.is_wrong("p1_not_awaited") or self._position.number >= self._p1.number

    def _receive(self) -> None:
        """Take the next message, if there is one."""
        assert self._stream
        try:
            message = self._stream.receive()
        except CutError:
            self._come_back()
        except LostError:
            self._lost()
        else:
            if message:
                self._position = message.position
            if message and message.told:
                self._spill.append(message)
                if self.world.is_wrong("applied_beside"):
                    self._apply(self._whole())

    def _come_back(self) -> None:
        since = None if self.world.is_wrong("resumes_at_newest") else self._position
        try:
            self._stream = self.source.follow(since, Watched())
        except LostError:
            self._lost()
            return
        self._reached["a copier comes back"] += 1
        self._reached["a copier comes back after a restart"] += self.history is not self.source.history
        self.history = self.source.history
        self._reached["a part of an entry comes again"] += bool(self._spill and self._spill[-1].more)
        self._position = self._stream.first

    def _lost(self) -> None:
        self._reached["a copier's changes are lost"] += 1
        if not self.world.is_wrong("lost_ignored"):
            raise FailedError
        self.cut()
        self._stream = self.source.follow(None, Watched())
        self._position = self._stream.first

    # The copy.

    def _whole(self) -> list[Told]:
        """Take what was told whole out of the spill."""
        whole: list[Told] = []
        told: list[tuple[Commit, tuple[Effect, ...]]] = []
        for message in self._spill:
            told += message.told
            if not message.more or (self.world.is_wrong("cut_in_entry") and not self.is_named):
                whole.append(Told(message.position.number, told))
                told = []
        self._spill = self._spill[len(self._spill) - len(told) :]  # a part of an entry comes alone
        return whole

    def _make(self) -> Steps:
        """Apply all, and close."""
        world, p1 = self.world, self._p1
        self.rows.update(self._pieces)
        self.place = self._p1_place
        self.is_named = world.is_wrong("named_early")
        self._behind = self._whole()
        before = self.rows
        while self._behind:
            number = self._behind[0].number
            if world.is_wrong("cut_at_p1") and number > p1.number:
                break
            before = dict(self.rows)
            self._apply([self._behind.pop(0)])
            if world.is_wrong("named_early"):
                yield
            if number >= p1.number:
                self._reached["entries together across p1"] += number > p1.number
                break
        if world.is_wrong("closed_uncovered") and world.chance(0.3):
            self.rows = before
        if world.is_wrong("position_is_p1"):
            self.place = self._p1_place
        if world.is_wrong("version_above_largest"):
            self.first_version = 1 + max((row.version for row in self.rows.values()), default=0)
        if world.is_wrong("time_of_copier"):
            self._time = world.clock + self._skew
        self.is_named = True
        self.judge()
        self._reached["a whole backup"] += 1
        self._reached["a backup of a restored store"] += bool(self.source.forebears)

    def _apply(self, whole: list[Told]) -> None:
        world = self.world
        for commit, effects in (pair for told in whole for pair in told.told):
            if not self.history.has(commit):
                raise WrongError("state: a change of another opening")
            if commit.event == "made":
                self.tables[commit.table] = commit.name
            elif commit.event == "dropped":
                self.tables.pop(commit.table, None)
                self.rows = {key: row for key, row in self.rows.items() if key[0] != commit.table}
            for effect in effects:
                self._put((commit.table, effect.key), effect.row)
            self.place, self._time = max(self.place, commit.place), max(self._time, commit.time)
        if world.is_wrong("clock_of_its_own"):
            now = world.clock + self._skew
            self.rows = {key: row for key, row in self.rows.items() if not 0 < row.expiry <= now}

    def _put(self, key: Key, row: Row | None) -> None:
        if row is None:
            self.rows.pop(key, None)
        elif self.world.is_wrong("versions_of_its_own"):
            self.rows[key] = row._replace(version=self.first_version)
        else:
            self.rows[key] = row

    def _stay(self) -> Steps:
        """Follow on, and be what the source was each time."""
        while True:
            for told in [*self._behind, *self._whole()]:
                self._apply([told])
                self.judge()
                self._reached["a replica goes on"] += 1
            self._behind = []
            yield
            self._receive()

    # What is promised of it.

    def judge(self) -> None:
        """Compare it with what its source was."""
        if self.place < self.asked:
            raise WrongError(f"left: {self.asked} was acknowledged, it is of {self.place}")
        if self.place >= len(self.history.commits):
            raise WrongError(f"ahead: the source has lost {self.place}")
        newest = self.history.changed(self.place)
        if newest > self.history.durable:
            raise WrongError(f"ahead: the source may lose {newest}, {self.history.durable} is durable")
        image = self.history.commits[self.place].image
        if self.tables != image.tables:
            raise WrongError(f"state: tables {self.tables}, not {image.tables}")
        if self.rows != image.rows:
            raise WrongError(f"state: {self.rows}, not {image.rows}")
        if self._time > self.source.time:
            raise WrongError("state: its time is later than the source's")

    def restored(self) -> Store:
        """Open it as a store."""
        numbers = [self.history.commits[self.place].image.next_table, *(table + 1 for table in self.tables)]
        first_version = self.first_version
        if self.world.is_wrong("raised_at_opening"):
            self.world.openings += 1
            first_version = max(first_version, self.world.openings * GAP * GAP)
        image = Image(self.rows, self.tables, max(numbers), first_version)
        return Store(self.world, image, (self.source, *self.source.forebears), self._time)
