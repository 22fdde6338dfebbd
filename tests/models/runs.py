"""Runs of a model: lives with crashes, and what is promised of each.

    python -m tests.models.runs chunks 20000 right right+rot          the right rules
    python -m tests.models.runs chunks 3000 wrong harmless            every wrong one, and what might be taken for wrong
    python -m tests.models.runs stream 20000 right                    those of followers and backups

With `+rot`, something that a crash left is damaged: then a store may be refused, and must not be served wrong.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import ModuleType

from tests.models import chunks, frames, stream
from tests.models.memory import CrashError, RefusedError, WrongError
from tests.models.tables import Tables


def run(model: type[Tables], seed: int, rule: str = "", reached: Counter[str] | None = None) -> str:
    """Live a few lives of a store.

    Parameters
    ----------
    model
        Of the store.
    seed
        Of everything.
    rule
        Which one is broken, with `+rot` if something rots; none by default.
    reached
        Counts what the run meets.

    Returns
    -------
    str
        What went wrong, or nothing.
    """
    wrong, _, rots = rule.partition("+")
    store = model(seed, wrong, Counter() if reached is None else reached)
    try:
        store.recover()
        for _ in range(store.random.randint(2, 5)):
            _live(store)
            is_rotten = bool(rots) and store.random.random() < 0.7
            if is_rotten:
                store.rot()
            try:
                _recover(store)
            except RefusedError:
                if is_rotten:
                    return ""
                raise
            store.check()
    except WrongError as error:
        return str(error)
    except RefusedError as error:
        return f"refused: {error}"
    return ""


def _live(store: Tables) -> None:
    is_long = store.random.random() < 0.1  # few meet what many batches have made
    store.memory.fuel = store.random.randrange(1, 1500 if is_long else 300)
    with suppress(CrashError):
        store.live(store.random.randint(2, 50 if is_long else 14))
    store.memory.fuel = -1
    store.crash()


def _recover(store: Tables) -> None:
    """Recover, with crashes."""
    try:
        while True:
            store.memory.fuel = store.random.choice((-1, store.random.randrange(10), store.random.randrange(40)))
            try:
                store.recover()
            except CrashError:
                store.reached["crash in recovery"] += 1
                store.memory.crash()
            else:
                return
    finally:
        store.memory.fuel = -1


MODELS: dict[str, tuple[ModuleType, Callable[..., str]]] = {
    "chunks": (chunks, partial(run, chunks.Store)),
    "frames": (frames, partial(run, frames.Store)),
    "stream": (stream, stream.run),
}


def main() -> None:
    """Run rules of a model, and print what was found."""
    (model, run_once), runs = MODELS[sys.argv[1]], int(sys.argv[2])
    lists = {"wrong": [rule for rules in model.WRONG.values() for rule in rules], "harmless": model.HARMLESS}
    for rule in (rule for name in sys.argv[3:] for rule in lists.get(name, [name])):
        found: Counter[str] = Counter()
        reached: Counter[str] = Counter()
        first = ""
        for seed in range(runs):
            if said := run_once(seed, rule.removeprefix("right"), reached):
                found[said.split(":")[0]] += 1
                first = first or f"{seed}: {said}"
        print(f"{rule:30} {runs} runs: {dict(found) or 'nothing'} {first}", flush=True)
        if rule.startswith("right"):
            for what, times in sorted(reached.items()):
                print(f"    {times:7} {what}")


if __name__ == "__main__":
    main()
