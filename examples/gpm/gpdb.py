"""A table of a database whose rows are inserted and updated on the GPU: statements as transactions.

An INSERT stores new rows beyond those that count, then one word says how many count: eight bytes are never torn, so
that word is the whole transaction. An UPDATE changes rows in place, all over the table. Each thread first puts an old
row into an undo log of its own; if the statement is cut off, the next run puts the old rows back. One more thread does
the same for row 0, which holds the counts, so a statement is done once, however often the program is killed.

An UPDATE sorts the numbers of its rows first: a GPU finds the pages of rows in ascending order quickly, those of rows
in any order slowly.

After GPM (ASPLOS '22), sections 4.1 and 5.2, figure 6; there the database is Virginian.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray

from gpkvs import gpm
from gpkvs.bench.gpm.workload import Workload, main, persistent, require_room
from gpkvs.config import DurabilityName

COLUMNS = 8  # of 8 bytes
ROW_BYTES = 8 * COLUMNS
ENTRY_BYTES = 8 + ROW_BYTES
THREADS = 256  # of a block
STRIDE = 2654435761  # a prime beyond any number of rows: a statement takes no row twice
ROWS, UPDATES = 0, 1  # columns of row 0: how many rows count, and how many updates are done

SOURCE = f"""
#include "gpm.cuh"
const u32 COLUMNS = {COLUMNS}, UPDATES = {UPDATES};
const u32 THREADS = {THREADS};
const u64 NONE = ~0ull;  // no row
const u64 STRIDE = {STRIDE};

struct Entry {{
    u64 row, old[COLUMNS];
}};

// One thread for each value; `first` is the first new row.
#define INSERT_ARGS(F) F(u64, first) F(u64*, table)
GPM_KERNEL(insert, INSERT_ARGS) {{
    const u64 at = a.first * COLUMNS + i;
    gpm_store(&a.table[at], at * STRIDE);
}}

// The threads of a block share the rows that they change. Each puts one into the log; all of them bring and store the
// values, so that neighbours touch neighbouring memory, and a row of 64 bytes crosses the link at once.
#define UPDATE_ARGS(F) F(const GpmLog*, log) F(u64, number) F(const u64*, row) F(u64, changed) F(u64*, table)
GPM_BLOCK_KERNEL(update, UPDATE_ARGS, THREADS) {{
    GPM_SHARED(Entry, entry, THREADS);
    GPM_THREADS(t, THREADS) {{  // one for each row, and one for row 0
        const u64 i = b * THREADS + t;
        entry[t].row = i < a.changed ? a.row[i] : i == a.changed ? 0 : NONE;
    }}
    GPM_SYNC();
    for (u32 v = 0; v < THREADS * COLUMNS; v += THREADS)
        GPM_THREADS(t, THREADS) {{
            Entry& of = entry[(v + t) / COLUMNS];
            const u32 c = t % COLUMNS;
            if (of.row != NONE) of.old[c] = a.table[of.row * COLUMNS + c];
        }}
    GPM_SYNC();
    GPM_THREADS(t, THREADS) {{  // an entry is durable before its row changes
        if (a.log && entry[t].row != NONE && !gpm_log_insert(a.log, b * THREADS + t, &entry[t])) entry[t].row = NONE;
    }}
    GPM_SYNC();
    for (u32 v = 0; v < THREADS * COLUMNS; v += THREADS)
        GPM_THREADS(t, THREADS) {{
            const Entry& of = entry[(v + t) / COLUMNS];
            const u32 c = t % COLUMNS;
            const u64 more = of.row != 0 ? a.number + c : c == UPDATES;
            if (of.row != NONE) gpm_store(&a.table[of.row * COLUMNS + c], of.old[c] + more);
        }}
}}

