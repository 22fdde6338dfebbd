"""A client of gRPC with keys of its own: single calls, batches, pipelines, scans, and tables that come and go."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import grpc

from gpkvs.batch import HAS_VALUE, Condition, Op, Status
from gpkvs.proto.v1 import admin_pb2, admin_pb2_grpc, kv_pb2, kv_pb2_grpc
from tests.served.grpc_request import I64_MAX, Failed, Operation, Request, Result, batch_of, fits, results_of
from tests.served.model import Held, Model, Moment, State, WrongAnswerError, now_ms
from tests.server.wire import i64, u32, u64s

CALL_SECONDS_MAX = 240
KEYS_OF_A_CLIENT = 300
STATES_MAX = 8  # then it looks which one is there
VALUE_BYTES_MAX = 100_000
_REFUSED = (grpc.StatusCode.RESOURCE_EXHAUSTED,)
_ENDED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


class EndedError(Exception):
    """The server went away."""


class GrpcClient:
    """A client that knows what must come.

    Attributes
    ----------
    prefix
        Its keys in the table `default` begin with it, those in tables of numbers with two bytes of it.
    waiting
        Units that were sent and not answered, in their order, and when.
    """

    def __init__(self, number: int, seed: int, counts: Counter[str]) -> None:
        self.random = random.Random(seed)
        self.counts = counts
        self.prefix = b"\xc3own%d:" % number
        self._number_prefix = bytes([0xC3, number])
        self._own = f"own{number}"
        self._own_numbers: bool | None = None  # whether its own table, if it is there, is one of numbers
        self._changing: str | None = None  # what it does to its own table
        self.model = Model()
        self.waiting: list[Request] = []
        self._since = self._ended = 0

    def connect(self, target: str) -> None:
        """Begin to speak with a server."""
        sizes = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._channel = grpc.insecure_channel(target, [*sizes, ("grpc.use_local_subchannel_pool", 1)])
        self._kv = kv_pb2_grpc.KVStub(self._channel)
        self._admin = admin_pb2_grpc.AdminStub(self._channel)

    def close(self) -> None:
        """End the connection."""
        self._channel.close()

    def step(self) -> None:
        """Do one thing, and compare what comes of it.

        Raises
        ------
        EndedError
            If the server went away.
        WrongAnswerError
            If what came is wrong.
        """
        kinds = (self._single, self._batch, self._several, self._pipeline, self._scan, self._table)
        [kind] = self.random.choices(kinds, (6, 8, 3, 6, 1, 1))
        if len(self.model.states) > STATES_MAX:
            kind = self._scan
        self.counts[f"gRPC {kind.__name__[1:]}"] += 1
        try:
            kind()
        except grpc.RpcError as error:
            if error.code() in _ENDED:
                self._ended = now_ms()
                raise EndedError from error
            if error.code() not in _REFUSED:
                raise WrongAnswerError(f"{error.code()}: {error.details()}") from error
            self.counts[f"refused: {dict(error.trailing_metadata() or ()).get('gpkvs-full', 'other')}"] += 1
            self.waiting.clear()
            self._changing = None

    def settle(self) -> None:
        """Compare all that the server holds after a start with what may be there.

        Raises
        ------
        EndedError
            If the server went away before that was done; what may be there is still known.
        WrongAnswerError
            If something else is there.
        """
        self.model.states = self.model.after(self.waiting, Moment(self._since, self._ended))
        self.waiting.clear()
        try:
            self._settle_table(self.model.states)
            self._scan()
        except grpc.RpcError as error:
            if error.code() not in _ENDED:
                raise
            raise EndedError from error
        self.counts["contents compared"] += 1

    def _settle_table(self, possible: list[State]) -> None:
        tables = {table.name: table.layout for table in self._admin.ListTables(admin_pb2.ListTablesRequest()).tables}
        is_there, changing = self._own in tables, self._changing
        self._changing = None
        if changing is None and is_there != (self._own_numbers is not None):
            raise WrongAnswerError(f"table {self._own} is there: {is_there}")
        if is_there:
            self._own_numbers = tables[self._own] == "u64"
        else:
            self._own_numbers = None
            for state in possible:
                self._forget(state)

    def _forget(self, state: State) -> None:
        for key in [key for key in state if key[0] == self._own]:
            del state[key]

    # What it asks.

    def _space(self) -> tuple[str, bool]:
        spaces = [("default", False)] * 3 + [("numbers", True)]
        if self._own_numbers is not None:
            spaces.append((self._own, self._own_numbers))
        return self.random.choice(spaces)

    def _key(self, *, numbers: bool) -> bytes:
        number = min(self.random.randrange(KEYS_OF_A_CLIENT), self.random.randrange(KEYS_OF_A_CLIENT))
        if numbers:
            return self._number_prefix + number.to_bytes(6, "big")
        return self.prefix + b"%d" % number + b"k" * (number % 7 == 0) * number

    def _value(self) -> bytes:
        size = self.random.choice((0, 0, 1, 8, 30, 100, 300, 2000, 20_000 if self.random.random() < 0.1 else 5))
        return self.random.choice((b"%d" % self.random.randrange(-99, 99), self.random.randbytes(size)))

    def _ttl(self) -> int:
        return self.random.choice((0, 0, 0, 0, self.random.randrange(1, 3000), 10**9))

    def _condition(self, table: str, key: bytes, *, numbers: bool) -> tuple[Condition, int]:
        condition = Condition(self.random.randrange(4))
        if condition is not Condition.EQUALS:
            return condition, 0
        held = self.model.state.get((table, key))
        known = held and (int.from_bytes(held.value, "little") if numbers else held.version)
        if not numbers and held and known is None:
            return Condition.PRESENT, 0
        return condition, known if known is not None and self.random.random() < 0.8 else self.random.randrange(1 << 20)

    def _operation(self, table: str, *, numbers: bool, returns: bool = True) -> Operation:
        random, key = self.random, self._key(numbers=numbers)
        held = self.model.state.get((table, key))
        ops = [Op.SET, Op.SET, Op.SET, Op.DELETE, Op.INCREMENT, Op.EXISTS, Op.CHECK, Op.GET, Op.GET]
        if not numbers:
            ops += [Op.APPEND, Op.EXPIRE, Op.EXPIRY]
        op = random.choice(ops)
        if op is Op.GET and not returns:
            op = Op.EXISTS
        if op is Op.APPEND and held and len(held.value) > VALUE_BYTES_MAX:
            op = Op.SET
        value, ttl, condition, expected = b"", 0, Condition.NONE, 0
        if op is Op.SET:
            value = i64(random.randrange(-5, 1 << 40)) if numbers else self._value()
        elif op is Op.APPEND:
            value = random.choice((b"", self._value()))
        elif op is Op.INCREMENT:
            value = i64(random.choice((1, -1, 1000, I64_MAX, -I64_MAX - 1)))
        if op in (Op.SET, Op.APPEND, Op.INCREMENT, Op.EXPIRE) and not numbers:
            ttl = self._ttl()
        if op is Op.CHECK:
            condition, expected = (Condition.PRESENT if held else Condition.ABSENT), 0
            if random.random() < 0.2:
                condition, expected = self._condition(table, key, numbers=numbers)
            condition = condition or Condition.ABSENT
        elif (HAS_VALUE[op] or op in (Op.DELETE, Op.EXPIRE)) and random.random() < 0.15:
            condition, expected = self._condition(table, key, numbers=numbers)
        return Operation(op, key, value, condition, expected, ttl)

    def _request(self, operations_max: int = 12, *, returns: bool = True) -> Request:
        table, numbers = self._space()
        count = self.random.randrange(1, operations_max)
        operations = [self._operation(table, numbers=numbers, returns=returns) for _ in range(count)]
        return Request(table, self._bounded(table, operations), numbers)

    def _bounded(self, table: str, operations: list[Operation]) -> tuple[Operation, ...]:
        """Return operations without those on more keys that may expire meanwhile than states can be kept apart."""
        soon = {
            key[1]
            for key in {(table, operation.key) for operation in operations}
            if (held := self.model.state.get(key)) and held.expiry and held.expiry.first < now_ms() + 10**7
        }
        left = set(sorted(soon)[3:])
        return tuple(operation for operation in operations if operation.key not in left)

    # How it asks.

    def _begin(self, *units: Request) -> None:
        self.waiting, self._since = list(units), now_ms()

    def _take(self, answer: Failed | list[Result]) -> None:
        unit = self.waiting[0]
        self.model.take(unit, Moment(self._since, now_ms()), answer, fits)
        del self.waiting[0]
        self.counts["operations"] += len(unit.operations)
        if isinstance(answer, Failed) or unit.numbers:
            return
        floor = self.model.versions.get(unit.table, 0)
        for operation, result in zip(unit.operations, answer, strict=True):
            gives = operation.op in (Op.SET, Op.APPEND, Op.INCREMENT, Op.EXPIRE) and result.status == Status.OK
            if gives and result.version <= floor:
                raise WrongAnswerError(f"{unit}: {answer}: version {result.version} is not above {floor}")
            where = unit.table, operation.key
            if gives or (result.version and not result.status):
                for state in self.model.states:
                    if where in state:
                        state[where] = replace(state[where], version=result.version)
            self.model.versions[unit.table] = max(self.model.versions.get(unit.table, 0), result.version or 0)

    def _single(self) -> None:
        table, numbers = self._space()
        operation = self._operation(table, numbers=numbers)
        unit = Request(table, (operation,), numbers)
        self._begin(unit)
        common = {"table": table, "key": operation.key}
        condition = {"condition": int(operation.condition), "expected": operation.expected}
        match operation.op:
            case Op.GET:
                got = self._kv.Get(kv_pb2.GetRequest(**common), timeout=CALL_SECONDS_MAX)
                self._take([Result(int(not got.found), got.value, got.version)])
            case Op.SET:
                message = kv_pb2.SetRequest(**common, value=operation.value, ttl_ms=operation.ttl, **condition)
                stored = self._kv.Set(message, timeout=CALL_SECONDS_MAX)
                self._take([Result(stored.status, b"", stored.version)])
            case Op.DELETE:
                deleted = self._kv.Delete(kv_pb2.DeleteRequest(**common, **condition), timeout=CALL_SECONDS_MAX)
                status = deleted.status or int(not deleted.found)
                self._take([Result(status, b"", deleted.version)])
            case _:
                self._send_batch(unit, unit.message(numbers=numbers and self.random.random() < 0.5))

    def _send_batch(self, unit: Request, message: kv_pb2.BatchRequest) -> None:
        try:
            response = self._kv.Batch(message, timeout=CALL_SECONDS_MAX)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.ABORTED:
                raise
            trailing = dict(error.trailing_metadata())
            found = trailing.get("gpkvs-found")
            self._take(Failed(int(trailing["gpkvs-failed-check"]), None if found is None else int(found)))
        else:
            self._take(results_of(unit.operations, response))

    def _batch(self) -> None:
        count = self.random.choice((3, 12, 12, 60))
        unit = self._many() if self.random.random() < 0.1 else self._request(count)
        self._begin(unit)
        self._send_batch(unit, unit.message())

    def _many(self) -> Request:
        """Return a request that fills a table, or empties it."""
        table, numbers = self._space()
        first = self.random.randrange(KEYS_OF_A_CLIENT)
        operations = []
        fills = self.random.random() < 0.6
        for number in range(first, first + self.random.choice((50, 500, 2000))):
            key = (
                self._number_prefix + (1 << 40 | number).to_bytes(6, "big")
                if numbers
                else self.prefix + b"m%d" % number
            )
            value = (number.to_bytes(8, "little") if numbers else b"v" * (number % 200)) if fills else b""
            operations.append(Operation(Op.SET if fills else Op.DELETE, key, value))
        return Request(table, tuple(operations), numbers)

    def _several(self) -> None:
        """Send several requests in a message; each is atomic by itself."""
        table, numbers = self._space()
        units = []
        for _ in range(self.random.randrange(1, 6)):
            operations = [
                self._operation(table, numbers=numbers, returns=False) for _ in range(self.random.randrange(1, 5))
            ]
            units.append(Request(table, self._bounded(table, operations), numbers))
        self._begin(*units)
        message = batch_of([operation for unit in units for operation in unit.operations], table=table)
        message.request_ops = u32(*(len(unit.operations) for unit in units))
        response = self._kv.Batch(message, timeout=CALL_SECONDS_MAX)
        failures = {failure.request: failure for failure in response.failures}
        done = [
            operation for number, unit in enumerate(units) if number not in failures for operation in unit.operations
        ]
        results = iter(results_of(done, response))
        for number, unit in enumerate(units):
            if number not in failures:
                self._take([next(results) for _ in unit.operations])
            elif not self._is_refused(failures[number]):
                self._take(_failed(failures[number]))

    def _pipeline(self) -> None:
        units = [self._request(8) for _ in range(self.random.randrange(1, 20))]
        self._begin(*units)
        messages = (unit.message(id=number) for number, unit in enumerate(units, 1))
        for number, response in enumerate(self._kv.Pipeline(messages, timeout=CALL_SECONDS_MAX), 1):
            if response.id != number:
                raise WrongAnswerError(f"response {response.id} came where {number} should")
            if not response.code:
                self._take(results_of(self.waiting[0].operations, response))
            elif not self._is_refused(response):
                self._take(_failed(response))
        if self.waiting:
            raise WrongAnswerError(f"{len(self.waiting)} of {len(units)} messages were not answered")

    def _is_refused(self, failure: Any) -> bool:
        if failure.code == grpc.StatusCode.ABORTED.value[0]:
            return False
        if failure.code == grpc.StatusCode.UNAVAILABLE.value[0]:
            self._ended = now_ms()
            raise EndedError
        if failure.code != grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]:
            raise WrongAnswerError(f"{self.waiting[0]}: {failure.code} {failure.message}")
        self.counts[f"refused: {failure.full or 'other'}"] += 1
        del self.waiting[0]
        return True

    def _scan(self) -> None:
        """Compare all of its keys with what is there."""
        begun = now_ms()
        found = self._contents()
        self.model.settle(self.model.states, found, Moment(begun, now_ms()))

    def _contents(self) -> State:
        spaces = [("default", self.prefix), ("numbers", self._number_prefix)]
        if self._own_numbers is not None:
            spaces.append((self._own, b""))
        return {(table, key): held for table, prefix in spaces for key, held in self.held(table, prefix)}

    def held(self, table: str, prefix: bytes) -> Iterator[tuple[bytes, Held]]:
        # Tables of numbers have no prefixes.
        request = kv_pb2.ScanRequest(table=table, prefix=b"" if prefix == self._number_prefix else prefix)
        seen = set()
        for piece in self._kv.Scan(request, timeout=CALL_SECONDS_MAX):
            if piece.damaged:
                raise WrongAnswerError(f"{piece.damaged} damaged records in {table}")
            keys, values = _cut(piece.keys, piece.key_lengths), _cut(piece.values, piece.value_lengths)
            none = [0] * len(keys)
            versions, expiries = u64s(piece.versions) or none, u64s(piece.expiries) or none
            for key, value, version, expiry in zip(keys, values, versions, expiries, strict=True):
                if key in seen:
                    raise WrongAnswerError(f"a scan returned {key!r} twice")
                seen.add(key)
                if not key.startswith(prefix):
                    continue
                yield key, Held(value, Moment(expiry, expiry) if expiry else None, version or None)

    def _table(self) -> None:
        """Make its own table, or drop it."""
        if self._own_numbers is None:
            self._changing = "make"
            layout = self.random.choice(("bytes", "u64"))
            request = admin_pb2.CreateTableRequest(name=self._own, layout=layout, index_bytes=64 << 10)
            self._admin.CreateTable(request, timeout=CALL_SECONDS_MAX)
            self._own_numbers = layout == "u64"
        elif self.random.random() < 0.5:
            self._changing = "drop"
            self._admin.DropTable(admin_pb2.DropTableRequest(name=self._own), timeout=CALL_SECONDS_MAX)
            self._own_numbers = None
            for state in self.model.states:
                self._forget(state)
            self.model.versions.pop(self._own, None)
        self._changing = None


def _failed(failure: Any) -> Failed:
    return Failed(failure.failed_check, failure.found if failure.HasField("found") else None)


def _cut(column: bytes, lengths: bytes) -> list[bytes]:
    cuts, at = [], 0
    for length in memoryview(lengths).cast("I"):
        cuts.append(column[at : at + length])
        at += length
    return cuts
