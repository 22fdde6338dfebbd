"""Visits the states that a crash may leave, workload by workload; one process works with one `Explorer`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from gpkvs.errors import GpkvsError, InvalidArgumentError
from gpkvs.media.directory import ROOT_FILE
from gpkvs.recovery.proof.powerfail.base_store import ExploredEngine
from gpkvs.recovery.proof.powerfail.crash_models import Epoch, Machine, Model, epochs
from gpkvs.recovery.proof.powerfail.readable_state import StateKeys, readable
from gpkvs.recovery.proof.powerfail.state_choices import Choice, choices, is_exhaustive
from gpkvs.recovery.proof.powerfail.state_judge import Dump, StateError, StateJudge, difference
from gpkvs.recovery.proof.powerfail.trace import CHANGES, Event, Image, Kind, Mutation, Trace
from gpkvs.recovery.proof.powerfail.workload_runner import WorkloadRun, WorkloadRunner
from gpkvs.recovery.proof.powerfail.workloads import DROP, TABLE, Workload

KILLED = -1  # instead of an epoch: the first crash was a kill without a power failure


@dataclass(frozen=True)
class ExplorerOptions:
    """What to visit.

    Parameters
    ----------
    models
        The crash models. A pair of processors stores nothing to a disk, and so leaves out `page`.
    engine
        Runs the batches of workloads.
    seed
        Of every random choice.
    samples
        How many random states of each epoch that has too many to visit all of them.
    pairs
        How many pairs of units of such an epoch are kept, or lost, alone; `None`: all.
    depth
        2: crash a second time, while recovery runs.
    first_states
        At depth 2, how many states of each epoch of the first crash are recovered.
    mutation
        What the mutated build leaves out, if anything.
    stop_early
        Whether to stop at the first violation.
    """

    models: tuple[Model, ...] = tuple(Model)
    engine: ExploredEngine = "native"
    seed: int = 1
    samples: int = 64
    pairs: int | None = None
    depth: int = 1
    first_states: int = 2
    mutation: Mutation | None = None
    stop_early: bool = False

    def __post_init__(self) -> None:
        """Leave out what cannot be."""
        if self.engine == "pair":
            object.__setattr__(self, "models", tuple(model for model in self.models if model is not Model.PAGE))
        if not self.models:
            raise InvalidArgumentError(
                "a pair of processors stores nothing to a disk: choose another model than page", field="model"
            )


@dataclass(frozen=True)
class StateName:
    """The name of a state: with the seed of the run, it is enough to visit the state again.

    Parameters
    ----------
    epoch, choice
        The epoch, and what the crash keeps of it. If the epoch is `KILLED`: after how many events.
    then
        At depth 2, the same of the second crash.
    """

    workload: Workload
    model: Model
    epoch: int
    choice: Choice
    then: tuple[int, Choice] | None = None

    def __str__(self) -> str:
        parts = [str(self.workload), self.model, str(self.epoch), _dotted(self.choice)]
        if self.then:
            parts += [str(self.then[0]), _dotted(self.then[1])]
        return "/".join(parts)

    @staticmethod
    def parse(text: str) -> StateName:
        """Read what `str` gives; raises `ValueError` if it is none."""
        parts = text.split("/")
        if len(parts) not in (4, 6):
            raise ValueError(
                f"{text!r} is not the name of a state, such as bytes:NU/gpu/4/1.0.1: a violation prints it"
            )
        then = (int(parts[4]), _choice(parts[5])) if len(parts) == 6 else None
        return StateName(Workload.parse(parts[0]), Model(parts[1]), int(parts[2]), _choice(parts[3]), then)


def _dotted(choice: Choice) -> str:
    return ".".join(map(str, choice)) or "-"


def _choice(text: str) -> Choice:
    return () if text == "-" else tuple(int(step) for step in text.split("."))


@dataclass(frozen=True)
class StateViolation:
    """A state whose recovery breaks a promise."""

    state: StateName
    message: str


@dataclass(frozen=True)
class StateReport:
    """One state, visited by its name."""

    message: str  # what is wrong; empty if nothing
    changes: tuple[tuple[bool, Event], ...]  # the changes of its epoch; whether the crash keeps each
    files: dict[int, str]  # names by number


@dataclass
class Visited:
    """What the exploration of one workload did."""

    workload: Workload
    events: int = 0
    epochs: int = 0
    exhaustive: int = 0  # epochs whose states were all visited
    states: Counter[Model] = field(default_factory=Counter)  # by model
    distinct: set[bytes] = field(default_factory=set)  # those that recovery can tell apart; each was recovered
    judged: int = 0  # how many different images of recovered states were judged
    recoveries: int = 0  # at depth 2: first crashes that were recovered
    natively: int = 0  # batches that the native engine ran
    violations: list[StateViolation] = field(default_factory=list)


@dataclass(frozen=True)
class Scene:
    """A trace in which crashes happen, and what the store may hold after each.

    Parameters
    ----------
    trace
        Of a workload, or of a recovery.
    last
        The event from which on a process may be killed.
    first
        The event from which on power fails.
    dumps
        What the store holds before the first batch of the trace, and after each. Of a recovery: what it may hold until
        the recovery ends.
    before
        The image to which states are compared, to find those that were visited before.
    outcome
        Of a recovery: what the store must hold when it has ended, because clients may have read that.
    """

    model: Model
    trace: Trace
    last: int
    first: int
    dumps: tuple[Dump, ...]
    before: Image
    outcome: Dump | None = None

    def epochs(self) -> Iterator[Epoch]:
        """Return the epochs, each with the changes that recovery can read."""
        return map(readable, epochs(self.trace, self.model, self.first))

    def allowed(self, epoch: Epoch) -> tuple[Dump, ...]:
        """Return what the store may hold after a crash in an epoch."""
        if self.outcome is None:
            return self.dumps[epoch.acknowledged : epoch.acknowledged + 1 + epoch.in_progress]
        return self.dumps if epoch.in_progress else (self.outcome,)


def _scene(run: WorkloadRun, model: Model) -> Scene:
    return Scene(model, run.trace, run.last, run.promised, run.dumps, run.trace.before)


class _EnoughError(Exception):
    """A violation was found, and one is enough."""


class Explorer:
    """Runs workloads and visits their states.

    Parameters
    ----------
    directory
        In memory, for this process alone.
    options
        What to visit.
    """

    def __init__(self, directory: Path, options: ExplorerOptions) -> None:
        self._directory = directory
        self.options = options
        self._runner = WorkloadRunner(directory, options.seed, options.engine, options.mutation)
        self._judges: dict[str, StateJudge] = {}

    def with_options(self, options: ExplorerOptions) -> Explorer:
        """Return an explorer that shares the base stores and the judges."""
        other = copy(self)
        other.options = options
        other._runner = self._runner.mutated(options.mutation)
        return other

    def explore(self, workload: Workload) -> Visited:
        """Visit the states that a crash in a workload's last batch may leave; at depth 2, a crash in the recovery."""
        run = self._runner.run(workload)
        visited = Visited(workload, events=len(run.trace.events), natively=run.natively)
        judge = self._judge_of(workload.layout)
        judged = judge.judged
        with suppress(_EnoughError):
            for model in self.options.models:
                scene = _scene(run, model)
                self._explore_model(judge, scene, workload, visited)
        visited.judged = judge.judged - judged
        return visited

    def _explore_model(self, judge: StateJudge, scene: Scene, workload: Workload, visited: Visited) -> None:
        if self.options.depth == 1:
            for epoch in scene.epochs():
                self._visit(judge, scene, epoch, StateName(workload, scene.model, epoch.number, ()), visited)
        else:
            for first, again in self._recoveries(judge, scene, workload, visited):
                for epoch in again.epochs():
                    self._visit(judge, again, epoch, replace(first, then=(epoch.number, ())), visited)

    def events(self, workload: Workload) -> tuple[list[Event], list[Event]]:
        """Return the events of a workload's last batch, and of the recoveries after some of its crashes."""
        run = self._runner.run(workload)
        judge = self._judge_of(workload.layout)
        recoveries: list[Event] = []
        for model in self.options.models:
            scene = _scene(run, model)
            for _, again in self._recoveries(judge, scene, workload, Visited(workload)):
                recoveries += again.trace.events[again.first :]
        return list(run.trace.events[run.last :]), recoveries

    def visit(self, name: StateName) -> StateReport:
        """Visit one state.

        Raises
        ------
        ValueError
            If there is no such state: a run with another seed, or of another program, printed the name.
        """
        run = self._runner.run(name.workload)
        judge = self._judge_of(name.workload.layout)
        scene = _scene(run, name.model)
        number, choice = name.epoch, name.choice
        if name.then:
            scene = self._after_first(judge, scene, name, Visited(name.workload))
            number, choice = name.then
        for epoch in scene.epochs():
            if epoch.number == number and len(epoch.steps) == len(choice):
                kept = epoch.changes(choice)
                changes = tuple((event in kept, event) for event in epoch.changes(epoch.steps))
                files = {number: file for file, number in epoch.durable.names.items()}
                return StateReport(_judge(judge, scene, epoch, choice), changes, files)
        raise ValueError(f"{name}: there is no such state; was the seed another one?")

    def _visit(self, judge: StateJudge, scene: Scene, epoch: Epoch, name: StateName, visited: Visited) -> None:
        """Visit the states of an epoch."""
        visited.epochs += 1
        visited.exhaustive += is_exhaustive(epoch.steps)
        keys = StateKeys(epoch, scene.before)
        # The same bytes count as another state if other outcomes are allowed: fewer are, after an acknowledgement.
        dumps = scene.allowed(epoch)
        allowed = str((hash(dumps), *[one.kept_ms for one in dumps])).encode()
        for choice in self._choices(epoch, name):
            visited.states[scene.model] += 1
            key = keys.key(epoch.changes(choice)) + allowed
            if key in visited.distinct:
                continue
            visited.distinct.add(key)
            message = _judge(judge, scene, epoch, choice)
            if message:
                chosen = replace(name, then=(name.then[0], choice)) if name.then else replace(name, choice=choice)
                visited.violations.append(StateViolation(chosen, message))
                if self.options.stop_early:
                    raise _EnoughError

    def _recoveries(
        self, judge: StateJudge, scene: Scene, workload: Workload, visited: Visited
    ) -> Iterator[tuple[StateName, Scene]]:
        """Choose states of a first crash, recover them, and return the scenes of these recoveries."""
        known: set[bytes] = set()
        for epoch in scene.epochs():
            name = StateName(workload, scene.model, epoch.number, ())
            keys = StateKeys(epoch, scene.before)
            every = list(dict.fromkeys(self._choices(epoch, name)))
            self._random(name, "first").shuffle(every)
            new = {keys.key(epoch.changes(choice)): choice for choice in every[: 4 * self.options.first_states]}
            for key in [key for key in new if key not in known][: self.options.first_states]:
                known.add(key)
                yield from self._recovery(judge, scene, replace(name, choice=new[key]), visited)
        # A kill may leave stores in the caches of the host, and a power failure after it may still lose them. A GPU has
        # no such caches.
        if scene.model in (Model.ADR, Model.ADR8, Model.PAGE):
            name = StateName(workload, scene.model, KILLED, ())
            for place in self._kills(scene, name):
                yield from self._recovery(judge, scene, replace(name, choice=(place,)), visited)

    def _kills(self, scene: Scene, name: StateName) -> list[int]:
        """Return after how many events to kill: after each change of roots, flag or a name, and a few others."""
        events = scene.trace.events
        root = scene.trace.before.names.get(ROOT_FILE)
        machine = Machine(Model.KILL, scene.trace.before)
        changed = [
            place + 1
            for place, event in enumerate(events)
            if event.kind in CHANGES
            and machine.add(place, event)
            and place >= scene.last
            and (event.kind is Kind.NAME or event.file == root)
        ]
        others = range(scene.last, len(events))
        return changed + self._random(name).sample(others, min(len(others), 2 * self.options.first_states))

    def _recovery(
        self, judge: StateJudge, scene: Scene, name: StateName, visited: Visited
    ) -> Iterator[tuple[StateName, Scene]]:
        try:
            yield name, self._after_first(judge, scene, name, visited)
        except (StateError, GpkvsError) as error:
            visited.violations.append(StateViolation(name, str(error)))
            if self.options.stop_early:
                raise _EnoughError from error

    def _after_first(self, judge: StateJudge, scene: Scene, name: StateName, visited: Visited) -> Scene:
        """Return the scene of the recovery after a first crash, whose outcome it must keep."""
        visited.recoveries += 1
        if name.epoch == KILLED:
            return self._after_kill(judge, scene, name)
        epoch = next(epoch for epoch in scene.epochs() if epoch.number == name.epoch)
        changes = epoch.changes(name.choice)
        outcome = judge.outcome(epoch.durable, changes)
        trace = self._runner.recovery(judge.disk, epoch.state(name.choice), str(name))
        # Recovery stores over a root copy that the first crash tore; a part of these stores may make it whole.
        either = name.workload.letters in (TABLE, DROP)
        return Scene(scene.model, trace, 0, 0, scene.allowed(epoch) if either else (outcome,), scene.before, outcome)

    def _after_kill(self, judge: StateJudge, scene: Scene, name: StateName) -> Scene:
        """Return the scene of a recovery after a kill: all stores are there, but they are not durable yet.

        A power failure may take them back until recovery has made them durable. Once the store is open, it may not.
        """
        place = name.choice[0]
        stored = Trace(scene.trace.before, scene.trace.events[:place])
        after = stored.after()
        outcome = judge.outcome(after, ())
        recovery = self._runner.recovery(judge.disk, after, str(name))
        trace = stored.then(recovery.events)
        if place < scene.first:  # the domain promised less until then: the next opening decides what counts
            return Scene(scene.model, trace, place, len(trace.events) - 1, (outcome,), scene.before, outcome)
        # A step may be several transactions: removals, then the batch.
        done = min(sum(event.kind is Kind.MARK for event in stored.events), len(scene.dumps) - 2)
        return Scene(scene.model, trace, place, place, scene.dumps[done : done + 2], scene.before, outcome)

    def _choices(self, epoch: Epoch, name: StateName) -> Iterator[Choice]:
        return choices(epoch.steps, self._random(name), self.options.samples, self.options.pairs)

    def _random(self, name: StateName, use: str = "") -> Random:
        return Random(f"{self.options.seed} {name} {use}")

    def _judge_of(self, layout: str) -> StateJudge:
        if layout not in self._judges:
            self._judges[layout] = StateJudge(self._directory / "bench", self._runner.keys(layout))
        return self._judges[layout]


def _judge(judge: StateJudge, scene: Scene, epoch: Epoch, choice: Choice) -> str:
    """Recover a state; return what is wrong with it, empty if nothing."""
    allowed = scene.allowed(epoch)
    try:
        if not epoch.in_progress:
            judge.require_clean(epoch.durable, epoch.changes(choice))
        outcome = judge.outcome(epoch.durable, epoch.changes(choice))
    except (StateError, GpkvsError) as error:
        return str(error)
    if outcome not in allowed:
        return difference(outcome, allowed)
    kept_ms = min(one.kept_ms for one in allowed if one == outcome)
    return "" if outcome.kept_ms >= kept_ms else f"the time went back from {kept_ms} to {outcome.kept_ms}"
