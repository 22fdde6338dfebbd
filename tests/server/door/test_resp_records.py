"""Commands of Redis that look into records, natively and in a batch that is left to Python: damaged ones, long ones."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gpkvs
from gpkvs.engine.left import Left
from gpkvs.engine.native_engine import NativeEngine
from gpkvs.store import Store
from tests.conftest import SMALL
from tests.server.door.resp_door import answers, command, connect, resp_door

DAMAGED = b"-ERR the record fails its checksum, so no value is returned: run gpkvs check\r\n"
VALUE = b"value of the key"
READ_AND_WRITE = [
    [b"GETSET", b"key", b"new"],
    [b"GETDEL", b"key"],
    [b"SET", b"key", b"new", b"EX", b"100", b"GET"],
    [b"GETEX", b"key", b"PERSIST"],
    [b"GETEX", b"key", b"EX", b"100"],
]

Ask = Callable[..., bytes]


def handed_on(words: list[bytes]) -> bytes:
    raise AssertionError(f"Python was asked for {words}")


def flip(store: Store) -> None:
    """Damage the value, or mend it again."""
    heap = store._files.heap._view
    assert heap is not None
    content = heap.tobytes()
    assert content.count(VALUE[1:]) == 1
    heap[content.index(VALUE[1:]) - 1] ^= 1


@pytest.fixture(params=["native", "left"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    if request.param == "left":
        monkeypatch.setattr(NativeEngine, "_leaves", lambda _: Left.TURN)
    with gpkvs.open(tmp_path / "store", **SMALL, commit="undo") as opened:
        yield opened


@pytest.fixture
def ask(store: Store) -> Iterator[Ask]:
    """Send commands together; return their answers."""
    with resp_door(store, handed_on) as (_, port), connect(port) as connection:

        def answered(*commands: list[bytes]) -> bytes:
            connection.sendall(b"".join(command(*one) for one in commands))
            return answers(connection, len(commands))

        yield answered


@pytest.mark.parametrize("words", READ_AND_WRITE)
def test_a_damaged_record_stays(store: Store, ask: Ask, words: list[bytes]) -> None:
    """No value of it is returned, and a command that would return it replaces nothing, alone as in a transaction."""
    assert ask([b"SET", b"key", VALUE]) == b"+OK\r\n"
    flip(store)
    assert ask(words) == DAMAGED
    assert ask([b"MULTI"], words, [b"SET", b"other", b"1"], [b"EXEC"]) == (
        b"+OK\r\n" + b"+QUEUED\r\n" * 2 + b"*2\r\n" + DAMAGED + b"+OK\r\n"
    )
    flip(store)
    assert ask(words) == b"$%d\r\n%s\r\n" % (len(VALUE), VALUE)
    assert ask([b"SET", b"key", b"mine"], words) == b"+OK\r\n$4\r\nmine\r\n"


def test_nothing_is_appended_to_a_damaged_record(store: Store, ask: Ask) -> None:
    assert ask([b"SET", b"key", VALUE]) == b"+OK\r\n"
    flip(store)
    commands = [[b"APPEND", b"key", b"!"], [b"APPEND", b"other", b"12"], [b"PERSIST", b"key"], [b"APPEND", b"key", b""]]
    assert ask(*commands) == DAMAGED + b":2\r\n" + DAMAGED * 2
    assert ask([b"MULTI"], *commands[:2], [b"GET", b"other"], [b"EXEC"]) == (
        b"+OK\r\n" + b"+QUEUED\r\n" * 3 + b"*3\r\n" + DAMAGED + b":4\r\n$4\r\n1212\r\n"
    )
    flip(store)
    assert ask([b"GET", b"key"], [b"APPEND", b"key", b"!"]) == b"$%d\r\n%s\r\n:%d\r\n" % (
        len(VALUE),
        VALUE,
        len(VALUE) + 1,
    )


def test_moments_count_by_the_time_of_the_store(tmp_path: Path) -> None:
    """The clock was set back: what lies before the time that counted last has passed, and is Python's."""
    handed: list[list[bytes]] = []

    def answer(words: list[bytes]) -> bytes:
        handed.append(words)
        return b"+OK\r\n"

    now = time.time_ns() // 10**9
    with gpkvs.open(tmp_path / "store", **SMALL) as store:
        address = store._engine.expiry.latest_address
        ctypes.c_uint64.from_address(address).value = (now + 3600) * 1000
        with resp_door(store, answer) as (_, port), connect(port) as connection:
            for seconds, is_handed in ((1800, True), (3605, True), (3700, False)):
                words = [b"SET", b"key", b"value", b"EXAT", b"%d" % (now + seconds)]
                connection.sendall(command(*words))
                assert answers(connection, 1) == b"+OK\r\n"
                assert handed == ([words] if is_handed else [])
                handed.clear()


def test_a_value_gets_as_long_as_it_may(store: Store, ask: Ask) -> None:
    most = store.limits.value_bytes_max
    too_long = b"-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n"
    assert ask([b"SET", b"key", bytes(most - 2), b"EX", b"1000"]) == b"+OK\r\n"
    found = ask(*[[b"APPEND", b"key", b"!"]] * 3, [b"STRLEN", b"key"], [b"APPEND", b"key", b""], [b"PERSIST", b"key"])
    assert found == b":%d\r\n:%d\r\n" % (most - 1, most) + too_long + b":%d\r\n" % most * 2 + b":1\r\n"
    assert ask([b"GETRANGE", b"key", b"-3", b"-1"], [b"PERSIST", b"key"]) == b"$3\r\n\0!!\r\n:0\r\n"
