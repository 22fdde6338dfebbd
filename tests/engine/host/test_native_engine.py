"""The native engine: plan, results and commit in one call, and what it leaves to Python."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import Batch, Op, RequestResult, Status
from gpkvs.config import Limits, StoreConfig
from gpkvs.engine.host.native_engine import Ran
from gpkvs.process import failpoint
from gpkvs.recovery.proof.damage.bitflip import memory_parent
from gpkvs.store import Store
from tests.conftest import SMALL, assert_clean
from tests.engine.native_driver import NO_BOUND, Answer, NativeDriver

pytestmark = [pytest.mark.undo, pytest.mark.usefixtures("natively")]

_TINY = {"index_bytes": 64 << 10, "heap_bytes": 512 << 10, "heap_bytes_max": 1 << 20, "log_bytes": 256 << 10}
_Request = list[tuple[Op, bytes, bytes]]
_Held = dict[bytes, tuple[bytes, int]]  # value and version, by key


@pytest.fixture
def driven(store_path: Path) -> Iterator[tuple[Store, NativeDriver]]:
    with gpkvs.open(store_path, backend="cpu", durability="process", commit="undo", **SMALL) as store:
        yield store, NativeDriver(store)


def batch_of(store: Store, *requests: _Request, table: str = "default") -> Batch:
    number = store.table(table).id
    parts = [
        Batch.of([(op, key, value) if op == Op.SET else (op, key) for op, key, value in request]).on_table(number)
        for request in requests
    ]
    return Batch.concatenate(parts)


def sets(count: int, value: bytes = b"value", first: int = 0) -> _Request:
    return [(Op.SET, b"key %d" % number, value) for number in range(first, first + count)]


class Life:
    """A store and what it must hold; batches run in turns as a door's, and as the store's own where they are left."""

    def __init__(self, store: Store, random: Random) -> None:
        self.store, self.random = store, random
        self.driver = NativeDriver(store)
        self.held: dict[str, _Held] = {"default": {}, "numbers": {}}
        self.refused = 0

    def turn(self, batches: int) -> None:
        """Run some batches, or fewer if the turn ends before."""
        native = self.driver.native
        native.begin_turn()
        for _ in range(batches):
            table = self.random.choice(list(self.held))
            requests = [self._request(table) for _ in range(self.random.randrange(1, 5))]
            first = self.store._engine.next_sequence
            batch = batch_of(self.store, *requests, table=table)
            answer = self.driver.run(batch, self.random.choice((NO_BOUND, 300)))
            if answer.ran is Ran.LEFT:
                native.end_turn()
                self._run_as_own(table, requests)
                return
            self._compare(table, [op for request in requests[: answer.requests] for op in request], first, answer)
            if answer.ran is Ran.DUE:
                break
        native.end_turn()

    def _run_as_own(self, table: str, requests: list[_Request]) -> None:
        while requests:
            first = self.store._engine.next_sequence
            result = self.store.execute_requests(batch_of(self.store, *requests, table=table))
            for number in range(result.requests):
                if number in result.rejected:
                    self.refused += 1
                    first += len(requests[number])
                    continue
                one = result.request(number)
                seen = Answer(Ran.DONE, 0, one.status.tolist(), one.versions.tolist(), one.value_list())
                self._compare(table, requests[number], first, seen)
                first += len(requests[number])
            requests = requests[result.requests :]

    def _request(self, table: str) -> _Request:
        random, is_numbers = self.random, self.store.table(table).layout == "u64"
        kinds = (Op.GET, Op.EXISTS, Op.SET, Op.SET, Op.SET, Op.DELETE)
        large = random.random() < 0.1
        request = []
        for _ in range(random.randrange(1, 60)):
            number = random.randrange(6000)
            key = number.to_bytes(8, "little") + (b"" if is_numbers else b"k" * (number % 7))
            size = 8 if is_numbers else random.randrange(3000 if large else 60)
            request.append((random.choice(kinds), key, random.randbytes(size)))
        return request

    def _compare(self, table: str, operations: _Request, first: int, answer: Answer) -> None:
        held, values = self.held[table], iter(answer.values)
        has_versions = self.store.table(table).layout == "bytes"
        for number, (op, key, value) in enumerate(operations):
            found = held.get(key)
            if op == Op.SET:
                held[key] = value, first + number
                assert answer.status[number] == Status.OK
            else:
                assert answer.status[number] == (Status.OK if found else Status.NOT_FOUND)
            if op == Op.GET:
                assert next(values) == (found[0] if found else b"")
            elif op == Op.DELETE:
                held.pop(key, None)
            if has_versions and op != Op.DELETE:
                now = held.get(key)
                assert answer.versions[number] == (now[1] if now else 0)

    def drop_or_make(self, name: str) -> None:
        """Drop a table, or make it."""
        if self.held.pop(name, None) is not None:
            self.store.drop_table(name)
        else:
            self.store.create_table(name, layout=self.random.choice(("bytes", "u64")), index_bytes=64 << 10)
            self.held[name] = {}

    def check(self) -> None:
        """Compare all that there is."""
        for table, held in self.held.items():
            assert self.store.count(table=table) == len(held)
            keys = list(held)
            for first in range(0, len(keys), 4096):
                part = keys[first : first + 4096]
                batch = Batch.of([(Op.GET, key) for key in part])
                result: RequestResult = self.store.execute(batch, table=table)
                assert result.value_list() == [held[key][0] for key in part]


def test_random_batches_against_a_dictionary(store_path: Path) -> None:
    seed = int(os.environ.get("GPKVS_SEED", Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    random = Random(seed)
    with gpkvs.open(store_path, backend="cpu", durability="process", commit="undo", **_TINY) as store:
        store.create_table("numbers", layout="u64", index_bytes=64 << 10)
        life = Life(store, random)
        blocks = store._engine.tables[0].index.blocks
        for number in range(500):
            life.turn(random.randrange(1, 8))
            if number % 20 == 0:
                life.drop_or_make(random.choice(("second", "third")))
            while random.random() < 0.2 and store._engine.maintain(1 << 16):
                pass
        life.check()
        assert store._engine.tables[0].index.blocks > blocks, "no table has grown"
        assert life.refused, "the heap was never full"
        assert life.driver.counts[Ran.DONE] > life.driver.counts[Ran.LEFT] > 0
        assert life.driver.counts[Ran.DUE]
        held = life.held
    assert_clean(store_path)
    with gpkvs.open(store_path) as store:
        again = Life.__new__(Life)
        again.store, again.held = store, held
        again.check()


def test_a_request_may_read_no_more_than_one_may_but_several_may(store_path: Path) -> None:
    limits = Limits(result_bytes_max=4000)
    config = StoreConfig(backend="cpu", commit="undo", limits=limits, batch_result_bytes_max=1 << 20, **SMALL)
    with Store(store_path, config) as store:
        driver = NativeDriver(store)
        store.execute(batch_of(store, sets(10, b"v" * 1000)))
        gets = [[(Op.GET, b"key %d" % number, b"") for number in range(first, first + 4)] for first in (0, 4)]
        driver.native.begin_turn()
        assert driver.run(batch_of(store, *gets)).values == [b"v" * 1000] * 8
        assert driver.run(batch_of(store, gets[0] + gets[1][:1])).ran is Ran.LEFT


def test_as_many_requests_as_bring_so_many_values(driven: tuple[Store, NativeDriver]) -> None:
    store, driver = driven
    store.execute(batch_of(store, sets(4, b"v" * 1000)))
    gets = [[(Op.GET, b"key %d" % number, b"")] for number in range(4)]
    requests = [gets[0], gets[1] + sets(1, b"w"), gets[2] + gets[3], gets[0]]
    driver.native.begin_turn()
    for bound, run in ((NO_BOUND, 4), (4000, 3), (3999, 2), (2000, 2), (1999, 1), (0, 1)):
        store.execute(batch_of(store, sets(1, b"v" * 1000)))
        answer = driver.run(batch_of(store, *requests), bound)
        assert answer.requests == run
        assert len(answer.status) == sum(map(len, requests[:run]))
        assert answer.values == [b"v" * 1000, b"v" * 1000, b"v" * 1000, b"v" * 1000, b"w"][: len(answer.values)]
        assert store.get(b"key 0") == (b"w" if run > 1 else b"v" * 1000)
    driver.native.end_turn()


def test_a_message_of_several_requests_is_run_whole_or_left(driven: tuple[Store, NativeDriver]) -> None:
    store, driver = driven
    store.execute(batch_of(store, sets(1, b"v" * 1000)))
    gets = batch_of(store, *[[(Op.GET, b"key 0", b"")]] * 6)
    driver.native.begin_turn()
    for messages, run in (([1, 2, 3], 3), ([2, 2, 2], 2), ([1, 5], 1), ([6], 0), ([1] * 6, 3)):
        answer = driver.run(gets, 3500, messages)
        assert answer.requests == run, messages
        assert (answer.ran is Ran.LEFT) == (not run), messages
        assert answer.values == [b"v" * 1000] * run
    driver.native.end_turn()


def test_a_batch_of_as_many_operations_as_a_door_is_told(driven: tuple[Store, NativeDriver]) -> None:
    store, driver = driven
    driver.native.begin_turn()
    most = batch_of(store, sets(100) * (driver.operations_max // 100))
    assert driver.run(most).ran is Ran.LEFT  # there are no columns for it yet
    driver.native.end_turn()
    store.execute_requests(most)
    driver.native.begin_turn()
    assert driver.run(most).ran is not Ran.LEFT
    assert driver.run(batch_of(store, sets(1) * (driver.operations_max + 1))).ran is Ran.LEFT


def test_more_records_than_a_transaction_may_read_are_several(store_path: Path) -> None:
    limits = Limits(value_bytes_max=50_000, result_bytes_max=1 << 20)
    config = StoreConfig(backend="cpu", commit="undo", limits=limits, batch_result_bytes_max=1 << 20, **SMALL)
    with Store(store_path, config) as store:
        driver = NativeDriver(store)
        store.execute(batch_of(store, sets(30, b"v" * 50_000)))
        gets = [[(Op.GET, b"key %d" % number, b"")] for number in range(30)]
        driver.native.begin_turn()
        answer = driver.run(batch_of(store, *gets), 500_000)
        driver.native.end_turn()
        assert answer.requests == 9  # a record is a little longer than its value
        assert answer.values == [b"v" * 50_000] * 9


def test_what_is_left_has_not_happened(driven: tuple[Store, NativeDriver], monkeypatch: pytest.MonkeyPatch) -> None:
    store, driver = driven
    batch = batch_of(store, sets(3))
    assert driver.run(batch).ran is Ran.LEFT, "no turn has begun"
    driver.native.begin_turn()
    driver.has_room = False
    assert driver.run(batch).ran is Ran.LEFT
    driver.has_room = True
    store.create_table("later")
    assert driver.run(batch_of(store, sets(1), table="later")).ran is Ran.LEFT
    many = batch_of(store, sets(300))
    assert driver.run(many).ran is Ran.LEFT, "there are no columns for so many"
    driver.native.end_turn()
    assert store._engine.next_sequence == 2, "the table has taken a number"
    assert store.meter.transactions == store.meter.commits == store.count() == 0
    store.execute(many)  # Python makes columns
    driver.native.begin_turn()
    assert driver.run(many).ran is Ran.DONE
    assert driver.run(batch_of(store, sets(1), table="later")).ran is Ran.DUE, "nobody has looked at its growth"
    driver.native.end_turn()


def test_an_expired_key_is_left(driven: tuple[Store, NativeDriver]) -> None:
    store, driver = driven
    store.set(b"key 0", b"value", ttl=0.2)
    store.set(b"key 1", b"value")
    gets = [batch_of(store, [(Op.GET, b"key %d" % number, b"")]) for number in range(2)]
    driver.native.begin_turn()
    assert [driver.run(batch).values for batch in gets] == [[b"value"]] * 2
    time.sleep(0.25)
    assert [driver.run(batch).ran for batch in gets] == [Ran.LEFT, Ran.DUE]
    driver.native.end_turn()
    assert store.execute_requests(gets[0]).request(0).status.tolist() == [Status.NOT_FOUND]


def test_the_first_expiry_of_a_table_is_left(driven: tuple[Store, NativeDriver]) -> None:
    """The root must say that keys may expire before one of them can."""
    store, driver = driven
    store.create_table("other", index_bytes=64 << 10)
    expiry = store.now_ms + 60_000
    for table in ("default", "other"):
        batch = replace(batch_of(store, sets(3), table=table), expiries=np.array([0, 0, expiry], np.uint64))
        driver.native.begin_turn()
        assert driver.run(batch).ran is Ran.LEFT
        driver.native.end_turn()
        assert store.count(table=table) == 0
        store.execute_requests(batch)
        driver.native.begin_turn()
        assert driver.run(replace(batch, expiries=batch.expiries[::-1].copy())).ran is Ran.DONE
        driver.native.end_turn()
        assert sorted(store.scan_step(table).expiry_list()) == [0, 0, expiry]
    store.drop_table("other")
    driver.native.begin_turn()
    assert driver.run(replace(batch_of(store, sets(3)), expiries=np.full(3, expiry, np.uint64))).ran is Ran.DONE
    driver.native.end_turn()


def test_a_turn_ends_in_time(driven: tuple[Store, NativeDriver]) -> None:
    store, driver = driven
    batch = batch_of(store, [(Op.GET, b"key", b"")])
    driver.native.begin_turn()
    began = time.monotonic()
    while driver.run(batch).ran is Ran.DONE:
        assert time.monotonic() < began + 30
    assert 0.9 < time.monotonic() - began < 30
    driver.native.end_turn()


def test_tables_grow_and_the_heap_is_compacted_in_time() -> None:
    """As they do when Python runs the batches: before a table is full, and before space is short."""
    sizes = {"index_bytes": 64 << 10, "heap_bytes": 4 << 20, "heap_bytes_max": 4 << 20}
    random = Random(7)
    with tempfile.TemporaryDirectory(prefix="gpkvs-test-", dir=memory_parent()) as directory:
        path = Path(directory) / "store"
        with gpkvs.open(path, backend="cpu", durability="process", commit="undo", **sizes) as store:
            driver, table = NativeDriver(store), store._engine.tables[0]

            def run(request: _Request) -> None:
                driver.native.begin_turn()
                assert driver.run(batch_of(store, request)).ran is not Ran.LEFT
                driver.native.end_turn()

            for first in range(0, 12_000, 50):
                run(sets(50, b"v" * 50, first))
            assert table.index.blocks == 8
            for _ in range(2000):
                run([(Op.SET, b"key %d" % random.randrange(12_000), b"w" * 50) for _ in range(50)])
            assert store._engine.heap.moved_units, "nothing was compacted"
        assert_clean(path)


@pytest.mark.parametrize("point", [*failpoint.ENGINE[failpoint.ENGINE.index("before_record") :]])
def test_a_kill_at_any_failpoint(tmp_path: Path, point: str) -> None:
    path = tmp_path / "store"
    gpkvs.open(path, backend="cpu", threads=1, commit="undo", **SMALL).close()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with gpkvs.open(path, backend="cpu", threads=1, durability="process") as store:
                driver = NativeDriver(store)
                failpoint.arm(f"{point}:3")
                driver.native.begin_turn()
                for number in range(5):
                    assert driver.run(batch_of(store, sets(20, b"%d" % number))).ran is not Ran.LEFT
                    os.write(writing, b".")
        finally:
            os._exit(1)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    acknowledged = len(os.read(reading, 100))
    os.close(reading)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL
    with gpkvs.open(path) as store:
        values = {store.get(b"key %d" % number) for number in range(20)}
    assert acknowledged == 2
    assert values in ({b"1"}, {b"2"})
    assert_clean(path)
