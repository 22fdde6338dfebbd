"""A table of the store under test: what it must hold, and the requests that write and read it.

Every cell has one writer, which sends one request at a time and reads no cell but its own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import grpc

from gpkvs.batch import Op, Status
from gpkvs.media.layout import (
    BLOB_WORDS_BYTES,
    HEAP_RECORD_BYTES,
    PAGE_BYTES,
    RECORD_HEADER_BYTES,
    UNIT_BYTES,
    blob_pages,
)
from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc
from gpkvs.recovery.proof.drill.clients import Operation, batch_request
from gpkvs.recovery.proof.drill.ledger import Attempt, Cell, Ledger, State, Versions

CALL_SECONDS_MAX = 60.0
KEY_BYTES = 8  # of a table of numbers
_READ_BACK_BYTES = 4 << 20  # in one request
_FULL = "gpkvs-full"

# ``making`` and ``dropping``: the request was sent, and no response has come.
Fate = Literal["there", "making", "dropping"]
Layout = Literal["bytes", "u64"]


@dataclass(frozen=True)
class Refusal:
    """A request that the server refused for want of room.

    Parameters
    ----------
    full, text
        What is full, and the reason in words.
    released_before
        `Totals.released_bytes` when it was sent.
    in_flight_bytes
        Of the records of all writes that were under way when it was refused, its own among them.
    """

    full: str
    text: str
    released_before: int = 0
    in_flight_bytes: int = 0


@dataclass
class Totals:
    """What all tables of a store hold together, as the ledgers say.

    Attributes
    ----------
    live_bytes
        Of the records in the heap.
    released_bytes
        That deletes, overwrites and dropped tables have given free; it only grows.
    in_flight_bytes
        Of the records of the writes that wait for their response.
    has_blobs
        Whether large values lie in blobs, beside the heap.
    blob_bytes
        What these take.
    """

    live_bytes: int = 0
    released_bytes: int = 0
    in_flight_bytes: int = 0
    has_blobs: bool = False
    blob_bytes: int = 0
    blobs_written: int = 0  # acknowledged
    writes: int = 0  # acknowledged
    reads: int = 0


@dataclass
class SoakTable:
    """A table, and the ledger of what it must hold."""

    name: str
    layout: Layout
    totals: Totals
    fate: Fate = "there"
    ledger: Ledger = field(default_factory=Ledger)

    async def write(self, stub: kv_pb2_grpc.KVStub, cell: Cell, sizes: Sequence[int | None]) -> Refusal | None:
        """Write a cell whole; return why it was refused, if it was.

        Raises
        ------
        grpc.aio.AioRpcError
            If the server gave no response, or failed.
        """
        before, attempt = cell.newest, self.ledger.begin(cell, sizes)
        size = self.heap_bytes(cell, attempt.state)
        released = self.totals.released_bytes
        self.totals.in_flight_bytes += size
        try:
            response = await stub.Batch(self._writes(cell, attempt), timeout=CALL_SECONDS_MAX)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            self.ledger.refuse(attempt)
            return refusal_of(error, released, self.totals.in_flight_bytes)
        finally:
            self.totals.in_flight_bytes -= size
        self._acknowledge(cell, before, attempt, response)
        return None

    async def read(self, stub: kv_pb2_grpc.KVStub, cell: Cell) -> None:
        """Read a cell whole, and compare it with the ledger."""
        before = cell.newest
        for _, state, versions in await self._get(stub, [cell]):
            self.ledger.read(cell, before, state, versions)
        self.totals.reads += 1

    async def settle(self, stub: kv_pb2_grpc.KVStub) -> int:
        """Read all cells back while nobody writes, and compare them with the ledger; return the number of keys."""
        for cells in _portions(self.ledger.cells):
            for cell, state, versions in await self._get(stub, cells):
                self.ledger.settle(cell, state, versions)
        self.ledger.forget_attempts(self.ledger.attempts_begun)
        return sum(len(cell.keys) for cell in self.ledger.cells)

    @property
    def live_bytes(self) -> int:
        """Bytes of its records in the heap."""
        return sum(self.heap_bytes(cell, cell.newest.state) for cell in self.ledger.cells)

    @property
    def blob_bytes(self) -> int:
        """Bytes of its blobs."""
        return sum(sum(self._blobs(cell, cell.newest.state)) for cell in self.ledger.cells)

    def heap_bytes(self, cell: Cell, state: State) -> int:
        """Return the bytes that a state of a cell takes in the heap."""
        if self.layout == "u64":
            return 0
        sizes = (
            RECORD_HEADER_BYTES + len(key) + (BLOB_WORDS_BYTES if self._is_in_blob(key, value) else len(value))
            for key, value in zip(cell.keys, state, strict=True)
            if value is not None
        )
        return sum(-(-size // UNIT_BYTES) * UNIT_BYTES for size in sizes)

    def _blobs(self, cell: Cell, state: State) -> list[int]:
        """Return the bytes of each blob of a state of a cell."""
        values = [v for key, v in zip(cell.keys, state, strict=True) if v is not None and self._is_in_blob(key, v)]
        return [blob_pages(len(value)) * PAGE_BYTES for value in values]

    def _is_in_blob(self, key: bytes, value: bytes) -> bool:
        return self.totals.has_blobs and RECORD_HEADER_BYTES + len(key) + len(value) > HEAP_RECORD_BYTES

    def _writes(self, cell: Cell, attempt: Attempt) -> kv_pb2.BatchRequest:
        operations: list[Operation] = [
            (Op.DELETE, key, b"") if value is None else (Op.SET, key, value)
            for key, value in zip(cell.keys, attempt.state, strict=True)
        ]
        return batch_request(operations, attempt.number, self.name)

    def _acknowledge(self, cell: Cell, before: Attempt, attempt: Attempt, response: kv_pb2.BatchResponse) -> None:
        self._check_status(cell, before, attempt, response)
        versions: Versions | None = None
        if self.layout == "bytes":
            given = struct.unpack(f"<{len(cell.keys)}Q", response.versions)
            versions = tuple(0 if value is None else v for v, value in zip(given, attempt.state, strict=True))
        self.ledger.acknowledge(attempt, versions)
        freed = self.heap_bytes(cell, before.state)
        self.totals.released_bytes += freed
        self.totals.live_bytes += self.heap_bytes(cell, attempt.state) - freed
        blobs = self._blobs(cell, attempt.state)
        self.totals.blob_bytes += sum(blobs) - sum(self._blobs(cell, before.state))
        self.totals.blobs_written += len(blobs)
        self.totals.writes += 1

    def _check_status(self, cell: Cell, before: Attempt, attempt: Attempt, response: kv_pb2.BatchResponse) -> None:
        """Compare the results with what the only writer of the keys knows."""
        for key, old, new, status in zip(cell.keys, before.state, attempt.state, response.status, strict=True):
            expected = Status.NOT_FOUND if new is None and old is None else Status.OK
            if status != expected:
                what = "DELETE" if new is None else "SET"
                self.ledger.violate_response(key, f"{what}: {expected.name}", Status(status).name)

    async def _get(self, stub: kv_pb2_grpc.KVStub, cells: Sequence[Cell]) -> list[tuple[Cell, State, Versions | None]]:
        """Read cells by one BatchRequest; values are None and versions 0 where a key is absent."""
        keys = [key for cell in cells for key in cell.keys]
        request = batch_request([(Op.GET, key, b"") for key in keys], 0, self.name)
        response = await stub.Batch(request, timeout=CALL_SECONDS_MAX)
        values: list[bytes | None] = []
        joined, offset = response.values, 0  # each access to the field would copy all of it
        lengths = struct.unpack(f"<{len(keys)}I", response.value_lengths)
        for key, status, length in zip(keys, response.status, lengths, strict=True):
            if status not in (Status.OK, Status.NOT_FOUND):
                self.ledger.violate_response(key, "a value or its absence", Status(status).name)
            values.append(joined[offset : offset + length] if status == Status.OK else None)
            offset += length
        versions: Sequence[int] = ()
        if self.layout == "bytes":
            given = struct.unpack(f"<{len(keys)}Q", response.versions)
            versions = [0 if value is None else v for v, value in zip(given, values, strict=True)]
        found = []
        at = 0
        for cell in cells:
            end = at + len(cell.keys)
            found.append((cell, tuple(values[at:end]), tuple(versions[at:end]) if versions else None))
            at = end
        return found


def refusal_of(error: grpc.aio.AioRpcError, released_before: int = 0, in_flight_bytes: int = 0) -> Refusal:
    """Return what an error of the status RESOURCE_EXHAUSTED says."""
    full = next((str(value) for name, value in error.trailing_metadata() or () if name == _FULL), "unnamed")
    return Refusal(full, error.details() or "", released_before, in_flight_bytes)


def _portions(cells: Sequence[Cell]) -> Iterable[list[Cell]]:
    """Cut cells into lists whose values make one response."""
    portion: list[Cell] = []
    size = 0
    for cell in cells:
        portion.append(cell)
        states = [cell.newest.state, *(attempt.state for attempt in cell.open.values())]
        size += max(sum(len(value or b"") for value in state) for state in states) + 64 * len(cell.keys)
        if size >= _READ_BACK_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion
