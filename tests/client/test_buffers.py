"""Values that go straight into buffers of the caller's, and come straight out of them: a store and both clients."""

from __future__ import annotations

import mmap
import random
from array import array
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import U8
from gpkvs.columns.buffers import RequestBounds
from gpkvs.config import Limits
from gpkvs.errors import CorruptRecordError, InvalidArgumentError
from tests.client.faces import FACES, opened
from tests.conftest import SMALL
from tests.serving import Server

KIB = 1 << 10
SIZES = (0, 1, 7, 8, 63 * KIB, 64 * KIB - 3, 64 * KIB, 64 * KIB + 1, 999_999, 1_000_000)
FILL = 0xA5


class Lent:
    """An array that speaks DLPack and nothing else, as a tensor of PyTorch; without `version` as an old library."""

    def __init__(self, array: np.ndarray[Any, Any], *, version: bool = True, device: int = 1) -> None:
        self._array, self._version, self._device = array, version, device

    def __dlpack__(self, **options: Any) -> Any:
        if options and not self._version:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0


class Grad:
    """An array whose library does not give its memory, as a tensor that requires a gradient."""

    def __dlpack__(self, **_options: Any) -> Any:
        raise BufferError("can't export tensors that require gradient")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def _mapped(size: int) -> mmap.mmap:
    return mmap.mmap(-1, max(size, 1))


# Each makes a writable buffer of a number of bytes; an mmap is never empty.
KINDS: dict[str, Callable[[int], Any]] = {
    "numpy": lambda size: np.full(size, FILL, np.uint8),
    "bytearray": lambda size: bytearray([FILL]) * size,
    "memoryview": lambda size: memoryview(bytearray([FILL]) * size),
    "array": lambda size: array("B", [FILL]) * size,
    "odd": lambda size: np.full(size + 1, FILL, np.uint8)[1:],
    "odd view": lambda size: memoryview(bytearray([FILL]) * (size + 3))[3:],
    "rows": lambda size: np.full((2, size), FILL, np.uint8)[1:],
    "dlpack": lambda size: Lent(np.full(size, FILL, np.uint8)),
    "old dlpack": lambda size: Lent(np.full(size, FILL, np.uint8), version=False),
    "mmap": _mapped,
}


def content(buffer: Any) -> bytes:
    """Return what is in a buffer."""
    return np.asarray(buffer._array if isinstance(buffer, Lent) else buffer).tobytes()


def test_any_values_as_in_a_dictionary(db: Any) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    held: dict[bytes, bytes] = {}
    for _ in range(12):
        count = rng.randrange(1, 5)
        keys = [b"key %d" % rng.randrange(6) for _ in range(count)]
        sources = [KINDS[rng.choice(list(KINDS))](rng.choice(SIZES)) for _ in range(count)]
        for source in sources:
            memory = np.asarray(source._array if isinstance(source, Lent) else source).reshape(-1)
            memory[:] = np.frombuffer(rng.randbytes(memory.size), np.uint8)
        atomic = rng.random() < 0.5
        versions = db.set_from(keys, sources, atomic=atomic)
        held |= dict(zip(keys, map(content, sources), strict=True))
        assert len(set(versions)) == count
        last = len(keys) - 1 - keys[::-1].index(keys[0])
        assert db.get_with_version(keys[0]) == (held[keys[0]], versions[last])

        asked = [*rng.sample(sorted(held), rng.randrange(1, len(held) + 1)), b"none", keys[0]]
        rest = rng.choice((0, 1, 1000))
        buffers = [KINDS[rng.choice(list(KINDS))](len(held.get(key, b"")) + rest) for key in asked]
        before = [content(buffer) for buffer in buffers]
        sizes = db.get_into(asked, buffers, atomic=rng.random() < 0.5)
        assert sizes == [len(held[key]) if key in held else None for key in asked]
        for key, size, buffer, old in zip(asked, sizes, buffers, before, strict=True):
            assert content(buffer) == held.get(key, b"") + old[size or 0 :]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 64 * KIB + 5])
def test_a_lone_key_has_a_lone_result(db: Any, kind: str, size: int) -> None:
    value = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    version = db.set_from(b"k", value)
    assert db.get_with_version(b"k") == (value.tobytes(), version)
    buffer = KINDS[kind](size + 9)
    rest = content(buffer)[size:]
    assert db.get_into(b"k", buffer) == size
    assert content(buffer) == value.tobytes() + rest
    assert db.get_into(bytearray(b"none"), buffer) is None
    assert content(buffer) == value.tobytes() + rest
    assert db.set_from(memoryview(b"k"), buffer) > version
    assert db.get(b"k") == value.tobytes() + rest


