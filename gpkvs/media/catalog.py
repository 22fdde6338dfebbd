"""The catalogue: which tables a store has, and in which files. A JSON file that the root names, with its checksum."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from gpkvs.config import DEFAULT_TABLE
from gpkvs.errors import InvalidArgumentError
from gpkvs.media.layout import BLOCK_BYTES, BadBytesError, BadFormatError, SlotLayout, slot_layout_of
from gpkvs.native import crc32c


@dataclass(frozen=True)
class TableEntry:
    """One table, as the catalogue has it.

    Attributes
    ----------
    index_bytes_max
        Size to which the index may grow; 0: no limit of its own.
    """

    id: int
    name: str
    layout: str
    generation: int
    blocks: int
    index_bytes_max: int = 0

    @property
    def file_name(self) -> str:
        """The file of this generation of the index."""
        return f"index-{self.id}-{self.generation}"

    @property
    def slot_layout(self) -> SlotLayout:
        """The slots of its index."""
        return slot_layout_of(self.layout)

    @property
    def buckets(self) -> int:
        """Buckets in the index."""
        return self.blocks * self.slot_layout.block_buckets

    @property
    def slots(self) -> int:
        """Slots in the index."""
        return self.blocks * self.slot_layout.block_slots


@dataclass(frozen=True)
class Catalog:
    """All tables. Ids are never reused, so the next one is kept too."""

    tables: tuple[TableEntry, ...]
    next_table_id: int

    @property
    def default_index_bytes(self) -> int:
        """Bytes of the index of the default table."""
        return next(table.blocks for table in self.tables if table.name == DEFAULT_TABLE) * BLOCK_BYTES

    def pack(self) -> bytes:
        """Return the file's bytes: JSON, padded with line feeds to whole words."""
        fields = asdict(self)
        for table in fields["tables"]:
            if not table["index_bytes_max"]:  # as in the catalogues of versions that knew no such limit
                del table["index_bytes_max"]
        text = json.dumps(fields, indent=1).encode()
        return text + b"\n" * (8 - len(text) % 8)

    @staticmethod
    def unpack(data: bytes, checksum: int) -> Catalog:
        """Read the file's bytes; raises `BadBytesError` if they are not those the root names.

        Or `BadFormatError`, if a table has a layout that this gpkvs does not know.
        """
        if len(data) % 8 or crc32c(data) != checksum:
            raise BadBytesError("the catalogue has a wrong checksum")
        fields = json.loads(data)
        tables = tuple(TableEntry(**table) for table in fields["tables"])
        for table in tables:
            try:
                slot_layout_of(table.layout)
            except InvalidArgumentError:
                raise BadFormatError(
                    f"table {table.name!r} has the layout {table.layout!r}: a newer gpkvs made it"
                ) from None
        return Catalog(tables, fields["next_table_id"])


def catalog_file_name(generation: int) -> str:
    """Return the name of a catalogue file."""
    return f"catalog-{generation}.json"
