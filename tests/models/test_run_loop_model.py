"""A model of the loop in which an engine runs a batch and says what it lacks, and a crew does what it asks for.

    run(batch, now, may) -> results | reason

The crew does what the reason asks for, the reason leaves `may`, and the same batch runs again. A reason that is not in
`may` is closed: a request that lacks it is refused, or the batch is cut before it. Held is:

- It ends, and each reason comes at most once a table.
- Only requests are refused that would not fit with all resources at their largest; of several the first ones fit first.
- A batch is cut only where the next request would not fit, and never before the first.
- No result shows a key that has expired by the `now` of its run. Such keys are deleted before; damaged ones stay.
- Nobody else's keys change.

Each wrong variant of the loop breaks one of these.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import pytest

_RUNS = 1500
_TRIES_MAX = 50
_EPOCHS = 3  # of an incarnation
_EVERYWHERE = -1  # the table of a reason that is the store's


class Reason(NamedTuple):
    kind: str
    table: int = _EVERYWHERE
    needed: int = 0


Open = set[tuple[str, int]]


@dataclass
class Key:
    units: int
    expiry: int = 0
    is_damaged: bool = False

    def looks_expired(self, now: int) -> bool:
        return 0 < self.expiry <= now


class Op(NamedTuple):
    """A GET, or a SET of so many units."""

    key: int
    units: int = 0
    expiry: int = 0


class Request(NamedTuple):
    table: int
    ops: list[Op]


@dataclass
class Size:
    """Of a resource: what there is, and what there can be."""

    now: int
    most: int

    def grow(self, needed: int) -> None:
        self.now = max(self.now, min(needed, self.most))


@dataclass
class Table:
    slots: Size
    may_expire: bool
    keys: dict[int, Key] = field(default_factory=dict)


@dataclass
class Store:
    tables: dict[int, Table]
    heap: Size
    log: Size
    columns: Size
    garbage: int = 0
    epochs: int = _EPOCHS

    @property
    def used(self) -> int:
        return self.garbage + sum(key.units for table in self.tables.values() for key in table.keys.values())

    def commit(self, log_entries: int) -> None:
        assert log_entries <= self.log.now, "the log is too small"
        assert self.epochs > 0, "no epoch is left"
        self.epochs -= 1

    def at_its_largest(self) -> Store:
        """Return what it can become: all sizes at their largest, without garbage."""
        largest = deepcopy(self)
        for size in (largest.heap, largest.log, largest.columns, *(table.slots for table in largest.tables.values())):
            size.now = size.most
        largest.garbage = 0
        return largest


class Result(NamedTuple):
    lacks: str  # why the request was refused, or ""
    seen: list[str | int]


class Variant(NamedTuple):
    """How the loop goes; all False is right."""

    reads_clock_anew: bool = False
    may_stays: bool = False
    lets_others_in: bool = False
    refuses_all: bool = False
    cuts_to_nothing: bool = False
    deletes_later: bool = False
    deletes_one: bool = False
    does_nothing_for: str = ""


class Needs:
    """What requests need together, which are added one after the other."""

    def __init__(self, store: Store) -> None:
        self._tables = store.tables
        self.new: dict[int, set[int]] = {table: set() for table in store.tables}
        self.changed: set[tuple[int, int]] = set()
        self.units = self.ops = 0

    def with_one(self, request: Request) -> Needs:
        more = deepcopy_of(self)
        sets = [op for op in request.ops if op.units]
        held = self._tables[request.table].keys
        more.new[request.table] |= {op.key for op in sets if op.key not in held}
        more.changed |= {(request.table, op.key) for op in sets}
        more.units += sum(op.units for op in sets)
        more.ops += len(request.ops)
        return more

    def slots(self, table: int) -> int:
        return len(self._tables[table].keys) + len(self.new[table])

    def lacks(self, store: Store) -> str:
        """Return what these lack, for which requests are refused."""
        if any(self.slots(number) > table.slots.now for number, table in store.tables.items()):
            return "index"
        return "heap" if store.used + self.units > store.heap.now else ""

    def is_cut(self, store: Store) -> bool:
        """Whether these are too many for one transaction."""
        return self.ops > store.columns.now or len(self.changed) > store.log.now


def deepcopy_of(needs: Needs) -> Needs:
    copy = Needs.__new__(Needs)
    copy.__dict__ = needs.__dict__ | {
        "new": {table: set(keys) for table, keys in needs.new.items()},
        "changed": set(needs.changed),
    }
    return copy


def admitted(store: Store, batch: list[Request]) -> Iterator[tuple[Request, str]]:
    """Yield the requests of one transaction, each with what it is refused for, until the batch is cut."""
    needs = Needs(store)
    for number, request in enumerate(batch):
        if request.table not in store.tables:
            yield request, "gone"
            continue
        if Needs(store).with_one(request).is_cut(store):
            yield request, "too large"
            continue
        more = needs.with_one(request)
        if lacks := more.lacks(store):
            yield request, lacks
            continue
        if more.is_cut(store):
            assert number, "nothing has run"
            return
        needs = more
        yield request, ""


def wanted(store: Store, batch: list[Request], now: int, may: Open) -> Reason | None:
    """Return what a batch lacks of all that is still open; what another reason could undo comes behind it."""
    requests = [request for request in batch if request.table in store.tables]
    needs = Needs(store)
    for request in requests:
        needs = needs.with_one(request)
    tables = sorted({request.table for request in requests})
    looks = {
        number: any(
            op.key in store.tables[number].keys and store.tables[number].keys[op.key].looks_expired(now)
            for request in requests
            if request.table == number
            for op in request.ops
        )
        for number in tables
    }
    gives = {request.table for request in requests for op in request.ops if op.expiry}
    reasons = [
        (Reason("columns", needed=needs.ops), needs.ops > store.columns.now),
        *((Reason("expired", number), looks[number]) for number in tables),
        *((Reason("expiry", number), number in gives and not store.tables[number].may_expire) for number in tables),
        *(
            (Reason("index", number, needs.slots(number)), needs.slots(number) > store.tables[number].slots.now)
            for number in tables
        ),
        (Reason("free"), store.used + needs.units > store.heap.now and store.garbage > 0),
        (Reason("heap", needed=store.used + needs.units), store.used + needs.units > store.heap.now),
        (Reason("log", needed=len(needs.changed)), len(needs.changed) > store.log.now),
        (Reason("renew"), not store.epochs),
    ]
    return next((reason for reason, is_lacking in reasons if is_lacking and reason[:2] in may), None)


def run(store: Store, batch: list[Request], now: int, may: Open, variant: Variant) -> Reason | list[Result]:
    """Run a batch, or return a reason: then nothing has happened."""
    if reason := wanted(store, batch, now, may):
        return reason
    return run_what_fits(store, list(admitted(store, batch)), variant)


def run_what_fits(store: Store, requests: list[tuple[Request, str]], variant: Variant) -> list[Result]:
    if variant.refuses_all and (lacks := next((lacks for _, lacks in requests if lacks), "")):
        return [Result(lacks, []) for _ in requests]
    if variant.cuts_to_nothing and any(lacks for _, lacks in requests):
        requests = requests[:1]
    results, changed, garbage = [], set(), 0
    for request, lacks in requests:
        seen: list[str | int] = []
        for op in [] if lacks else request.ops:
            keys = store.tables[request.table].keys
            held = keys.get(op.key)
            if op.units:
                assert not op.expiry or store.tables[request.table].may_expire, "the root does not say so"
                garbage += held.units if held else 0
                keys[op.key] = Key(op.units, op.expiry)
                changed.add((request.table, op.key))
            seen.append("damaged" if held and held.is_damaged else held.units if held else 0)
        results.append(Result(lacks, seen))
    if changed:
        store.commit(len(changed))
    store.garbage += garbage
    return results


def crew(store: Store, reason: Reason, batch: list[Request], now: int, variant: Variant) -> None:
    """Do what a reason asks for, as far as it can be done."""
    if reason.kind == variant.does_nothing_for:
        return
    match reason.kind:
        case "columns":
            store.columns.grow(reason.needed)
        case "expired":
            delete_expired(store, reason.table, batch, now, variant)
        case "expiry":
            store.tables[reason.table].may_expire = True
        case "index":
            store.tables[reason.table].slots.grow(reason.needed)
        case "free":
            store.garbage = 0
        case "heap":
            store.heap.grow(reason.needed)
        case "log":
            store.log.grow(reason.needed)
        case "renew":
            store.epochs = _EPOCHS


def delete_expired(store: Store, table: int, batch: list[Request], now: int, variant: Variant) -> None:
    """Delete the keys of a batch that have expired, in transactions that fit the log as it is."""
    if variant.deletes_later:
        return  # they wait in the queue behind this batch
    keys = store.tables[table].keys
    asked = {op.key for request in batch if request.table == table for op in request.ops}
    expired = sorted(key for key in asked & set(keys) if keys[key].looks_expired(now) and not keys[key].is_damaged)
    for first in range(0, 1 if variant.deletes_one else len(expired), store.log.now):
        part = expired[first : first + store.log.now][: 1 if variant.deletes_one else None]
        if not store.epochs:
            store.epochs = _EPOCHS
        store.commit(len(part))
        for key in part:
            store.garbage += keys.pop(key).units


class Clock:
    """Goes on whenever somebody looks."""

    def __init__(self, random: Random) -> None:
        self._random, self._now = random, 100

    def read(self) -> int:
        self._now += self._random.randrange(20)
        return self._now


_ALL = ("columns", "expired", "expiry", "index", "free", "heap", "log", "renew")


def execute(store: Store, batch: list[Request], clock: Clock, random: Random, variant: Variant) -> int:
    """Run a batch until it is done; return how many of its requests are."""
    now, came = clock.read(), Counter[tuple[str, int]]()
    may = {(kind, table) for kind in _ALL for table in (_EVERYWHERE, *store.tables)}
    for _ in range(_TRIES_MAX):
        before = deepcopy(store)
        ran = run(store, batch, now, may, variant)
        if not isinstance(ran, Reason):
            check(before, store, batch, now, ran)
            return len(ran)
        assert store == before, "something has happened"
        came[ran[:2]] += 1
        assert came[ran[:2]] == 1, f"{ran} comes again"
        crew(store, ran, batch, now, variant)
        check_others(before, store, now)
        if not variant.may_stays:
            may.discard(ran[:2])
        if variant.reads_clock_anew:
            now = clock.read()
        if variant.lets_others_in and random.random() < 0.3:
            others = [Request(table, [Op(1000 + random.randrange(5), 3)]) for table in store.tables]
            execute(store, others, clock, random, Variant())
    raise AssertionError("it does not end")


def check(before: Store, after: Store, batch: list[Request], now: int, ran: list[Result]) -> None:
    """Compare what ran with what a store does that is as large as it can be."""
    largest = before.at_its_largest()
    for number, table in largest.tables.items():
        table.may_expire = True
        asked = {op.key for request in batch if request.table == number for op in request.ops}
        for key in asked & set(table.keys):
            if table.keys[key].looks_expired(now) and not table.keys[key].is_damaged:
                del table.keys[key]
    largest.epochs = 1
    requests = list(admitted(largest, batch))
    assert len(ran) == len(requests), "it was cut elsewhere"
    assert [result.lacks for result in ran] == [lacks for _, lacks in requests], "others were refused"
    assert ran == run_what_fits(largest, requests, Variant()), "other results"
    assert {number: table.keys for number, table in after.tables.items()} == {
        number: table.keys for number, table in largest.tables.items()
    }, "other keys"


def check_others(before: Store, after: Store, now: int) -> None:
    """A crew takes no key away but those that have expired."""
    for number, table in before.tables.items():
        for key, held in table.keys.items():
            gone = key not in after.tables[number].keys
            assert not gone or (held.looks_expired(now) and not held.is_damaged), "a key is gone"


def any_size(random: Random, now: int) -> Size:
    return Size(now, now + random.choice((0, 0, random.randrange(40), 1000)))


def any_store(random: Random) -> Store:
    tables = {number: Table(any_size(random, random.randrange(8, 16)), random.random() < 0.5) for number in range(2)}
    for table in tables.values():
        for number in random.sample(range(20), random.randrange(8)):
            expiry = random.choice((0, random.randrange(80, 300))) if table.may_expire else 0
            table.keys[number] = Key(random.randrange(1, 6), expiry, is_damaged=random.random() < 0.2)
    heap, log = any_size(random, random.randrange(80, 140)), any_size(random, random.randrange(1, 8))
    store = Store(tables, heap, log, any_size(random, random.randrange(2, 10)), epochs=random.randrange(_EPOCHS + 1))
    store.garbage = random.randrange(10)
    return store


def any_batch(random: Random) -> list[Request]:
    def any_op() -> Op:
        key = random.randrange(20)
        if random.random() < 0.4:
            return Op(key)
        return Op(key, random.choice((1, 2, 4, 30)), random.choice((0, 0, random.randrange(80, 300))))

    return [
        Request(random.choice((0, 0, 0, 1, 1, 7)), [any_op() for _ in range(random.randrange(1, 6))])
        for _ in range(random.randrange(1, 5))
    ]


def live(seed: int, variant: Variant) -> None:
    """Run some batches on a store, each until nothing of it is left."""
    random = Random(seed)
    store, clock = any_store(random), Clock(random)
    for _ in range(3):
        batch = any_batch(random)
        while batch:
            done = execute(store, batch, clock, random, variant)
            assert done, "nothing has run"
            batch = batch[done:]


def test_the_loop_ends_and_refuses_only_what_cannot_be() -> None:
    seed = int(os.environ.get("GPKVS_SEED", Random().randrange(1 << 32)))
    for number in range(_RUNS):
        try:
            live(seed + number, Variant())
        except AssertionError as error:
            raise AssertionError(f"GPKVS_SEED={seed + number}") from error


_WRONG = {name: Variant(**{name: True}) for name in Variant._fields if name != "does_nothing_for"}
_WRONG |= {f"does nothing for {kind}": Variant(does_nothing_for=kind) for kind in _ALL}


@pytest.mark.parametrize("wrong", _WRONG)
def test_a_wrong_loop_is_caught(wrong: str) -> None:
    variant = _WRONG[wrong]
    for seed in range(_RUNS):
        try:
            live(seed, variant)
        except AssertionError:
            return
    pytest.fail("nobody saw it")
