"""Operations that look before they act, against a plain dictionary."""

from __future__ import annotations

import random
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import Batch, Condition, Op, Status
from gpkvs.config import Limits, StoreConfig
from gpkvs.errors import ConflictError, InvalidArgumentError
from gpkvs.store import Store
from tests.conftest import SMALL

I64 = 1 << 63
Asked = tuple[Op, bytes, bytes, Condition, int]


@dataclass
class Model:
    """What a table must hold: of each key its value and its version; numbers have no version."""

    has_records: bool
    held: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)

    def compared(self, key: bytes) -> int:
        value, version = self.held[key]
        return version if self.has_records else int.from_bytes(value, "little")

    def holds(self, asked: Asked) -> bool:
        _, key, _, condition, expected = asked
        match condition:
            case Condition.ABSENT:
                return key not in self.held
            case Condition.PRESENT:
                return key in self.held
            case Condition.EQUALS:
                return key in self.held and self.compared(key) == expected
        return True

    def number(self, key: bytes) -> int | Status:
        if key not in self.held:
            return 0
        value = self.held[key][0]
        if not self.has_records:
            return int.from_bytes(value, "little", signed=True)
        digits = value.removeprefix(b"-")
        if not digits or len(value) > 20 or not all(48 <= byte <= 57 for byte in digits):
            return Status.NOT_A_NUMBER
        number = int(value)
        return number if b"%d" % number == value and -I64 <= number < I64 else Status.NOT_A_NUMBER

    def run(self, asked: Asked, version: int) -> tuple[Status, int | None, bytes | None]:
        """Do an operation; return its status, what it tells of the key, and the value that it returns."""
        op, key, value, _, _ = asked
        told = self.compared(key) if key in self.held else None
        if op in (Op.GET, Op.EXISTS, Op.CHECK):
            status = Status.OK if key in self.held else Status.NOT_FOUND
            return status, told, self.held[key][0] if op is Op.GET and key in self.held else None
        if not self.holds(asked):
            return (Status.CONDITION_FAILED if key in self.held else Status.NOT_FOUND), told, None
        if op is Op.DELETE:
            return (Status.OK if self.held.pop(key, None) else Status.NOT_FOUND), told, None
        returned = None
        if op is Op.INCREMENT:
            number = self.number(key)
            if isinstance(number, Status):
                return number, told, None
            number += int.from_bytes(value, "little", signed=True)
            if not -I64 <= number < I64:
                return Status.OVERFLOW, told, None
            returned = number.to_bytes(8, "little", signed=True)
            value = str(number).encode() if self.has_records else returned
        elif op is Op.APPEND:
            value = self.held.get(key, (b"", 0))[0] + value
        self.held[key] = value, version
        return Status.OK, version, returned


def batch_of(requests: list[list[Asked]], table: int) -> Batch:
    asked = [operation for request in requests for operation in request]
    with_value = [operation for operation in asked if operation[0] in (Op.SET, Op.INCREMENT, Op.APPEND)]
    return Batch(
        np.array([op for op, *_ in asked], np.uint8),
        np.frombuffer(b"".join(key for _, key, *_ in asked), np.uint8),
        np.array([len(key) for _, key, *_ in asked], np.uint32),
        np.frombuffer(b"".join(value for _, _, value, *_ in with_value), np.uint8),
        np.array([len(value) for _, _, value, *_ in with_value], np.uint32),
        np.array([len(request) for request in requests], np.uint32),
        table,
        conditions=np.array([condition for *_, condition, _ in asked], np.uint8),
        expected=np.array([expected for *_, expected in asked], np.uint64),
    )


