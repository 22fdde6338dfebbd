"""One life of a store: opened, used by several callers at once, closed; all of it recorded."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import gpkvs
from gpkvs.batch import Batch, BatchResult, Condition, Op, Status
from gpkvs.changes import Changes
from gpkvs.config import DEFAULT_TABLE, FormatName
from gpkvs.engine.commit import checkpoint, journal_committer, stores
from gpkvs.engine.commit.journal_committer import JournalCommitter
from gpkvs.engine.engine import Engine
from gpkvs.engine.space import heap_growth
from gpkvs.engine.state.table import Table
from gpkvs.engine.tables.growth import Growing
from gpkvs.errors import ConflictError
from gpkvs.following import Following
from gpkvs.media.layout import BYTES_LAYOUT, U64_LAYOUT
from gpkvs.process import failpoint
from gpkvs.recovery.proof.batch_runner import BatchRunner, EngineName
from gpkvs.recovery.proof.diskfail.expected import Contents, Expected, Records, TableName, difference
from gpkvs.recovery.proof.diskfail.recorder import Mark, Recorder
from gpkvs.recovery.proof.expiring import BEGIN_MS, as_stored, at_time, expired, expiries_of, on_removal
from gpkvs.recovery.proof.model import Asked, Kept, Model, asked_of, batch_of
from gpkvs.recovery.proof.model import number as number_value
from gpkvs.recovery.proof.table_changes import on_taken_number
from gpkvs.store import Store

PlainOperation = tuple[Op, bytes] | tuple[Op, bytes, bytes]
Operation = PlainOperation | Asked
Request = tuple[TableName, list[Operation]]
Sent = tuple[BatchResult, int, int]  # the results of a batch, its gate, and the newest batch that they rely on

_KIB, _MIB = 1 << 10, 1 << 20
KEYS = {
    BYTES_LAYOUT.name: tuple(b"key-%03d" % number + b"-" * (number % 40) for number in range(160)),
    U64_LAYOUT.name: tuple(
        (number * 0x9E3779B97F4A7C15 % 2**64).to_bytes(8, "little") for number in range(900)
    ),  # key 0 too
}
BLOB_BYTES = (66_000, 70_000, 210_000)  # of values in blobs: of two pieces, and of four
_READ_ALL = {layout: Batch.of([(Op.GET, key) for key in keys]) for layout, keys in KEYS.items()}
_TABLES_MAX = 4
_EXTENTS_MAX = 6  # of a journal, with which lives let it grow further
LIFE_MS = 10_000  # keys expire within about so long
_GROWN_BLOCKS_MAX = 16  # of a table, whose growth does not begin with more


class LifeError(Exception):
    """A store broke a promise without a crash."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a store, and how it is used; all of it is drawn from a seed."""

    index_bytes: int
    heap_bytes: int
    batches: int
    callers: int
    in_flight: int
    value_bytes: int
    delay_us: int
    is_checkpointed_by_hand: bool
    begin_share: float
    step_pages: int
    idle_seconds: float
    look_seconds: float
    large_share: float
    schema_share: float
    pause_share: float
    growth_share: float  # of the moments between two batches, a step of a table that grows
    is_wide: bool = False  # batches change all keys of a table
    heap_bytes_max: int = 0  # 0: the heap does not grow
    heap_step_bytes: int = 64 * _KIB
    journal_share: float = 0.0  # of the same moments, a step of a journal that grows
    expiry_share: float = 0.0  # of the SETs, those after which a key expires
    is_plain: bool = False  # no request looks first
    store_format: FormatName = "auto"
    blob_share: float = 0.0  # of the SETs in a table of records, in format 4: the value lies in a blob
    is_followed: bool = False  # somebody is told what changes

    @property
    def heap_bytes_all(self) -> int:
        """The size that the heap has in the end."""
        return self.heap_bytes_max or self.heap_bytes

    @staticmethod
    def of(random: Random) -> Shape:
        """Draw a shape."""
        shape = replace(
            Shape._of_fixed_heap(random),
            is_followed=random.random() < 0.4,
            journal_share=random.choice((0.0, 0.0, 0.05, 0.5)),
            expiry_share=random.choice((0.0, 0.05, 0.5)),
            is_plain=random.random() < 0.5,
        )
        # Many blobs would be too many for the space that they may have: to refuse them takes several flushes each.
        if random.random() < 0.25 and shape.heap_bytes_all >= 1 * _MIB and not shape.is_wide:
            share, delay_us = random.choice((0.001, 0.01)), min(shape.delay_us, 1000)
            shape = replace(shape, store_format="4", blob_share=share, delay_us=delay_us)
        if random.random() < 0.5:
            return shape
        step_bytes = random.choice((64, 128, 256)) * _KIB
        return replace(shape, heap_bytes=128 * _KIB, heap_bytes_max=shape.heap_bytes, heap_step_bytes=step_bytes)

    @staticmethod
    def _of_fixed_heap(random: Random) -> Shape:
        shape = Shape(
            index_bytes=random.choice((64, 128, 256)) * _KIB,
            heap_bytes=random.choice((512, 1024, 2048, 4096)) * _KIB,
            batches=random.choice((10, 30, 60, 120)),
            callers=random.choice((1, 1, 2, 3)),
            in_flight=random.choice((0, 1, 3, 6)),
            value_bytes=random.choice((8, 100, 700, 3000)),
            delay_us=random.choice((200, 1000, 4000)),
            is_checkpointed_by_hand=random.random() < 0.25,
            begin_share=random.choice((0.0, 0.02, 0.1, 0.25, 0.75)),
            step_pages=random.choice((1, 2, 4, 16)),
            idle_seconds=random.choice((0.001, 0.003, 0.02)),
            look_seconds=random.choice((0.0005, 0.002, 0.03)),
            large_share=random.choice((0.0, 0.05, 0.4, 0.8)),
            schema_share=random.choice((0.0, 0.02, 0.08)),
            pause_share=random.choice((0.0, 0.03, 0.2)),
            growth_share=random.choice((0.0, 0.1, 0.5, 1.0)),
        )
        kind = random.random()
        if kind < 0.3:  # the journal is full most of the time: checkpoints are slow, frames large
            full: dict[str, Any] = {"large_share": 1.0, "begin_share": 0.7, "look_seconds": 0.02, "batches": 50}
            full |= {"delay_us": 4000, "is_checkpointed_by_hand": False, "pause_share": 0.0, "step_pages": 1}
            full |= {"in_flight": 6, "index_bytes": 256 * _KIB, "is_wide": True}
            return replace(shape, value_bytes=8, heap_bytes=1 * _MIB, **full)
        if kind < 0.65:  # all segments of the heap are used again within a few batches
            churn: dict[str, Any] = {"large_share": 0.8, "batches": 25, "delay_us": 60000, "in_flight": 6}
            return replace(
                shape,
                value_bytes=random.choice((1000, 2000, 2500)),
                heap_bytes=random.choice((512, 640, 768)) * _KIB,
                **churn,
            )
        return shape


