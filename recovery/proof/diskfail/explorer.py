"""Lives of stores, one after the other, and the states that crashes of each may leave."""

from __future__ import annotations

import faulthandler
import pickle
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import numpy as np

from gpkvs.config import DEFAULT_TABLE
from gpkvs.media.layout import BYTES_LAYOUT
from gpkvs.recovery.proof.batch_runner import EngineName
from gpkvs.recovery.proof.diskfail.coverage import kind_of_kill, reached
from gpkvs.recovery.proof.diskfail.disk import Choice, Disk, State
from gpkvs.recovery.proof.diskfail.expected import Contents, Expected, Progress, TableName
from gpkvs.recovery.proof.diskfail.judge import Judge, lay
from gpkvs.recovery.proof.diskfail.life import Shape, live, open_store
from gpkvs.recovery.proof.diskfail.recorder import IGNORED, Event, Kind, Recorder

EMPTY = Contents(1, {TableName(0, DEFAULT_TABLE, BYTES_LAYOUT.name): {}})  # a new store
_STUCK_SECONDS = 180  # a life or a state that takes longer never ends, on a busy machine too


@dataclass(frozen=True)
class Options:
    """What to visit.

    Attributes
    ----------
    engine
        Runs the batches of lives.
    depth
        Lives in a row.
    points, choices
        Places of a trace where the power fails, and what each may leave.
    """

    engine: EngineName = "native"
    depth: int = 3
    points: int = 40
    choices: int = 6
    stop_early: bool = False


@dataclass(frozen=True)
class Violation:
    """A state that breaks a promise, with all that is needed to judge it again.

    An error of a store that lives may not come again with the same seed, since threads meet by chance. So what is
    known of it is kept: the state that the life began with, where the error was raised, and what was written by then.
    """

    name: str
    message: str
    state: State
    allowed: list[Contents]
    shape: Shape
    lost: list[str]
    traceback: str = ""  # of an error that is not meant
    events: Sequence[Event] = ()  # of the life that ended with it, up to the error

    def save(self, directory: Path) -> Path:
        """Write it to a file; return which."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{self.name.replace('/', '-')}.state"
        path.write_bytes(pickle.dumps(self))
        return path


@dataclass
class Totals:
    """What was visited."""

    lives: int = 0
    points: int = 0
    states: int = 0
    reached: Counter[str] = field(default_factory=Counter)  # what `coverage` counts
    violations: list[Violation] = field(default_factory=list)
    live_seconds: float = 0.0
    judge_seconds: float = 0.0


@dataclass
class Start:
    """What a life begins with."""

    disk: Disk  # what is durable, and what was left pending by a kill
    state: State
    before: list[Contents]


class Explorer:
    """Lets stores live and crash.

    Parameters
    ----------
    directory
        In memory, for this process alone.
    options
        What to visit.
    """

    def __init__(self, directory: Path, options: Options) -> None:
        self.life, self._judge = directory / "life", Judge(directory / "state")
        self.options = options
        self.recorder = Recorder()
        self.totals = Totals()

    def explore(self, seed: int) -> None:
        """Run lives in a row, each from a crash of the one before."""
        random = Random(seed)
        shape = Shape.of(random)
        start: Start | None = self._first(shape, random)
        for life in range(self.options.depth):
            if start is None:
                return
            # The sizes and the format stay, the use changes.
            if life:
                shape = replace(
                    Shape.of(random),
                    index_bytes=shape.index_bytes,
                    heap_bytes=shape.heap_bytes,
                    heap_bytes_max=shape.heap_bytes_max,
                    store_format=shape.store_format,
                    blob_share=shape.blob_share,
                )
            start = self._live(f"{seed}/{life}", start, shape, random)
            if self.options.stop_early and self.totals.violations:
                return

    def _first(self, shape: Shape, random: Random) -> Start:
        """Return an empty directory, or a new store."""
        lay(self.life, {})
        if random.random() < 0.2:
            return Start(Disk(), {}, [EMPTY])
        open_store(self.life, shape).close()
        state = self.files()
        return Start(Disk.of(state), state, [EMPTY])

    def files(self) -> State:
        """Return the files of the life's directory."""
        return {
            path.name: np.frombuffer(path.read_bytes(), np.uint8).copy()
            for path in sorted(self.life.iterdir())
            if path.name not in IGNORED
        }

    def _live(self, name: str, start: Start, shape: Shape, random: Random) -> Start | None:
        """Run a life and visit its states; return what the next one begins with."""
        began = time.monotonic()
        faulthandler.dump_traceback_later(_STUCK_SECONDS, exit=True)
        start.disk.attach(lay(self.life, start.state))
        self.recorder.start(self.life, shape.delay_us, random.randrange(1 << 62))
        self.totals.lives += 1
        error: Exception | None = None
        try:
            expected = live(self.life, shape, self.options.engine, start.before, self.recorder, random)
        except Exception as wrong:  # noqa: BLE001 - whatever a broken store raises
            error = wrong
        events = self.recorder.stop()
        faulthandler.cancel_dump_traceback_later()
        self.totals.live_seconds += time.monotonic() - began
        if error:
            self.add_error(f"{name}/-", error, start, shape, events)
            return None
        return self._visit(name, start.disk, events, expected, shape, random)

    def _visit(
        self, name: str, disk: Disk, events: list[Event], expected: Expected, shape: Shape, random: Random
    ) -> Start:
        self.totals.reached.update(reached(events))
        points = _points(events, self.options.points, random)
        opened = next((at for at, event in enumerate(events) if event.kind is Kind.MARK), len(events))
        in_opening = [place for place in points if place <= opened]
        following = random.choice(in_opening if random.random() < 0.25 else points)
        after: Start | None = None
        for place, progress in walk(disk, events, points):
            self.totals.points += 1
            allowed = list(expected.allowed(progress))
            chosen = disk.choices(random, self.options.choices)
            for number, choice in enumerate(chosen):
                self.visit_state(f"{name}/{place}/{number}", disk, choice, allowed, progress, shape, random)
            if place == following:
                after = self._after(disk, random.choice(chosen), allowed, progress, random)
        assert after
        self.require_whole(disk)
        return after

    def require_whole(self, disk: Disk) -> None:
        """Raise `RuntimeError` unless the recorded events give the files as they are: all was recorded."""
        recorded, there = disk.state(disk.everything()), self.files()
        wrong = sorted(recorded.keys() ^ there.keys())
        wrong += [name for name in recorded.keys() & there.keys() if not np.array_equal(recorded[name], there[name])]
        if wrong:
            raise RuntimeError(f"the recording does not give {', '.join(wrong)} as they are")

    def _after(self, disk: Disk, choice: Choice, allowed: list[Contents], progress: Progress, random: Random) -> Start:
        """Return what the next life begins with: the files after a power failure, or after a kill."""
        if random.random() < 0.3:
            self.totals.reached[kind_of_kill(disk, progress)] += 1
            killed = deepcopy(disk)
            return Start(killed, killed.state(killed.everything()), allowed)
        state = {name: data.copy() for name, data in disk.state(choice).items()}
        return Start(Disk.of(state), state, allowed)

    def visit_state(
        self,
        name: str,
        disk: Disk,
        choice: Choice,
        allowed: list[Contents],
        progress: Progress,
        shape: Shape,
        random: Random,
    ) -> None:
        """Judge a state, and count it."""
        began = time.monotonic()
        faulthandler.dump_traceback_later(_STUCK_SECONDS, exit=True)
        state = disk.state(choice)
        seed = random.randrange(1 << 32)
        where = ""
        try:
            message = self._judge.judge(state, allowed, shape, Random(seed))
        except Exception as error:  # noqa: BLE001 - whatever a broken store raises
            message, where = f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))
        faulthandler.cancel_dump_traceback_later()
        self.totals.states += 1
        life = int(name.split("/")[1]) + 1
        self.totals.reached[f"states of life {life}"] += 1
        self.totals.reached["states of openings after a crash"] += life > 1 and not progress.is_open
        self.totals.reached["states while tables change"] += progress.schema_begun > progress.schema_done
        self.totals.judge_seconds += time.monotonic() - began
        if message:
            lost = [
                f"{int(choice[number].sum())}/{unit.parts} kept: {unit}" for number, unit in enumerate(disk.pending)
            ]
            told = f"{progress}: {message}"
            self.totals.violations.append(Violation(name, told, _copied(state), allowed, shape, lost, where))

    def add_error(self, name: str, error: Exception, start: Start, shape: Shape, events: list[Event]) -> None:
        """Note a life that ended with an error, though nothing had crashed."""
        self.totals.violations.append(
            Violation(
                name,
                f"without a crash: {type(error).__name__}: {error}",
                _copied(start.state),
                start.before,
                shape,
                [],
                "".join(traceback.format_exception(error)),
                events,
            )
        )


