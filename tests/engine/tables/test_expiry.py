"""Keys that expire, against a dictionary and a clock that the test sets."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import gpkvs
from gpkvs.batch import Batch, BatchResult, Condition, Op, RequestResult, Status
from gpkvs.config import CommitName
from gpkvs.engine.commit.journal_committer import JournalCommitter
from gpkvs.engine.seam import counted_time
from gpkvs.engine.tables.expiry import _Ranges
from gpkvs.errors import ConflictError, FormatError, InvalidArgumentError
from gpkvs.media.journal import Journal
from gpkvs.media.layout import BYTES_LAYOUT, Root
from gpkvs.recovery.copy.copy import CopySizes, copy_store
from gpkvs.recovery.proof.batch_runner import BatchRunner
from gpkvs.recovery.startup.check import check
from tests.conftest import assert_counted
from tests.record_header import IS_SHORT
from tests.recovery.startup.harness import kill_at

SMALL = {"index_bytes": 64 << 10, "heap_bytes": 1 << 20, "threads": 1}
HOUR = 3_600_000


class Clock:
    """What the store takes for the time; it is ahead of the real one, which native code asks for."""

    def __init__(self) -> None:
        self.now = 4 * 10**12

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(counted_time, "MACHINE", counted_time.clocks_set_by(clock))
    return clock


@pytest.fixture
def opened(
    store_path: Path, clock: Clock, commit: CommitName, host_ops_max: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Opened]:
    monkeypatch.setenv("GPKVS_HOST_OPS_MAX", "" if host_ops_max else "0")
    with Opened(store_path, commit) as opened:
        yield opened


class Opened:
    """A store that can be opened again."""

    def __init__(self, path: Path, commit: CommitName) -> None:
        self.path, self._commit = path, commit
        self.natively = 0  # batches with expiries
        self.open()

    def open(self) -> None:
        self.store = gpkvs.open(self.path, commit=self._commit, **SMALL)
        self.is_native = self.store._engine.is_on_host
        self._runner = BatchRunner(self.store, "native" if self.is_native else "phases")

    def run_as_a_door(self, batch: Batch) -> BatchResult:
        """Run a batch as the native door has it run."""
        before = self._runner.natively
        result = self._runner.run(batch)
        self.natively += (self._runner.natively - before) * (batch.expiries is not None)
        return result

    def again(self) -> None:
        self.store.close()
        self.open()

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()


@dataclass(frozen=True)
class Asked:
    """An operation."""

    op: Op
    key: bytes
    value: bytes = b""
    expiry: int = 0
    condition: Condition = Condition.NONE
    expected: int = 0


def batch_of(requests: list[list[Asked]]) -> Batch:
    asked = [operation for request in requests for operation in request]
    values = [one.value for one in asked if one.op in (Op.SET, Op.INCREMENT, Op.APPEND)]
    conditions = np.array([one.condition for one in asked], np.uint8)
    expiries = np.array([one.expiry for one in asked], np.uint64)
    return Batch(
        np.array([one.op for one in asked], np.uint8),
        np.frombuffer(b"".join(one.key for one in asked), np.uint8),
        np.array([len(one.key) for one in asked], np.uint32),
        np.frombuffer(b"".join(values), np.uint8),
        np.array([len(value) for value in values], np.uint32),
        np.array([len(request) for request in requests], np.uint32),
        conditions=conditions if conditions.any() else None,
        expected=np.array([one.expected for one in asked], np.uint64) if conditions.any() else None,
        expiries=expiries if expiries.any() else None,
    )


def run(store: gpkvs.Store, *asked: Asked) -> RequestResult:
    return store.execute(batch_of([list(asked)]))


def expiry_of(store: gpkvs.Store, key: bytes) -> int | None:
    result = run(store, Asked(Op.EXPIRY, key))
    return int.from_bytes(result.values.tobytes(), "little") if result.status[0] == Status.OK else None


class Model:
    """What the table must hold: of each key value, version and expiry."""

    def __init__(self) -> None:
        self.held: dict[bytes, tuple[bytes, int, int]] = {}
        self.now = 0

    def begin(self, now: int) -> None:
        """Begin a batch: what has expired is gone."""
        self.now = max(now, self.now)
        self.held = {key: held for key, held in self.held.items() if not 0 < held[2] <= self.now}

    def holds(self, asked: Asked) -> bool:
        held = self.held.get(asked.key)
        match asked.condition:
            case Condition.ABSENT:
                return held is None
            case Condition.PRESENT:
                return held is not None
            case Condition.EQUALS:
                return held is not None and held[1] == asked.expected
        return True

    def run(self, asked: Asked, version: int) -> tuple[Status, bytes | None]:
        """Do an operation; return its status, and the value that it returns."""
        key, held = asked.key, self.held.get(asked.key)
        if asked.op in (Op.GET, Op.EXISTS, Op.CHECK, Op.EXPIRY):
            if held is None:
                return Status.NOT_FOUND, None
            return Status.OK, {Op.GET: held[0], Op.EXPIRY: held[2].to_bytes(8, "little")}.get(asked.op)
        if not self.holds(asked):
            return (Status.NOT_FOUND if held is None else Status.CONDITION_FAILED), None
        if asked.op is Op.DELETE:
            return (Status.OK if self.held.pop(key, None) else Status.NOT_FOUND), None
        value, expiry, returned = asked.value, asked.expiry, None
        if asked.op is Op.EXPIRE:
            if held is None:
                return Status.NOT_FOUND, None
            value = held[0]
        elif asked.op is Op.APPEND and held:
            value, expiry = held[0] + value, held[2]
        elif asked.op is Op.INCREMENT:
            text = held[0] if held else b"0"
            if not text.removeprefix(b"-").isdigit() or b"%d" % int(text) != text:
                return Status.NOT_A_NUMBER, None
            number = int(text) + int.from_bytes(value, "little", signed=True)
            returned = number.to_bytes(8, "little", signed=True)
            value, expiry = b"%d" % number, held[2] if held else expiry
        self.held[key] = value, version, expiry
        return Status.OK, returned

    def expect(self, requests: list[list[Asked]], result: BatchResult, first: int) -> None:
        """Run the same, and compare each result; `first` is the version of the first operation."""
        version = first
        for number, request in enumerate(requests):
            if any(one.op is Op.CHECK and not self.holds(one) for one in request):
                with pytest.raises(ConflictError):
                    result.request(number)
                version += len(request)
                continue
            got = result.request(number)
            values = iter(got.value_list())
            for at, one in enumerate(request):
                status, returned = self.run(one, version)
                version += 1
                assert got.status[at] == status, (number, at, one)
                if one.op in (Op.GET, Op.INCREMENT, Op.EXPIRY):
                    assert next(values) == (returned or b""), (number, at, one)
                if status is Status.OK and one.key in self.held:
                    assert got.versions[at] == self.held[one.key][1], (number, at, one)


def random_operation(rng: random.Random, model: Model, now: int, *, plain: bool) -> Asked:
    key = b"key %d" % rng.randrange(14)
    kinds = [Op.GET, Op.SET, Op.SET, Op.DELETE, Op.EXISTS]
    op = rng.choice(kinds if plain else [*kinds, Op.INCREMENT, Op.APPEND, Op.EXPIRE, Op.EXPIRE, Op.EXPIRY, Op.EXPIRY])
    expiry = rng.choice([0, now - 5, now, now + 1, now + rng.randrange(40), now + HOUR])
    value = {Op.SET: rng.choice([b"", b"12", b"-3", b"text", b"long" * 200]), Op.APPEND: b"7"}.get(op, b"")
    if op is Op.INCREMENT:
        value = rng.randrange(-50, 50).to_bytes(8, "little", signed=True)
    if not plain and rng.random() < 0.05:
        op = Op.CHECK
    condition, expected = Condition.NONE, 0
    if op is Op.CHECK or (not plain and op not in (Op.GET, Op.EXISTS, Op.EXPIRY) and rng.random() < 0.3):
        condition = rng.choice([Condition.ABSENT, Condition.PRESENT, Condition.EQUALS])
        expected = model.held[key][1] if key in model.held and rng.random() < 0.8 else 0
    return Asked(
        op, key, value, expiry if op in (Op.SET, Op.INCREMENT, Op.APPEND, Op.EXPIRE) else 0, condition, expected
    )


def test_any_operations_do_what_a_dictionary_with_a_clock_does(opened: Opened, clock: Clock) -> None:
    seed = secrets.randbelow(1 << 32)
    print(f"seed {seed}")
    rng, model = random.Random(seed), Model()
    model.now = clock.now
    for _ in range(100):
        clock.now += rng.choice([0, 1, 3, 10, 60, -40, -HOUR // 2, HOUR // 2])
        opened.store._engine.expiry.time.now_ms()  # a store in which no key expires has no reason to look at the clock
        now, plain = max(clock.now, model.now), rng.random() < 0.4
        requests = [
            [random_operation(rng, model, now, plain=plain) for _ in range(rng.randint(1, 8))]
            for _ in range(rng.randint(1, 5))
        ]
        if rng.random() < 0.1:
            opened.store._engine.expiry._look_at = 0.0  # the sweep has its turn
        execute = opened.run_as_a_door if rng.random() < 0.5 else opened.store.execute_requests
        result = execute(batch_of(requests))
        model.begin(clock.now)
        first = opened.store._engine.next_sequence - sum(map(len, requests))  # removals have taken versions too
        model.expect(requests, result, first)
        assert_counted(opened.store)
        if rng.random() < 0.05:
            # A new process knows the clock, and the time that was kept. What somebody saw as gone stays so.
            run(opened.store, *[Asked(Op.EXISTS, b"key %d" % number) for number in range(14)])
            model.begin(clock.now)
            before = opened.store.now_ms if opened.store._engine.expiry.is_used else clock.now
            opened.again()
            model.now = opened.store.now_ms
            assert max(before - 1000, clock.now) <= model.now <= max(before, clock.now)
    assert opened.natively or not opened.is_native
    clock.now = max(clock.now, model.now) + 2 * HOUR
    assert opened.store.now_ms == clock.now
    model.begin(clock.now)
    for number in range(14):
        key = b"key %d" % number
        assert opened.store.get(key) == (model.held[key][0] if key in model.held else None)


def test_a_key_expires_when_its_time_has_come(opened: Opened, clock: Clock) -> None:
    store = opened.store
    run(store, Asked(Op.SET, b"key", b"value", clock.now + 10))
    clock.now += 9
    assert store.now_ms == clock.now  # it hears of the time here: native code asks for the real one
    assert store.get(b"key") == b"value"
    clock.now += 1
    assert store.now_ms == clock.now
    assert store.get(b"key") is None
    assert store.info().tables[0].records == 0, "it is not there any more"
    assert store.meter.expired_keys == 1


def test_nothing_revives_when_the_clock_goes_back(opened: Opened, clock: Clock) -> None:
    run(
        opened.store,
        Asked(Op.SET, b"seen", b"value", clock.now + 10),
        Asked(Op.SET, b"other", b"value", clock.now + 10),
    )
    clock.now += 10
    assert opened.store.get(b"seen") is None
    clock.now -= 10
    assert opened.store.get(b"other") is None, "time does not go back in a process"
    opened.again()
    assert opened.store.get(b"seen") is None


def test_operations_of_one_batch_see_the_expiries_before_them(opened: Opened, clock: Clock) -> None:
    at = clock.now + 50
    result = run(
        opened.store,
        Asked(Op.SET, b"key", b"1", at),
        Asked(Op.EXPIRY, b"key"),
        Asked(Op.APPEND, b"key", b"2", at + 7),
        Asked(Op.EXPIRY, b"key"),
        Asked(Op.INCREMENT, b"key", (3).to_bytes(8, "little"), at + 7),
        Asked(Op.EXPIRY, b"key"),
        Asked(Op.EXPIRE, b"key", expiry=at + 1),
        Asked(Op.EXPIRY, b"key"),
        Asked(Op.GET, b"key"),
        Asked(Op.EXPIRE, b"key"),
        Asked(Op.EXPIRY, b"key"),
        Asked(Op.SET, b"key", b"plain"),
        Asked(Op.EXPIRY, b"key"),
    )
    numbers = [value if value == b"15" else int.from_bytes(value, "little") for value in result.value_list()]
    assert numbers == [at, at, 15, at, at + 1, b"15", 0, 0]
    assert expiry_of(opened.store, b"key") == 0
    assert expiry_of(opened.store, b"none") is None


def test_keys_are_removed_by_name_if_they_have_expired(opened: Opened, clock: Clock) -> None:
    store = opened.store
    run(store, *[Asked(Op.SET, b"key %d" % n, b"value", clock.now + (10 if n % 2 else HOUR)) for n in range(10)])
    clock.now += 10
    expiry = store._engine.expiry
    assert expiry.remove_keys(store._tables["default"], [b"key %d" % n for n in range(20)], expiry.time.now_ms()) == 5
    assert store.info().tables[0].records == 5


def test_a_time_that_has_passed_counts_from_the_next_batch(opened: Opened, clock: Clock) -> None:
    result = run(opened.store, Asked(Op.SET, b"key", b"value", clock.now - 1), Asked(Op.GET, b"key"))
    assert result.value_list() == [b"value"]
    assert opened.store.get(b"key") is None


def test_conditions_see_no_expired_key(opened: Opened, clock: Clock) -> None:
    run(opened.store, *[Asked(Op.SET, b"key %d" % n, b"1", clock.now + 1) for n in range(4)])
    clock.now += 1
    result = run(
        opened.store,
        Asked(Op.SET, b"key 0", b"new", condition=Condition.ABSENT),
        Asked(Op.SET, b"key 1", b"new", condition=Condition.PRESENT),
        Asked(Op.INCREMENT, b"key 2", (5).to_bytes(8, "little")),
        Asked(Op.EXPIRE, b"key 3", expiry=clock.now + HOUR),
    )
    assert result.status.tolist() == [Status.OK, Status.NOT_FOUND, Status.OK, Status.NOT_FOUND]
    assert opened.store.get(b"key 2") == b"5"


def test_tables_of_numbers_have_no_expiry(opened: Opened, clock: Clock) -> None:
    store = opened.store
    store.create_table("numbers", layout="u64", index_bytes=64 << 10)
    word = bytes(8)
    for asked in (
        Asked(Op.SET, word, word, clock.now + 1),
        Asked(Op.INCREMENT, word, word, clock.now + 1),
        Asked(Op.EXPIRE, word, expiry=7),
        Asked(Op.EXPIRY, word),
    ):
        with pytest.raises(InvalidArgumentError, match="u64 has no expiry"):
            store.execute(batch_of([[asked]]), table="numbers")
    assert store.execute(batch_of([[Asked(Op.SET, word, word)]]), table="numbers").status[0] == Status.OK
    assert not store._files.root.may_expire, "nothing can expire in this store"


def test_operations_that_give_no_expiry_do_not_look_at_theirs(opened: Opened, clock: Clock) -> None:
    store, word, at = opened.store, bytes(8), clock.now + 1
    store.create_table("numbers", layout="u64", index_bytes=64 << 10)
    others = [Asked(Op.EXISTS, word, expiry=at), Asked(Op.GET, word, expiry=at), Asked(Op.DELETE, word, expiry=at)]
    check = Asked(Op.CHECK, word, expiry=at, condition=Condition.PRESENT)
    for table in ("default", "numbers"):
        for asked in (others, [check, *others]):
            store.execute(batch_of([[Asked(Op.SET, word, word)]]), table=table)
            assert set(store.execute(batch_of([asked]), table=table).status.tolist()) == {Status.OK}
    assert not store._files.root.may_expire, "nothing can expire in this store"


def test_expiries_are_columns_of_the_right_type(opened: Opened) -> None:
    batch = batch_of([[Asked(Op.SET, b"key", b"value", 7)]])
    for wrong in (np.array([7], np.int64), np.array([7, 7], np.uint64), np.zeros((1, 1), np.uint64)):
        object.__setattr__(batch, "expiries", wrong)
        with pytest.raises(InvalidArgumentError):
            opened.store.execute(batch)


def test_a_damaged_record_is_not_removed(opened: Opened, clock: Clock) -> None:
    """An expiry that rotted must not delete its key; the key is damaged, and is read as that."""
    store = opened.store
    run(store, *[Asked(Op.SET, b"key %d" % n, b"value", clock.now + HOUR) for n in range(3)])
    slots = store._files.indexes[0].region.words(0, BYTES_LAYOUT.block_slots * 4).reshape(-1, 4)
    reference = next(int(words[2]) for words in slots if words[3] & ((1 << 60) - 1) == 2)  # that of "key 1"
    opened.store.close()
    file, at = store._files.heap.path, (reference >> 24) * 16
    if store._files.root.has_journal:
        at += store._files.root.journal_bytes
    with file.open("r+b") as heap:
        heap.seek(at + 16)
        whole = heap.read(8)
        heap.seek(at + 16)
        heap.write((clock.now - 1).to_bytes(8, "little"))
    opened.open()
    for _ in range(2):
        result = run(opened.store, *[Asked(Op.GET, b"key %d" % n) for n in range(3)], Asked(Op.EXISTS, b"key 1"))
        assert result.status.tolist() == [Status.OK, Status.CORRUPT, Status.OK, Status.OK]
        assert run(opened.store, Asked(Op.GET, b"key 1"), Asked(Op.SET, b"x", b"")).status[0] == Status.CORRUPT
        assert run(opened.store, Asked(Op.EXPIRY, b"key 1")).status[0] == Status.CORRUPT
    opened.store._engine.expiry._look_at = 0.0
    opened.store.maintain()
    assert opened.store.meter.expired_keys == 0
    opened.store.close()
    with file.open("r+b") as heap:
        heap.seek(at + 16)
        heap.write(whole)
    opened.open()
    assert opened.store.get(b"key 1") == b"value"


def test_the_sweep_removes_what_nobody_asks_for(opened: Opened, clock: Clock) -> None:
    store, model = opened.store, {}
    for number in range(3000):  # more than one block: the table grows meanwhile
        model[b"key %d" % number] = clock.now + 100 * (number % 7) if number % 3 else 0
        if number % 500 == 499:
            keys = list(model)[-500:]
            run(store, *[Asked(Op.SET, key, b"value" * 9, model[key]) for key in keys])
    for _ in range(9):
        clock.now += 100
        while store.maintain():
            pass
        due = sum(0 < expiry <= clock.now - 1000 for expiry in model.values())
        assert store.meter.expired_keys >= due
    clock.now += 1500
    while store.maintain():
        pass
    kept = [key for key, expiry in model.items() if not expiry]
    assert store.info().tables[0].records == len(kept)
    assert store.meter.expired_keys == sum(store.meter.expiry_lags) == len(model) - len(kept)
    assert not store._engine.expiry._ranges, "nothing can expire any more"
    assert run(store, *[Asked(Op.GET, key) for key in kept]).value_list() == [b"value" * 9] * len(kept)


def test_the_sweep_removes_what_native_code_has_set(opened: Opened, clock: Clock) -> None:
    run(opened.store, Asked(Op.SET, b"first", b"value", clock.now + HOUR))
    clock.now += 50
    soon, late = clock.now + 10, clock.now + 30_000
    for number in range(40):
        asked = [Asked(Op.SET, b"key %d %d" % (number, i), b"value", late if i % 5 else soon) for i in range(10)]
        opened.run_as_a_door(batch_of([asked[:3], asked[3:]]))
    assert not opened.is_native or opened.natively == 40
    for expiry, left in ((soon, 321), (late, 1)):
        clock.now = expiry + 1500
        while opened.store.maintain():
            pass
        assert opened.store.info().tables[0].records == left


def test_the_sweep_runs_beside_batches(opened: Opened, clock: Clock) -> None:
    store = opened.store
    run(store, *[Asked(Op.SET, b"key %d" % n, b"value", clock.now + 10) for n in range(400)], Asked(Op.SET, b"k", b"v"))
    opened.again()  # what there is is not known then
    clock.now += 5000
    for _ in range(2000):
        opened.store.get(b"k")
        if opened.store.info().tables[0].records == 1:
            break
        opened.store._engine.expiry._look_at = 0.0
    assert opened.store.info().tables[0].records == 1


def test_keys_keep_their_expiry_when_the_table_grows_and_the_heap_is_compacted(opened: Opened, clock: Clock) -> None:
    store, expiries = opened.store, {}
    for turn in range(25):
        keys = [b"key %d" % number for number in range(turn * 80, turn * 80 + 80)]
        expiries |= {key: clock.now + HOUR + int(key[4:]) if int(key[4:]) % 2 else 0 for key in keys}
        run(store, *[Asked(Op.SET, key, b"value", expiries[key]) for key in keys])
        run(store, *[Asked(Op.SET, b"garbage %d" % number, bytes(6000)) for number in range(6)])
        while store.maintain():
            pass
    while store._engine.free_space.compactor.step():
        pass
    assert store._engine.heap.moved_units
    assert store.info().tables[0].slots > 2048
    opened.again()
    result = run(opened.store, *[Asked(Op.EXPIRY, key) for key in expiries])
    assert [int.from_bytes(value, "little") for value in result.value_list()] == list(expiries.values())
    assert check(store.path).is_clean if opened.store.close() is None else False
    opened.open()


def test_a_copy_keeps_expiries(opened: Opened, clock: Clock, tmp_path: Path, commit: CommitName) -> None:
    run(opened.store, Asked(Op.SET, b"key", b"value", clock.now + 10), Asked(Op.SET, b"other", b"value"))
    opened.store.close()
    copy_store(opened.path, tmp_path / "copy", CopySizes(), lambda step, share: None)
    with gpkvs.open(tmp_path / "copy") as copy:
        assert expiry_of(copy, b"key") == clock.now + 10
        assert expiry_of(copy, b"other") == 0
        clock.now += 10
        assert copy.now_ms == clock.now
        assert copy.get(b"key") is None
    assert check(tmp_path / "copy").is_clean
    opened.open()


@pytest.mark.undo
@pytest.mark.parametrize("kind", [1, 2])
def test_check_compares_kind_and_expiry(tmp_path: Path, clock: Clock, kind: int) -> None:
    path = tmp_path / "damaged"
    with gpkvs.open(path, **SMALL) as store:
        run(store, Asked(Op.SET, b"key", b"value"), Asked(Op.SET, b"other", b"value", clock.now + 10))
    words = np.fromfile(path / "index-0-0", np.uint64).reshape(-1, 4)
    [at] = np.flatnonzero(words[:, 3] >> np.uint64(60) == kind)
    words[at, 3] ^= np.uint64(3 << 60)
    words.tofile(path / "index-0-0")
    assert {violation.invariant for violation in check(path).violations} == {"slot-expiry"}


def test_only_a_store_with_expiries_has_the_version_that_older_ones_refuse(opened: Opened, clock: Clock) -> None:
    def versions() -> list[int]:
        return [int.from_bytes(opened.store._files.root_region.read(at + 8, 4), "little") for at in (0, 4096)]

    run(opened.store, Asked(Op.SET, b"key", b"value"))
    assert versions() == [4 if IS_SHORT else 2] * 2
    run(opened.store, Asked(Op.SET, b"key", b"value", clock.now + 10))
    expiring = [4 if IS_SHORT else 3] * 2
    assert versions() == expiring
    opened.again()
    assert versions() == expiring


def test_a_newer_format_is_refused(opened: Opened) -> None:
    opened.store.close()
    root = bytearray((opened.path / "root").read_bytes())
    whole = bytes(root)
    for at in (8, 4096 + 8):
        root[at] = 5
    (opened.path / "root").write_bytes(root)
    with pytest.raises(FormatError, match="version 5, this gpkvs opens 2 to 4: a newer gpkvs made it"):
        opened.open()
    (opened.path / "root").write_bytes(whole)
    assert Root.unpack(whole[:512]).format_version == (4 if IS_SHORT else 2)
    opened.open()


def test_a_kill_between_the_removal_and_the_answer(tmp_path: Path, commit: CommitName) -> None:
    """What was to be told as gone is gone, also if the next process has an earlier time."""
    path = tmp_path / "store"
    program = (
        "import sys, gpkvs.engine.seam.counted_time as counted_time\n"
        "time = [10**12]\n"
        "counted_time.MACHINE = counted_time.clocks_set_by(lambda: time[0])\n"
        "import numpy as np, gpkvs\n"
        "from tests.engine.tables.test_expiry import SMALL, Asked, Op, run\n"
        "store = gpkvs.open(sys.argv[1], commit=sys.argv[2], **SMALL)\n"
        "run(store, Asked(Op.SET, b'key', b'value', 10**12 + 10), Asked(Op.SET, b'kept', b'value'))\n"
        "time[0] += 10\n"
        "store.get(b'key')\n"
    )
    assert kill_at(["-c", program, str(path), commit], "before_reply:2"), "it answered"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counted_time, "MACHINE", counted_time.clocks_set_by(lambda: 10**12))
        with gpkvs.open(path) as store:
            assert store.get(b"key") is None
            assert store.get(b"kept") == b"value"
    assert check(path).is_clean


@pytest.mark.undo
@pytest.mark.parametrize("place", ["before_active_persist", "mid_apply", "before_idle_persist"])
def test_a_kill_in_a_removal(tmp_path: Path, place: str) -> None:
    """A key that has expired is there or not, and what did not expire is there."""
    path = tmp_path / "store"
    at = 10**12
    program = (
        "import sys, gpkvs.engine.seam.counted_time as counted_time\n"
        "time = [10**12]\n"
        "counted_time.MACHINE = counted_time.clocks_set_by(lambda: time[0])\n"
        "import gpkvs\n"
        "from tests.engine.tables.test_expiry import SMALL, Asked, Op, run\n"
        "store = gpkvs.open(sys.argv[1], commit='undo', **SMALL)\n"
        "run(store, *[Asked(Op.SET, b'key %d' % n, b'value', 10**12 + 10 + n % 2 * 90) for n in range(40)])\n"
        "time[0] += 10\n"
        "run(store, *[Asked(Op.GET, b'key %d' % n) for n in range(40)])\n"
    )
    assert kill_at(["-c", program, str(path)], f"{place}:2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counted_time, "MACHINE", counted_time.clocks_set_by(lambda: at))
        with gpkvs.open(path) as store:
            records = store.info().tables[0].records
            got = run(store, *[Asked(Op.GET, b"key %d" % n) for n in range(40)]).value_list()
            assert got[1::2] == [b"value"] * 20
            assert records == sum(value == b"value" for value in got) in (20, 40)
    assert check(path).is_clean


def test_the_last_batch_before_a_crash_keeps_its_expiries(tmp_path: Path, commit: CommitName) -> None:
    path = tmp_path / "store"
    program = (
        "import os, sys, gpkvs\n"
        "from tests.engine.tables.test_expiry import SMALL, Asked, Op, run\n"
        "store = gpkvs.open(sys.argv[1], commit=sys.argv[2], **SMALL)\n"
        "run(store, Asked(Op.SET, b'key', b'value', 10**15), Asked(Op.SET, b'other', b'value'))\n"
        "os._exit(0)\n"
    )
    assert not kill_at(["-c", program, str(path), commit], "")
    with gpkvs.open(path) as store:
        assert expiry_of(store, b"key") == 10**15
        assert expiry_of(store, b"other") == 0


def test_what_is_set_while_a_range_is_swept_is_not_forgotten() -> None:
    ranges, blocks = _Ranges(0), 10_000  # three in a range

    def collect(found: NDArray[np.uint64], end: int) -> None:
        found[2] = end
        found[1] = min(int(found[1]), 9000)

    assert ranges.begin(5000, blocks)
    swept, looked_at = ranges.sweep(1, collect)
    assert looked_at == 1
    ranges.earliest[swept] = 7000  # a batch says so
    while ranges.begin(5000, blocks) and swept == ranges.sweep(1, collect)[0]:
        pass
    assert ranges.earliest[swept] == 7000


def test_the_sweep_finds_the_keys_of_a_table_that_grows(opened: Opened, clock: Clock) -> None:
    """Half of the table has moved when the sweep comes by."""
    store, growth = opened.store, opened.store._engine.growth
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growth, "idle_step", lambda blocks: False)
        number = 0
        while not 0 < store.info().tables[0].moved_blocks < store.info().tables[0].growing_blocks:
            run(store, *[Asked(Op.SET, b"key %d" % n, b"", clock.now + 10) for n in range(number, number + 50)])
            number += 50
            assert number < 30_000
        clock.now += 5000
        while store.maintain():
            pass
        assert store.info().tables[0].growing_blocks, "it still grows"
        assert store.info().tables[0].records == 0
        assert store.meter.expired_keys == number


def on_both_tables(store: gpkvs.Store, asked: Asked) -> list[RequestResult]:
    return [store.execute(batch_of([[asked]]), table=table) for table in ("default", "other")]


def test_batches_meet_expired_keys_of_several_tables(opened: Opened, clock: Clock) -> None:
    store = opened.store
    store.create_table("other", index_bytes=64 << 10)
    on_both_tables(store, Asked(Op.SET, b"key", b"value", expiry=clock.now + 10))
    clock.now += 10
    read = on_both_tables(store, Asked(Op.GET, b"key"))
    assert [result.status.tolist() for result in read] == [[Status.NOT_FOUND]] * 2
    assert [table.records for table in store.info().tables] == [0, 0]


def test_the_sweep_forgets_a_dropped_table(opened: Opened, clock: Clock) -> None:
    store = opened.store
    store.create_table("other", index_bytes=64 << 10)
    on_both_tables(store, Asked(Op.SET, b"key", b"value", expiry=clock.now + 10))
    store.drop_table("other")
    clock.now += HOUR
    while store.maintain():
        pass
    assert [table.records for table in store.info().tables] == [0]
    assert not store._engine.expiry.is_used, "nothing can expire any more"


def test_nobody_is_told_that_a_key_is_gone_before_its_removal_is_durable(
    store_path: Path, clock: Clock, host_ops_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E2: with a journal, the gate of what says so covers the removal, also where it changes nothing itself."""
    monkeypatch.setenv("GPKVS_HOST_OPS_MAX", "" if host_ops_max else "0")
    says_so = [
        Asked(Op.GET, b"0"),
        Asked(Op.EXISTS, b"1"),
        Asked(Op.EXPIRY, b"2"),
        Asked(Op.EXPIRE, b"3"),
        Asked(Op.SET, b"4", b"value", condition=Condition.PRESENT),
        Asked(Op.DELETE, b"5"),
    ]
    with gpkvs.open(store_path, commit="journal", **SMALL) as store:
        committer = store._engine.committer
        assert isinstance(committer, JournalCommitter)
        run(store, *(Asked(Op.SET, asked.key, b"value", clock.now + 10) for asked in says_so))
        store._engine.settle()
        clock.now += 10
        before = committer.begun
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "durable", property(lambda _: before))  # as if the disk took its time
            for number, asked in enumerate(says_so, 1):
                begun = store.begin_requests(batch_of([[asked]]))
                assert committer.begun == before + number, "each removes its key"
                assert begun.gate == committer.begun
                assert not begun.is_durable
                again = store.begin_requests(batch_of([[asked]]))
                assert again.gate >= begun.gate, "others are not told either"
        waited: list[int] = []
        with monkeypatch.context() as patch:
            patch.setattr(committer, "wait", waited.append)
            assert begun.finish().request(0).status.tolist() == [Status.NOT_FOUND]
        assert waited == [begun.gate]