def blob_value(number: int, count: int) -> bytes:
    """Return a value that differs from others in each sector of its blob."""
    return (b"%d." % number * count)[:count]


def open_store(path: Path, shape: Shape) -> Store:
    """Open a store; its flushes count."""
    return gpkvs.open(
        path,
        threads=1,
        durability="msync",
        commit="journal",
        index_bytes=shape.index_bytes,
        heap_bytes=shape.heap_bytes,
        heap_bytes_max=shape.heap_bytes_max or None,
        journal_bytes=1 * _MIB,
        store_format=shape.store_format,
        backend="cpu",
    )


def contents_of(store: Store) -> Contents:
    """Read everything that a store holds, what has expired and was not removed too.

    Raises
    ------
    LifeError
        If a record is damaged or unknown keys are there.
    """
    with as_stored(store):
        return _contents_of(store)


def _contents_of(store: Store) -> Contents:
    info, tables = store.info(), {}
    for table in info.tables:
        keys = KEYS[table.layout]
        result = store.execute(_READ_ALL[table.layout], table=table.name)
        expiries = expiries_of(store, table.name, keys)
        columns = zip(
            keys, result.status.tolist(), result.value_list(), result.versions.tolist(), expiries, strict=True
        )
        records: Records = {}
        for key, status, value, version, expiry in columns:
            if status == Status.CORRUPT:
                raise LifeError(f"the record of {key!r} in {table.name} is damaged")
            if status == Status.OK:
                records[key] = Kept(value, version, expiry)
        if len(records) != table.records:
            raise LifeError(f"table {table.name} has {table.records} records, {len(records)} of them known")
        tables[TableName(store.table(table.name).id, table.name, table.layout)] = records
    return Contents(info.next_version, dict(sorted(tables.items())))


