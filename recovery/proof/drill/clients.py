"""Concurrent clients that write, read and remember until their server is gone, and that read everything back later.

They use the raw gRPC stubs, so that no retry hides a loss. Each kind of client has its own cells. *Single* clients use
Set, Get and Delete on keys that nobody else writes. *Batch* clients share cells of many keys, and write and read each
cell by one BatchRequest. Some keys are never written: no value may appear there.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import grpc

from gpkvs.batch import Op, Status
from gpkvs.proto.v1 import admin_pb2, admin_pb2_grpc, kv_pb2, kv_pb2_grpc
from gpkvs.recovery.proof.drill.ledger import VALUE_BYTES_MIN, Attempt, Cell, Ledger

_CALL_SECONDS_MAX = 30.0
_READ_BACK_KEYS = 1000  # in one request
_REFUSED_PAUSE_SECONDS = 0.01
_GONE = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
)

Operation = tuple[Op, bytes, bytes]  # the value is b"" unless it is a SET
Response = TypeVar("Response")


@dataclass(frozen=True)
class DrillClientOptions:
    """How many clients there are, how many keys, and how the clients get in; None: without TLS."""

    single_clients: int = 6
    keys_per_client: int = 40
    batch_clients: int = 4
    shared_keys: int = 3000
    cell_keys_max: int = 120
    untouched_keys: int = 200
    credentials: grpc.ChannelCredentials | None = None


@dataclass
class Counts:
    """What the clients did until their server died."""

    writes: int = 0  # acknowledged requests
    batches: int = 0  # BatchRequests among them
    reads: int = 0
    refused: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.writes + other.writes,
            self.batches + other.batches,
            self.reads + other.reads,
            self.refused + other.refused,
        )


class DrillClients:
    """The clients of one store.

    Parameters
    ----------
    ledger
        Where they note their writes; the clients make its cells.
    options
        How many clients and keys, and how they get in.
    seed
        Of their choices; the timing is up to the machine.
    """

    def __init__(self, ledger: Ledger, options: DrillClientOptions, seed: str) -> None:
        self.ledger = ledger
        self.counts = Counts()
        self.last_error = "none"
        self.info = admin_pb2.InfoResponse()
        self._options = options
        self._random = random.Random(seed)
        self._own = [
            [ledger.add_cell([self._key(f"single-{client}-{i}")]) for i in range(options.keys_per_client)]
            for client in range(options.single_clients)
        ]
        self._shared = list(self._shared_cells())
        ledger.add_cell([self._key(f"untouched-{i}") for i in range(options.untouched_keys)])

    async def run(self, target: str) -> None:
        """Let all clients work until each has lost its server."""
        clients = [self._single(target, cells) for cells in self._own]
        clients += [self._batches(target) for _ in range(self._options.batch_clients)]
        await asyncio.gather(*clients)

    async def read_back(self, target: str, other_records: int = 0) -> int:
        """Compare all keys with the ledger, while nobody writes; return the number of keys.

        The store must have as many records as the ledger, and `other_records` that others wrote. The problems are in
        the ledger's `violations`, the facts that the server gives in `info`.
        """
        async with channel(target, self._options.credentials) as connection:
            stub = kv_pb2_grpc.KVStub(connection)
            for cells in _portions(self.ledger.cells):
                keys = [key for cell in cells for key in cell.keys]
                values, versions = await self._get(stub, keys)
                for cell in cells:
                    n = len(cell.keys)
                    self.ledger.settle(cell, tuple(values[:n]), tuple(versions[:n]))
                    del values[:n], versions[:n]
        self.info = await self.ask(target)
        self.ledger.forget_values()
        records = sum(table.records for table in self.info.tables)
        expected = self.ledger.keys_present + other_records
        if records != expected:
            self.ledger.violate_response(b"(all)", f"{expected} records", f"{records}")
        return sum(len(cell.keys) for cell in self.ledger.cells)

    async def ask(self, target: str) -> admin_pb2.InfoResponse:
        """Return the facts that a server gives about itself."""
        async with channel(target, self._options.credentials) as connection:
            admin = admin_pb2_grpc.AdminStub(connection)
            info: admin_pb2.InfoResponse = await admin.Info(admin_pb2.InfoRequest(), timeout=_CALL_SECONDS_MAX)
        return info

    def _key(self, name: str) -> bytes:
        """Return a key; one in ten is long."""
        padding = self._random.randint(100, 900) if self._random.random() < 0.1 else 0
        return f"{name}-".encode() + b"k" * padding

    def _shared_cells(self) -> Iterable[Cell]:
        remaining = self._options.shared_keys
        while remaining > 0:
            n = min(remaining, self._random.randint(2, self._options.cell_keys_max))
            first = self._options.shared_keys - remaining
            yield self.ledger.add_cell([self._key(f"shared-{first + i}") for i in range(n)])
            remaining -= n

    def _size(self) -> int:
        """Return the size of a value: mostly small, sometimes several pages."""
        if self._random.random() < 0.01:
            return self._random.randint(4_000, 20_000)
        return self._random.randint(VALUE_BYTES_MIN, 300)

    async def _single(self, target: str, cells: Sequence[Cell]) -> None:
        async with channel(target, self._options.credentials) as connection:
            stub = kv_pb2_grpc.KVStub(connection)
            while True:
                cell = self._random.choice(cells)
                action = self._random.choices((self._set, self._delete, self._get_one), (70, 15, 15))[0]
                if not await self._survives(action(stub, cell)):
                    return

    async def _batches(self, target: str) -> None:
        async with channel(target, self._options.credentials) as connection:
            stub = kv_pb2_grpc.KVStub(connection)
            while True:
                fresh = [cell for cell in self._shared if not cell.newest.number and not cell.open]
                cell = self._random.choice(fresh or self._shared)
                action = self._random.choices((self._write_cell, self._read_cell), (75, 25))[0]
                if not await self._survives(action(stub, cell)):
                    return

    async def _survives(self, action: Coroutine[None, None, None]) -> bool:
        """Run one action; return whether the server is still there."""
        try:
            await action
        except grpc.aio.AioRpcError as error:
            self.last_error = f"{error.code().name}: {error.details()}"
            if error.code() not in _GONE:
                self.ledger.violate_response(b"(a request)", "a response", self.last_error)
            return False
        return True

    async def _set(self, stub: kv_pb2_grpc.KVStub, cell: Cell) -> None:
        attempt = self.ledger.begin(cell, [self._size()])
        request = kv_pb2.SetRequest(key=cell.keys[0], value=attempt.state[0])
        response = await self._write(attempt, stub.Set(request, timeout=_CALL_SECONDS_MAX))
        if response is not None:
            self._acknowledge(attempt, (response.version,))

    async def _delete(self, stub: kv_pb2_grpc.KVStub, cell: Cell) -> None:
        present = cell.newest.state[0] is not None
        attempt = self.ledger.begin(cell, [None])
        request = kv_pb2.DeleteRequest(key=cell.keys[0])
        response = await self._write(attempt, stub.Delete(request, timeout=_CALL_SECONDS_MAX))
        if response is not None:
            self._acknowledge(attempt, None)
            if response.found != present:
                self.ledger.violate_response(cell.keys[0], f"delete: found={present}", f"{response.found}")

    async def _get_one(self, stub: kv_pb2_grpc.KVStub, cell: Cell) -> None:
        before = cell.newest
        response = await stub.Get(kv_pb2.GetRequest(key=cell.keys[0]), timeout=_CALL_SECONDS_MAX)
        self.counts.reads += 1
        value = response.value if response.found else None
        self.ledger.read(cell, before, (value,), (response.version if response.found else 0,))

    async def _write_cell(self, stub: kv_pb2_grpc.KVStub, cell: Cell) -> None:
        sizes = [None if self._random.random() < 0.07 else self._size() for _ in cell.keys]
        if not any(sizes):
            sizes[0] = VALUE_BYTES_MIN
        attempt = self.ledger.begin(cell, sizes)
        operations: list[Operation] = [
            (Op.DELETE, key, b"") if value is None else (Op.SET, key, value)
            for key, value in zip(cell.keys, attempt.state, strict=True)
        ]
        # The last write of a key in a batch wins, and a later GET sees it.
        probe = self._random.randrange(len(cell.keys))
        operations.insert(0, (Op.SET, cell.keys[probe], b"overwritten by the same batch"))
        operations.append((Op.GET, cell.keys[probe], b""))
        request = batch_request(operations, attempt.number)
        response = await self._write(attempt, stub.Batch(request, timeout=_CALL_SECONDS_MAX))
        if response is None:
            return
        versions = _versions(response)[1:-1]
        self.counts.batches += 1
        self._acknowledge(
            attempt, tuple(v if s is not None else 0 for v, s in zip(versions, attempt.state, strict=True))
        )
        if response.values != (attempt.state[probe] or b""):
            self.ledger.violate_response(cell.keys[probe], "the value set before in the batch", repr(response.values))

    async def _read_cell(self, stub: kv_pb2_grpc.KVStub, cell: Cell) -> None:
        before = cell.newest
        values, versions = await self._get(stub, cell.keys)
        self.counts.reads += 1
        self.ledger.read(cell, before, tuple(values), tuple(versions))

    async def _get(self, stub: kv_pb2_grpc.KVStub, keys: Sequence[bytes]) -> tuple[list[bytes | None], list[int]]:
        """Read keys by one BatchRequest; return values (None where absent) and versions (0 where absent)."""
        request = batch_request([(Op.GET, key, b"") for key in keys], 0)
        response = await stub.Batch(request, timeout=_CALL_SECONDS_MAX)
        lengths = struct.unpack(f"<{len(keys)}I", response.value_lengths)
        values: list[bytes | None] = []
        joined, offset = response.values, 0  # each access to the field would copy all of it
        for key, status, length in zip(keys, response.status, lengths, strict=True):
            if status not in (Status.OK, Status.NOT_FOUND):
                self.ledger.violate_response(key, "a value or its absence", Status(status).name)
            values.append(joined[offset : offset + length] if status == Status.OK else None)
            offset += length
        versions = [v if value is not None else 0 for v, value in zip(_versions(response), values, strict=True)]
        return values, versions

    async def _write(self, attempt: Attempt, call: Awaitable[Response]) -> Response | None:
        """Await the response to a write; None if the server refused the write because it is full."""
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
        self.ledger.refuse(attempt)
        self.counts.refused += 1
        await asyncio.sleep(_REFUSED_PAUSE_SECONDS)
        return None

    def _acknowledge(self, attempt: Attempt, versions: tuple[int, ...] | None) -> None:
        self.counts.writes += 1
        self.ledger.acknowledge(attempt, versions)


def channel(target: str, credentials: grpc.ChannelCredentials | None = None) -> grpc.aio.Channel:
    """Return a new connection to a server, which shares nothing with others."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, credentials, options=options)


def batch_request(operations: Sequence[Operation], number: int, table: str = "") -> kv_pb2.BatchRequest:
    """Return a BatchRequest of a handful of operations."""
    values = [value for op, _, value in operations if op is Op.SET]
    return kv_pb2.BatchRequest(
        table=table,
        ops=bytes(op for op, _, _ in operations),
        keys=b"".join(key for _, key, _ in operations),
        key_lengths=_u32(len(key) for _, key, _ in operations),
        values=b"".join(values),
        value_lengths=_u32(len(value) for value in values),
        id=number,
    )


def _u32(numbers: Iterable[int]) -> bytes:
    return b"".join(number.to_bytes(4, "little") for number in numbers)


def _versions(response: kv_pb2.BatchResponse) -> tuple[int, ...]:
    return struct.unpack(f"<{len(response.status)}Q", response.versions)


def _portions(cells: Sequence[Cell]) -> Iterable[list[Cell]]:
    """Cut cells into lists of about `_READ_BACK_KEYS` keys."""
    portion: list[Cell] = []
    keys = 0
    for cell in cells:
        portion.append(cell)
        keys += len(cell.keys)
        if keys >= _READ_BACK_KEYS:
            yield portion
            portion, keys = [], 0
    if portion:
        yield portion
