"""Some blocks of a new index, filled in memory by the kernels that place the keys of a batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.base import Argument
from gpkvs.backends.cpu.backend import CpuBackend, address_of
from gpkvs.batch import U8, U64
from gpkvs.media.catalog import TableEntry
from gpkvs.media.layout import BLOCK_BYTES, NO_SLOT, WAYS
from gpkvs.recovery.copy.placement import PLACEMENT
from gpkvs.recovery.copy.source import Rows

_NO_ROW = -1


class FullError(Exception):
    """A key found no way in the blocks where it belongs."""


class Image:
    """The blocks `first` to `last - 1` of a new index.

    Parameters
    ----------
    backend
        Runs the kernels.
    entry
        The table as the new store has it.
    hash_keys
        The key of the store's fingerprint.
    first, last
        The blocks.

    Attributes
    ----------
    words : (slots, words of a slot)
        The slots as they will be in the file.
    """

    def __init__(
        self, backend: CpuBackend, entry: TableEntry, hash_keys: tuple[int, int], first: int, last: int
    ) -> None:
        self._backend = backend
        self._entry = entry
        self._hash_keys = hash_keys
        self._first_slot = first * entry.slot_layout.block_slots
        slots = (last - first) * entry.slot_layout.block_slots
        self.words: U64 = np.zeros((slots, entry.slot_layout.slot_bytes // 8), np.uint64)
        if not entry.slot_layout.has_records:
            self.words[:, 0] = np.repeat(PLACEMENT.empty_markers(backend, hash_keys, entry, first, last), WAYS)
        self._row_at = np.full(slots, _NO_ROW, np.int64)
        # Kernels count slots from the beginning of the index.
        self._index = address_of(self.words) - first * BLOCK_BYTES

    def place(self, rows: Rows) -> NDArray[np.int64]:
        """Put rows into the image; return the place of each in `words`.

        In one launch a key moves none of those that come with it. So keys that find no way are tried again, as long
        as that helps some of them.

        Raises
        ------
        FullError
            If not all find one.
        """
        slot = np.full(len(rows), NO_SLOT, np.uint64)
        pending = np.argsort(PLACEMENT.block(rows.fingerprint0, self._entry), kind="stable")
        while len(pending):
            found, moved_to = self._find_ways(rows, pending)
            placed = found != NO_SLOT
            if not placed.any():
                raise FullError
            moves = placed & (moved_to != NO_SLOT)
            self._move(slot, found[moves], moved_to[moves])
            self._put(slot, rows, pending[placed], found[placed])
            pending = pending[~placed]
        return self._place_of(slot)

    def keep(self, rows: Rows) -> NDArray[np.int64]:
        """Put rows into an empty image where the old index has them; return the place of each in `words`."""
        self._put(rows.slot.copy(), rows, np.arange(len(rows)), rows.slot)
        return self._place_of(rows.slot)

    def _find_ways(self, rows: Rows, pending: NDArray[np.int64]) -> tuple[U64, U64]:
        """Return the slot of each row, and where its occupant moves, `NO_SLOT` if nowhere; rows are sorted by block."""
        fingerprint0, fingerprint1 = rows.fingerprint0[pending], rows.fingerprint1[pending]
        block = PLACEMENT.block(fingerprint0, self._entry)
        begins = np.flatnonzero(np.diff(block, prepend=~block[:1]))
        found, moved_to = np.full(len(pending), NO_SLOT, np.uint64), np.empty(len(pending), np.uint64)
        self._backend.launch(
            f"place_{self._entry.slot_layout.name}",
            len(begins),
            keys_per_item=1 + len(pending) // len(begins),
            block_first=np.append(begins, len(pending)).astype(np.uint32),
            changed_chain=np.arange(len(pending), dtype=np.uint32),
            chain_fingerprint0=fingerprint0,
            chain_fingerprint1=fingerprint1,
            slot=found,
            moved_to=moved_to,
            index=self._index,
            blocks=self._entry.blocks,
            unmoved=self._entry.blocks,
            hash_key0=self._hash_keys[0],
            hash_key1=self._hash_keys[1],
        )
        return found, moved_to

    def _place_of(self, slot: U64) -> NDArray[np.int64]:
        return (slot - np.uint64(self._first_slot)).astype(np.int64)

    def _move(self, slot: U64, from_slot: U64, to_slot: U64) -> None:
        """Move occupants to their other buckets."""
        source, target = self._place_of(from_slot), self._place_of(to_slot)
        self.words[target] = self.words[source]
        self._row_at[target] = self._row_at[source]
        slot[self._row_at[target]] = to_slot

    def _put(self, slot: U64, rows: Rows, which: NDArray[np.int64], at: U64) -> None:
        place = self._place_of(at)
        self.words[place] = rows.words[which]
        self._row_at[place] = which
        slot[which] = at

    def audit(self, **records: Argument) -> tuple[int, int] | None:
        """Look for a slot that breaks an invariant, as `gpkvs check` does.

        Parameters
        ----------
        **records
            What the kernel must know of the records, if the slots refer to any.

        Returns
        -------
        The row of the first such slot, and the number of the invariant (`gpkvs.native.audits`).
        """
        broken: U8 = np.zeros(len(self.words), np.uint8)
        arguments: dict[str, Argument] = {
            "index": self._index,
            "blocks": self._entry.blocks,
            "unmoved": self._entry.blocks,
            "hash_key0": self._hash_keys[0],
            "hash_key1": self._hash_keys[1],
            "first": self._first_slot,
            "broken": broken,
        }
        self._backend.launch(
            f"audit_{self._entry.slot_layout.name}", len(broken), keys_per_item=1, **arguments, **records
        )
        wrong = np.flatnonzero(broken)
        return (int(self._row_at[wrong[0]]), int(broken[wrong[0]])) if len(wrong) else None