@contextmanager
def aggressive(shape: Shape, random: Random) -> Iterator[None]:
    """Have checkpoints and idle covers come often, and threads lose their turn at odd places."""
    settings = {
        "_LOOK_SECONDS": shape.look_seconds,
        "BEGIN_SHARE": 2.0 if shape.is_checkpointed_by_hand else shape.begin_share,
        "_IDLE_SECONDS": shape.idle_seconds,
        "_STEP_PAGES": shape.step_pages,
        "_PAUSE_SECONDS": 0.0005,
    }
    pace = heap_growth.ON_DISK._replace(step_bytes_min=shape.heap_step_bytes, step_bytes_max=shape.heap_step_bytes)
    of_growth = {"pace_of": lambda *_: pace}
    settings_of: dict[ModuleType, dict[str, Any]] = {checkpoint: settings, heap_growth: of_growth}
    before = {module: {name: getattr(module, name) for name in names} for module, names in settings_of.items()}
    hit, dice = failpoint.hit, Random(random.randrange(1 << 32))

    def stumble(name: str) -> None:
        if dice.random() < 0.15:
            time.sleep(dice.random() * 0.002)

    def in_halves(point: str, items: int, run: Callable[[int, int], None]) -> None:
        half = items // 2 if dice.random() < 0.3 else items
        run(0, half)
        if half < items:
            time.sleep(dice.random() * 0.002)
            run(half, items)

    _set_all(settings_of)
    failpoint.hit = stumble
    whole = stores.run_in_halves
    setattr(journal_committer, "run_in_halves", in_halves)  # noqa: B010 - it is imported there
    try:
        yield
    finally:
        failpoint.hit = hit
        setattr(journal_committer, "run_in_halves", whole)  # noqa: B010
        _set_all(before)


def _set_all(settings_of: dict[ModuleType, dict[str, Any]]) -> None:
    for module, settings in settings_of.items():
        for name, value in settings.items():
            setattr(module, name, value)


