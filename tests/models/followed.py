"""A store that tells what changes, as its followers and copiers see it: transactions, a log of them, scans, crashes.

It knows nothing of slots and segments: a table is a dictionary, a transaction happens at once, and is durable later.
Beside what a real store has, it remembers all that happened (`History`), so that a run can be judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, TypeAlias

KEYS = 4  # of a table
TABLES_MAX = 3
BYTES_MAX = 16  # of the log: each entry counts one, and one for each effect
PART = 2  # effects that a message may have
JOINED_MAX = 3  # entries that one message may have
GAP = 10_000  # between the versions of a source and those of its copies

Key: TypeAlias = tuple[int, int]  # table, key


class LostError(Exception):
    """The changes behind a position are not held."""


class GoneError(Exception):
    """There is no such table, or a cursor is of another one."""


class CutError(Exception):
    """The connection, or the server, has gone."""


class Row(NamedTuple):
    """What a key has."""

    value: int
    version: int
    expiry: int  # 0: never


class Effect(NamedTuple):
    """What became of a key."""

    kind: str  # set, deleted or expired
    key: int
    row: Row | None


class Image(NamedTuple):
    """All that a store holds."""

    rows: dict[Key, Row]
    tables: dict[int, str]
    next_table: int
    next_version: int


class Opened(NamedTuple):
    """What the root says of an opening: the next version then; its timeline, and those that ended there."""

    number: int
    timelines: tuple[int, ...]


class Commit(NamedTuple):
    """A transaction, or a table that was made or dropped."""

    place: int  # in its history
    time: int
    table: int
    name: str
    effects: tuple[Effect, ...]
    event: str  # made, dropped, or nothing
    image: Image  # after it


class Position(NamedTuple):
    """Behind an entry."""

    timeline: int
    number: int


class Entry(NamedTuple):
    """A commit as the log holds it."""

    number: int
    commit: Commit


class Watched(NamedTuple):
    """What somebody follows: all tables or one, all keys or those below a limit."""

    name: str = ""
    keys: int = KEYS

    def of(self, commit: Commit) -> tuple[Effect, ...]:
        """Return the effects of a commit that are told."""
        if self.name not in ("", commit.name):
            return ()
        return tuple(effect for effect in commit.effects if effect.key < self.keys)

    def is_told(self, commit: Commit) -> bool:
        """Whether anything of a commit is told."""
        of_table = commit.event == "dropped" if self.name else commit.event
        return bool(self.of(commit) or (of_table and self.name in ("", commit.name)))


class Message(NamedTuple):
    """What a follower is sent: its position behind it, and what was done; more of the same entry may follow."""

    position: Position
    told: tuple[tuple[Commit, tuple[Effect, ...]], ...] = ()
    more: bool = False


class Piece(NamedTuple):
    """A part of a table; nobody may see it before its gate."""

    rows: dict[int, Row]
    cursor: tuple[int, int] | None  # the table's number, and the next key
    gate: int
    history: History


@dataclass
class History:
    """What happened since the first opening and was not lost, the newest last. The first one is what was there."""

    commits: list[Commit]
    durable: int = 0  # the place of the newest that is

    @property
    def last(self) -> Commit:
        """The newest one."""
        return self.commits[-1]

    def changed(self, place: int) -> int:
        """Return the place of the newest one up to here that changed something; a number that was taken did not."""
        return next((commit.place for commit in self.commits[place::-1] if commit.effects or commit.event), 0)

    def copy(self) -> History:
        """Return what is left of it when only what is durable is."""
        return History(self.commits[: self.durable + 1], self.durable)

    def has(self, commit: Commit) -> bool:
        """Whether it is one of them."""
        return commit.place < len(self.commits) and self.commits[commit.place] is commit


@dataclass
class World:
    """What all stores of a run share.

    Attributes
    ----------
    wrong
        Which rule is broken.
    siblings
        Whether copies of one store are judged against each other.
    """

    random: Random
    wrong: str
    siblings: bool = False
    clock: int = 1000
    values: int = 0
    openings: int = 0  # of restored stores
    stores: list[Store] = field(default_factory=list)

    def chance(self, share: float) -> bool:
        """Return True so often."""
        return self.random.random() < share

    def is_wrong(self, rule: str) -> bool:
        """Whether this rule is broken."""
        return self.wrong == rule


class Log:
    """The newest entries, while somebody follows; an entry's number is the store's next version behind it."""

    def __init__(self, world: World, opened: Opened) -> None:
        self._world = world
        self.opened = opened
        self.is_on = False
        self.followers = 0
        self.newest = self.behind = opened.number  # of the newest entry, and of the newest that is not held any more
        self.entries: list[Entry] = []

    @property
    def timeline(self) -> int:
        """Of the positions."""
        return self.opened.timelines[0]

    def turn_on(self, next_version: int) -> None:
        """Hold what happens from now on."""
        if not self.is_on:
            self.is_on = True
            if not self._world.is_wrong("begins_where_it_ended"):
                self.newest = next_version
            self.lose()

    def here(self, since: Position) -> int:
        """Return the number of a position, also of an opening that ended where this one began; others are lost."""
        if since.timeline == self.timeline or self._world.is_wrong("any_timeline"):
            return since.number
        ended_here = since.number == self.opened.number or self._world.is_wrong("wherever_it_ended")
        if since.timeline in self.opened.timelines and ended_here:
            return since.number
        raise LostError

    def turn_off(self) -> None:
        """Hold nothing."""
        self.is_on = False
        self.lose()

    def lose(self) -> None:
        """Forget all entries."""
        self.entries, self.behind = [], self.newest

    def tell(self, commit: Commit, number: int) -> None:
        """Hold a commit, and forget the oldest for it."""
        has_memory = not self._world.chance(0.01)
        if not self.is_on or (not has_memory and self._world.is_wrong("no_memory_skips")):
            return
        self.newest = number
        if not has_memory:
            self.lose()
            return
        self.entries.append(Entry(self.newest, commit))
        while sum(1 + len(entry.commit.effects) for entry in self.entries) > BYTES_MAX:
            self.behind = self.entries.pop(0).number

    def after(self, number: int) -> list[Entry]:
        """Return what is held behind a number."""
        if self._world.is_wrong("gap_unseen"):
            number = max(number, self.behind)
        if not self.behind <= number <= self.newest:
            raise LostError
        return [entry for entry in self.entries if entry.number > number]


class Store:
    """A store that is open, again and again.

    Parameters
    ----------
    image
        What it holds.
    forebears
        The stores that it is a copy of.
    time
        That counts for keys that expire, at least.
    """

    def __init__(self, world: World, image: Image, forebears: Iterable[Store] = (), time: int = 0) -> None:
        self.world = world
        self.forebears = tuple(forebears)
        self.family = object()  # those that began as copies of its files have the same
        self.is_durable_at_once = world.chance(0.3)  # an undo log
        self.has_gpu = world.chance(0.5)
        self.given: dict[tuple[str, int, int], int] = {}  # values, by table, key and version, that somebody was told
        self.time = time
        self.on_given: Callable[[Store, tuple[str, int, int], int], None] = lambda *_: None
        self.opened = Opened(0, ())
        self.history = History([Commit(0, self.time, 0, "", (), "", image)])
        self.open()

    def open(self) -> None:
        """Begin a life, with what the newest transaction left."""
        image = self.history.last.image
        self.tables, self.rows = dict(image.tables), dict(image.rows)
        self.next_table, self.next_version = image.next_table, image.next_version
        self._planned: list[tuple[str, int, int]] | None = None  # for a GPU: what to do, key, expiry
        self._planned_table = 0
        timelines = self.opened.timelines
        if self.opened.number != image.next_version:
            timelines = timelines[:1]  # the others ended before
        if not timelines or not self.world.is_wrong("timeline_of_the_store"):
            timelines = (self.world.random.getrandbits(32), *timelines)[:3]
        self.opened = Opened(image.next_version, timelines)
        self.log = Log(self.world, self.opened)

    def twin(self) -> Store:
        """Return what a copy of its files is, once it is opened; this one was closed."""
        twin = Store(self.world, self._image(), (), self.time)
        twin.family, twin.opened, twin.history = self.family, self.opened, self.history.copy()
        twin.open()
        return twin

    def _image(self) -> Image:
        return Image(dict(self.rows), dict(self.tables), self.next_table, self.next_version)

    @property
    def now(self) -> int:
        """The time that counts; it never goes back."""
        self.time = max(self.time, self.world.clock)
        return self.time

    # Transactions.

    def run_batch(self) -> None:
        """Run a batch, or have a GPU begin one."""
        self.land()
        random = self.world.random
        table = random.choice(sorted(self.tables))
        kinds = random.choices(("set", "delete", "get"), (6, 3, 1), k=random.choice((1, 1, 2, 4, 5)))
        planned = [
            (kind, random.randrange(KEYS), self.now + random.randint(1, 30) if self.world.chance(0.3) else 0)
            for kind in kinds
        ]
        is_on_gpu = self.has_gpu and (not self.log.is_on or self.world.is_wrong("device_beside"))
        if is_on_gpu and self.world.chance(0.5):
            self._planned, self._planned_table = planned, table
        else:
            self._run(planned, table, is_on_gpu=False)

    def land(self) -> None:
        """End what a GPU has begun."""
        if self._planned is not None:
            planned, self._planned = self._planned, None
            self._run(planned, self._planned_table, is_on_gpu=True)
            self.history.durable = self.history.last.place
            self._tell_given()

    def _run(self, planned: list[tuple[str, int, int]], table: int, *, is_on_gpu: bool) -> None:
        self.expire(table, {key for _, key, _ in planned})
        done: dict[int, Effect] = {}
        for number, (kind, key, expiry) in enumerate(planned):
            if kind == "set":
                self.world.values += 1
                done[key] = Effect("set", key, Row(self.world.values, self.next_version + number, expiry))
            elif kind == "delete":
                done[key] = Effect("deleted", key, None)
        effects = [effect for key, effect in done.items() if effect.row or (table, key) in self.rows]
        if effects or "set" in {kind for kind, _, _ in planned}:
            self.next_version += len(planned)
            self._commit(table, effects, is_told=not is_on_gpu)

    def expire(self, table: int, keys: Iterable[int]) -> None:
        """Remove those of some keys that have expired."""
        found = [(key, self.rows.get((table, key))) for key in sorted(keys)]
        gone = [Effect("expired", key, None) for key, row in found if row and 0 < row.expiry <= self.now]
        if gone:
            self.next_version += len(gone)
            self._commit(table, gone, is_told=not self.world.is_wrong("expired_beside"))

    def sweep(self) -> None:
        """Remove all keys of a table that have expired."""
        self.land()
        self.expire(self.world.random.choice(sorted(self.tables)), range(KEYS))

    def change_tables(self) -> None:
        """Make a table, or drop one; both are durable at once."""
        self.land()
        self.flush(self.history.last.place)
        random = self.world.random
        name, number = random.choice("ab"), self.next_table
        there = next((table for table, its_name in self.tables.items() if its_name == name), None)
        if there is None and len(self.tables) == TABLES_MAX:
            return
        is_late = self.world.is_wrong("table_before_its_number")
        if not is_late and not self.world.is_wrong("tables_without_numbers"):
            self._take_number()
            if self.world.chance(0.1):
                return  # there is no room for it
        if there is None:
            self.tables[number] = name
            self.next_table += 1
            commit = self._commit(number, (), "made", is_told=False)
        else:
            commit = self._commit(there, (), "dropped", is_told=False)
        self.flush(commit.place)
        if is_late and self.world.chance(0.3):
            self.crash()
            return
        if is_late:
            self._take_number()
        if not self.world.is_wrong(f"{commit.event}_untold"):
            self.log.tell(commit, self.next_version)

    def _take_number(self) -> None:
        """Commit what changes nothing, and takes a version, durably."""
        self.next_version += 1
        self.history.commits.append(Commit(len(self.history.commits), self.now, 0, "", (), "", self._image()))
        self.flush(self.history.last.place)

    def _commit(self, table: int, effects: Iterable[Effect], event: str = "", *, is_told: bool = True) -> Commit:
        name, done = self.tables[table], tuple(effects)
        for effect in done:
            if effect.row:
                self.rows[table, effect.key] = effect.row
            else:
                self.rows.pop((table, effect.key), None)
        if event == "dropped":
            del self.tables[table]
            self.rows = {key: row for key, row in self.rows.items() if key[0] != table}
        commit = Commit(len(self.history.commits), self.now, table, name, done, event, self._image())
        self.history.commits.append(commit)
        if is_told:
            self.log.tell(commit, self.next_version)
        if self.is_durable_at_once:
            self.flush(commit.place)
        return commit

    def flush(self, place: int) -> None:
        """Make everything up to a place durable."""
        self.history.durable = max(self.history.durable, place)
        self._tell_given()

    def _tell_given(self) -> None:
        """Let whoever judges know which versions somebody may have been told."""
        for commit in self.history.commits[1 : self.history.durable + 1]:
            for effect in commit.effects:
                if effect.row:
                    given = commit.name, effect.key, effect.row.version
                    if given not in self.given:
                        self.given[given] = effect.row.value
                        self.on_given(self, given, effect.row.value)

    # Ends of lives.

    def crash(self) -> None:
        """Lose what is not durable, and open again."""
        self._planned = None
        history, random = self.history, self.world.random
        self.flush(random.randint(history.durable, history.last.place))
        self.history = history.copy()
        if self.world.is_wrong("first_version_forgotten"):
            image = self.history.commits[-1].image
            version = 1 + max((row.version for row in image.rows.values()), default=0)
            last = self.history.commits[-1]
            if not self.history.durable:
                self.history.commits[-1] = last._replace(image=image._replace(next_version=version))
        self.open()

    def restart(self) -> None:
        """Close, and open again."""
        self.land()
        self.flush(self.history.last.place)
        self.history = self.history.copy()
        self.open()

    # Readers.

    def follow(self, since: Position | None, watched: Watched) -> Stream:
        """Begin to tell somebody what changes, between two batches."""
        if not self.world.is_wrong("begins_in_batch"):
            self.land()
        here = None if since is None else self.log.here(since)
        self.log.turn_on(self.next_version)
        return Stream(self, here, watched)

    def scan(self, name: str, cursor: tuple[int, int] | None) -> Piece:
        """Read the next keys of a table; those that have expired are removed before."""
        self.land()
        table = next((number for number, its_name in self.tables.items() if its_name == name), None)
        if table is None:
            raise GoneError
        number, first = cursor or (table, 0)
        if number != table and not self.world.is_wrong("goes_on_by_name"):
            raise GoneError
        last = min(first + self.world.random.randint(1, 3), KEYS)
        if not self.world.is_wrong("expired_left_out"):
            self.expire(table, range(first, last))
        found = {key: self.rows.get((table, key)) for key in range(first, last)}
        rows = {key: row for key, row in found.items() if row and not 0 < row.expiry <= self.now}
        following = (table, last) if last < KEYS else None
        return Piece(rows, following, self.history.last.place, self.history)


class Stream:
    """What a server knows of one who follows.

    Attributes
    ----------
    is_cut
        Whether the connection has gone.
    """

    def __init__(self, store: Store, since: int | None, watched: Watched) -> None:
        self._store, self._log, self._world = store, store.log, store.world
        self._watched = watched
        self._table = next((table for table, name in store.tables.items() if name == watched.name), None)
        self.is_cut = self._is_over = False
        log = self._log
        if since is None:
            if watched.name and self._table is None:
                raise GoneError
            self._number = log.newest
        else:
            self._number = since
            held = log.after(self._number)
            drops = [entry for entry in held if entry.commit.event == "dropped" and entry.commit.name == watched.name]
            if watched.name and self._table is None and not drops:
                raise GoneError
        log.followers += 1
        self._part = 0
        number = log.newest if self._world.is_wrong("first_is_newest") else self._number
        self.first = Position(log.timeline, number)

    def close(self) -> None:
        """Tell no more."""
        self._log.followers -= not self.is_cut
        self.is_cut = True

    def receive(self) -> Message | None:
        """Return the next message; None: nothing has happened.

        Raises
        ------
        CutError, LostError, GoneError
            If there will be none.
        """
        if self.is_cut or self._store.log is not self._log:
            raise CutError
        if self._is_over:
            raise GoneError
        found: list[Entry] = []
        for entry in self._log.after(self._number):
            if not self._is_ready(entry):
                break
            if not self._is_watched(entry.commit):
                if found:
                    break
                self._number = entry.number
                continue
            if found and not self._are_alike(found[0], entry):
                break
            found.append(entry)
            if len(found) == JOINED_MAX or self._world.chance(0.3):
                break
        return self._message(found) if found else self._progress()

    def _is_ready(self, entry: Entry) -> bool:
        return entry.commit.place <= self._store.history.durable or self._world.is_wrong("told_early")

    def _is_watched(self, commit: Commit) -> bool:
        if self._watched.name and self._world.is_wrong("table_of_today"):
            return commit.table == self._table and self._watched._replace(name="").is_told(commit)
        return self._watched.is_told(commit)

    def _are_alike(self, one: Entry, other: Entry) -> bool:
        a, b = one.commit, other.commit
        is_short = len(self._watched.of(a)) <= PART and len(self._watched.of(b)) <= PART
        return is_short and not (a.event or b.event) and (a.table, a.time) == (b.table, b.time)

    def _message(self, entries: list[Entry]) -> Message:
        log, last, before = self._log, entries[-1], self._number
        effects = self._watched.of(last.commit)
        if len(entries) == 1 and len(effects) > self._part + PART:
            part = effects[self._part : self._part + PART]
            self._part += PART
            number = last.number if self._world.is_wrong("position_in_entry") else before
            return Message(Position(log.timeline, number), ((last.commit, part),), more=True)
        part, self._part = effects[self._part :], 0
        self._number = last.number
        self._is_over = bool(self._watched.name) and last.commit.event == "dropped"
        told = *((entry.commit, self._watched.of(entry.commit)) for entry in entries[:-1]), (last.commit, part)
        return Message(Position(log.timeline, last.number), told)

    def _progress(self) -> Message | None:
        if self._part or not self._world.chance(0.3):
            return None
        number = self._log.newest if self._world.is_wrong("progress_is_newest") else self._number
        return Message(Position(self._log.timeline, number))
