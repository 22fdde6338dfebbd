"""Visits the states that a crash may leave of a program on gpkvs.gpm."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from random import Random

import numpy as np

from gpkvs.errors import GpkvsError
from gpkvs.recovery.proof.gpmfail.workloads import WORKLOADS, GpmWorkload, Outcome, compiled
from gpkvs.recovery.proof.powerfail.crash_models import Epoch, Model, epochs
from gpkvs.recovery.proof.powerfail.recorder import TraceRecorder
from gpkvs.recovery.proof.powerfail.state_choices import Choice, choices
from gpkvs.recovery.proof.powerfail.trace import Event, Image, Mutation, Trace

_MODELS = {"process": (Model.KILL, Model.GPU, Model.ADR, Model.ADR8), "msync": (Model.PAGE,)}


@dataclass(frozen=True)
class GpmViolation:
    """A state whose recovery breaks a promise.

    Attributes
    ----------
    state
        Workload, model, epoch, and what the crash keeps of each unit.
    message
        What is wrong.
    """

    state: str
    message: str


@dataclass
class GpmVisited:
    """What the exploration of one workload did."""

    workload: str
    epochs: int = 0
    states: Counter[Model] = field(default_factory=Counter)
    distinct: int = 0  # images; each was recovered
    violations: list[GpmViolation] = field(default_factory=list)


def models_of(workload: GpmWorkload) -> tuple[Model, ...]:
    """Return the models of a crash that fit the files of a workload."""
    return _MODELS[workload.durability]


def explore(
    workload: GpmWorkload, directory: Path, seed: int, samples: int = 64, mutation: Mutation | None = None
) -> GpmVisited:
    """Run a workload, visit the states that a crash may leave, and recover each.

    Parameters
    ----------
    workload
        A program.
    directory
        In memory, for this process alone; it is emptied.
    seed
        Permutes the threads of kernels, and draws samples.
    samples
        Of each epoch that has too many states to visit all of them.
    mutation
        What the mutated build leaves out, if anything; then the first violation is enough.
    """
    trace, outcomes = _run(workload, directory, seed)
    trace, visited = trace.mutated(mutation), GpmVisited(workload.name)
    judged: dict[bytes, tuple[Outcome, str]] = {}
    for model in models_of(workload):
        for epoch in epochs(trace, model):
            visited.epochs += 1
            allowed = outcomes[epoch.acknowledged : epoch.acknowledged + 1 + epoch.in_progress]
            random = Random(f"{seed} {workload.name} {model} {epoch.number}")
            for choice in choices(epoch.steps, random, samples):
                visited.states[model] += 1
                outcome, message = _judged(workload, directory / "state", epoch, choice, judged)
                if not message and not _is_allowed(workload, outcome, allowed):
                    message = f"recovery gives {outcome}; allowed: {' or '.join(map(str, allowed))}"
                if message:
                    name = f"{workload.name}/{model}/{epoch.number}/{'.'.join(map(str, choice)) or '-'}"
                    visited.violations.append(GpmViolation(name, message))
                    if mutation:
                        return visited
    visited.distinct = len(judged)
    return visited


def _is_allowed(workload: GpmWorkload, outcome: Outcome, allowed: list[Outcome]) -> bool:
    if not workload.is_of_parts:
        return outcome in allowed
    return all(part in parts for part, *parts in zip(outcome, *allowed, strict=True))


def events_of(workload: GpmWorkload, directory: Path, seed: int) -> tuple[Event, ...]:
    """Return the events of a run."""
    return _run(workload, directory, seed)[0].events


def _run(workload: GpmWorkload, directory: Path, seed: int) -> tuple[Trace, list[Outcome]]:
    """Record a run; return the trace, and what the program must hold before the first step and after each."""
    shutil.rmtree(directory, ignore_errors=True)
    live = directory / "live"
    live.mkdir(parents=True)
    workload.prepare(live)
    compiled()
    images = [_image(live)]
    recorder = TraceRecorder(live, images[0], Random(seed))
    with recorder:
        for _ in workload.run(live):
            recorder.mark()
            images.append(_image(live))
    outcomes = [_recovered(workload, directory / "state", image) for image in images]
    if workload.ends_alike:
        assert all(outcome == outcomes[-1] for outcome in outcomes), f"{workload.name} does not end alike"
    return recorder.trace(), outcomes


def _recovered(workload: GpmWorkload, folder: Path, image: Image) -> Outcome:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, words in image.items():
        words.tofile(folder / name)
    return workload.recover(folder)


def _image(folder: Path) -> Image:
    image = Image()
    for number, path in enumerate(sorted(folder.iterdir()), 1):
        image.names[path.name] = number
        image.files[number] = np.fromfile(path, np.uint64)
    return image


def _judged(
    workload: GpmWorkload, folder: Path, epoch: Epoch, choice: Choice, judged: dict[bytes, tuple[Outcome, str]]
) -> tuple[Outcome, str]:
    """Recover a state, once; return what it holds, or what is wrong."""
    state = epoch.state(choice)
    digest = blake2b(digest_size=16)
    for name, words in state.items():
        digest.update(name.encode() + words.tobytes())
    key = digest.digest()
    if key not in judged:
        try:
            judged[key] = _recovered(workload, folder, state), ""
        except (GpkvsError, AssertionError) as error:
            judged[key] = None, f"{type(error).__name__}: {error}"
    return judged[key]


def named(name: str) -> GpmWorkload:
    """Return a workload; raises `ValueError` if there is none of that name."""
    for workload in WORKLOADS:
        if workload.name == name:
            return workload
    raise ValueError(f"there is no workload {name!r}: there are {', '.join(workload.name for workload in WORKLOADS)}")
