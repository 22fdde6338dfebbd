"""The transactional workloads: an undo log and stores in place, or the host persists the table that changed (CAP).

Under CAP there is no log, as in the paper: a crash in the middle leaves a torn table. The host knows which rows an
INSERT has added, but not which an UPDATE or a SET has changed, so it persists all of the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from gpkvs import gpm
from gpkvs.bench.gpm.cap import Cap, VolatileArray
from gpkvs.bench.gpm.operation import Operation
from gpkvs.bench.gpm.workloads.gpdb import COLUMNS, ENTRY_BYTES, ROW_BYTES, ROWS, Gpdb
from gpkvs.bench.gpm.workloads.kvs import SETS_OF_MIXED, Kvs, key_of
from gpkvs.config import DurabilityName

_SLOT_BYTES, _LOG_ENTRY_BYTES = 16, 32  # of the store's tables of numbers (docs/format.md)


def gpdb(folder: Path, size: str, place: gpm.Place, durability: DurabilityName) -> Iterator[Operation]:
    """Yield an INSERT and an UPDATE."""
    with Gpdb(folder, Gpdb.SIZES[size], place, durability) as work:
        sizes, table = work.size, work.table
        volatile: Any = VolatileArray(table.shape, "u8", place)
        all_rows = sizes.rows - 1

        def insert_volatile(cap: Cap) -> None:
            first = 1 + int(volatile.host[0, ROWS])
            work.kernels.launch("insert", sizes.inserted * COLUMNS, first=first, table=volatile)
            cap.persist(volatile.device[first : first + sizes.inserted], at=first * ROW_BYTES)

        def reset_rows(cap: Cap | None) -> None:
            (volatile if cap else table).host[0, ROWS] = 0

        def count_all(cap: Cap | None) -> None:
            (volatile if cap else table).host[0, ROWS] = all_rows

        def update_volatile(cap: Cap) -> None:
            work.change_rows(_NoLog(), volatile)
            cap.persist(volatile.device)

        def cut_off() -> None:
            """Run an UPDATE that ends just before its commit."""
            with suppress(_CutOff), work.log.transaction():
                work.change_rows(work.log)
                raise _CutOff

        yield Operation(
            "gpDB (I)",
            "transactional",
            f"INSERT of {sizes.inserted:,} rows",
            work.insert,
            insert_volatile,
            sizes.inserted * ROW_BYTES,
            reset=reset_rows,
            restore=lambda: work.rows,
        )
        table.host[...] = 0
        yield Operation(
            "gpDB (U)",
            "transactional",
            f"UPDATE of {sizes.updated:,} of {all_rows:,} rows",
            work.update,
            update_volatile,
            sizes.updated * ROW_BYTES,
            log_bytes=sizes.updated * (ENTRY_BYTES + 8),
            reset=count_all,
            crash=cut_off,
            restore=lambda: work.log.recover(work.undo),
        )


class _NoLog:
    """No log, for a kernel that takes one."""

    kernel_type = "GpmLog"

    def kernel_address(self, _: gpm.Place, /) -> int:
        """See `gpkvs.gpm.kernels.Handed`."""
        return 0


class _CutOff(Exception):  # noqa: N818 - not an error: it stands for a crash
    """A transaction is cut off."""


def kvs(folder: Path, size: str, place: gpm.Place, durability: DurabilityName) -> Iterator[Operation]:
    """Yield batches of the store, of SETs and mixed.

    CAP is a mock-up: the same batch without an undo log would run in the GPU's memory, so what is timed is a batch of
    GETs of the same keys, and the host persisting as many bytes as the index has. `gpkvs bench paper` has the engine's
    own.
    """
    with Kvs(folder, Kvs.SIZES[size], place, durability) as work:
        batch, table = work.size.batch, work.table
        rng = np.random.default_rng(8)
        table_in_memory: Any = place.xp.zeros(work.size.index_bytes, np.uint8)
        for number in range(work.size.set_batches):
            keys = key_of(np.arange(number * batch, (number + 1) * batch, dtype=np.uint64))
            table.set_many(keys, keys)
        batches = [key_of(rng.integers(0, work.size.keys, batch, np.uint64)) for _ in range(4)]
        sets = max(1, int(batch * SETS_OF_MIXED))

        def mixed(keys: Any) -> None:
            table.get_many(keys[sets:])
            table.set_many(keys[:sets], keys[:sets])

        def next_batch() -> Any:
            batches.append(batches.pop(0))
            return batches[0]

        def run_cap(cap: Cap) -> None:
            table.get_many(next_batch())
            cap.persist(table_in_memory)

        def set_all() -> None:
            keys = next_batch()
            table.set_many(keys, keys)

        what = f"{batch:,} operations on an index of {work.size.index_bytes >> 20:,} MiB"
        for name, share, run in (
            ("gpKVS", 1.0, set_all),
            ("gpKVS (95:5)", SETS_OF_MIXED, lambda: mixed(next_batch())),
        ):
            stored = int(batch * share)
            yield Operation(
                name,
                "transactional",
                what,
                run,
                run_cap,
                stored * _SLOT_BYTES,
                log_bytes=stored * _LOG_ENTRY_BYTES,
            )
