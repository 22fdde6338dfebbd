"""Concurrent clients that record a history: batches, single operations and streams, some cut off on purpose.

They use the raw gRPC stubs, so that a request is sent once. Every value is a number, repeated, that says which
operation wrote it. Each batch that writes also SETs a *marker*: a key that it shares with no request whose outcome is
unknown. A later GET of the marker shows whether the batch was done
(`gpkvs.recovery.proof.consistency.serializability` says why that is needed).
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U8, U32, U64, Op, Status
from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc
from gpkvs.recovery.proof.consistency.copies import Columns, Copies
from gpkvs.recovery.proof.consistency.filler import Filler
from gpkvs.recovery.proof.consistency.history import Flags, HistoryRecorder
from gpkvs.recovery.proof.consistency.looking import LookingClients
from gpkvs.recovery.proof.drill.clients import channel

_CALL_SECONDS_MAX = 30.0
_CUT_SECONDS_MAX = 0.004  # about as long as a call takes: some are cut before they are done, some meanwhile, some after
_READ_BACK_KEYS = 200
_STREAM_REQUESTS = 8  # in flight
_KEY_PREFIX = np.frombuffer(b"key-", np.uint8)
_KEY_BYTES = len(_KEY_PREFIX) + 4
_STRANGE = (1 << 64) - 1  # stands for a value that no client of ours wrote

# Errors that say that nothing was done. After any other error the outcome is unknown.
_REFUSALS = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT)
_EXPECTED = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)


@dataclass(frozen=True)
class ConsistencyClientOptions:
    """How many clients there are, and what they ask for.

    Parameters
    ----------
    batch_clients, single_clients, stream_clients, looking_clients
        How many clients of each kind; all share the keys, but for the last ones (looking.py).
    keys
        How many keys: so few that requests meet.
    request_ops_max
        Operations of a batch, at most.
    cut
        The share of calls that are cancelled; as large is the share whose deadline is so short that they may miss it.
    """

    batch_clients: int = 24
    single_clients: int = 4
    stream_clients: int = 3
    looking_clients: int = 12
    keys: int = 500
    request_ops_max: int = 32
    cut: float = 0.01


class ConsistencyClients:
    """All clients of one store, however often its server is started again.

    Parameters
    ----------
    options
        How many clients and keys.
    seed
        Of their choices; the timing is up to the machine.
    copies
        A directory for copies of the store, which are taken beside the clients; None: none are.
    """

    def __init__(self, options: ConsistencyClientOptions, seed: int, copies: Path | None = None) -> None:
        self.recorder = HistoryRecorder()
        self.last_error = "none"
        self.cancelled = self.deadlines = self.refused = 0
        self.strange: list[str] = []  # responses that no rule allows
        self.filler = Filler(seed)
        self.looking = LookingClients(seed)
        self.copies = Copies(copies, seed, _KEY_PREFIX.tobytes(), self._record_copy) if copies else None
        self._options = options
        self._random = np.random.default_rng(seed)
        self._markers_free: list[int] = []
        self._keys_used = options.keys
        self._single_keys = options.keys // 4  # only these are written by single SETs, and nobody deletes them

    @property
    def stopping(self) -> bool:
        """Whether the clients end."""
        return self.looking.stopping

    @stopping.setter
    def stopping(self, stops: bool) -> None:
        self.looking.stopping = stops

    async def run(self, target: str) -> None:
        """Let all clients work until each has lost its server, or `stopping` is set."""
        o = self._options
        kinds = (
            (self._batches, o.batch_clients),
            (self._singles, o.single_clients),
            (self._stream, o.stream_clients),
            (self.looking.work, o.looking_clients),
        )
        clients = [client for client, count in kinds for _ in range(count)]
        async with channel(target) as first, channel(target) as second, channel(target) as third:
            stubs = [kv_pb2_grpc.KVStub(connection) for connection in (first, second, third)]
            beside = [asyncio.create_task(self.filler.run(target))]
            if self.copies:
                beside.append(asyncio.create_task(self.copies.run(target)))
            try:
                await asyncio.gather(*[client(stubs[i % len(stubs)]) for i, client in enumerate(clients)])
            finally:
                for task in beside:
                    task.cancel()
                ended = await asyncio.gather(*beside, return_exceptions=True)
                self.strange += [f"{error!r}" for error in ended if isinstance(error, Exception)]

    async def read_back(self, target: str) -> int:
        """Read every key and every marker, as the end of the history; return how many keys."""
        async with channel(target) as connection:
            stub = kv_pb2_grpc.KVStub(connection)
            for first in range(0, self._keys_used, _READ_BACK_KEYS):
                key = np.arange(first, min(first + _READ_BACK_KEYS, self._keys_used), dtype=np.uint32)
                op = np.full(len(key), Op.GET, np.uint8)
                number, values = self.recorder.begin(op, key)
                self._record(number, op, await stub.Batch(_request(op, key, values), timeout=_CALL_SECONDS_MAX))
            await self.looking.read_back(stub)
        return self._keys_used

    async def _batches(self, stub: kv_pb2_grpc.KVStub) -> None:
        alive = True
        while alive and not self.stopping:
            op, key, marker = self._choose()
            number, values = self.recorder.begin(op, key)
            cut, timeout = self._cut()
            call = stub.Batch(_request(op, key, values), timeout=timeout)
            response, alive = await self._call(number, call, cut)
            if response is not None:
                self._record(number, op, response)
            self._give_back(number, marker)

    async def _singles(self, stub: kv_pb2_grpc.KVStub) -> None:
        alive = True
        while alive and not self.stopping:
            op = np.array([self._random.choice([Op.GET, Op.SET])], np.uint8)
            keys = self._options.keys if op[0] == Op.GET else self._single_keys
            key = self._random.integers(0, keys, 1, np.uint32)
            number, values = self.recorder.begin(op, key)
            cut, timeout = self._cut()
            name = _key_bytes(key)
            if op[0] == Op.GET:
                got, alive = await self._call(number, stub.Get(kv_pb2.GetRequest(key=name), timeout=timeout), cut)
                if got is not None:
                    found, version = np.array([got.found]), np.array([got.version], np.uint64)
                    lengths = np.array([len(got.value)], np.uint32)
                    self.recorder.respond(number, found, _numbers(lengths, got.value, found), version)
            else:
                request = kv_pb2.SetRequest(key=name, value=_value_bytes(values)[0])
                set_, alive = await self._call(number, stub.Set(request, timeout=timeout), cut)
                if set_ is not None:
                    version = np.array([set_.version], np.uint64)
                    self.recorder.respond(number, np.array([True]), np.empty(0, np.uint64), version)

    async def _stream(self, stub: kv_pb2_grpc.KVStub) -> None:
        """Keep several requests in flight on one stream; when it breaks, all of them are unknown."""
        call = stub.Pipeline()
        flying: deque[tuple[int, U8, int | None]] = deque()
        try:
            while not self.stopping or flying:
                while len(flying) < _STREAM_REQUESTS and not self.stopping:
                    op, key, marker = self._choose()
                    number, values = self.recorder.begin(op, key)
                    flying.append((number, op, marker))
                    await call.write(_request(op, key, values))
                response = await call.read()
                if response is grpc.aio.EOF:
                    break
                number, op, marker = flying[0]
                if response.code == 0:
                    self._record(number, op, response)
                elif response.code in [code.value[0] for code in _REFUSALS]:
                    self.recorder.refuse(number)
                    self.refused += 1
                else:
                    break
                flying.popleft()
                self._give_back(number, marker)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            self.last_error = str(error)
        finally:
            call.cancel()

    async def _call(
        self, number: int, call: grpc.aio.UnaryUnaryCall, cut_seconds: float | None
    ) -> tuple[kv_pb2.BatchResponse | None, bool]:
        """Await the response or cancel the call; return it if there is one, and whether the server may still live."""
        timer = None
        if cut_seconds is not None:
            timer = asyncio.get_running_loop().call_later(cut_seconds, call.cancel)
        try:
            return await call, True
        except grpc.aio.AioRpcError as error:
            self.last_error = f"{error.code().name}: {error.details()}"
            if error.code() in _REFUSALS:
                self.recorder.refuse(number)
                self.refused += 1
                return None, True
            if error.code() not in _EXPECTED:
                self.strange.append(f"request {number}: {self.last_error}")
            late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            self.deadlines += late
            return None, late
        except asyncio.CancelledError:
            if cut_seconds is None:
                raise
            self.cancelled += 1
            return None, True
        finally:
            if timer:
                timer.cancel()

    def _choose(self) -> tuple[U8, U32, int | None]:
        """Choose a batch, and return its marker; half of the batches only read, and have none."""
        rng, count = self._random, int(self._random.integers(1, self._options.request_ops_max + 1))
        key = rng.integers(0, self._options.keys, count, np.uint32)
        if rng.random() < 0.5:
            return np.full(count, Op.GET, np.uint8), key, None
        op = rng.choice(np.array([Op.GET, Op.SET, Op.DELETE], np.uint8), count, p=(0.3, 0.5, 0.2))
        marker, at = self._marker(), int(rng.integers(count))
        # A single SET has no marker: if its response is lost, only a GET can show it. So nobody deletes its key.
        op[(op == Op.DELETE) & (key < self._single_keys)] = Op.SET
        op[at], key[at] = Op.SET, marker
        return op, key, marker

    def _marker(self) -> int:
        if not self._markers_free:
            self._markers_free.append(self._keys_used)
            self._keys_used += 1
        return self._markers_free.pop()

    def _give_back(self, number: int, marker: int | None) -> None:
        """Let a marker be used again, unless the request that wrote it may still be done."""
        if marker is not None and self.recorder.is_settled(number):
            self._markers_free.append(marker)

    def _cut(self) -> tuple[float | None, float]:
        """Return when to cancel a call, if at all, and its deadline."""
        chance, share = self._random.random(), self._options.cut
        moment = float(self._random.random()) * _CUT_SECONDS_MAX
        if chance < share:
            return moment, _CALL_SECONDS_MAX
        return None, moment if chance < 2 * share else _CALL_SECONDS_MAX

    def _record(self, number: int, op: U8, response: kv_pb2.BatchResponse) -> None:
        status = np.frombuffer(response.status, np.uint8)
        version = np.frombuffer(response.versions, "<u8")
        lengths = np.frombuffer(response.value_lengths, "<u4")
        gets = op == Op.GET
        if len(status) != len(op) or len(lengths) != gets.sum() or (status > Status.NOT_FOUND).any():
            self.strange.append(f"request {number}: a response of the wrong shape, or a corrupt record: {status}")
            return
        found: Flags = status == Status.OK
        self.recorder.respond(number, found, _numbers(lengths, response.values, found[gets]), version)

    def _record_copy(self, copy: Columns, sent_ns: int, answered_ns: int) -> None:
        """Note what a copy holds: a read of all keys at once."""
        names = b"".join(copy.names)
        if len(names) != len(copy.names) * _KEY_BYTES:
            self.strange.append("a copy has keys that nobody wrote")
            return
        key = np.frombuffer(names, np.uint8).reshape(-1, _KEY_BYTES)[:, len(_KEY_PREFIX) :].copy().view("<u4").ravel()
        if (key >= self._keys_used).any() or len(np.unique(key)) != len(key):
            self.strange.append("a copy has keys that nobody wrote, or one of them twice")
            return
        found = np.zeros(self._keys_used, np.bool_)
        value, version = np.zeros(self._keys_used, np.uint64), np.zeros(self._keys_used, np.uint64)
        found[key], version[key] = True, copy.versions
        value[key] = _numbers(copy.lengths, copy.values.tobytes(), np.ones(len(key), np.bool_))
        all_keys = np.arange(self._keys_used, dtype=np.uint32)
        self.recorder.add_reading(sent_ns, answered_ns, all_keys, found, value, version)


def _request(op: U8, key: U32, values: U64) -> kv_pb2.BatchRequest:
    data, lengths = _value_bytes(values)
    return kv_pb2.BatchRequest(
        ops=op.tobytes(), keys=_key_bytes(key), key_size=_KEY_BYTES, values=data, value_lengths=lengths.tobytes()
    )


def _key_bytes(key: U32) -> bytes:
    names = np.empty((len(key), _KEY_BYTES), np.uint8)
    names[:, : len(_KEY_PREFIX)] = _KEY_PREFIX
    names[:, len(_KEY_PREFIX) :] = key.astype("<u4").view(np.uint8).reshape(-1, 4)
    return names.tobytes()


def _repeats(values: U64) -> NDArray[np.int64]:
    """Return how often each value repeats its number: 1 to 16 times, as the number itself decides."""
    return 1 + ((values * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(60)).astype(np.int64)


def _value_bytes(values: U64) -> tuple[bytes, U32]:
    """Return the bytes of values, one after the other, and the length of each."""
    repeats = _repeats(values)
    return np.repeat(values, repeats).astype("<u8").tobytes(), (8 * repeats).astype("<u4")


def _numbers(lengths: U32, data: bytes, found: Flags) -> U64:
    """Return the number that each value repeats, 0 for a miss; `_STRANGE` if it is not one number repeated."""
    numbers = np.zeros(len(lengths), np.uint64)
    numbers[found] = _STRANGE
    if len(data) % 8 or (lengths % 8).any() or (lengths[found] == 0).any() or lengths.sum() != len(data):
        return numbers
    words = np.frombuffer(data, "<u8")
    starts = np.cumsum(lengths) // 8 - lengths // 8
    numbers[found] = words[starts[found]]
    whole = _repeats(numbers[found]) * 8 == lengths[found]
    same = np.repeat(numbers, lengths // 8) == words
    owner = np.repeat(np.arange(len(lengths)), lengths // 8)
    numbers[np.flatnonzero(found)[~whole]] = _STRANGE
    numbers[owner[~same]] = _STRANGE
    return numbers
