"""Two stores that get the same batches at the same time: natively, with a crew, and phase by phase."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import Batch, RequestColumns
from gpkvs.config import CommitName
from gpkvs.engine.seam.counted_time import clocks_set_by
from gpkvs.engine.seam.left import Left
from gpkvs.store import Store
from tests.conftest import SMALL
from tests.engine.native_driver import Answer, NativeDriver

Results = list[tuple[list[int], list[int], list[bytes]]]
CROWDED = {"heap_bytes": 4 << 20, "heap_bytes_max": 4 << 20}
FAR = 1 << 42  # milliseconds since 1970, which the machine's clock does not reach


@pytest.fixture(autouse=True)
def alike(natively: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let stores hash keys alike."""
    monkeypatch.setattr("gpkvs.media.directory.secrets.token_bytes", lambda count: bytes(range(count)))
    monkeypatch.setattr("gpkvs.media.directory.time.time_ns", lambda: 0)


def columns_of(batch: Batch) -> RequestColumns:
    """Return a request as the store makes it of Python's objects."""
    optional = (batch.expiries, batch.conditions, batch.expected)
    columns = (batch.ops, batch.keys, batch.key_lengths, batch.values, batch.value_lengths)
    return RequestColumns(
        *(column.tobytes() for column in columns),
        *(None if column is None else column.tobytes() for column in optional),
    )


class Served:
    """A store whose batches run natively, with a crew.

    Parameters
    ----------
    store
        The store.
    is_own
        Whether batches come as requests of this process, and not as those of a door.
    """

    def __init__(self, store: Store, *, is_own: bool = False) -> None:
        self.store = store
        self.driver = NativeDriver(store)
        self._crew = self.driver.crew
        self.is_own = is_own
        self.refusals = self.driver.refusals

    def run(self, batch: Batch) -> Results:
        """Run a batch; return the results of its requests."""
        return self._run_own(batch) if self.is_own else self._run_as_a_door(batch)

    def _run_own(self, batch: Batch) -> Results:
        table = self.store._engine.tables[batch.table].entry
        answer = self.store._own_turn.run(table.id, columns_of(batch))
        if answer is None:
            return by_columns(self.store, batch)
        self.store._engine.wait_for(answer.gate)
        if answer.refusal:
            raise answer.refusal
        return [([*answer.statuses], [*answer.versions], [*answer.values])]

    def _run_as_a_door(self, batch: Batch) -> Results:
        answer = self.run_with_help(batch)
        assert answer, self.store.meter.last_left
        assert answer.requests == len(batch.request_ops)
        for lacking in answer.lacking.values():
            raise self.refusals[lacking]
        return [(answer.status, answer.versions, answer.values)]

    def run_with_help(self, batch: Batch) -> Answer | None:
        """Run a batch in a turn of its own; None: it lacks what nobody can do."""
        return self.driver.run_with_help(batch)

    def run_again(self, batch: Batch) -> Answer:
        """Have a batch run that was left, which the crew can help."""
        answer = self.driver.run_again(batch)
        assert answer
        return answer

    @property
    def helped(self) -> dict[Left, int]:
        return {reason: count for reason, count in self.store.meter.helped_batches.items() if count}

    @property
    def not_helped(self) -> dict[Left, int]:
        """The batches that did not run natively after all, by the reason."""
        meter = self.store.meter
        return {
            reason: left - meter.helped_batches[reason]
            for reason, left in meter.left_batches.items()
            if left > meter.helped_batches[reason]
        }


def plan_by_phases(store: Store) -> None:
    """Let a store's threads stand for a GPU, which plans batches of plain operations."""
    store._backend.host_ops_max = 0
    store._is_on_host = False


def by_columns(store: Store, batch: Batch) -> Results:
    result = store.execute_requests(batch)
    for refusal in result.rejected.values():
        raise refusal
    assert result.requests == len(batch.request_ops) == 1
    one = result.request(0)
    return [(one.status.tolist(), one.versions.tolist(), one.value_list())]


def regions_of(store: Store) -> tuple[Any, ...]:
    """Return what only batches change, and both planners alike.

    Checkpoints beside batches write the root of a store with a journal. A plan for a GPU has slots in another order,
    and so has the undo log.
    """
    files = store._files
    return tuple(region for region in files.regions if region is not files.log) if files.undo_log else files.regions[1:]


class Twins:
    """Two stores that are given the same batches at the same time; one plans plain ones phase by phase."""

    def __init__(self, folder: Path, commit: CommitName, *, is_own: bool = False, **sizes: int) -> None:
        self.stores = [
            gpkvs.open(folder / name, backend="cpu", threads=1, durability="process", commit=commit, **SMALL | sizes)  # type: ignore[arg-type]
            for name in ("native", "phases")
        ]
        self.now = FAR
        for store in self.stores:
            # Nobody sweeps, or gives space back: that is a matter of time.
            store._engine.expiry._look_at = store._engine.free_space._look_at = float("inf")
            store._engine.expiry.time.clocks = clocks_set_by(lambda: self.now)
        plan_by_phases(self.stores[1])
        self.served = Served(self.stores[0], is_own=is_own)
        self.compares_bytes = True

    def pass_by(self, ms: int) -> None:
        """Let time go on."""
        self.now += ms

    def both(self, do: Callable[[Store], object]) -> None:
        for store in self.stores:
            do(store)

    def run(self, batch: Batch) -> Results:
        """Run a batch on both; compare what they answer, which is returned, and what they hold."""
        results = self.served.run(batch)
        assert results == by_columns(self.stores[1], batch)
        self.both(lambda store: store._engine.settle())
        if not self.compares_bytes:
            return results
        for left, right in zip(*map(regions_of, self.stores), strict=True):
            words = left.bytes // 8
            assert np.array_equal(left.words(0, words), right.words(0, words)), left.path
        return results