def test_numbers_of_any_type_come_back(db: Any) -> None:
    numbers = np.arange(20_000, dtype=np.float32).reshape(100, 200)
    times = np.arange(3).view("datetime64[s]")  # the buffer protocol does not know it
    db.set_from([b"numbers", b"times", b"scalar"], [numbers, times, np.float64(0.5)])
    for wrap in (lambda a: a, Lent):
        into = np.empty((101, 200), np.float32)
        assert db.get_into(b"numbers", wrap(into[:100])) == numbers.nbytes
        assert (into[:100] == numbers).all()
    read, half = np.empty(3, "datetime64[s]"), np.empty((), np.float64)
    assert db.get_into([b"times", b"scalar"], [read, half]) == [24, 8]
    assert (read == times).all()
    assert half == 0.5
    rows = np.empty((2, 8), np.uint8)
    db.set_from(np.frombuffer(b"a1a2", np.uint8).reshape(2, 2), [b"12345678", array("d", [1.0])])  # keys as rows
    assert db.get_into([b"a1", b"a2"], rows) == [8, 8]  # and buffers as rows
    assert rows.tobytes() == b"12345678" + np.float64(1).tobytes()


def test_nothing_is_no_request(db: Any) -> None:
    assert db.get_into([], []) == []
    assert db.set_from([], []) == []
    assert db.set_from(b"k", b"") > 0
    assert db.get_into(b"k", bytearray()) == 0


def test_what_is_read_only_may_be_stored(db: Any) -> None:
    frozen = np.arange(8)
    frozen.flags.writeable = False
    twice = memoryview(bytes(range(100)))
    db.set_from([b"bytes", b"frozen", b"a", b"b"], [b"value", Lent(frozen), twice[:60], twice[40:]])
    assert db.get_all([b"bytes", b"frozen", b"a", b"b"]) == {
        b"bytes": b"value",
        b"frozen": frozen.tobytes(),
        b"a": bytes(range(60)),
        b"b": bytes(range(40, 100)),
    }


def test_a_key_with_a_ttl(db: Any) -> None:
    db.set_from([b"a", b"b"], [b"1", bytes(100_000)], ttl=1000)
    assert 0 < db.ttl(b"a") <= 1000
    assert 0 < db.ttl(b"b") <= 1000
    db.set_from(b"a", b"2")
    assert db.ttl(b"a") == float("inf")
    with pytest.raises(InvalidArgumentError, match="ttl"):
        db.set_from(b"a", b"3", ttl=0)
    assert db.get(b"a") == b"2"


def _released() -> memoryview:
    view = memoryview(bytearray(8))
    view.release()
    return view


def _closed() -> mmap.mmap:
    mapped = _mapped(8)
    mapped.close()
    return mapped


def _frozen() -> U8:
    frozen = np.zeros(8, np.uint8)
    frozen.flags.writeable = False
    return frozen


ALWAYS_BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "strided": (lambda: np.zeros(16, np.uint8)[::2], "not contiguous"),
    "transposed": (lambda: np.zeros((2, 4)).T, "not contiguous"),
    "strided view": (lambda: memoryview(bytearray(16))[::2], "not contiguous"),
    "strided dlpack": (lambda: Lent(np.zeros(16)[::2]), r"not contiguous.*contiguous\(\)"),
    "released": (_released, "memoryview cannot be used: .*released"),
    "closed": (_closed, "mmap cannot be used: mmap closed"),
    "no buffer": (object, "object cannot be used: .*bytes-like"),
    "text": (lambda: "text", "str cannot be used"),
    "none": (lambda: None, "NoneType cannot be used"),
    "objects": (lambda: np.array([b"a", None], object), "Python objects"),
    "view of objects": (lambda: memoryview(np.array([b"a", None], object)), "Python objects"),
    "of a device": (lambda: Lent(np.zeros(8), device=2), r"memory of a device.*tensor\.cpu\(\)"),
    "of a gradient": (Grad, "Grad cannot be used: .*gradient"),
}
BAD_TO_STORE_TO: dict[str, tuple[Callable[[], Any], str]] = {
    "bytes": (lambda: bytes(8), "bytes is read-only"),
    "frozen": (_frozen, "ndarray is read-only"),
    "frozen view": (lambda: memoryview(bytes(8)), "memoryview is read-only"),
    "frozen dlpack": (lambda: Lent(_frozen()), "Lent is read-only"),
}