class Chooser:
    """Chooses requests of all kinds."""

    def __init__(self, seed: int, model: Model) -> None:
        self.random = random.Random(seed)
        self.model = model

    def operation(self, may_check: bool) -> Asked:
        rng, has_records = self.random, self.model.has_records
        kinds = [Op.GET, Op.SET, Op.DELETE, Op.EXISTS, Op.INCREMENT, Op.CHECK] + [Op.APPEND] * has_records
        op = rng.choice([kind for kind in kinds if may_check or kind is not Op.CHECK])
        key = rng.randrange(12).to_bytes(8, "little")
        value = b""
        if op is Op.INCREMENT:
            value = rng.choice([1, -1, 7, I64 - 1, -I64, rng.randrange(-1000, 1000)]).to_bytes(8, "little", signed=True)
        elif op in (Op.SET, Op.APPEND):
            value = rng.choice(
                [
                    b"",
                    b"-",
                    b"12",
                    b"-7",
                    b"x",
                    b"9" * 18,
                    b"9" * 19,
                    b"9" * 20,
                    b"0",
                    b"-0",
                    b"007",
                    b"-" + b"9" * 19,
                    b"long" * 30,
                ]
            )
            value = value if has_records else rng.randbytes(8)
        condition, expected = Condition.NONE, 0
        if op is Op.CHECK or (op not in (Op.GET, Op.EXISTS) and rng.random() < 0.6):
            condition = rng.choice([Condition.ABSENT, Condition.PRESENT, Condition.EQUALS, Condition.EQUALS])
            if key in self.model.held and rng.random() < 0.7:
                expected = self.model.compared(key)
        return op, key, value, condition, expected

    def requests(self) -> list[list[Asked]]:
        rng = self.random
        return [
            [self.operation(may_check=rng.random() < 0.2) for _ in range(rng.randint(1, 8))]
            for _ in range(rng.randint(1, 6))
        ]


def expect(model: Model, requests: list[list[Asked]], result: gpkvs.batch.BatchResult, first: int) -> None:
    """Run the same on the model, and compare each result."""
    version = first
    for number, request in enumerate(requests):
        failed = next((at for at, asked in enumerate(request) if asked[0] is Op.CHECK and not model.holds(asked)), None)
        if failed is not None:
            key = request[failed][1]
            with pytest.raises(ConflictError) as caught:
                result.request(number)
            assert caught.value.index == failed
            assert caught.value.found == (model.compared(key) if key in model.held else None)
            version += len(request)
            continue
        got = result.request(number)
        values = iter(got.value_list())
        for at, asked in enumerate(request):
            status, told, returned = model.run(asked, version)
            version += 1
            assert got.status[at] == status, (number, at, asked)
            if asked[0] in (Op.GET, Op.INCREMENT):
                assert next(values) == (returned or b""), (number, at, asked)
            if model.has_records and status is not Status.NOT_FOUND:
                assert got.versions[at] == (told or 0), (number, at, asked)
            elif status is Status.CONDITION_FAILED:
                assert got.versions[at] == told, (number, at, asked)


@pytest.mark.parametrize("layout", ["bytes", "u64"])
def test_any_operations_do_what_a_dictionary_does(store_path: Path, layout: str) -> None:
    seed = secrets.randbelow(1 << 32)
    print(f"seed {seed}")
    with gpkvs.open(store_path, index_bytes=64 << 10) as store:
        store.create_table("t", layout=layout, index_bytes=64 << 10)
        table = 1
        model = Model(layout == "bytes")
        chooser = Chooser(seed, model)
        for _ in range(300):
            requests = chooser.requests()
            batch = batch_of(requests, table)
            first = store._engine.next_sequence
            result, gate = store._engine.execute(batch)
            store._engine.wait(result, gate)
            expect(model, requests, result, first)
    with gpkvs.open(store_path) as store:
        for number in range(12):
            key = number.to_bytes(8, "little")
            assert store.get(key, table="t") == (model.held[key][0] if key in model.held else None)


def test_nothing_may_be_left_of_a_batch(store_path: Path) -> None:
    """Found by the explorer of crashes on a disk: its only request failed a check."""
    with gpkvs.open(store_path, index_bytes=64 << 10) as store:
        requests: list[list[Asked]] = [
            [(Op.SET, b"key", b"value", Condition.ABSENT, 0)],
            [(Op.CHECK, b"absent", b"", Condition.PRESENT, 0), (Op.SET, b"other", b"value", Condition.NONE, 0)],
            [(Op.GET, b"key", b"", Condition.NONE, 0)],
        ]
        result = store.execute_requests(batch_of(requests, 0))
        assert result.request(0).status.tolist() == [Status.OK]
        with pytest.raises(ConflictError):
            result.request(1)
        assert result.request(2).value_list() == [b"value"]
        alone = store.execute_requests(batch_of([requests[1]], 0))
        assert (alone.part, [*alone.rejected]) == (None, [0])


