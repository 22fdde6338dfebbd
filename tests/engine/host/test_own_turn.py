"""Small requests of this process: a turn of the native engine lives on between them, and ends for everybody else."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest

import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.engine.host.native_engine import NativeEngine
from gpkvs.engine.host.native_planner import _LayoutPlanner
from gpkvs.engine.seam.left import Left
from gpkvs.engine.tables.growth import Growing
from gpkvs.errors import (
    ConditionFailedError,
    ConflictError,
    ForkedError,
    GpkvsError,
    NoMemoryError,
    NoSpaceError,
    NumberOverflowError,
    StoreClosedError,
)
from gpkvs.process.turn_mutex import TurnMutex
from tests.conftest import SMALL, assert_clean
from tests.engine.twins import plan_by_phases

pytestmark = [pytest.mark.undo]
_ADDRESS = 3  # in a row of `NativeEngine`
KEYS = [b"key %d" % number for number in range(12)]


@pytest.fixture(params=["undo", "journal"])
def store(store_path: Path, request: pytest.FixtureRequest, natively: None, long_turns: None) -> Iterator[gpkvs.Store]:
    with gpkvs.open(store_path, backend="cpu", commit=request.param, **SMALL) as store:
        yield store
    assert_clean(store_path)


def native_of(store: gpkvs.Store) -> NativeEngine:
    native = store._engine.native
    assert native
    return native


def lives(store: gpkvs.Store) -> bool:
    return native_of(store).is_in_turn


def asked_of_numbers(random: Random) -> list[tuple[Any, ...]]:
    """Return a request of some operations on a table of numbers."""
    near = lambda: random.choice((0, 1, -1, 1 << 62, -1 << 62))  # noqa: E731 - sums that overflow, and that come again
    forms: list[Callable[[int], tuple[Any, ...]]] = [
        lambda key: (Op.GET, key),
        lambda key: (Op.SET, key, near()),
        lambda key: (Op.DELETE, key),
        lambda key: (Op.EXISTS, key),
        lambda key: (Op.INCREMENT, key, near()),
        lambda key: (Op.CHECK, key, random.choice((None, 0, 1))),
    ]
    return [random.choice(forms)(random.randrange(6)) for _ in range(random.choice((1, 1, 1, 2, 5, 40)))]


def asked(random: Random) -> list[tuple[Any, ...]]:
    """Return a request of some operations."""
    forms: list[Callable[[bytes], tuple[Any, ...]]] = [
        lambda key: (Op.GET, key),
        lambda key: (Op.SET, key, b"%d" % random.randrange(10**9) if random.random() < 0.7 else random.randbytes(3000)),
        lambda key: (Op.DELETE, key),
        lambda key: (Op.EXISTS, key),
        lambda key: (Op.INCREMENT, key, random.randrange(-9, 9)),
        lambda key: (Op.APPEND, key, b"7"),
        lambda key: (Op.CHECK, key, random.choice((None, random.randrange(1, 400)))),
        lambda key: (Op.EXPIRE, key, random.choice((None, 1000))),
    ]
    return [random.choice(forms)(random.choice(KEYS)) for _ in range(random.choice((1, 1, 1, 2, 5, 40)))]


def sets(count: int) -> list[tuple[Op, bytes, bytes]]:
    return [(Op.SET, b"other %d" % number, b"value") for number in range(count)]


def told(store: gpkvs.Store, request: list[tuple[Any, ...]], table: str = "default") -> list[str] | str:
    """Return what a store says to a request."""
    try:
        return [repr(result) for result in store.table(table).batch(request)]
    except GpkvsError as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize(("table", "ask"), [("default", asked), ("numbers", asked_of_numbers)], ids=["bytes", "u64"])
def test_the_same_results_as_by_phases(
    store: gpkvs.Store, tmp_path: Path, table: str, ask: Callable[[Random], list[tuple[Any, ...]]]
) -> None:
    seed = int(os.environ.get("GPKVS_SEED", Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    random = Random(seed)
    with gpkvs.open(tmp_path / "twin", backend="cpu", commit=store.info().commit, **SMALL) as twin:  # type: ignore[arg-type]
        for one in (store, twin):
            one.create_table("numbers", layout="u64", index_bytes=64 << 10)
        plan_by_phases(twin)
        natively = 0
        for _ in range(300):
            request = ask(random)
            assert told(store, request, table) == told(twin, request, table)
            natively += lives(store)
        assert natively > 150
        assert dict(store.table(table).scan()) == dict(twin.table(table).scan())
        assert store.info().next_version == twin.info().next_version
    assert_clean(tmp_path / "twin")


def test_a_turn_lives_on_until_somebody_else_wants_the_engine(store: gpkvs.Store) -> None:
    store.set(b"key", b"value")
    store.create_table("second")
    get = Batch.of([(Op.GET, b"key")])
    others: list[Callable[[], object]] = [
        store.maintain,
        lambda: list(store.scan()),
        lambda: store.create_table("more"),
        lambda: store.drop_table("more"),
    ]
    for other in others:
        assert store.get(b"key") == b"value"
        store.execute(get)
        assert lives(store)
        other()
        assert not lives(store)


def test_a_turn_that_is_over_is_not_gone_on_with(store: gpkvs.Store) -> None:
    store.get(b"key")
    native = native_of(store)
    native.ends_at_ns = never = time.monotonic_ns() + 10**15
    store.get(b"key")
    assert native.ends_at_ns == never
    native.ends_at_ns = 0
    store.get(b"key")
    assert 0 < native.ends_at_ns < never


def test_what_a_turn_leaves_behind_is_done_when_it_ends(store: gpkvs.Store) -> None:
    """An index grows, and space that was deleted is used again."""
    store.create_table("small", index_bytes=64 << 10)
    table = store.table("small")
    for number in range(3000):
        table.set(b"key %d" % number, b"%d" % number * 30)
        if number >= 2500:
            table.delete(b"key %d" % (number - 2500))
    assert table.count() == 2500
    assert dict(table.scan()) == {b"key %d" % number: b"%d" % number * 30 for number in range(500, 3000)}
    found = next(found for found in store.info().tables if found.name == "small")
    assert found.index_bytes > 64 << 10


def test_long_values_come_back_and_leave_no_memory(store: gpkvs.Store) -> None:
    for size in (0, 1, 60_000, 70_000, 200_000):
        value = os.urandom(size)
        store.set(b"key", value)
        assert store.get(b"key") == value
        assert store.get_all([b"key", b"other"]) == {b"key": value}


def test_tables_of_numbers(store: gpkvs.Store) -> None:
    store.create_table("numbers", layout="u64")
    table = store.table("numbers")
    for number in range(50):
        table.set(number, number + 1)
    assert [table.get(number) for number in range(51)] == [*range(1, 51), None]
    assert table.incr(0, 9) == 10
    with pytest.raises(ConditionFailedError) as failed:
        table.set(0, 1, if_absent=True)
    assert failed.value.version == 10
    with pytest.raises(NumberOverflowError):
        table.incr(0, (1 << 63) - 1)
    with pytest.raises(ConflictError) as conflict:
        table.batch([(Op.SET, 7, 7), (Op.CHECK, 0, None)])
    assert (conflict.value.index, conflict.value.found) == (1, 10)
    assert table.get(7) == 8
    assert lives(store)
    assert table.delete(1)
    assert table.get(1) is None
    assert not table.delete(1)


def test_threads_may_all_use_it(store: gpkvs.Store) -> None:
    stop = threading.Event()
    failures: list[BaseException] = []

    def count_up(number: int) -> None:
        try:
            for _ in range(150):
                store.incr(b"sum")
                store.set(b"own %d" % number, b"value")
                assert store.get(b"own %d" % number) == b"value"
        except BaseException as error:  # noqa: BLE001 - told to the test
            failures.append(error)

    def disturb() -> None:
        try:
            while not stop.is_set():
                list(store.scan())
                store.create_table("more", exist_ok=True)
                store.maintain()
                store.drop_table("more")
        except BaseException as error:  # noqa: BLE001 - told to the test
            failures.append(error)

    counting = [threading.Thread(target=count_up, args=(number,)) for number in range(4)]
    other = threading.Thread(target=disturb)
    for thread in (*counting, other):
        thread.start()
    for thread in counting:
        thread.join()
    stop.set()
    other.join()
    assert not failures
    assert store.get(b"sum") == b"600"


def test_a_child_touches_nothing(store: gpkvs.Store) -> None:
    store.set(b"key", b"value")
    store.get(b"key")
    assert lives(store)
    child = os.fork()
    if child == 0:
        try:
            store.set(b"key", b"other")
        except ForkedError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert store.get(b"key") == b"value"


def test_what_a_request_lacks_is_done_and_its_turn_lives_on(store: gpkvs.Store) -> None:
    meter = store.meter

    def helped() -> dict[Left, int]:
        return {reason: count for reason, count in meter.helped_batches.items() if count}

    version = store.set(b"key", b"value", ttl=60)
    assert helped() == {Left.EXPIRY: 1}
    store.batch(sets(300))
    assert helped() == {Left.EXPIRY: 1, Left.COLUMNS: 1}
    store._engine.expiry.time.begin_at(store.now_ms + 60_000)
    assert store.incr(b"key") == 1
    assert helped() == {Left.EXPIRY: 1, Left.COLUMNS: 1, Left.EXPIRED: 1}
    assert lives(store)
    with pytest.raises(ConditionFailedError):
        store.set(b"key", b"value", if_version=version)
    assert all(meter.left_batches[reason] == helped().get(reason, 0) for reason in Left), "nothing was left"


def test_what_had_no_room_may_find_some_the_next_time(store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the next one is another one, and nothing else has happened."""
    store.create_table("small", index_bytes=64 << 10)
    table, keys = store.table("small"), iter(range(100_000))

    def fill() -> None:
        for number in keys:
            table.set(b"key %d" % number, b"value")

    with monkeypatch.context() as patch:
        patch.setattr(Growing, "make_room", lambda *_: False)
        patch.setattr(Growing, "gained", lambda *_: None)
        with pytest.raises(NoSpaceError, match="index full: table 'small' holds"):
            fill()
    number = table.count()
    assert number > 1000
    assert table.get(b"key %d" % number) is None
    lived = 0
    for again in range(number, number + 100):
        table.set(b"key %d" % again, b"value")
        lived += native_of(store).is_in_turn
    assert table.count() == number + 100
    assert lived > 50, "many had a turn of their own"


def test_who_finds_no_memory_for_what_a_request_lacks(store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(_LayoutPlanner, "_make_columns", none_left)
        with pytest.raises(NoMemoryError):
            store.batch(sets(300))
    assert store.count() == 0
    store.batch(sets(300))
    assert store.count() == 300


def test_closed_while_a_turn_lives(store: gpkvs.Store) -> None:
    store.get(b"key")
    assert lives(store)
    store.close()
    with pytest.raises(StoreClosedError):
        store.get(b"key")


_USES_IT_LATE = """
import atexit
import sys

def use():
    for number in range(100):
        store.set(b"key", b"%d" % number * 200)
        assert store.get_all([b"key", b"other"]) == {b"key": b"%d" % number * 200}
    print("used")

atexit.register(use)  # before all others, so it runs after them
import gpkvs
store = gpkvs.open(sys.argv[1], backend="cpu")
store.set(b"key", b"value")
"""


def test_a_program_that_ends_may_still_use_it(store: gpkvs.Store) -> None:
    """Threads of a program run on while its end is prepared, and so do functions that it registered first."""
    store.close()
    # Memory that is given back does not look as before.
    environment = os.environ | {"MALLOC_PERTURB_": "165"}
    command = [sys.executable, "-c", _USES_IT_LATE, str(store.path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "used\n", "")


def interrupted(call: Callable[[], object], place: int, meanwhile: Callable[[], object] = lambda: None) -> bool:
    """Run a call, and interrupt it at one of the places where Python looks for signals; return whether it was.

    While the interrupt is handled, `meanwhile` is called.

    It looks where a function begins, and where one of C has returned.
    """
    left = place

    def profile(_: FrameType, event: str, __: object) -> None:
        nonlocal left
        if event in ("call", "c_return"):
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    except KeyboardInterrupt:
        sys.setprofile(before)
        meanwhile()
        return True
    finally:
        sys.setprofile(before)
    return False


@pytest.mark.parametrize("begins", [False, True])
def test_an_interrupt_leaves_the_store_as_before_or_after(store: gpkvs.Store, *, begins: bool) -> None:
    """The write is there whole or not at all, nobody waits for ever for the engine, and the count of keys is right."""
    native = native_of(store)
    store.set(b"number", b"0")
    value = 0
    for place in count(1):
        if begins:
            native.ends_at_ns = 0
        was_interrupted = interrupted(lambda: store.incr(b"number"), place)
        found = int(store.get(b"number") or b"")
        assert found - value in ((0, 1) if was_interrupted else (1,))
        value = found
        if not was_interrupted:
            break
    assert place > 30
    assert value > 1
    assert store.records() == 1


def test_who_handles_an_interrupt_may_use_the_store(store: gpkvs.Store) -> None:
    """The frames that were interrupted are still there, and hold nothing: else `close` would wait for ever."""
    mutex = store._mutex
    assert not isinstance(mutex, TurnMutex)
    were_held: list[bool] = []
    calls: list[Callable[[], object]] = [
        lambda: store.execute(Batch.of([(Op.GET, b"key")])),
        store.scan_step,
        lambda: store.set(b"key", b"value"),
    ]
    for call in calls:
        for place in count(1):
            store.get(b"key")
            if not interrupted(call, place, lambda: were_held.append(mutex.locked())):
                break
        assert place > 10
        assert not any(were_held)


def test_an_index_whose_growth_was_interrupted_is_looked_for_where_it_is(
    store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is mapped anew before the growth is named, so its address is another one."""
    native = native_of(store)
    growth = store._engine.growth
    (table,) = store._engine.tables.values()
    store.set(b"key", b"value")
    store.maintain()
    native._rows[0, _ADDRESS] = 0  # as if it had been there

    def interrupt() -> None:
        raise KeyboardInterrupt

    os.truncate(table.index.region.path, 2 * table.index.region.bytes)
    with monkeypatch.context() as patch:
        patch.setattr(growth, "_end_reservation", interrupt)
        with pytest.raises(KeyboardInterrupt):
            growth.begin(table)
    native.begin_turn()
    assert native._rows[0, _ADDRESS] == table.index.address
    assert store.get(b"key") == b"value"