class Life:
    """Uses an open store at random, and keeps the model of what it holds.

    Parameters
    ----------
    store
        Open.
    shape
        How it is used.
    engine
        Runs the batches.
    expected
        The model; it has what the store held when it was opened.
    recorder
        Gets the marks.
    random
        Of every choice.

    Attributes
    ----------
    now : int
        By the clock of the store, in milliseconds; changed with the mutex.
    """

    def __init__(
        self,
        store: Store,
        shape: Shape,
        engine: EngineName,
        expected: Expected,
        recorder: Recorder,
        random: Random,
    ) -> None:
        self._store = store
        self._runner = BatchRunner(store, engine)
        self._shape = shape
        self._expected = expected
        self._recorder = recorder
        self._random = random
        self._changed: dict[tuple[int, bytes], int] = {}  # by which batch each key was changed last
        self._values = random.randrange(1 << 20) << 20
        self._names = 0
        self._entries: dict[int, int] = {}  # by the number of an entry of the changes, the batch that it tells
        self._is_native = engine == "native"
        self._errors: list[BaseException] = []
        self._left = shape.batches
        self._stops = threading.Event()
        # The clock of another life may have been ahead.
        self.now = BEGIN_MS + self._random.randrange(LIFE_MS)
        at_time(store, lambda: self.now)
        on_removal(store, self._remove)
        on_taken_number(store, self._take_number)

    def _remove(self, table: int, keys: list[bytes], run: Callable[[], None]) -> None:
        """Have keys removed that have expired; called with the mutex. It is a batch of its own."""
        expected, number = self._expected, len(self._expected.batches)
        self._recorder.mark(Mark.BEGUN, number)
        run()
        records = dict(expected.batches[-1][1])
        held = dict(records.get(table, {}))
        if len(expired(held, keys, self._store._engine.expiry.time.now_ms())) != len(keys):
            raise LifeError("a key that lives is removed")
        for key in keys:
            del held[key]
            self._changed[table, key] = number
        records[table] = held
        expected.batches.append((self._store._engine.next_sequence, records))
        self._note_entry(number)
        self._recorder.mark(Mark.BEGUN, number + 1)  # the batch that met them

    def _take_number(self, run: Callable[[], None]) -> None:
        """Have a number taken, before tables change; called with the mutex. It is a batch of its own, and awaited."""
        expected, number = self._expected, len(self._expected.batches)
        self._recorder.mark(Mark.BEGUN, number)
        run()
        expected.batches.append((self._store._engine.next_sequence, expected.batches[-1][1]))
        self._recorder.mark(Mark.ACKNOWLEDGED, number)

    def _note_entry(self, number: int) -> None:
        """Note which batch the newest entry tells; of one that changed nothing there is none."""
        self._entries.setdefault(self._store._engine.changes.newest.number, number)

    def follow(self) -> Following:
        """Follow the store from here on."""
        following = self._store.follow()
        with self._store._mutex:  # what comes next is a batch of its own
            self._note_entry(len(self._expected.batches) - 1)
        return following

    def hear(self, following: Following, timeout: float = 0.0) -> None:
        """Take what a follower is told: whoever is told may rely on it, as on what is acknowledged."""
        for entry in following.read(timeout=timeout):
            with self._store._mutex:  # then what is told of is noted, too
                if entry.made or entry.is_dropped:
                    self._recorder.mark(Mark.SCHEMA_TOLD, self._schema_of(entry))
                else:
                    self._recorder.mark(Mark.TOLD, self._entries[entry.number])

    def _schema_of(self, entry: Changes) -> int:
        """Return behind how many changes of tables one is there that was made, or gone that was dropped."""
        has = [any(table.id == entry.table for table in tables) for tables in self._expected.schemas]
        first = has.index(True)
        return first if entry.made else has.index(False, first)

    def _be_told(self, _random: Random) -> None:
        """Follow until the others have ended, and hear the rest."""
        with self.follow() as following:
            while not self._stops.is_set():
                self.hear(following, timeout=0.001)
            self.hear(following)

    def run(self) -> None:
        """Run all batches; raises the first error of a caller."""
        seeds = [self._random.randrange(1 << 32) for _ in range(self._shape.callers)]
        callers = [threading.Thread(target=self._guarded, args=(self._call, Random(seed))) for seed in seeds]
        callers.append(threading.Thread(target=self._guarded, args=(self._change_tables, Random(seeds[0] + 1))))
        callers.append(threading.Thread(target=self._guarded, args=(self._grow, Random(seeds[0] + 3))))
        if self._shape.is_checkpointed_by_hand:
            callers.append(threading.Thread(target=self._guarded, args=(self._checkpoint, Random(seeds[0] + 2))))
        if self._shape.is_followed and self._is_native:  # while anybody follows, nothing runs phase by phase
            callers.append(threading.Thread(target=self._guarded, args=(self._be_told, Random(0))))
        for caller in callers:
            caller.start()
        for caller in callers[: self._shape.callers]:
            caller.join()
        self._stops.set()
        for caller in callers:
            caller.join()
        if self._errors:
            raise self._errors[0]
        if self._shape.is_checkpointed_by_hand:  # nothing is left to replay
            self.committer.checkpointer.write(paced=False)
            self.committer.checkpointer.write(paced=False)

    def _guarded(self, work: Callable[[Random], None], random: Random) -> None:
        try:
            work(random)
        except BaseException as error:  # noqa: BLE001 - raised by `run`
            self._errors.append(error)

    def _call(self, random: Random) -> None:
        waiting: deque[Sent] = deque()
        while not self._errors:
            with self._store._mutex:
                if self._left <= 0:
                    break
                self._left -= 1
                waiting.append(self._execute(self._requests(random)))
            durable = self.committer.journal.durable
            for sent in (sent for sent in waiting if sent[1] <= durable):
                self.wait(sent)  # in any order
            waiting = deque(sent for sent in waiting if sent[1] > durable)
            while len(waiting) > random.randint(0, self._shape.in_flight):
                self.wait(waiting.popleft())
            if random.random() < self._shape.pause_share:
                while waiting:
                    self.wait(waiting.popleft())
                time.sleep(random.choice((0.2, 1, 3)) * max(self._shape.idle_seconds, self._shape.look_seconds))
        while waiting:
            self.wait(waiting.popleft())

    def wait(self, sent: Sent) -> None:
        """Return when the results of a batch may be seen: it is acknowledged."""
        result, gate, needed = sent
        self._runner.wait(result, gate)
        self._recorder.mark(Mark.ACKNOWLEDGED, needed)

    def execute(self, *requests: Request) -> Sent:
        """Run a batch on one table, and wait for nothing."""
        with self._store._mutex:
            return self._execute(list(requests))

    def _execute(self, requests: list[Request]) -> Sent:
        """Run a batch; called with the mutex."""
        expected, runner = self._expected, self._runner
        [table_id] = {table.id for table, _ in requests}
        batch = batch_of(table_id, [[asked_of(operation) for operation in request] for _, request in requests])
        self._recorder.mark(Mark.BEGUN, len(expected.batches))
        natively = runner.natively
        result, gate = runner.execute(batch)
        self._recorder.mark(Mark.EXECUTED, runner.natively - natively)
        next_sequence = self._store._engine.next_sequence
        number = len(expected.batches)  # removals came before
        next_version, records = expected.batches[-1]
        records = dict(records)
        needed = 0
        for at, (table, operations) in enumerate(requests[: result.requests]):
            if at in result.rejected and not isinstance(result.rejected[at], ConflictError):
                continue
            held = dict(records.get(table.id, {}))
            needed = max(needed, self._check(table, operations, result, at, held, number))
            records[table.id] = held
        before = expected.batches[-1][1]
        has_changed = any(held != before.get(table, {}) for table, held in records.items())
        if has_changed or next_sequence != next_version:
            needed = number
        expected.batches.append((next_sequence, records))
        self._note_entry(number)
        return result, gate, needed

    def _check(
        self, table: TableName, operations: list[Operation], result: BatchResult, at: int, held: Records, number: int
    ) -> int:
        """Compare the results of a request with the model, and change that; return which batch they rely on."""
        request = [asked_of(operation) for operation in operations]
        before = dict(held)
        if at not in result.rejected:
            self._require_removed(table, request)
        model = Model(held, has_records=table.layout == BYTES_LAYOUT.name)
        for difference_found in model.differences(request, result, at):
            raise LifeError(f"request {at} on {table.name}, {difference_found}")
        needed = 0
        for one in request:
            needed = max(needed, self._changed.get((table.id, one.key), 0))
            if held.get(one.key) != before.get(one.key):
                self._changed[table.id, one.key] = number
        return needed

    def _require_removed(self, table: TableName, request: list[Asked]) -> None:
        """Raise `LifeError` if the batch that was executed just now met keys that had expired, and left them."""
        found = self._expected.batches[-1][1].get(table.id, {})
        if left := expired(found, [one.key for one in request], self._store._engine.expiry.time.now_ms()):
            raise LifeError(f"{left[0]!r} of {table.name} has expired, was asked for, and is not removed")

    def _requests(self, random: Random) -> list[Request]:
        tables = [table for table in self._expected.schemas[-1] if table.id in self._store._engine.tables]
        if random.random() < 0.08:
            return [self._nothing(random, random.choice(tables))]
        self.now += random.choice((0, 0, 1, 20, 300, -100))
        count = 4 if self._shape.is_wide and random.random() < 0.8 else random.choice((1, 1, 1, 2, 3))
        weights = [3 if table.layout == BYTES_LAYOUT.name else 1 for table in tables]
        [table] = random.choices(tables, weights)
        requests = [(table, self._looking(random, table, self._operations(random, table))) for _ in range(count)]
        return [(table, self._expiring(random, table, operations)) for table, operations in requests]

    def _expiring(self, random: Random, table: TableName, operations: list[Operation]) -> list[Operation]:
        """Have keys expire after some of a request's operations, and ask some keys when they expire."""
        share = self._shape.expiry_share
        if table.layout == U64_LAYOUT.name or not share or random.random() < 0.3:
            return operations
        return [self._that_expires(random, one) if random.random() < share else one for one in operations]

    def _that_expires(self, random: Random, operation: Operation) -> Asked:
        one = asked_of(operation)
        if one.op is Op.GET:
            one = replace(one, op=random.choice((Op.EXPIRY, Op.EXPIRE)))
        elif one.op is Op.DELETE and random.random() < 0.5:
            one = replace(one, op=Op.EXPIRE)
        if one.op in (Op.SET, Op.INCREMENT, Op.APPEND, Op.EXPIRE):
            one = replace(one, expiry=self.now + random.choice((-1, 1, 50, 1000, LIFE_MS)))
        return one

    def _nothing(self, random: Random, table: TableName) -> Request:
        """Return a request that changes nothing in the end."""
        held = self._expected.batches[-1][1].get(table.id, {})
        absent = [key for key in KEYS[table.layout] if key not in held] or [KEYS[table.layout][0]]
        keys = random.choices(absent, k=random.randint(1, 5))
        return table, [
            change for key in keys for change in ((Op.SET, key, self._value(random, table)), (Op.DELETE, key))
        ]

    def _operations(self, random: Random, table: TableName) -> list[Operation]:
        keys, kind = KEYS[table.layout], random.random()
        if kind < 0.12:
            return [(Op.GET, key) for key in random.sample(keys, random.randint(1, 8))]
        if kind < 0.16:
            return [(Op.DELETE, key) for key in random.sample(keys, random.randint(1, len(keys)))]
        count = random.choice((1, 2, 5, 12))
        if random.random() < self._shape.large_share:
            if random.random() < 0.5 or self._shape.is_wide:  # every key: a frame of several pages
                return [(Op.SET, key, self._value(random, table)) for key in random.sample(keys, len(keys))]
            count = random.choice((60, 200, 400))
        hot = keys[: random.choice((3, 20, len(keys)))]
        return [self._operation(random, table, random.choice(hot)) for _ in range(count)]

    def _operation(self, random: Random, table: TableName, key: bytes) -> Operation:
        op = random.choices((Op.SET, Op.DELETE, Op.GET), (7, 2, 1))[0]
        return (op, key, self._value(random, table)) if op is Op.SET else (op, key)

    def _looking(self, random: Random, table: TableName, operations: list[Operation]) -> list[Operation]:
        """Have some of a request's operations look first, and sometimes a check that may refuse all of them."""
        if self._shape.is_plain or random.random() < 0.5:
            return operations
        held = self._expected.batches[-1][1].get(table.id, {})
        looking: list[Operation] = [
            self._that_looks(random, table, asked_of(one), held) if random.random() < 0.3 else one for one in operations
        ]
        if random.random() < 0.3:
            check = Asked(Op.CHECK, random.choice(KEYS[table.layout]))
            looking.insert(random.randint(0, len(looking)), self._on_condition(random, table, check, held))
        return looking

    def _that_looks(self, random: Random, table: TableName, one: Asked, held: Records) -> Asked:
        if one.op is Op.SET and random.random() < 0.6:
            is_numbers = table.layout == U64_LAYOUT.name
            if is_numbers or random.random() < 0.5:
                one = replace(one, op=Op.INCREMENT, value=number_value(random.randint(-5, 5)))
            else:
                one = replace(one, op=Op.APPEND, value=b"%d" % random.randint(0, 9))
        is_plain = one.op is Op.GET or random.random() < 0.5
        return one if is_plain else self._on_condition(random, table, one, held)

    @staticmethod
    def _on_condition(random: Random, table: TableName, one: Asked, held: Records) -> Asked:
        """Return an operation with a condition; what it expects is mostly what the key holds before the batch."""
        value, version, _ = held.get(one.key, Kept(b"", random.randrange(100)))
        expected = int.from_bytes(value[:8], "little") if table.layout == U64_LAYOUT.name else version
        condition = random.choice((Condition.ABSENT, Condition.PRESENT, Condition.EQUALS))
        return replace(one, condition=condition, expected=expected)

    def _value(self, random: Random, table: TableName) -> bytes:
        self._values += 1
        if table.layout == U64_LAYOUT.name:
            return self._values.to_bytes(8, "little")
        if random.random() < self._shape.blob_share:
            return blob_value(self._values, random.choice(BLOB_BYTES))
        return b"%d." % self._values + b"x" * random.randint(0, self._shape.value_bytes)

    def _checkpoint(self, random: Random) -> None:
        while not self._stops.wait(random.random() * 0.01):
            self.committer.checkpointer.write(paced=False)

    @property
    def committer(self) -> JournalCommitter:
        """Of the store."""
        committer = self._store._engine.committer
        assert isinstance(committer, JournalCommitter)
        return committer

    def _change_tables(self, random: Random) -> None:
        while not self._stops.wait(0.002):
            if random.random() >= self._shape.schema_share:
                continue
            tables = self._expected.schemas[-1]
            mine = [table for table in tables if table.name != DEFAULT_TABLE]
            if (mine and random.random() < 0.5) or len(tables) >= _TABLES_MAX:
                self.drop(random.choice(mine))
            else:
                self.create(random)

    def _grow(self, random: Random) -> None:
        """Begin growth, move some blocks, or end it, at any moment between two batches; so for the journal."""
        engine = self._store._engine
        while not self._stops.wait(0.003):
            if random.random() < self._shape.growth_share:
                with self._store._mutex:
                    _growth_step(engine.growth, random.choice([*engine.tables.values()]), random)
            if random.random() < self._shape.journal_share:
                with self._store._mutex:
                    _journal_step(engine, random)

    def create(self, random: Random, layout: str = "") -> TableName:
        """Make a table, of any layout if none is given."""
        expected, number = self._expected, len(self._expected.schemas)
        names = {table.name for table in expected.schemas[-1]}
        name = next(name for name in map("t{}".format, range(_TABLES_MAX + 1)) if name not in names)
        if self._shape.heap_bytes_all < 1 * _MIB:  # it holds the records of one table
            layout = U64_LAYOUT.name
        layout = layout or random.choice((BYTES_LAYOUT.name, U64_LAYOUT.name))
        table = TableName(self._store._files.catalog.next_table_id, name, layout)
        expected.schemas.append(tuple(sorted((*expected.schemas[-1], table))))
        self._recorder.mark(Mark.SCHEMA_BEGUN, number)
        self._store.create_table(name, layout=layout, index_bytes=64 * _KIB)
        self._recorder.mark(Mark.SCHEMA_DONE, number)
        return table

    def drop(self, table: TableName) -> None:
        """Drop a table."""
        expected, number = self._expected, len(self._expected.schemas)
        # From here on no caller chooses it; one that has holds the mutex.
        with self._store._mutex:
            expected.schemas.append(tuple(other for other in expected.schemas[-1] if other != table))
            self._recorder.mark(Mark.SCHEMA_BEGUN, number)
        self._store.drop_table(table.name)
        self._recorder.mark(Mark.SCHEMA_DONE, number)