def test_a_read_behind_a_refused_request_waits_for_the_write_that_it_sees(store_path: Path) -> None:
    """Its gate is that of what it read."""
    settings = {"index_bytes": 1 << 20, "heap_bytes": 32 << 20, "commit": "journal"}
    with gpkvs.open(store_path, **settings) as store:
        key = b"01234567"
        check: Asked = (Op.CHECK, b"absent", b"", Condition.PRESENT, 0)
        get: Asked = (Op.GET, key, b"", Condition.NONE, 0)
        for number in range(30):
            value = b"%d" % number * 200_000
            begun = store.begin_requests(Batch.of([(Op.SET, key, value)]))
            read = store.begin_requests(batch_of([[check], [get]], 0))
            assert [*read.result.rejected] == [0]
            assert read.gate >= begun.gate or store._engine.is_durable(begun.gate)
            assert read.finish().request(1).value_list() == [value]
            begun.finish()


@pytest.mark.parametrize("last", [Op.GET, Op.INCREMENT])
def test_expiries_in_a_row_cost_no_more_than_one(store_path: Path, last: Op) -> None:
    """Each keeps the value that the one before it kept; a walk through all of them would take minutes."""
    with gpkvs.open(store_path, index_bytes=64 << 10, heap_bytes=16 << 20, log_bytes=32 << 20) as store:
        store.set(b"key", b"x")
        nothing: Asked = (Op.APPEND, b"key", b"", Condition.NONE, 0)
        expire: Asked = (Op.EXPIRE, b"key", b"", Condition.NONE, 0)
        look: Asked = (last, b"key", (1).to_bytes(8, "little") if last is Op.INCREMENT else b"", Condition.NONE, 0)
        batch = batch_of([[expire, look, nothing, look] * 20_000], 0)
        began = time.process_time()
        result = store.execute(batch)
        assert time.process_time() - began < 20, "it takes 0.1 s; through all of them it took 40"
        assert set(result.status[1::2].tolist()) == {Status.OK if last is Op.GET else Status.NOT_A_NUMBER}
        assert store.get(b"key") == b"x"


def test_what_a_request_brings_is_not_counted_as_made(store_path: Path) -> None:
    limits = Limits(result_bytes_max=1 << 20, value_bytes_max=1 << 20)
    store_path.mkdir()
    with Store(store_path, StoreConfig(limits=limits, batch_result_bytes_max=1 << 20, **SMALL)) as store:
        sets: list[Asked] = [(Op.SET, b"%d" % n, bytes(500_000), Condition.NONE, 0) for n in range(5)]
        add: Asked = (Op.INCREMENT, b"sum", (1 << 40).to_bytes(8, "little"), Condition.NONE, 0)
        assert store.execute(batch_of([[*sets, add]], 0)).status.max() == Status.OK
        appends: list[Asked] = [(Op.APPEND, b"%d" % n, b"x", Condition.NONE, 0) for n in range(5)]
        with pytest.raises(
            InvalidArgumentError, match=r"make too many bytes of others' values, .* the limit is 1,048,576"
        ):
            store.execute(batch_of([appends], 0))


def test_a_record_is_checked_once_for_all_its_operations(store_path: Path) -> None:
    with gpkvs.open(store_path, index_bytes=64 << 10, heap_bytes=256 << 20) as store:
        store.set(b"key", bytes(8 << 20))
        increment: Asked = (Op.INCREMENT, b"key", (1).to_bytes(8, "little"), Condition.NONE, 0)
        expiry: Asked = (Op.EXPIRY, b"key", b"", Condition.NONE, 0)
        batch = batch_of([[increment, expiry] * 5_000], 0)
        began = time.process_time()
        result = store.execute(batch)
        assert time.process_time() - began < 5, "one check of 8 MiB; 10,000 took 30 s"
        assert result.status.tolist() == [Status.NOT_A_NUMBER, Status.OK] * 5_000
