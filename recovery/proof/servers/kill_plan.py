"""The plan of a drill: how the server dies in each round, chosen from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from gpkvs.process import failpoint

SIGKILL = "sigkill"

# A kill at these leaves the flag ACTIVE, so the next start has a batch to undo.
LEAVES_ACTIVE = ("before_active_persist", "before_apply", "mid_apply", "before_apply_persist", "before_idle_flag")
# With a journal, a kill at these leaves batches to replay.
LEAVES_BATCHES = ("before_apply", "mid_apply", "before_reply")
# After a kill at these, in a start that undoes a batch, the flag is still ACTIVE.
WHILE_UNDOING = ("before_settle", "before_undo", "mid_undo", "before_undo_persist", "before_undo_idle_flag")

# These come once a checkpoint, or a few times: on a slow disk one takes many seconds.
IN_CHECKPOINT = ("mid_checkpoint", "before_checkpoint_sync", "before_checkpoint_root")

_HITS_MAX, _CHECKPOINT_HITS_MAX = 40, 3
_LOAD_SECONDS = (0.1, 0.8)
_SIGKILL_SHARE = 0.6  # of the rounds beyond one for each failpoint


@dataclass(frozen=True)
class Round:
    """One planned round.

    Parameters
    ----------
    number
        From 1.
    kind
        `SIGKILL`: the server dies at a random moment. A failpoint of the engine: it dies there, in the middle of a
        batch. A failpoint of recovery: it dies first in the middle of a batch, then in recovery.
    load_seconds
        After so many seconds SIGKILL is sent.
    engine_point
        The engine's failpoint at which the server dies; "" for SIGKILL.
    hit
        The server dies when it reaches the failpoint for the `hit`-th time.
    recovery_kills
        How many starts, one after the other, die at the recovery failpoint.
    commit
        Of the store: ``undo`` or ``journal``.
    """

    number: int
    kind: str
    load_seconds: float
    engine_point: str
    hit: int
    recovery_kills: int
    commit: str

    def __str__(self) -> str:
        if self.kind == SIGKILL:
            return f"SIGKILL after {self.load_seconds:.2f} s of load"
        text = f"{self.engine_point}:{self.hit}"
        if self.recovery_kills:
            text += f", then {self.kind} in recovery" + (", twice" if self.recovery_kills == 2 else "")
        return text

    @property
    def undoes(self) -> bool | None:
        """Whether the start after the last kill must find a batch to undo; None if that is up to chance."""
        if self.commit != "undo":
            return False
        if self.kind == SIGKILL:
            return None
        return self.kind in LEAVES_ACTIVE or self.kind in WHILE_UNDOING


def plan(rounds: int, seed: int, commit: str) -> list[Round]:
    """Choose all rounds for stores of a commit, ``undo`` or ``journal``.

    With at least one round for each failpoint (`gpkvs.process.failpoint.SERVING_BY_COMMIT`), all are visited, and most
    other rounds are SIGKILLs. With fewer rounds, every third is a SIGKILL and the others are different failpoints.
    """
    choice = random.Random(seed)
    points = [*failpoint.SERVING_BY_COMMIT[commit][0], *failpoint.SERVING_BY_COMMIT[commit][1]]
    choice.shuffle(points)
    if rounds < len(points):
        kinds = [SIGKILL if i % 3 == 2 else points[i] for i in range(rounds)]
    else:
        kinds = points + [
            SIGKILL if i == 0 or choice.random() < _SIGKILL_SHARE else choice.choice(points)
            for i in range(rounds - len(points))
        ]
        choice.shuffle(kinds)
    return [_round(number, kind, choice, commit) for number, kind in enumerate(kinds, 1)]


def _round(number: int, kind: str, choice: random.Random, commit: str) -> Round:
    in_recovery = kind in failpoint.SERVING_BY_COMMIT[commit][1]
    leaves_work = choice.choice(LEAVES_ACTIVE if commit == "undo" else LEAVES_BATCHES)
    hits_max = _CHECKPOINT_HITS_MAX if kind in IN_CHECKPOINT else _HITS_MAX
    return Round(
        number,
        kind,
        load_seconds=choice.uniform(*_LOAD_SECONDS),
        engine_point=leaves_work if in_recovery else "" if kind == SIGKILL else kind,
        hit=choice.randint(1, hits_max),
        recovery_kills=choice.randint(1, 2) if in_recovery else 0,
        commit=commit,
    )
