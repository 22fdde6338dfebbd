"""A kill at every place of a growth step, of its end, and of what follows: no key is lost, and growth goes on."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.engine.commit.journal_committer import JournalCommitter
from gpkvs.engine.commit.undo_committer import UndoCommitter
from gpkvs.media.index import Index
from gpkvs.media.layout import LAYOUTS
from gpkvs.process import failpoint
from gpkvs.recovery.startup.check import check

SIZES: dict[str, Any] = {
    "index_bytes": 64 << 10,
    "heap_bytes": 4 << 20,
    "log_bytes": 1 << 20,
    "journal_bytes": 3 << 20,
}
END = (*failpoint.GROWTH_END, *failpoint.SCHEMA, "between_roots")
# Of the step of block 0, which has a transaction.
BLOCK_0 = failpoint.ENGINE[failpoint.ENGINE.index("before_log") : -1]
STEPS = {"undo": failpoint.GROWTH, "journal": failpoint.GROWTH_JOURNAL}
BLOCKS = (1, 2, 3, 5)
# Of a step in which several blocks may move: that of block 0 has a transaction instead.
LARGER = ("mid_growth_targets", "before_growth_descriptor")
ALL_KILLS = "GPKVS_ALL_KILLS"  # in the environment: visit each place with each number of blocks
Model = dict[bytes, bytes]


class Life:
    """Batches on a table that grows, each a function of its number."""

    def __init__(self, layout: str, blocks: int) -> None:
        self.layout = layout
        slots = blocks * LAYOUTS[layout].block_slots
        self.first, self.more = int(0.645 * slots), max(slots // 60, 1)

    def batch(self, number: int) -> list[tuple[Op, bytes] | tuple[Op, bytes, bytes]]:
        """Return new keys, some updates, and a DELETE."""
        last = self.first + number * self.more
        begin = last - self.more if number else 0
        value = number.to_bytes(8, "big")
        operations: list[Any] = [(Op.SET, _key(key), value) for key in range(begin, last)]
        operations += [(Op.SET, _key(key), value) for key in range(number, begin, 97)]
        return [*operations, (Op.DELETE, _key(number * 7 + 3))]

    def model(self, batches: int) -> Model:
        held: Model = {}
        for number in range(batches):
            for kind, key, *value in self.batch(number):
                if kind is Op.SET:
                    held[key] = value[0]
                else:
                    held.pop(key, None)
        return held

    def run(self, path: Path, first: int, last: int) -> Iterator[int]:
        """Run batches; yield the number of each that is acknowledged."""
        with gpkvs.open(path, threads=1, backend="cpu") as store:  # a forked process has no GPU
            for number in range(first, last):
                store.execute(Batch.of(self.batch(number)), table="t")
                yield number


def _key(number: int) -> bytes:
    return (number * 0x9E3779B97F4A7C15 % 2**64).to_bytes(8, "little")


def run_until_killed(life: Life, path: Path, first: int, name: str, step: int) -> tuple[bool, int]:
    """Run batches in a process that dies at a failpoint, from a growth step on; 0: from that of block 0 on.

    Returns
    -------
    Whether it was killed, and how many batches were acknowledged.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        moves = [0]

        def arm(index: Index, first_block: int, last: int) -> None:
            moves[0] += 1
            if moves[0] == step or (step == 0 and last == 1):
                failpoint.arm(name)

        try:
            for owner in (UndoCommitter, JournalCommitter):
                _wrap(owner, arm)
            for _ in life.run(path, first, first + 20):
                os.write(writing, b".")
        finally:
            os._exit(1)
    os.close(writing)
    acknowledged = 0
    while data := os.read(reading, 4096):
        acknowledged += len(data)
    os.close(reading)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, acknowledged


def _wrap(owner: Any, before: Any) -> None:
    real = owner.move_blocks

    def move_blocks(self: Any, index: Index, first: int, last: int) -> None:
        before(index, first, last)
        real(self, index, first, last)

    owner.move_blocks = move_blocks


def contents(path: Path, life: Life, batches: int) -> Model:
    """Open a store; return what its table holds of all keys that there may be."""
    keys = [_key(number) for number in range(life.first + batches * life.more)]
    with gpkvs.open(path, threads=1) as store:
        held = {}
        for first in range(0, len(keys), 4096):
            part = keys[first : first + 4096]
            values = store.execute(Batch.of([(Op.GET, key) for key in part]), table="t").value_list()
            held |= {key: value for key, value in zip(part, values, strict=True) if value}
        assert store.info().tables[1].records == len(held)
    return held


def kill_and_recover(base: Path, life: Life, name: str, step: int) -> None:
    path = base.with_name("killed")
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(base, path)
    killed, acknowledged = run_until_killed(life, path, 1, name, step)
    where = f"{name}, step {step}"
    assert killed, where
    report = check(path)
    assert not report.violations, (where, report)
    done = 1 + acknowledged
    found = contents(path, life, done + 1)
    assert found in (life.model(done), life.model(done + 1)), where
    if found != life.model(done):
        done += 1
    assert check(path).is_clean, where
    # And growth goes on.
    for _ in life.run(path, done, done + 12):
        done += 1
    assert contents(path, life, done) == life.model(done), where
    report = check(path)
    assert report.is_clean, (where, report)


@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("commit", ["undo", "journal"])
def test_kill_in_a_growth_step(tmp_path: Path, commit: Any, blocks: int) -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    rng = random.Random(seed)
    layout = rng.choice(list(LAYOUTS))
    life, base = Life(layout, blocks), tmp_path / "base"
    with gpkvs.open(base, **SIZES, commit=commit, threads=1) as store:
        store.create_table("t", layout=layout, index_bytes=blocks << 16)
    assert list(life.run(base, 0, 1)) == [0]
    steps = [name for name in STEPS[commit] if blocks > 1 or name not in LARGER]
    kills = [(name, rng.randint(1, min(max(blocks - 1, 1), 2))) for name in steps]
    kills += [(name, 0) for name in (*(BLOCK_0 if commit == "undo" else ()), *END)]
    # Each place with some number of blocks, which changes from run to run; `make nightly` visits all of them.
    share = 1 if os.environ.get(ALL_KILLS) else len(BLOCKS)
    for name, step in kills[(seed + BLOCKS.index(blocks)) % share :: share]:
        kill_and_recover(base, life, name, step)


def test_every_failpoint_of_growth_is_visited() -> None:
    named = {name for name in failpoint.ALL if "growth" in name}
    assert named == {*failpoint.GROWTH, *failpoint.GROWTH_JOURNAL, *failpoint.GROWTH_END}
    assert named <= {name for names in STEPS.values() for name in names} | set(END)
