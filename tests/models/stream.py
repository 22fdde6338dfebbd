"""Followers of a store, and backups of one that runs: a model with crashes, lost connections and restored stores.

``python -m tests.models.runs stream 20000 right +siblings`` tries the rules, `wrong` each of them broken (`WRONG`).

What is promised, and judged in each run:

- A whole backup is what its source was at its position: keys, values, versions, expiries, tables. It has what was
  acknowledged before it was asked for, and nothing that its source lost. So has a follower who has read all first.
- Nobody is told a change otherwise than it was, and nobody misses one unless told so.
- No version of a key is given twice with different values, by a source and what was restored from it; with `+siblings`,
  by two copies of one source.

What the store does (``followed.py``):

F1   The log is on while anybody follows, and a while after. It is turned on between two batches, when what a GPU has
     begun has landed. Each commit passes it then: of the host's threads alone, removals of expired keys and tables too.
F2   The number of an entry is the next version behind it. A log that is turned on begins at the next version. A table
     that is made or dropped takes a version before, durably. The timeline is of the opening. The root has the timelines
     that ended at the version at which the last opening began: there, and nowhere else, their positions are those of
     this one. An entry that finds no memory takes all that is held with it.
F3   Entries are told in order, each when it and all before it are durable.
F4   A position is behind what was told whole: of a part of an entry, it is before it. Who goes on from one whose next
     entry is not held is told that. What an empty message says was told, too.
F5   Who follows one table is told of that name, up to where it was dropped, whatever has the name now.

What a backup does (``copied.py``):

B1   It follows first, then lists the tables, then scans them. A piece is durable when it is there. A table that is gone
     is left to the entries. What expired is removed before a scan leaves it out.
B2   p1 is the newest position after the last piece. If it is of another timeline than that of the changes that come,
     it is asked for again. If changes are lost, the backup fails.
B3   The spill ends with the first message that is whole and reaches p1: entries of several transactions come together,
     so its number may be above p1. That number is the backup's position.
B4   Pieces first, then entries in order. Versions and expiries are the source's. No clock but the source's counts.
B5   It is whole when it is closed so that nothing is left to replay; then it gets its name; then an older one may go.
     One that is asked for later is another one.
B6   Its first version is far above all that its source has given, durably from the beginning. Two copies of one source
     may give the same versions; if each opening of a copy for use gave it a first version of its own, by a clock, they
     would not (`raised_at_opening`).
"""

from __future__ import annotations

from collections import Counter
from random import Random

from tests.models.copied import Backup, FailedError
from tests.models.followed import (
    KEYS,
    CutError,
    Effect,
    GoneError,
    Image,
    LostError,
    Message,
    Store,
    Stream,
    Watched,
    World,
)
from tests.models.memory import WrongError

# What breaks which rule.
WRONG = {
    "F1": ["begins_in_batch", "device_beside", "expired_beside", "made_untold", "dropped_untold"],
    "F2": [
        "begins_where_it_ended",
        "table_before_its_number",
        "tables_without_numbers",
        "any_timeline",
        "timeline_of_the_store",
        "wherever_it_ended",
        "no_memory_skips",
    ],
    "F3": ["told_early"],
    "F4": ["position_in_entry", "gap_unseen", "first_is_newest", "resumes_at_newest", "progress_is_newest"],
    "F5": ["table_of_today"],
    "B1": ["p0_late", "lists_before_p0", "piece_without_gate", "expired_left_out"],
    "B2": ["p1_early", "p1_not_awaited", "timelines_compared", "lost_ignored"],
    "B3": ["cut_at_p1", "cut_in_entry", "position_is_p1"],
    "B4": ["applied_beside", "versions_of_its_own", "clock_of_its_own", "time_of_copier"],
    "B5": ["closed_uncovered", "named_early", "older_goes_first", "backups_joined"],
    "B6": ["version_above_largest", "no_gap", "first_version_forgotten"],
}
HARMLESS = ["goes_on_by_name", "raised_at_opening+siblings"]
OPEN = ["+siblings"]  # what no rule forbids yet

STORES_MAX = 3
KEPT_MAX = 2
STEPS = 160


