"""The states of a crash, against every crash point of tiny random traces tried one by one."""

from __future__ import annotations

import os
from itertools import product
from random import Random

import numpy as np
import pytest

from gpkvs.recovery.proof.powerfail.crash_models import Model, epochs
from gpkvs.recovery.proof.powerfail.state_choices import UNITS_MAX, Choice, choices, is_exhaustive
from gpkvs.recovery.proof.powerfail.trace import Event, Image, Kind, Trace

WORDS = 130  # of each file: three sectors, and lines in each
PLACES = (0, 1, 2, 8, 9, 64, 65, 128)  # those that are stored to
Words = tuple[int, ...]


def stores_and_barriers(random: Random, *, few: bool) -> list[Event]:
    """Return what two kernels of two threads and the host might do: every ordering there is, in random places."""
    places = (0, 1, 8, 64) if few else PLACES
    events: list[Event] = []
    thread = 0
    for _ in range(random.randint(1, 3)):
        for _ in range(random.randint(1, 2)):
            thread += 1
            lines = set()
            for _ in range(random.randint(1, 3)):
                file, at = random.randint(1, 2), random.choice(places)
                events.append(Event(Kind.STORE, "kernel", thread, file, at, (random.randint(1, 3),)))
                lines.add((file, at))
            for file, at in lines:
                if random.random() < 0.7:
                    events.append(Event(Kind.WRITE_BACK, "kernel", thread, file, at))
            if random.random() < 0.7:
                events.append(Event(Kind.FENCE, "kernel", thread))
        events.append(Event(Kind.RETURN, "kernel"))
        if random.random() < 0.5:
            events.append(Event(Kind.SYNC, "host", 0, random.randint(1, 2)))
    return events