@pytest.mark.parametrize("name", ALWAYS_BAD | BAD_TO_STORE_TO)
@pytest.mark.parametrize("atomic", [True, False])
def test_a_bad_buffer_changes_nothing(db: Any, name: str, *, atomic: bool) -> None:
    db.set_from([b"a", b"b", b"c"], [b"1", b"2", b"3"])
    make, reason = (ALWAYS_BAD | BAD_TO_STORE_TO)[name]
    good = bytearray(b"....")
    with pytest.raises(InvalidArgumentError, match=rf"operation 1, buffers: .*{reason}"):
        db.get_into([b"a", b"b"], [good, make()], atomic=atomic)
    with pytest.raises(InvalidArgumentError, match=rf"operation 0, buffers: .*{reason}"):
        db.get_into(b"a", make(), atomic=atomic)
    assert good == b"...."
    if name in ALWAYS_BAD:
        with pytest.raises(InvalidArgumentError, match=rf"operation 1, buffers: .*{reason}"):
            db.set_from([b"a", b"b"], [b"new", make()], atomic=atomic)
        assert db.get_all([b"a", b"b"]) == {b"a": b"1", b"b": b"2"}


@pytest.mark.parametrize("size", [8, 100_000])
def test_a_buffer_that_is_too_small_changes_nothing(db: Any, size: int) -> None:
    db.set_from([b"a", b"long"], [b"1", bytes(size)])
    good, small = bytearray(b"...."), bytearray(b"." * (size - 1))
    with pytest.raises(InvalidArgumentError, match=rf"operation 1, .*key b'long' has {size:,} .* {size - 1:,}"):
        db.get_into([b"a", b"long"], [good, small])
    with pytest.raises(InvalidArgumentError, match="has 1 byte, its buffer 0"):
        db.get_into(b"a", bytearray())
    assert good == b"...."
    assert not small.strip(b".")


def test_buffers_that_overlap_are_refused(db: Any) -> None:
    db.set_from([b"a", b"b"], [b"1234", b"5678"])
    memory = np.zeros(16, np.uint8)
    for one, other in ((memory[:9], memory[8:]), (memory, memory[4:5]), (memory[4:5], memory), (memory, memory)):
        with pytest.raises(InvalidArgumentError, match="operation 2, buffers: its memory overlaps that of buffer 0"):
            db.get_into([b"a", b"none", b"b"], [one, bytearray(9), other])
    assert not memory.any()
    assert db.get_into([b"a", b"b", b"a"], [memory[8:], memory[:8], bytearray(4)]) == [4, 4, 4]  # neighbours
    assert memory.tobytes() == b"5678\0\0\0\0" + b"1234\0\0\0\0"
    assert db.get_into([b"a", b"none"], [memory, memory[4:4]]) == [4, None]  # nothing overlaps nothing


def test_as_many_keys_as_buffers(db: Any) -> None:
    for call in (db.get_into, db.set_from):
        with pytest.raises(InvalidArgumentError, match="2 keys, 1 buffer: each key has one"):
            call([b"a", b"b"], [bytearray(1)])
        with pytest.raises(InvalidArgumentError, match="several keys take several buffers"):
            call([b"a"], 7)
        with pytest.raises(InvalidArgumentError, match="list cannot be used"):
            call(b"a", [bytearray(1)])
        with pytest.raises(TypeError, match="a key is bytes, not int"):
            call([b"a", 1], [bytearray(1), bytearray(1)])
        with pytest.raises(TypeError, match="a key is bytes, not int"):
            call(7, bytearray(1))
        with pytest.raises(TypeError, match="a key is bytes, not str: encode it"):
            call("text", bytearray(4))
        with pytest.raises(InvalidArgumentError, match="key of 0 bytes"):
            call([b"a", b""], [bytearray(1), bytearray(1)], atomic=False)
    assert db.get(b"a") is None