class Watcher:
    """Somebody who is told changes, and goes on after the connection was cut; all of it is judged."""

    def __init__(self, world: World, store: Store, reached: Counter[str]) -> None:
        self._world, self._store, self._reached = world, store, reached
        self._watched = Watched(world.random.choice(("", "a", "b")), world.random.choice((KEYS, 2)))
        self._away = 0  # so long nothing is tried
        self._begin()

    def _begin(self) -> None:
        self._stream: Stream | None = None
        self._parts: dict[int, tuple[Effect, ...]] = {}
        try:
            self._stream = self._store.follow(None, self._watched)
        except GoneError:
            return
        self._position = self._stream.first
        self._history = self._store.history
        # What comes behind that changed nothing. So its position may be from before that, and a copy of the files, too.
        self._seen = self._history.changed(self._history.last.place)

    def cut(self) -> None:
        """Lose the connection."""
        if self._stream and not self._stream.is_cut:
            self._stream.close()
            self._away = self._world.random.choice((0, 0, 20))

    def step(self) -> None:
        """Receive a message."""
        if self._away:
            self._away -= 1
        elif self._stream is None:
            self._begin()
        else:
            self._receive(self._stream)

    def _receive(self, stream: Stream) -> None:
        try:
            message = stream.receive()
        except CutError:
            self._come_back()
        except LostError:
            self._reached["a watcher falls behind"] += 1
            self._end()
        except GoneError:
            self._reached["a table that is watched goes"] += 1
            self._end()
        else:
            if message:
                self._position = message.position
                self._judge(message)

    def _end(self) -> None:
        if self._stream:
            self._stream.close()
        self._stream = None

    def _come_back(self) -> None:
        self._end()
        self._parts = {}
        twins = [one for one in self._world.stores if one.family is self._store.family]
        self._store = self._world.random.choice(twins or [self._store])  # it may ask a copy of its files
        since = None if self._world.is_wrong("resumes_at_newest") else self._position
        try:
            self._stream = self._store.follow(since, self._watched)
        except (LostError, GoneError):
            return
        history = self._store.history
        if history is not self._history:
            self._reached["a follower comes back after a restart"] += 1
            if not history.has(self._history.commits[self._seen]):
                raise WrongError("missed: what it was told has not happened, where it goes on")
        self._history = history
        self._reached["a follower comes back"] += 1
        self._position = self._stream.first

    def _judge(self, message: Message) -> None:
        for commit, effects in message.told:
            if not self._history.has(commit):
                raise WrongError("missed: the opening is another one")
            if commit.place > self._history.durable:
                raise WrongError("ahead: it was told what the source may lose")
            self._parts[commit.place] = self._parts.get(commit.place, ()) + effects
        if message.more:
            self._reached["an entry in parts"] += 1
            return
        for place, told in self._parts.items():
            commit = self._history.commits[place]
            missed = range(self._seen + 1, place)
            if any(self._watched.is_told(self._history.commits[between]) for between in missed):
                raise WrongError(f"missed: something between {self._seen} and {place}")
            if told != self._watched.of(commit):
                raise WrongError(f"told: {told}, not {self._watched.of(commit)}")
            self._seen = max(self._seen, place)
        self._parts = {}