#define UNDO_ARGS(F) F(const GpmLog*, log) F(u64*, table)
GPM_BLOCK_KERNEL(undo, UNDO_ARGS, THREADS) {{
    GPM_SHARED(Entry, entry, THREADS);
    GPM_THREADS(t, THREADS) {{
        if (!gpm_log_read(a.log, b * THREADS + t, 0, &entry[t])) entry[t].row = NONE;
    }}
    GPM_SYNC();
    for (u32 v = 0; v < THREADS * COLUMNS; v += THREADS)
        GPM_THREADS(t, THREADS) {{
            const Entry& of = entry[(v + t) / COLUMNS];
            const u32 c = t % COLUMNS;
            if (of.row != NONE) gpm_store(&a.table[of.row * COLUMNS + c], of.old[c]);
        }}
}}
"""


@dataclass(frozen=True)
class Size:
    """Statements of each kind, and how many rows one changes."""

    inserts: int
    inserted: int
    updates: int
    updated: int

    @property
    def rows(self) -> int:
        """All rows, and row 0."""
        return 1 + self.inserts * self.inserted

    @property
    def file_bytes(self) -> int:
        """The table, and the log, whose threads are striped by 32."""
        return self.rows * ROW_BYTES + (self.updated + 64) * (ENTRY_BYTES + 8) + (1 << 20)

    @property
    def memory_bytes(self) -> int:
        """Nothing but the files."""
        return 1 << 20


class Gpdb(Workload):
    """See the text above."""

    SIZES: ClassVar = {
        "tiny": Size(2, 60, 2, 40),
        "small": Size(10, 20_000, 20, 10_000),
        "paper": Size(20, 2_500_000, 4, 2_500_000),
    }

    def __init__(
        self, folder: Path, size: Size, place: gpm.Place | str = "cpu", durability: DurabilityName = "auto"
    ) -> None:
        self.size, self.place = size, gpm.find_place(place)
        require_room(folder, size, self.place)
        self.kernels = gpm.Kernels(SOURCE, self.place, name="gpdb")
        self.table = persistent(folder / "table.gpm", (size.rows, COLUMNS), "u8", self.place, durability)
        log = folder / "log.gpm"
        if log.exists():
            self.log = gpm.CoalescedLog.open(log, place=self.place, durability=durability)
        else:
            self.log = gpm.CoalescedLog.create(
                log, size.updated + 1, ENTRY_BYTES, place=self.place, durability=durability
            )
        self.log.recover(self.undo)

    @property
    def rows(self) -> int:
        """How many rows count, without row 0."""
        return int(self.table.host[0, ROWS])

    @property
    def updates(self) -> int:
        """How many updates are done."""
        return int(self.table.host[0, UPDATES])

    @property
    def _blocks(self) -> int:
        """How many blocks change the rows of an UPDATE, and row 0."""
        return -(-(self.size.updated + 1) // THREADS)

    def chosen(self) -> Any:
        """Return the numbers of the rows that the next UPDATE changes, in ascending order."""
        chosen = self.place.xp.arange(self.size.updated, dtype="u8")
        chosen *= STRIDE
        chosen += self.updates
        chosen %= self.size.rows - 1
        chosen += 1
        chosen.sort()
        return chosen

    def step(self) -> bool:
        """Run the next statement."""
        if self.rows < self.size.inserts * self.size.inserted:
            self.insert()
        elif self.updates < self.size.updates:
            self.update()
        else:
            return False
        return True

    def insert(self) -> None:
        """Store new rows, then have them count."""
        rows, new = self.rows, self.size.inserted
        self.kernels.launch("insert", new * COLUMNS, first=1 + rows, table=self.table)
        self.table.host[0, ROWS] = rows + new
        self.table.persist(0, 1)

    def update(self) -> None:
        """Change rows in place, in a transaction."""
        with self.log.transaction():
            self.change_rows(self.log)

    def change_rows(self, log: Any, table: Any = None) -> None:
        """Run the kernel of an UPDATE; the benchmark runs it on a table in volatile memory, too."""
        self.kernels.launch(
            "update",
            self._blocks,
            log=log,
            number=self.updates,
            row=self.chosen(),
            changed=self.size.updated,
            table=self.table if table is None else table,
        )

    def undo(self, log: gpm.CoalescedLog) -> None:
        """Put old rows back; doing it again does no harm."""
        self.kernels.launch("undo", self._blocks, log=log, table=self.table)

    def result(self) -> dict[str, NDArray[Any]]:
        """Return the table, with its counts."""
        return {"table": self.table.host.copy()}

    def close(self) -> None:
        """Close table and log."""
        self.table.close()
        self.log.close()


if __name__ == "__main__":
    main(Gpdb, __doc__)