def _growth_step(growth: Growing, table: Table, random: Random) -> None:
    """Do one step of the growth of the table that grows, or begin that of another one."""
    if growth.table is None:
        if table.index.blocks < _GROWN_BLOCKS_MAX and growth.is_reserved(table, waits=True):
            growth.begin(table)
        return
    index = growth.table.index
    if index.unmoved:
        growth.move_to(growth.table, random.randint(0, index.unmoved))
    else:
        growth.finish(growth.table)


def _journal_step(engine: Engine, random: Random) -> None:
    """Have the journal's file extended, or put what was extended into the ring."""
    assert engine._journal_growth
    if random.random() < 0.5:
        engine._journal_growth._finish_unused()
    elif len(engine._files.root.journal_extents) < _EXTENTS_MAX:
        engine._heap_growth.extend_for_journal(random.randint(1, 3))


def live(
    path: Path, shape: Shape, engine: EngineName, before: list[Contents], recorder: Recorder, random: Random
) -> Expected:
    """Open a store, use it and close it, while the recorder runs; return what it may hold after a crash.

    Raises
    ------
    LifeError
        If the store broke a promise.
    """
    expected = Expected(before)
    with aggressive(shape, random), open_store(path, shape) as store:
        recorder.mark(Mark.OPENED)
        found = contents_of(store)
        if wrong := difference(found, before):
            raise LifeError(f"the opening that was recorded: {wrong}")
        expected.begin(found)
        life = Life(store, shape, engine, expected, recorder, random)
        if len(found.tables) == 1 and random.random() < 0.8:
            life.create(random)
        if shape.is_wide and len(found.tables) < _TABLES_MAX - 1:
            life.create(random, U64_LAYOUT.name)
        life.run()
    return expected