class Run:
    """A run: stores, those who follow them, and backups.

    Parameters
    ----------
    seed
        Of everything.
    rule
        Which one is broken; none by default. With `+siblings`, copies of one store are judged against each other.
    reached
        Counts what the run meets.
    """

    def __init__(self, seed: int, rule: str, reached: Counter[str]) -> None:
        wrong, _, siblings = rule.partition("+")
        random = Random(seed)
        self.world = World(random, wrong, bool(siblings))
        self._reached = reached
        self._stores = self.world.stores
        self._all: list[Store] = []  # those that were left, too
        self._add(Store(self.world, Image({}, {0: "default"}, 1, 1)))
        self._backups: list[Backup] = []
        self._kept: list[Backup] = []
        self._kept_most = 0
        self._watchers = [Watcher(self.world, self._stores[0], reached) for _ in range(2)]

    def run(self) -> None:
        """Live, and judge."""
        for _ in range(STEPS):
            self._step()
        for backup in self._kept:
            backup.judge()

    def _step(self) -> None:
        world, random = self.world, self.world.random
        store = random.choice(self._stores)
        lot = random.random()
        if lot < 0.28:
            store.run_batch()
        elif lot < 0.34:
            world.clock += random.randint(1, 6)
        elif lot < 0.36:
            world.clock -= random.randint(1, 15)
        elif lot < 0.40:
            store.sweep()
        elif lot < 0.45:
            store.change_tables()
        elif lot < 0.53:
            store.flush(random.randint(store.history.durable, store.history.last.place))
        elif lot < 0.80:
            for _ in range(random.randint(1, 5)):
                self._back_up()
        elif lot < 0.91:
            for _ in range(random.randint(1, 4)):
                random.choice(self._watchers).step()
        elif lot < 0.925:
            self._reached["crash"] += 1
            store.crash()
        elif lot < 0.935:
            store.restart()
            # Copies of the files give the same versions, as siblings do.
            if len(self._stores) < STORES_MAX and not world.siblings and world.chance(0.3):
                self._reached["a copy of the files"] += 1
                self._add(store.twin())
        elif lot < 0.96:
            self._cut()
        elif lot < 0.975:
            if store.log.followers <= 0 and store.log.is_on:
                self._reached["a log ends"] += 1
                store.log.turn_off()
        elif lot < 0.985:
            self._kill()
        else:
            self._restore()

    def _cut(self) -> None:
        random = self.world.random
        random.choice(self._watchers).cut()
        for backup in self._backups:
            if random.random() < 0.5:
                backup.cut()

    # Backups.

    def _back_up(self) -> None:
        world = self.world
        if len(self._backups) < 2 and world.chance(0.05 if self._backups else 0.4):
            self._begin_backup()
            return
        if not self._backups:
            return
        backup = world.random.choice(self._backups)
        was_named = backup.is_named
        try:
            ended = not backup.step()
        except (FailedError, LostError):
            self._end(backup)
            return
        if backup.is_named and not was_named and not backup.stays:
            self._keep(backup)
        if ended:
            self._end(backup)

    def _begin_backup(self) -> None:
        world = self.world
        source = world.random.choice(self._stores)
        if world.is_wrong("older_goes_first") and len(self._kept) >= KEPT_MAX:
            self._kept.pop(0)
        if self._backups:
            self._reached["a second backup"] += 1
            first = self._backups[0]
            if world.is_wrong("backups_joined") and first.source is source and not first.stays:
                first.asked = source.history.durable
                return
        stays = world.chance(0.3)
        self._backups.append(Backup(world, source, self._reached, stays=stays))

    def _keep(self, backup: Backup) -> None:
        self._kept.append(backup)
        while len(self._kept) > KEPT_MAX:
            self._kept.pop(0)
        self._kept_most = max(self._kept_most, len(self._kept))

    def _end(self, backup: Backup) -> None:
        backup.cut()
        self._backups.remove(backup)
        self._judge_kept()

    def _kill(self) -> None:
        """End a copier."""
        if self._backups:
            backup = self.world.random.choice(self._backups)
            if backup.is_named and not backup.stays:
                backup.judge()
            self._end(backup)

    def _judge_kept(self) -> None:
        if len(self._kept) < self._kept_most and not self._is_under_way():
            raise WrongError(f"kept: {len(self._kept)} backups, there were {self._kept_most}")

    def _is_under_way(self) -> bool:
        return any(not backup.stays for backup in self._backups)

    def _restore(self) -> None:
        """Open a backup, beside the other stores or instead of one."""
        if not self._kept:
            return
        random = self.world.random
        backup = random.choice(self._kept)
        backup.judge()
        if len(self._stores) == STORES_MAX:
            self._stores.remove(random.choice(self._stores))
        self._reached["a restored store"] += 1
        self._add(backup.restored())

    # Versions.

    def _add(self, store: Store) -> None:
        store.on_given = self._given
        self._stores.append(store)
        self._all.append(store)

    def _given(self, store: Store, given: tuple[str, int, int], value: int) -> None:
        for other in self._all:
            if other is store:
                continue
            is_kin = other in store.forebears or store in other.forebears
            if (is_kin or self.world.siblings) and other.given.get(given, value) != value:
                raise WrongError(f"version: {given} was given twice")


def run(seed: int, rule: str = "", reached: Counter[str] | None = None) -> str:
    """Run once; return what went wrong, or nothing."""
    try:
        Run(seed, rule, Counter() if reached is None else reached).run()
    except WrongError as error:
        return str(error)
    return ""