@pytest.mark.parametrize("kind", FACES)
def test_more_than_a_request_takes(kind: str, tmp_path: Path, serve: Callable[[], Server]) -> None:
    with opened(kind, tmp_path, serve) as db:
        base = db._awaited if kind == "async" else db
        base._request_bounds = lambda *_: RequestBounds(Limits(request_ops_max=3), 1000)
        keys = [b"%d" % number for number in range(10)]
        values = [bytes([number]) * (number % 4 * 300) for number in range(10)]
        buffers = [bytearray(1000) for _ in keys]
        for call in (db.get_into, db.set_from):
            with pytest.raises(InvalidArgumentError, match=r"10 operations .* atomic=False"):
                call(keys, buffers)
        requests = []
        name = "_execute" if kind == "async" else "_commit"
        execute = getattr(base, name)
        setattr(base, name, lambda operations, *more: (requests.append(operations.keys), execute(operations, *more))[1])
        versions = db.set_from(keys, values, atomic=False)
        assert [len(request) for request in requests] == [3, 2, 2, 2, 1]
        assert [key for request in requests for key in request] == keys
        assert sorted(versions) == versions
        assert db.get_into([*keys, b"none"], [*buffers, bytearray()], atomic=False) == [*map(len, values), None]
        assert [bytes(buffer).rstrip(b"\0") for buffer in buffers[1:]] == values[1:]


def test_a_request_may_read_so_much(db: Any) -> None:
    size = 60_000  # longer ones are sent from where they lie, and do not count
    count = getattr(db, "limits", Limits()).result_bytes_max // size + 1
    value = np.random.default_rng(1).integers(0, 256, size, np.uint8)
    db.set_from(b"long", value)
    into = np.zeros((count, size), np.uint8)
    with pytest.raises(InvalidArgumentError, match="result_bytes_max"):
        db.get_into([b"long"] * count, into)
    assert not into.any()
    assert db.get_into([b"long"] * count, into, atomic=False) == [size] * count
    assert all((row == value).all() for row in into)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Return a store with one good value and one of which a byte is wrong."""
    path = tmp_path / "damaged"
    value = random.Random(1).randbytes(100_000)
    with gpkvs.open(path, **SMALL) as store:
        store.set(b"good", b"good value")
        store.set(b"bad", value)
    (heap,) = [file for file in path.iterdir() if value in file.read_bytes()]
    with heap.open("r+b") as file:
        file.seek(heap.read_bytes().index(value) + 70_000)
        file.write(bytes([value[70_000] ^ 1]))
    return path


@pytest.mark.parametrize("kind", FACES)
def test_a_damaged_value_changes_nothing(kind: str, damaged: Path, tmp_path: Path) -> None:
    def check(db: Any) -> None:
        good, bad = bytearray(b"." * 10), np.full(200_000, FILL, np.uint8)
        with pytest.raises(CorruptRecordError, match="operation 1"):
            db.get_into([b"good", b"bad"], [good, bad])
        with pytest.raises(CorruptRecordError):
            db.get_into(b"bad", bad)
        assert (bad == FILL).all()
        assert good == b"." * 10
        assert db.get_into(b"good", good) == 10
        assert good == b"good value"

    if kind == "store":
        with gpkvs.open(damaged) as store:
            check(store)
            with pytest.raises(CorruptRecordError, match=r"table 'default', .*gpkvs check"):
                store.get_into(b"bad", bytearray(100_000))
        return
    server = Server(damaged, tmp_path)
    try:
        with opened(kind, tmp_path, lambda: server) as db:
            check(db.table("default"))
        server.stop()
    finally:
        server.kill()


@pytest.mark.parametrize("kind", FACES)
def test_numbers_as_bytes(kind: str, tmp_path: Path, serve: Callable[[], Server]) -> None:
    with opened(kind, tmp_path, serve) as db:
        name = f"of-numbers-{kind}"
        db.create_table(name, layout="u64", index_bytes=1 << 16)
        keys, numbers = np.arange(5, dtype="<u8"), np.arange(5, dtype="<u8") * 7
        rows = [key.tobytes() for key in keys]
        table = db.table(name)
        assert len(table.set_from(rows, numbers)) == 5
        into = np.full((6, 1), 99, "<u8")
        assert table.get_into([*rows, bytes([9] * 8)], into) == [8, 8, 8, 8, 8, None]
        assert into.ravel().tolist() == [0, 7, 14, 21, 28, 99]
        with pytest.raises(InvalidArgumentError, match="layout is u64"):
            db.set_from([bytes(8)], [bytes(9)], table=name)
        db.drop_table(name)


def test_memory_is_given_back(db: Any) -> None:
    buffer = bytearray(100)
    db.set_from(b"k", buffer)
    assert db.get_into(b"k", buffer) == 100
    buffer += b"longer"  # nobody holds it any more
    with suppress(InvalidArgumentError):
        db.get_into(b"k", [])
    mapped = _mapped(100)
    assert db.get_into(b"k", mapped) == 100
    mapped.close()
