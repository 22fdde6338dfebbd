"""gpkvs itself, embedded, with a table of rows: a store of the default sizes, which grows."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpkvs.bench.engine.workload import mixed
from gpkvs.bench.peers.contender import BenchError, Promise
from gpkvs.bench.rows.table import Float32, RowBatch, RowTable
from gpkvs.config import StoreConfig
from gpkvs.engine.commit.checkpoint import BEGIN_SHARE
from gpkvs.info import JournalInfo, package_version
from gpkvs.store import Store

OWN = "gpkvs"
TABLE = "rows"
_FILL_BATCHES_MAX = 100  # of the usual size 60 do; small ones would take minutes
_LOOK_SECONDS, _SETTLE_SECONDS_MAX = 0.01, 120.0

Keys = NDArray[np.uint64]


class GpkvsRows:
    """A store of gpkvs with one table of rows; arguments as of `EmbeddedGpkvs`.

    It is loaded, then each row is overwritten once, in random order: so the heap, which is a log, is compacted beside
    the SETs that are timed, as under a load that lasts. What idle time would do for it is left undone.
    """

    name = OWN

    def __init__(self, directory: Path, table: RowTable, promise: Promise) -> None:
        self.version = package_version()
        self._directory, self._table = directory, table
        self.store = Store(directory, StoreConfig())
        self.store.create_table(TABLE, layout=table.layout.name)
        self.rows = self.store.rows(table.layout.name, table=TABLE)
        info = self.store.info()
        self.settings = f"domain {promise}, commit {info.commit}, format {info.store_format}, default sizes, which grow"

    def load(self, table: RowTable) -> None:
        """Store all rows, then overwrite each."""
        for batch in table.loads():
            self.rows.set(batch.keys, batch.rows)
        order = np.random.default_rng(2).permutation(table.count)
        for start in range(0, table.count, table.batch):
            places = order[start : start + table.batch]
            self.rows.set(mixed(places.astype(np.uint64)), table.rows[places])
        self.settle()

    def keys_of(self, batch: RowBatch) -> Keys:
        """Return them as they are."""
        return batch.keys

    def rows_of(self, rows: Float32) -> Float32:
        """Return them as they are."""
        return rows

    def get(self, keys: Keys) -> Float32:
        """Read rows into a new array."""
        rows: Float32 = self.rows.get(keys)[0]
        return rows

    def get_into(self, keys: Keys, out: Float32) -> Float32:
        """Read rows into memory that is there."""
        rows: Float32 = self.rows.get(keys, out=out)[0]
        return rows

    def set(self, keys: Keys, rows: Float32) -> None:
        """Store rows."""
        self.rows.set(keys, rows)

    def adds_of(self, batch: RowBatch) -> tuple[Keys, Float32]:
        """Return keys and rows as they are."""
        return batch.keys, batch.rows

    def add(self, adds: tuple[Keys, Float32]) -> None:
        """Add to rows."""
        self.rows.add(*adds)

    def fill_journal(self) -> None:
        """Make SETs until a checkpoint runs, if there is a journal: under a load that lasts one always does."""
        for _ in range(_FILL_BATCHES_MAX):
            if self._journal() is None or self._is_checkpointing():
                return
            batch = self._table.drawn()
            self.rows.set(batch.keys, batch.rows)

    def _journal(self) -> JournalInfo | None:
        return self.store.info().journal

    def _is_checkpointing(self) -> bool:
        journal = self._journal()
        return journal is not None and journal.used_bytes >= BEGIN_SHARE * journal.capacity_bytes

    def phases(self) -> dict[str, float]:
        """Return the seconds that the engine has spent in each phase."""
        return dict(self.store.meter.phase_seconds)

    def taken_bytes(self) -> int:
        """Return the bytes of index and heap on the file system; not those of the log or journal."""
        files = {file.name: file.stat().st_blocks * 512 for file in self._directory.iterdir() if file.is_file()}
        index_of_default = f"index-{self.store.open_table('default').id}-"
        counted = sum(
            size
            for name, size in files.items()
            if name in ("heap", "data") or (name.startswith("index-") and not name.startswith(index_of_default))
        )
        return counted - self.store.info().journal_bytes

    def settle(self) -> None:
        """Return when no checkpoint runs."""
        give_up = time.monotonic() + _SETTLE_SECONDS_MAX
        while self._is_checkpointing():
            if time.monotonic() > give_up:
                raise BenchError(f"{self.name} is not at rest after {_SETTLE_SECONDS_MAX:.0f} s")
            time.sleep(_LOOK_SECONDS)

    def close(self) -> None:
        """Close the store."""
        self.store.close()
