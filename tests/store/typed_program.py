"""What is public, as a user's program uses it: `mypy --strict` must find nothing in it (test_typing.py)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

import gpkvs
from gpkvs import Batch, Limits, Op, RequestResult, Status, Store
from gpkvs.client import (
    AsyncClient,
    AsyncObjects,
    AsyncPipeline,
    AsyncTransaction,
    Client,
    GatherConfig,
    Objects,
    OutcomeUnknownError,
    RetryPolicy,
    TableHandle,
    TableInfo,
)
from gpkvs.errors import (
    ConditionFailedError,
    CorruptRecordError,
    ForkedError,
    GpkvsError,
    InvalidArgumentError,
    NoSpaceError,
)
from gpkvs.face import KeyValues


def embedded(path: Path) -> bytes | None:
    with gpkvs.open(path, index_bytes=1 << 20) as store:
        kept: Store = store
        version: int = kept.set(b"key", b"value")
        result: RequestResult = kept.execute(Batch.of([(Op.SET, b"from", b"90"), (Op.GET, b"key")]))
        values: list[bytes] = result.value_list()
        assert version
        assert values
        assert result.status[0] == Status.OK
        print(gpkvs.__version__.upper(), face(kept), kept.table("default").exists(b"key"))
        return kept.get(b"key")


def face(db: KeyValues) -> float | None:
    """Work with a store and with a client alike."""
    version: int = db.set(b"face", b"1", ttl=60, if_absent=True)
    pair: tuple[bytes, int] | None = db.get_with_version(b"face")
    value: bytes = db.get(b"none", b"default")
    either: bytes | int = db.get(b"none", 0)
    try:
        db.set(bytearray(b"face"), memoryview(b"2"), if_version=version + 1)
    except ConditionFailedError as error:
        there: int | None = error.version
        assert there == version
    db[b"count"] = b"%d" % db.incr(b"count", -1)
    pairs: list[tuple[bytes, bytes]] = list(db.scan(b"face"))
    keys: list[bytes] = list(db.scan(keys_only=True))
    found: dict[bytes, bytes] = db.get_all(keys)
    number: int = db.transact(lambda t: len(t.get(b"face", b"")))
    with db.batch() as batch, db.transaction() as t:
        batch.check(b"face", version=version)
        batch.append(b"face", b"!")
        t.delete(b"count")
    print(pair, value, either, pairs, found, number, batch.results, b"face" in db, db.count(b"fa"))
    return db.ttl(b"face")


def buffers(db: KeyValues) -> int:
    """Work with memory of one's own."""
    array = np.arange(1000, dtype=np.float32)
    version: int = db.set_from(b"array", array, ttl=60)
    versions: list[int] = db.set_from([b"a", b"b"], [b"1", memoryview(b"2")])
    size: int | None = db.get_into(b"array", array)
    sizes: list[int | None] = db.get_into([b"a", bytearray(b"b")], [bytearray(1), array], atomic=False)
    return version + len(versions) + (size or 0) + len(sizes)


def columns(client: Client) -> int:
    keys = np.arange(1000, dtype=np.uint64)
    made: TableInfo = client.create_table("numbers", layout="u64", index_bytes=1 << 20)
    client.set_many(keys, keys * 2, table=made.name)
    values, found = client.get_many(keys, table="numbers")
    deleted = client.delete_many(keys, table="numbers")
    single = singles(client.table("numbers"))
    client.drop_table("numbers")
    return int(values[found].sum()) + int(deleted.sum()) + single


def singles(numbers: KeyValues) -> int:
    """Work with the numbers of a table one by one."""
    numbers.set(7, 42)
    numbers[8] = numbers[7] + 1
    value: int | None = numbers.get(7)
    sure: int = numbers.get(np.uint64(9), 0)
    pair: tuple[int, int] | None = numbers.get_with_version(7)
    found: dict[int, int] = numbers.get_all([7, 8])
    raw: bytes | None = numbers.get(bytes(8))
    twice: int = numbers.transact(lambda t: 2 * t.get(7, 0))
    with numbers.batch() as batch:
        batch.set(9, sure)
        batch.check(7, version=42)
    del numbers[8]
    print(value, pair, found, raw, twice, 7 in numbers)
    return numbers.incr(7)


def blocking(target: str) -> tuple[bytes | None, int, bool]:
    with Client(target, timeout=5.0, retry=RetryPolicy(attempts_max=2), limits=Limits()) as client:
        try:
            version = client.set(b"answer", b"42")
        except (NoSpaceError, InvalidArgumentError) as error:
            raise SystemExit(str(error)) from error
        except OutcomeUnknownError as error:
            raise SystemExit(f"perhaps: {error.__cause__}") from error
        objects = Objects(client)
        objects.set(b"user:1", {"name": "Ada"})
        names: list[str] = [table.name for table in client.list_tables()]
        print(names, client.info().version, objects.get(b"user:1")["name"], columns(client))
        results = client.batch([(Op.GET, b"answer"), (Op.SET, b"k", b"v"), (Op.DELETE, b"k")])
        table: TableHandle = client.table("default")
        print(len(results), face(client), buffers(table), table.count(timeout=5))
        return client.get(b"answer"), version, client.delete(b"answer")


async def stream(pipeline: AsyncPipeline, batches: list[Batch]) -> int:
    count = 0
    async for result in pipeline.results(batches):
        count += len(result.status)
    answer = await pipeline.send(batches[0])
    return count + len((await answer).status)


async def count_up(t: AsyncTransaction) -> int:
    number = int(await t.get(b"number", b"0")) + 1
    t.set(b"number", b"%d" % number)
    return number


async def asynchronous(target: str) -> bytes | None:
    async with AsyncClient(target, gather=GatherConfig(ops_max=100)) as client:
        await client.wait_ready(timeout=5)
        await asyncio.gather(*(client.set(b"%d" % i, b"v") for i in range(100)))
        async with client.batch() as batch:
            batch.set(b"a", b"1")
            batch.get(b"a")
        assert batch.results[1] == b"1"
        async with client.pipeline() as pipeline:
            await stream(pipeline, [Batch.of([(Op.GET, b"a")])])
        number: int = await client.transact(count_up)
        async for key in client.scan(keys_only=True, limit=number):
            print(key, await client.ttl(key))
        await AsyncObjects(client).set(b"list", [1, 2, 3])
        version: int = await client.set_from(b"array", np.arange(3))
        sizes: list[int | None] = await client.get_into([b"array"], [bytearray(24)])
        size: int | None = await client.get_into(b"array", bytearray(24))
        print(version, sizes, size)
        return await client.get(b"a", timeout=1.0)


def wrong(client: Client) -> None:
    """Each of these is a mistake: an ignore that is not needed fails too, so types are really there."""
    client.set("text", b"value")  # type: ignore[call-overload]
    client.set(7, b"value")  # type: ignore[call-overload]
    client["text"] = b"value"  # type: ignore[call-overload]
    length: str = client.get(b"key")  # type: ignore[assignment]
    gpkvs.nonsense()  # type: ignore[attr-defined]
    print(length)


def main(target: str, path: Path) -> int:
    try:
        print(embedded(path), blocking(target), asyncio.run(asynchronous(target)))
    except ForkedError:
        return 3
    except (CorruptRecordError, GpkvsError) as error:
        print(error)
        return 1
    return 0
