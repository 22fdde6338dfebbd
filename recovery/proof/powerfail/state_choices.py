"""Which states of an epoch are visited: all if they are few, else those at the edges and a seeded sample."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from math import prod
from random import Random

UNITS_MAX = 12
STATES_MAX = 1 << UNITS_MAX

Choice = tuple[int, ...]


def is_exhaustive(steps: Choice) -> bool:
    """Whether `choices` returns every state."""
    return len(steps) <= UNITS_MAX and prod(step + 1 for step in steps) <= STATES_MAX


def choices(steps: Choice, random: Random, samples: int, pairs: int | None = None) -> Iterator[Choice]:
    """Return how many steps of each unit a crash keeps, for each state that is visited; some may come twice.

    Parameters
    ----------
    steps
        How many steps each unit has.
    random
        Draws the sample.
    samples
        The size of the sample, if not every state is visited. Then the states in which at most two units are kept, or
        at most two are lost, are visited too: every step of a single unit, all or none of two.
    pairs
        Then so many pairs of units, drawn; `None`: all of them.
    """
    if is_exhaustive(steps):
        yield from product(*(range(step + 1) for step in steps))
        return
    nothing, everything = (0,) * len(steps), steps
    yield nothing
    yield everything
    for unit, step in enumerate(steps):
        for kept in range(step + 1):
            yield _with(nothing, {unit: kept})
            yield _with(everything, {unit: kept})
    of_two = list(combinations(range(len(steps)), 2))
    if pairs is not None:
        of_two = random.sample(of_two, min(len(of_two), pairs))
    for first, second in of_two:
        yield _with(nothing, {first: steps[first], second: steps[second]})
        yield _with(everything, {first: 0, second: 0})
    for _ in range(samples):
        yield tuple(random.randint(0, step) for step in steps)


def _with(choice: Choice, changed: dict[int, int]) -> Choice:
    return tuple(changed.get(unit, kept) for unit, kept in enumerate(choice))
