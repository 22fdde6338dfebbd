"""Lives of one store that end with a kill, most of them inside a step of compaction.

Run as ``python -m tests.engine.space.compaction_lives DIRECTORY SEGMENTS SEED LIVES``. Each life is a forked process.
It opens the store and compares all of it with what was acknowledged: the write that a kill interrupted is there whole
or not at all. Then it writes, and every write must be accepted while the charge allows it. What it acknowledged comes
back through a pipe.
"""

from __future__ import annotations

import os
import pickle
import random
import sys
from pathlib import Path
from typing import Any

from gpkvs.engine.space import compaction
from gpkvs.engine.space.compaction import VICTIM_SHARE_MAX, Compactor
from gpkvs.media.layout import UNIT_BYTES
from gpkvs.process import failpoint
from gpkvs.recovery.startup.opening import COMMIT_VARIABLE
from tests.engine.heap_driver import SEGMENT_BYTES, HeapDriver

IN_STEP = {
    "undo": (
        *("before_record", "mid_record", "before_log", "mid_log", "before_descriptor", "before_active_flag"),
        *("before_apply", "mid_apply", "before_apply_persist", "before_idle_flag", "before_idle_persist"),
    ),
    "journal": ("before_record", "mid_record", "before_log", "mid_log", "before_frame", "before_apply", "mid_apply"),
}
KEYS = 400
MANY_SEGMENTS = 5
OPERATIONS = 400  # of a life that is not killed earlier


def value_bytes(rng: random.Random) -> int:
    """Return the length of a value: small ones, and some that take up to half of a segment."""
    return rng.randrange(8, 1500) if rng.random() < 0.97 else int(SEGMENT_BYTES * rng.uniform(0.1, 0.5))


def any_bytes(rng: random.Random) -> int:
    """Return the length of a value of a heap that takes records of two segments."""
    kind = rng.random()
    if kind < 0.08:
        return int(SEGMENT_BYTES * rng.uniform(1, 1.9))
    return int(SEGMENT_BYTES * rng.uniform(0.01, 0.3)) if kind < 0.5 else rng.randrange(8, 1500)


_step = Compactor.step


def step_for_many(compactor: Compactor, share_max: float = VICTIM_SHARE_MAX, wanted_units: int = 0) -> bool:
    """Take a step of compaction that is to free many segments, as after a large batch."""
    return _step(compactor, share_max, max(wanted_units, MANY_SEGMENTS * compactor._heap.segment_units))


class Life:
    """One life.

    Parameters
    ----------
    driver
        Of the store, which is not open.
    interrupted
        The write that the kill before interrupted: a key, its values before and after.
    pipe
        Where to say what is done.
    """

    def __init__(self, driver: HeapDriver, interrupted: Any, pipe: int) -> None:
        self._driver = driver
        self._interrupted = interrupted
        self._pipe = pipe

    def say(self, *words: Any) -> None:
        packed = pickle.dumps(words)
        os.write(self._pipe, len(packed).to_bytes(4, "little") + packed)

    def run(self, kill_at: str, steps: int) -> None:
        """Open, compare, and write until the kill, in the step of that number."""
        driver = self._driver
        share = driver.rng.choice([0, 1, 8])
        if share:  # else steps end with victims
            units = SEGMENT_BYTES // UNIT_BYTES // share
            compaction._STEP_UNITS_MAX = compaction._STEP_UNITS_MIN = units
            compaction._IDLE_STEP_UNITS = units  # type: ignore[misc]
        else:
            Compactor.step = step_for_many  # type: ignore[method-assign]
        driver.open(charged_is_known=False)
        for key in {*driver.expected, *(self._interrupted or ())[:1]}:
            found = driver.store.get(key)
            if self._interrupted and key == self._interrupted[0]:
                assert found in self._interrupted[1:], f"{key!r} is neither as before nor as after"
                driver.set_expected(key, found)
                self.say("is", key, found)
            else:
                assert found == driver.expected[key], f"{key!r} is lost or wrong"
        assert driver.heap.charged == driver.charged
        self._kill_in_step(kill_at, steps)
        rng = driver.rng
        for _ in range(OPERATIONS):
            key = b"key%d" % rng.randrange(KEYS)
            before = driver.expected.get(key)
            value = rng.randbytes((any_bytes if driver.heap.run else value_bytes)(rng))
            self.say("begins", key, before, value)
            if driver.write(key, value):
                self.say("is", key, value)
            else:
                self.say("begins", key, before, None)
                driver.delete(key)
                self.say("is", key, None)

    def _kill_in_step(self, kill_at: str, steps: int) -> None:
        commit, left = Compactor._commit, [steps]

        def commit_or_die(compactor: Compactor, moves: Any) -> None:
            left[0] -= 1
            if left[0] == 0:
                self.say("dies")
                failpoint.arm(kill_at)
            commit(compactor, moves)

        Compactor._commit = commit_or_die  # type: ignore[method-assign]


def said(pipe: int) -> list[Any]:
    """Return what a life said."""
    with os.fdopen(pipe, "rb") as stream:
        text = stream.read()
    words, at = [], 0
    while at < len(text):
        size = int.from_bytes(text[at : at + 4], "little")
        words.append(pickle.loads(text[at + 4 : at + 4 + size]))
        at += 4 + size
    return words


def main() -> None:
    """Run one life after the other; the last one closes the store."""
    directory, segments, seed, lives = Path(sys.argv[1]), *map(int, sys.argv[2:])
    rng = random.Random(seed)
    driver = HeapDriver(directory / "store", segments, rng, opens=False)
    interrupted, killed = None, 0
    points = IN_STEP[os.environ[COMMIT_VARIABLE]]
    for life in range(lives):
        rng.seed(seed * 1000 + life)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            # Often in the first steps after an opening: that wedged small heaps in a model.
            Life(driver, interrupted, writing).run(rng.choice(points), rng.choice([1, 2, 3, 3, rng.randrange(1, 30)]))
            os._exit(0)
        os.close(writing)
        words = said(reading)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        interrupted = None
        for kind, *rest in words:
            if kind == "begins":
                interrupted = rest
            elif kind == "is":
                driver.set_expected(*rest)
                interrupted = None
        if status not in (0, -9):
            sys.exit(f"life {life} of seed {seed} failed")
        killed += ("dies",) in words
    driver.open(charged_is_known=False)
    if interrupted:
        found = driver.store.get(interrupted[0])
        assert found in interrupted[1:]
        driver.set_expected(interrupted[0], found)
    driver.check()
    driver.store.close()
    print(killed)


if __name__ == "__main__":
    main()