def _copied(state: State) -> State:
    return {file: data.copy() for file, data in state.items()}


def _points(events: list[Event], count: int, random: Random) -> list[int]:
    """Choose after how many events power fails: anywhere, around the opening, and where most can be lost."""
    (data, _), *_ = Counter(event.inode for event in events if event.kind is Kind.WRITE).most_common(1) or [(0, 0)]
    opened = next((at for at, event in enumerate(events) if event.kind is Kind.MARK), 0)
    in_flight = list(_in_flight(events, data))
    places = (
        range(len(events)),
        range(opened + 1),
        range(opened, min(opened + 60, len(events))),  # space that the opening found free is used
        [at for at, (most, _) in enumerate(in_flight) if most > 0],
        [at for at, (most, _) in enumerate(in_flight) if most > 2],
        [at for at, (most, others) in enumerate(in_flight) if most and others],
        # Pages of a checkpoint, and root copies.
        [at + 1 for at, event in enumerate(events) if event.kind is Kind.WRITE and event.inode != data],
    )
    chosen = {len(events)}
    for some in places:
        chosen.update(random.sample(some, min(len(some), max(count // len(places), 1))))
    return sorted(chosen)


def _in_flight(events: list[Event], data: int) -> Iterator[tuple[int, int]]:
    """Return, for each place, about how many writes a crash may lose: to the file of data, and to others."""
    pending: Counter[int] = Counter()
    covered: dict[int, int] = {}
    for event in events:
        yield pending[data], pending.total() - pending[data]
        if event.kind is Kind.WRITE:
            pending[event.inode] += 1
        elif event.kind is Kind.FLUSH:
            covered[event.id] = pending[event.inode]
        elif event.kind is Kind.FLUSH_END:
            pending[event.inode] = max(0, pending[event.inode] - covered[event.id])


def walk(disk: Disk, events: list[Event], points: list[int]) -> Iterator[tuple[int, Progress]]:
    """Apply a recording to a disk; stop at each of some places."""
    progress, wanted = Progress(), set(points)
    for place in range(len(events) + 1):
        if place in wanted:
            yield place, progress
        if place < len(events):
            progress.apply(events[place])
            disk.apply(events[place])
