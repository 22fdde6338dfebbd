"""What does not fit: what a batch lacks, and why requests are refused.

The request is the unit of rejection: taken in arrival order, a request that does not fit is refused whole, and the rest
run again without it. Requests without a SET are never refused for space.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U64, Batch
from gpkvs.engine.state.heap import Heap, charge_of, segments_of
from gpkvs.engine.state.table import Table
from gpkvs.errors import InvalidArgumentError, NoSpaceError, UnknownTableError
from gpkvs.media.files import StoreFiles
from gpkvs.media.layout import (
    BLOB_WORDS_BYTES,
    BYTES_LAYOUT,
    HEAP_RECORD_BYTES,
    RECORD_HEADER_BYTES,
    U64_LAYOUT,
    UNIT_BYTES,
)
from gpkvs.text import counted, quoted


class IndexFullError(NoSpaceError):
    """New keys of a table are refused, unless its index grows.

    Parameters
    ----------
    table
        Whose keys they are.
    new_keys
        How many came at once.
    why
        Why the index does not grow; by default what its growth waits for.
    """

    def __init__(self, table: Table, new_keys: int, why: str = "") -> None:
        records, slots = table.records, table.index.slots
        super().__init__(
            "index",
            f"table {quoted(table.entry.name)} holds {counted(records, 'record')} in {slots:,} slots, a load of "
            f"{records / slots:.0%}; of {counted(new_keys, 'new key')} one found both of its buckets full, and the "
            f"index does not grow: {why or table.waits or 'a block is full'}",
        )
        self.table = table
        self.new_keys = new_keys


class LackedRoom(NamedTuple):
    """What a batch lacks for which the heap has no room as it is; after compaction it may have.

    Attributes
    ----------
    units : (requests,) int64
        In arrival order: what the records of each request are charged.
    long_segments : (requests,) int64
        What its long records take, in segments that must be neighbours.
    """

    units: NDArray[np.int64]
    long_segments: NDArray[np.int64]

    @classmethod
    def of(cls, heap: Heap, requests: int, request: NDArray[np.int64], units: U64) -> LackedRoom:
        """Return what a batch of so many requests lacks; of each record its request, and the units that it takes."""
        charged, long_segments = np.zeros((2, requests), np.int64)
        np.add.at(charged, request, charge_of(units, heap.segment_units).astype(np.int64))
        is_long = units > heap.segment_units
        segments = segments_of(units[is_long], heap.segment_units)
        np.add.at(long_segments, request[is_long], segments.astype(np.int64))
        return cls(charged, long_segments)


def record_bytes_max(heap: Heap, batch: Batch) -> int:
    """Return what the records of a batch take in the heap at most."""
    values = len(batch.values)
    if heap.blobs and values > HEAP_RECORD_BYTES:
        lengths = np.asarray(batch.value_lengths)
        values -= int(lengths[lengths > HEAP_RECORD_BYTES].sum(dtype=np.uint64))
    return len(batch.keys) + values + len(batch) * (RECORD_HEADER_BYTES + BLOB_WORDS_BYTES + UNIT_BYTES - 1)


def table_gone() -> UnknownTableError:
    """Return why requests are refused whose table was there when they came."""
    return UnknownTableError("the table was dropped meanwhile", field="table")


def not_of_layout(layout: str) -> InvalidArgumentError:
    """Return why a table refuses a request whose operations are none of its layout's."""
    if layout == BYTES_LAYOUT.name:
        return InvalidArgumentError(
            "the table has the layout bytes: only rows are added to each other, in a table of a layout such as "
            "float32[128]",
            field="ops",
        )
    if layout != U64_LAYOUT.name:
        return InvalidArgumentError(
            f"the table has the layout {layout}: its values are rows, which are neither incremented nor appended to. "
            "ADD adds rows",
            field="ops",
        )
    return InvalidArgumentError(
        "a table of the layout u64 has no expiry, and values of 8 bytes to which nothing can be appended: leave out "
        "the ttl, or keep the values in a table of bytes",
        field="ops",
    )


def reads_too_much(result_bytes_max: int) -> InvalidArgumentError:
    """Return why a request is refused that reads more than one may."""
    return InvalidArgumentError(
        f"its GETs read too many bytes of values, the limit is {result_bytes_max:,} (result_bytes_max): split it",
        field="ops",
    )


def makes_too_much(made_bytes_max: int) -> InvalidArgumentError:
    """Return why a request is refused that makes more than a transaction may."""
    return InvalidArgumentError(
        f"its operations make too many bytes of others' values, or read them first, the limit is {made_bytes_max:,} "
        "(batch_result_bytes_max): split it",
        field="ops",
    )


def heap_full(heap: Heap) -> NoSpaceError:
    """Return why requests are refused that raise what records are charged: "heap full: ..."."""
    charged, most = heap.charged * UNIT_BYTES, heap.charged_max * UNIT_BYTES
    return NoSpaceError(
        "heap",
        f"the records would take more than the {most:,} of {heap.present_bytes:,} bytes that compaction can keep free "
        f"of waste ({charged:,} are charged now): {_way_out(heap)}",
    )


def heap_too_small(heap: Heap) -> NoSpaceError:
    """Return why a request is refused whose records find no room at once, though they may be stored."""
    return NoSpaceError(
        "heap",
        f"one request takes more than the {heap.free_units * UNIT_BYTES:,} bytes that are free to be written at once, "
        f"or than lie side by side: send smaller requests; {_way_out(heap)}",
    )


def log_full(files: StoreFiles) -> NoSpaceError:
    """Return why a request is refused that undo log or journal do not take."""
    option = "--journal-bytes-max" if files.data else "--log-bytes-max"
    way_out = f"start the server with a larger {option}, and see that the disk has the room"
    if files.log_waits:
        way_out = f"make room and try again: {files.log_waits}"
    return NoSpaceError(
        "log",
        f"one transaction would log more than the {8 * files.log_words_max:,} bytes that there is room for: send "
        f"smaller requests, or {way_out}",
    )


def _way_out(heap: Heap) -> str:
    """Say why a heap does not grow, and what to do."""
    if heap.growth_waits:
        return f"{heap.growth_waits}: make room, and try again; or delete keys"
    if heap.present_bytes < heap.bytes_max:
        return "it grows, not fast enough for this request: try again"
    return "it is as large as it may be: delete keys, or start the store again with a larger --heap-bytes-max"


def request_of_op(batch: Batch) -> NDArray[np.int64]:
    """Return the request of each operation."""
    return np.repeat(np.arange(len(batch.request_ops)), batch.request_ops)