def durable_stores(model: Model, events: list[Event]) -> set[int]:
    """Return which stores cannot be lost any more, by the words of each model."""
    durable = set()
    for place, store in enumerate(events):
        if store.kind is not Kind.STORE:
            continue
        later = events[place + 1 :]
        if model is Model.PAGE:
            safe = any(event.kind is Kind.SYNC and event.file == store.file for event in later)
        elif model is Model.GPU:
            safe = any(event.kind is Kind.FENCE and event.thread == store.thread for event in later)
        elif model is Model.KILL:
            safe = any(event.kind is Kind.RETURN for event in later)
        else:
            safe = any(
                back.kind is Kind.WRITE_BACK
                and (back.file, back.at // 8) == (store.file, store.at // 8)
                and any(fence.kind is Kind.FENCE and fence.thread == back.thread for fence in later[n + 1 :])
                for n, back in enumerate(later)
            )
        if safe:
            durable.add(place)
    return durable


def unit_of(model: Model, store: Event) -> tuple[object, ...]:
    words = {Model.ADR: 8, Model.PAGE: 64}.get(model, 1)
    return (store.thread,) if model is Model.KILL else (store.file, store.at // words)


def crashed(model: Model, events: list[Event]) -> set[tuple[Words, Words]]:
    """Return every state of a crash after exactly these events."""
    stores = [place for place, event in enumerate(events) if event.kind is Kind.STORE]
    durable = durable_stores(model, events)
    units: dict[tuple[object, ...], list[int]] = {}
    for place in stores:
        units.setdefault(unit_of(model, events[place]), []).append(place)
    kept_of_units = []
    for places in units.values():
        least = max((n + 1 for n, place in enumerate(places) if place in durable), default=0)
        kept_of_units.append([places[:count] for count in range(least, len(places) + 1)])
    states = set()
    for kept in product(*kept_of_units):
        files = {1: dict.fromkeys(PLACES, 0), 2: dict.fromkeys(PLACES, 0)}
        for place in sorted(place for places in kept for place in places):
            files[events[place].file][events[place].at] = events[place].words[0]
        states.add((tuple(files[1].values()), tuple(files[2].values())))
    return states


def empty() -> Image:
    return Image({"one": 1, "two": 2}, {1: np.zeros(WORDS, np.uint64), 2: np.zeros(WORDS, np.uint64)})


@pytest.mark.parametrize("model", list(Model))
def test_the_states_of_all_epochs_are_those_of_every_crash_point(model: Model) -> None:
    seed = int(os.environ.get("GPKVS_SEED", Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    for number in range(30):
        events = stores_and_barriers(Random(f"{seed} {number}"), few=number % 2 == 0)
        trace = Trace(empty(), tuple(events))
        found = set()
        for epoch in epochs(trace, model):
            for choice in product(*(range(step + 1) for step in epoch.steps)):
                image = epoch.state(choice)
                found.add(tuple(tuple(image.files[file][list(PLACES)].tolist()) for file in (1, 2)))
        expected = set().union(*(crashed(model, events[:end]) for end in range(len(events) + 1)))
        assert found == expected, (seed, number)


def test_after_an_acknowledgement_what_is_not_durable_is_visited_again() -> None:
    """Otherwise a commit that is durable too late would go unseen."""
    events = (Event(Kind.STORE, "host", 0, 1, 0, (7,)), Event(Kind.RETURN, "host"), Event(Kind.MARK, ""))
    found = [
        (epoch.steps, epoch.acknowledged, epoch.in_progress) for epoch in epochs(Trace(empty(), events), Model.PAGE)
    ]
    assert found[0] == ((1,), 1, False)


def test_a_name_and_a_size_are_kept_or_lost_like_any_unit() -> None:
    """A new file of one sector, synced too late: its name may lead to nothing, or to zeros."""
    events = (
        Event(Kind.NAME, "host", file=3, name="new"),
        Event(Kind.SIZE, "host", file=3, at=64),
        Event(Kind.WRITE, "host", file=3, at=0, words=(5,) * 64),
        Event(Kind.NAMES_SYNC, "host"),
    )
    states = set()
    for epoch in epochs(Trace(empty(), events), Model.PAGE):
        for choice in product(*(range(step + 1) for step in epoch.steps)):
            image = epoch.state(choice)
            there = image.files[3].tolist() if "new" in image.names else None
            states.add("absent" if there is None else "empty" if not there else "whole" if there[0] else "zeros")
    assert states == {"absent", "empty", "zeros", "whole"}


def test_small_epochs_are_visited_whole() -> None:
    for steps in ((), (1,), (2, 3), (1,) * UNITS_MAX):
        assert is_exhaustive(steps)
        every = set(product(*(range(step + 1) for step in steps)))
        assert set(choices(steps, Random(1), 0)) == every


@pytest.mark.parametrize("steps", [(1,) * (UNITS_MAX + 1), (7,) * 8])
def test_of_large_epochs_the_edges_and_a_sample_are_visited(steps: Choice) -> None:
    assert not is_exhaustive(steps)
    found = list(choices(steps, Random(1), 50))
    for wanted in (1, 2):
        few = {choice for choice in product(*((0, step) for step in steps)) if sum(map(bool, choice)) == wanted}
        assert few <= set(found), f"{wanted} units kept"
        lost = {tuple(step - kept for step, kept in zip(steps, choice, strict=True)) for choice in few}
        assert lost <= set(found), f"{wanted} units lost"
    assert {(0,) * len(steps), steps} <= set(found)
    assert found == list(choices(steps, Random(1), 50)), "the same seed, another sample"
    assert len(set(found)) > len(set(choices(steps, Random(1), 0)))


@pytest.mark.parametrize("model", [Model.ADR, Model.ADR8, Model.GPU, Model.PAGE])
def test_a_page_of_a_blob_is_kept_or_lost_as_one(model: Model) -> None:
    """Of what is not durable: here the first line of each page is, where lines are made durable."""
    places = (0, 8, 9, 512, 520)  # of two pages
    before = Image({"blobs": 1}, {1: np.zeros(1024, np.uint64)})
    events = [Event(Kind.STORE, "kernel", 1, 1, at, (7,)) for at in places]
    events += [Event(Kind.WRITE_BACK, "kernel", 1, 1, at) for at in (0, 512)]
    events += [Event(Kind.FENCE, "kernel", 1), Event(Kind.STORE, "kernel", 2, 1, 1, (7,))]
    last = list(epochs(Trace(before, tuple(events)), model))[-1]
    kept = {tuple(np.flatnonzero(last.state(choice).files[1]).tolist()) for choice in choices(last.steps, Random(1), 0)}
    durable, first, second = {
        Model.ADR: ((0, 512), (1, 8, 9), (520,)),
        Model.ADR8: ((0, 512), (1, 8, 9), (520,)),
        Model.GPU: (places, (1,), ()),
        Model.PAGE: ((), (0, 1, 8, 9), (512, 520)),
    }[model]
    expected = {tuple(sorted({*durable, *one, *other})) for one in ((), first) for other in ((), second)}
    assert kept == expected
