"""What finds no room and cannot have it: the native engine refuses the same requests as Python's, and runs the rest."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from gpkvs.batch import Batch, Op, Status
from gpkvs.config import CommitName
from gpkvs.engine.seam.left import Left
from gpkvs.engine.tables.growth import Growing
from gpkvs.errors import NoSpaceError
from gpkvs.store import Store
from tests.conftest import assert_clean
from tests.engine.native_driver import Answer, Ran
from tests.engine.twins import CROWDED, FAR, Twins, alike  # noqa: F401 - a fixture

Operation = tuple[Op, bytes] | tuple[Op, bytes, bytes]


def seeded() -> Random:
    seed = int(os.environ.get("GPKVS_SEED", Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    return Random(seed)


def requests_of(
    random: Random, keys: int, value: Callable[[], bytes], kinds: tuple[Op, ...] = (Op.SET, Op.SET, Op.GET, Op.DELETE)
) -> list[list[Operation]]:
    """Return random requests, of which some put in what is too much."""
    requests = []
    for _ in range(random.randrange(1, 30)):
        operations: list[Operation] = []
        for _ in range(random.randrange(1, 5)):
            key = random.randrange(keys).to_bytes(8, "little")
            match random.choice(kinds):
                case Op.SET:
                    operations.append((Op.SET, key, value()))
                case Op.INCREMENT:
                    operations.append((Op.INCREMENT, key, bytes(8)))
                case op:
                    operations.append((op, key))
        requests.append(operations)
    return requests


def run_natively(twins: Twins, batch: Batch) -> Answer:
    """Run requests as a door does, or as columns of the process itself."""
    if not twins.served.is_own:
        answer = twins.served.run_with_help(batch)
        assert answer is not None
        return answer
    result = twins.stores[0].execute_requests(batch)
    reasons = {str(reason): reason for reason in result.rejected.values()}
    named = dict(zip(reasons, Left, strict=False))  # any name: the crew alone knows the right one
    twins.served.refusals = {named[text]: reason for text, reason in reasons.items()}
    lacking = {number: named[str(reason)] for number, reason in result.rejected.items()}
    results = [*result.part.requests()] if result.part else []
    columns = (
        [status for one in results for status in one.status.tolist()],
        [version for one in results for version in one.versions.tolist()],
        [value for one in results for value in one.value_list()],
    )
    return Answer(Ran.DONE, 0, *columns, result.requests, {}, lacking)


def run_on_both(twins: Twins, batch: Batch) -> Answer:
    """Run requests on both; compare who was refused, and what the others got.

    What does not fit runs natively on both.
    """
    answer = run_natively(twins, batch)
    by_columns = twins.stores[1].execute_requests(batch)
    assert answer.requests == by_columns.requests == len(batch.request_ops)
    assert answer.lacking.keys() == by_columns.rejected.keys()
    for number, lacking in answer.lacking.items():
        told, reason = twins.served.refusals[lacking], by_columns.rejected[number]
        assert type(told) is type(reason)
        if isinstance(told, NoSpaceError) and isinstance(reason, NoSpaceError):
            assert told.resource == reason.resource
        else:
            assert str(told) == str(reason)
    results = [*by_columns.part.requests()] if by_columns.part else []
    assert answer.status == [status for result in results for status in result.status.tolist()]
    assert answer.versions == [version for result in results for version in result.versions.tolist()]
    assert answer.values == [value for result in results for value in result.value_list()]
    return answer


@pytest.mark.parametrize("is_own", [False, True], ids=["door", "own"])
@pytest.mark.parametrize("layout", ["bytes", "u64"])
def test_new_keys_of_an_index_that_does_not_grow(
    tmp_path: Path, commit: CommitName, layout: str, *, is_own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Growing, "make_room", lambda *_: False)
    monkeypatch.setattr(Growing, "gained", lambda *_: None)
    monkeypatch.setattr(Growing, "after", lambda *_: None)
    twins, random = Twins(tmp_path, commit, is_own=is_own), seeded()
    for store in twins.stores:
        store.create_table("small", layout=layout, index_bytes=64 << 10)
    number = twins.stores[0].table("small").id
    slots = twins.stores[0]._engine.tables[number].index.slots
    refused = 0
    many = [Batch.of([(Op.SET, key.to_bytes(8, "little"), bytes(8))]).on_table(number) for key in range(slots)]
    assert run_on_both(twins, Batch.concatenate(many)).lacking
    kinds = (Op.SET, Op.SET, Op.GET, Op.DELETE, Op.INCREMENT)
    for _ in range(100):
        requests = requests_of(random, 2 * slots, lambda: random.randbytes(8), kinds)
        batch = Batch.concatenate([Batch.of(request).on_table(number) for request in requests])
        refused += len(run_on_both(twins, batch).lacking)
    assert refused
    assert dict(twins.stores[0].table("small").scan()) == dict(twins.stores[1].table("small").scan())
    assert twins.served.not_helped == {}
    twins.both(Store.close)
    assert_clean(tmp_path / "native")


def test_records_that_a_heap_may_not_hold(tmp_path: Path, commit: CommitName) -> None:
    """A batch is cut where its records find no room at once: the rest comes again."""
    twins, random = Twins(tmp_path, commit, **CROWDED), seeded()
    store, model, refused = twins.stores[0], dict[bytes, bytes](), dict[Left, int]()
    for _ in range(150):
        requests = requests_of(random, 1000, lambda: bytes(random.randrange(20_000)))
        while requests:
            answer = twins.served.run_with_help(Batch.concatenate([Batch.of(request) for request in requests]))
            assert answer is not None
            values = iter(answer.values)
            for number, request in enumerate(requests[: answer.requests]):
                if number in answer.lacking:
                    refused[answer.lacking[number]] = refused.get(answer.lacking[number], 0) + 1
                    continue
                for op in request:
                    if op[0] is Op.GET:
                        assert next(values) == model.get(op[1], b"")
                    elif len(op) == 3:
                        model[op[1]] = op[2]
                    else:
                        model.pop(op[1], None)
            assert not list(values)
            requests = requests[answer.requests :]
    assert refused[Left.GROW_HEAP] > 10
    assert dict(store.scan()) == model
    assert twins.served.not_helped == {}
    twins.both(Store.close)
    assert_clean(tmp_path / "native")


def test_numbers_have_no_records(tmp_path: Path, commit: CommitName) -> None:
    """Requests for what a table of numbers has not, between others; a column of expiries may give none."""
    twins, one = Twins(tmp_path, commit), bytes(8)
    for store in twins.stores:
        store.create_table("numbers", layout="u64")
    number = twins.stores[0].table("numbers").id

    def request(*operations: Operation, expiry: int = 0) -> Batch:
        batch = Batch.of(operations).on_table(number)
        return replace(batch, expiries=np.full(len(batch), expiry, np.uint64))

    set_one, get_one = request((Op.SET, one, one)), request((Op.GET, one))
    append, add = request((Op.GET, one), (Op.APPEND, one, one)), request((Op.INCREMENT, one, (7).to_bytes(8, "little")))
    expires, gets = request((Op.SET, one, one), expiry=FAR), request((Op.GET, one), expiry=FAR)
    batch = Batch.concatenate([set_one, append, add, expires, request((Op.EXPIRY, one)), gets, get_one])
    answer = run_on_both(twins, batch)
    assert answer.lacking == dict.fromkeys((1, 3, 4), Left.LAYOUT)
    assert answer.values == [(7).to_bytes(8, "little")] * 3
    assert twins.served.not_helped == {}
    twins.both(Store.close)


def test_a_table_that_is_not_there_any_more(tmp_path: Path, commit: CommitName) -> None:
    """Requests came for it; one that is new is known with the next turn."""
    twins = Twins(tmp_path, commit)
    native = twins.served.driver.native
    native.begin_turn()
    twins.both(lambda store: store.create_table("later"))
    number = twins.stores[0].table("later").id
    two = Batch.concatenate([Batch.of([(Op.SET, key, key)]).on_table(number) for key in (b"a", b"b")])
    assert twins.served.driver.run(two).ran is Ran.LEFT
    assert twins.served.run_again(two).status == [Status.OK] * 2
    assert twins.served.helped == {Left.TABLE: 1}
    twins.stores[1].execute_requests(two)
    twins.both(lambda store: store.drop_table("later"))
    native.end_turn()
    assert run_on_both(twins, two).lacking == {0: Left.TABLE, 1: Left.TABLE}
    assert twins.served.not_helped == {}
    twins.both(Store.close)


def test_what_takes_no_more_than_before_is_not_refused(tmp_path: Path, commit: CommitName) -> None:
    """In a batch of which others are."""
    twins = Twins(tmp_path, commit, **CROWDED)
    for number in range(1000):
        one = Batch.of([(Op.SET, b"%d" % number, bytes(20_000))])
        if run_on_both(twins, one).lacking:
            break
    shorter = [Batch.of([(Op.SET, b"%d" % key, bytes(19_000))]) for key in range(5)]
    longer = [Batch.of([(Op.SET, b"%d" % key, bytes(20_000))]) for key in range(number, number + 5)]
    batch = Batch.concatenate([request for pair in zip(longer, shorter, strict=True) for request in pair])
    answer = run_on_both(twins, batch)
    assert answer.lacking
    assert not any(request % 2 for request in answer.lacking)
    twins.both(Store.close)


def test_of_several_requests_of_a_message_one_may_be_refused(
    tmp_path: Path, commit: CommitName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Growing, "make_room", lambda *_: False)
    twins = Twins(tmp_path, commit)
    store = twins.stores[0]
    store.create_table("small", index_bytes=64 << 10)
    number = store.table("small").id
    full = 2 * store._engine.tables[number].index.slots
    one, rest = ([(Op.SET, key.to_bytes(8, "little"), b"v") for key in keys] for keys in ([0], range(1, full)))
    several = Batch.concatenate([Batch.of(request).on_table(number) for request in (one, rest)])
    served = twins.served

    answers: list[Answer] = []

    def run() -> bool:
        answers.append(served.driver.run(several, message_requests=[2]))
        return answers[-1].ran is not Ran.LEFT

    served.driver.native.begin_turn()
    assert not run()
    assert served._crew.run_again(several, run, lambda *_: None)
    served.driver.native.end_turn()
    assert (answers[-1].requests, answers[-1].lacking) == (2, {1: Left.GROW_INDEX})
    assert served.not_helped == {}
    with store._turn_over():
        assert store.table("small").count() == 1
    twins.both(Store.close)
