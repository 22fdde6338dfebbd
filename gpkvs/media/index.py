"""The index of a table: what kernels are given to look up keys and to store slots."""

from __future__ import annotations

from gpkvs.media.catalog import TableEntry
from gpkvs.media.image import Image
from gpkvs.media.layout import BLOCK_BYTES
from gpkvs.pm.region import Region
from gpkvs.process.fatal import whole_or_stop


class Index:
    """A geometry, a durable region, and a read image.

    Kernels that store to an index store to its region, which is its mapped file, or with a journal an image in memory.
    Kernels that read it read an image: the host's threads read the region itself, a GPU reads the mirror in its memory,
    which the backend keeps for it.

    An index grows by moving its blocks, from the last to the first: block k becomes 2k and 2k + 1 of an index of twice
    the blocks. Until all have moved, the blocks before `unmoved` and those from twice that on are live.

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
    entry
        The catalogue entry; it is another one when the index has grown.
    layout
        The layout of its slots.
    has_records
        Whether its slots refer to records of the heap.
    blocks
        How many the catalogue says.
    unmoved
        How many of them have not moved: all, unless the index grows.
    geometry
        Both, as arguments of a kernel.
    address
        Where the durable region begins in the host's memory.
    image
        Where the host's read image begins.
    """

    def __init__(self, entry: TableEntry, region: Region | Image, hash_keys: tuple[int, int]) -> None:
        self.region = region
        self.hash_keys = hash_keys
        # Each batch asks for these: attributes, not properties.
        self.layout = entry.slot_layout
        self.has_records = self.layout.has_records
        self.address = self.image = region.address
        self.set_entry(entry)

    def set_entry(self, entry: TableEntry) -> None:
        """Take another catalogue entry: no block is left to be moved."""
        self.entry = entry
        self.blocks = entry.blocks
        self.set_unmoved(entry.blocks)

    def set_unmoved(self, unmoved: int) -> None:
        """Take note of how many blocks have not moved."""
        assert 0 <= unmoved <= self.blocks
        self.unmoved = unmoved
        self.geometry = {"blocks": self.blocks, "unmoved": unmoved}

    def reserve(self, room: int) -> None:
        """Keep so many bytes of addresses, so that the index grows where it is; its address changes. See `Region`."""
        self.region.reserve(room)
        self.address = self.image = self.region.address

    @property
    def grown_bytes(self) -> int:
        """The bytes of twice the blocks."""
        return 2 * self.blocks * BLOCK_BYTES

    def grow_region(self) -> None:
        """Make room in memory for twice the blocks; the file is that long. The address may change.

        Raises
        ------
        OSError, MemoryError
            If there is none; nothing has changed.
        """
        if self.region.bytes < self.grown_bytes:
            with whole_or_stop("a growing index could not be mapped", OSError, MemoryError):
                self.region.grow(self.grown_bytes)
                self.address = self.image = self.region.address

    @property
    def is_growing(self) -> bool:
        """Whether some blocks have moved, or may."""
        return self.unmoved < self.blocks

    @property
    def live_ranges(self) -> tuple[tuple[int, int], ...]:
        """The blocks that hold keys: of each range the first, and the last + 1."""
        if not self.is_growing:
            return ((0, self.blocks),)
        ranges = ((0, self.unmoved), (2 * self.unmoved, 2 * self.blocks))
        return tuple((first, last) for first, last in ranges if first < last)

    @property
    def live_blocks(self) -> int:
        """How many blocks hold keys."""
        return sum(last - first for first, last in self.live_ranges)

    @property
    def slots(self) -> int:
        """The slots of all live blocks."""
        return self.live_blocks * self.layout.block_slots

    @property
    def slots_mapped(self) -> int:
        """The slots that the region has room for: no entry of a log names one beyond."""
        return self.region.bytes // self.layout.slot_bytes
