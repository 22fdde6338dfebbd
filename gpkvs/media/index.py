"""The index of a table: what kernels are given to look up keys and to store slots."""

from __future__ import annotations

from dataclasses import dataclass

from gpkvs.media.catalog import TableEntry
from gpkvs.media.layout import BYTES_LAYOUT, SlotLayout
from gpkvs.pm.region import Region


@dataclass(frozen=True, eq=False)
class Index:
    """A geometry, a durable region, and a read image.

    Kernels that store to an index store to its durable region. Kernels that read it read its image: on the host the
    region itself, on a GPU the mirror in its memory, which the backend keeps.

    Parameters
    ----------
    entry
        The table's catalogue entry: layout and blocks.
    region
        The mapped file.
    hash_keys
        The key of the store's fingerprint, as two 64-bit numbers.
    """

    entry: TableEntry
    region: Region
    hash_keys: tuple[int, int]

    @property
    def layout(self) -> SlotLayout:
        """The layout of its slots."""
        return self.entry.slot_layout

    @property
    def has_records(self) -> bool:
        """Whether its slots refer to records of the heap."""
        return self.layout is BYTES_LAYOUT

    @property
    def buckets(self) -> int:
        """Its buckets."""
        return self.entry.buckets

    @property
    def address(self) -> int:
        """Where it begins in the host's memory."""
        return self.region.address
