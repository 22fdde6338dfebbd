"""The index of a table: what kernels are given to look up keys and to store slots."""

from __future__ import annotations

from gpkvs.media.catalog import TableEntry
from gpkvs.media.image import Image
from gpkvs.pm.region import Region


class Index:
    """A geometry, a durable region, and a read image.

    Kernels that store to an index store to its region, which is its mapped file, or with a journal an image in memory.
    Kernels that read it read an image: the host's threads read the region itself, a GPU reads the mirror in its memory,
    which the backend keeps for it.

    Parameters
    ----------
    entry
        The table's catalogue entry: layout and blocks.
    region
        The mapped file; with a journal, the image in memory.
    hash_keys
        The key of the store's fingerprint, as two 64-bit numbers.

    Attributes
    ----------
    layout
        The layout of its slots.
    has_records
        Whether its slots refer to records of the heap.
    buckets
        How many there are.
    address
        Where the durable region begins in the host's memory.
    image
        Where the host's read image begins.
    """

    def __init__(self, entry: TableEntry, region: Region | Image, hash_keys: tuple[int, int]) -> None:
        self.entry = entry
        self.region = region
        self.hash_keys = hash_keys
        # Each batch asks for these: attributes, not properties.
        self.layout = entry.slot_layout
        self.has_records = self.layout.has_records
        self.buckets = entry.buckets
        self.address = region.address
        self.image = region.address
