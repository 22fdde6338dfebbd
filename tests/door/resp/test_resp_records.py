"""Commands of Redis that look into records, natively, and in a batch that the door leaves: damaged ones, long ones."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import gpkvs
from gpkvs.backends.cpu.backend import HOST_OPS_MAX
from gpkvs.config import Limits, StoreConfig
from gpkvs.server.redis.commands import scripts
from gpkvs.server.redis.commands.scripts import Known, Program
from gpkvs.store import Store
from tests.conftest import SMALL
from tests.door.resp_door import answers, command, connect, resp_door, without_ids

DAMAGED = b"-ERR the record fails its checksum, so no value is returned: run gpkvs check\r\n"
VALUE = b"value of the key"
RELEASE, EXTEND, ACQUIRE, PROLONG = b"release", b"extend", b"acquire", b"prolong"  # texts of scripts
KNOWN = {
    RELEASE: Known(scripts._release, Program.RELEASE, 0, 1),
    EXTEND: Known(scripts._extend, Program.EXTEND, 0, 2),
    ACQUIRE: Known(scripts._acquire, Program.ACQUIRE, 0, 2),
    PROLONG: Known(scripts._prolong, Program.PROLONG, 1, 3),
}
READ_AND_WRITE = [
    [b"GETSET", b"key", b"new"],
    [b"GETDEL", b"key"],
    [b"SET", b"key", b"new", b"EX", b"100", b"GET"],
    [b"GETEX", b"key", b"PERSIST"],
    [b"GETEX", b"key", b"EX", b"100"],
    [b"SET", b"key", b"new", b"GET", b"KEEPTTL"],
    [b"SET", b"key", b"new", b"XX", b"GET"],
]
# What asks for a record, or takes it, beside a key that is not there.
ASK_FIRST = {
    b":1\r\n": [
        [b"COPY", b"key", b"other"],
        [b"RENAMENX", b"key", b"other"],
        [b"EXPIRE", b"key", b"100", b"NX"],
        [b"EXPIRE", b"key", b"100", b"LT"],
        [b"EVAL", RELEASE, b"1", b"key", VALUE],
        [b"EVAL", EXTEND, b"1", b"key", VALUE, b"100000"],
    ],
    b":16\r\n": [[b"SETRANGE", b"key", b"3", b"more"]],
    b"-ERR value is not a valid float\r\n": [[b"INCRBYFLOAT", b"key", b"1.5"]],
    b":0\r\n": [[b"EXPIRE", b"key", b"100", b"XX"], [b"EXPIRE", b"key", b"100", b"GT"]],
    b"+OK\r\n": [[b"RENAME", b"key", b"other"], [b"SET", b"key", b"new", b"KEEPTTL"]],
}

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
        monkeypatch.setenv(HOST_OPS_MAX, "0")  # as on a GPU: each batch is left that one could run
    with gpkvs.open(tmp_path / "store", **SMALL, commit="undo") as opened:
        yield opened


@pytest.fixture
def ask(store: Store) -> Iterator[Ask]:
    """Send commands together; return their answers."""
    with locks(store) as ask:
        yield ask


@contextmanager
def locks(store: Store) -> Iterator[Ask]:
    """The same of a store, with a door that knows scripts of locks."""
    with resp_door(store, handed_on) as (door, port), connect(port) as connection:
        door.set_scripts({hashlib.sha1(text).hexdigest().encode(): known for text, known in KNOWN.items()})

        def answered(*commands: list[bytes]) -> bytes:
            connection.sendall(b"".join(command(*one) for one in commands))
            return without_ids(answers(connection, len(commands)))

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


@pytest.mark.parametrize(("right", "words"), [(right, words) for right, all in ASK_FIRST.items() for words in all])
def test_what_asks_for_a_record_takes_no_damaged_one(store: Store, ask: Ask, right: bytes, words: list[bytes]) -> None:
    """Neither it nor another key changes."""
    assert ask([b"SET", b"key", VALUE]) == b"+OK\r\n"
    flip(store)
    assert ask(words, [b"EXISTS", b"key", b"other"]) == DAMAGED + b":1\r\n"
    assert ask([b"MULTI"], words, [b"EXISTS", b"key", b"other"], [b"EXEC"]) == (
        b"+OK\r\n" + b"+QUEUED\r\n" * 2 + b"*2\r\n" + DAMAGED + b":1\r\n"
    )
    flip(store)
    assert ask(words) == right


def test_a_damaged_record_is_there(store: Store, ask: Ask) -> None:
    """Nobody needs to read it to know that."""
    assert ask([b"SET", b"key", VALUE], [b"SET", b"other", b"1"]) == b"+OK\r\n" * 2
    flip(store)
    assert ask([b"MSETNX", b"new", b"1", b"key", b"1"], [b"SET", b"key", b"1", b"NX"]) == b":0\r\n$-1\r\n"
    assert ask([b"MSETNX", b"key", b"1", b"new", b"1"]) == b":0\r\n"
    assert ask([b"COPY", b"other", b"key"], [b"RENAMENX", b"other", b"key"], [b"EXISTS", b"new"]) == b":0\r\n" * 3
    assert ask([b"COPY", b"other", b"key", b"REPLACE"], [b"RENAME", b"other", b"key"]) == DAMAGED * 2
    flip(store)
    assert ask([b"GET", b"key"], [b"GET", b"other"]) == b"$%d\r\n%s\r\n$1\r\n1\r\n" % (len(VALUE), VALUE)


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
        store._engine.expiry.time.begin_at((now + 3600) * 1000)
        with resp_door(store, answer) as (_, port), connect(port) as connection:
            for seconds, is_handed in ((1800, True), (3605, True), (7200, False)):
                words = [b"SET", b"key", b"value", b"EXAT", b"%d" % (now + seconds)]
                connection.sendall(command(*words))
                assert answers(connection, 1) == b"+OK\r\n"
                assert handed == ([words] if is_handed else [])
                handed.clear()


@pytest.mark.format3
def test_a_value_gets_as_long_as_it_may(store: Store, ask: Ask) -> None:
    most = store.limits.value_bytes_max
    too_long = b"-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n"
    assert ask([b"SET", b"key", bytes(most - 2), b"EX", b"1000"]) == b"+OK\r\n"
    found = ask(*[[b"APPEND", b"key", b"!"]] * 3, [b"STRLEN", b"key"], [b"APPEND", b"key", b""], [b"PERSIST", b"key"])
    assert found == b":%d\r\n:%d\r\n" % (most - 1, most) + too_long + b":%d\r\n" % most * 2 + b":1\r\n"
    assert ask([b"GETRANGE", b"key", b"-3", b"-1"], [b"PERSIST", b"key"]) == b"$3\r\n\0!!\r\n:0\r\n"


def test_locks_on_several_keys(ask: Ask) -> None:
    acquire = [b"EVAL", ACQUIRE, b"2", b"a", b"b", b"me", b"100000"]
    extend, release = [b"EVAL", EXTEND, b"2", b"a", b"b"], [b"EVAL", RELEASE, b"1"]
    assert ask(acquire, acquire, [b"MGET", b"a", b"b"]) == b":2\r\n:0\r\n*2\r\n$2\r\nme\r\n$2\r\nme\r\n"
    assert ask([*extend, b"me", b"900000"], [*extend, b"you", b"1"], [b"SET", b"b", b"you"]) == b":2\r\n:0\r\n+OK\r\n"
    assert ask([b"TTL", b"a"], [*extend, b"me", b"1"], [*release, b"a", b"me"]) == b":900\r\n:0\r\n:1\r\n"
    assert ask([b"EXISTS", b"a", b"b"], acquire, [*release, b"b", b"you"], acquire) == b":1\r\n:0\r\n:1\r\n:2\r\n"
    seen = [[b"SET", b"a", b"them"], [b"APPEND", b"a", b""], [*release, b"a", b"this"], [b"SET", b"a", b"me"]]
    assert ask([b"MULTI"], *seen, [b"EXEC"]).endswith(b"+OK\r\n:4\r\n:0\r\n+OK\r\n")
    release_a = [*release, b"a", b"me"]
    commands = [[b"APPEND", b"a", b"!"], release_a, [b"GET", b"a"], [b"SET", b"a", b"me"], release_a, release_a]
    assert ask([b"MULTI"], *commands, [b"EXEC"]) == (
        b"+OK\r\n" + b"+QUEUED\r\n" * 6 + b"*6\r\n:3\r\n:0\r\n$3\r\nme!\r\n+OK\r\n:1\r\n:0\r\n"
    )
    name = hashlib.sha1(ACQUIRE).hexdigest().upper().encode()
    assert ask([b"EVALSHA", name, b"1", b"a", b"you", b"100000"], [b"GET", b"a"]) == b":1\r\n$3\r\nyou\r\n"


def test_a_script_that_is_forgotten_before_exec_is_python_s(store: Store) -> None:
    handed: list[list[bytes]] = []

    def answer(words: list[bytes]) -> bytes:
        handed.append(words)
        return b"+OK\r\n"

    with resp_door(store, answer) as (door, port), connect(port) as connection:
        door.set_scripts({hashlib.sha1(RELEASE).hexdigest().encode(): KNOWN[RELEASE]})
        queued = [[b"MULTI"], [b"EVAL", RELEASE, b"1", b"key", b"me"]]
        connection.sendall(b"".join(command(*words) for words in queued))
        assert answers(connection, 2) == b"+OK\r\n+QUEUED\r\n"
        door.set_scripts({})
        connection.sendall(command(b"EXEC"))
        assert answers(connection, 1) == b"+OK\r\n"
    assert handed == [*queued, [b"EXEC"]]


def test_a_lock_is_prolonged(ask: Ask) -> None:
    """By what is added to its time, or to another time; not if it is another's, or has none."""
    prolong = [b"EVAL", PROLONG, b"1", b"a"]
    assert ask([*prolong, b"me", b"5000", b"0"], [b"SET", b"a", b"me", b"EX", b"1000"]) == b":0\r\n+OK\r\n"
    assert ask([*prolong, b"me", b"50000", b"0"], [b"TTL", b"a"]) == b":1\r\n:1050\r\n"
    assert ask([b"MULTI"], [*prolong, b"me", b"50000", b"0"], [*prolong, b"me", b"7000", b"0"], [b"EXEC"]).endswith(
        b"*2\r\n:1\r\n:1\r\n"
    )
    assert ask([b"TTL", b"a"], [*prolong, b"you", b"5000", b"0"], [b"TTL", b"a"]) == b":1107\r\n:0\r\n:1107\r\n"
    assert ask([*prolong, b"me", b"70000", b"1"], [b"TTL", b"a"]) == b":1\r\n:70\r\n"
    assert ask([b"PERSIST", b"a"], [*prolong, b"me", b"5000", b"0"], [b"TTL", b"a"]) == b":1\r\n:0\r\n:-1\r\n"
    assert ask([*prolong, b"me", b"5000", b"1"], [b"TTL", b"a"]) == b":0\r\n:-1\r\n"


def test_values_go_from_key_to_key(ask: Ask) -> None:
    """Each COPY takes what those before it have left, of the same transaction and of the table."""
    long = b"x" * 1000
    assert ask([b"SET", b"a", b"7", b"PX", b"900000"], [b"SET", b"b", long]) == b"+OK\r\n+OK\r\n"
    commands = [
        [b"COPY", b"a", b"c"],
        [b"INCR", b"c"],
        [b"RENAME", b"c", b"d"],
        [b"APPEND", b"d", b"!"],
        [b"COPY", b"b", b"e"],
        [b"COPY", b"e", b"f"],
        [b"APPEND", b"f", b"?"],
        [b"RENAME", b"f", b"e"],
        [b"RENAMENX", b"d", b"e"],
        [b"RENAME", b"nothing", b"e"],
        [b"RENAME", b"a", b"b"],
        [b"MGET", b"a", b"b", b"c", b"d", b"e", b"f"],
        [b"PERSIST", b"d"],
        [b"EXPIRE", b"b", b"1000", b"GT"],
        [b"EXPIRE", b"b", b"1000", b"GT"],
        [b"EXPIRE", b"e", b"1000", b"XX"],
    ]
    replies = (
        *(b":1\r\n:8\r\n+OK\r\n:2\r\n:1\r\n:1\r\n:1001\r\n+OK\r\n:0\r\n-ERR no such key\r\n+OK\r\n",),
        *(b"*6\r\n$-1\r\n$1\r\n7\r\n$-1\r\n$2\r\n8!\r\n$1001\r\n" + long + b"?\r\n$-1\r\n",),
        b":1\r\n:1\r\n:0\r\n:0\r\n",
    )
    found = ask([b"MULTI"], *commands, [b"EXEC"])
    assert found == b"+OK\r\n" + b"+QUEUED\r\n" * len(commands) + b"*%d\r\n" % len(commands) + b"".join(replies)
    assert ask([b"TTL", b"d"], [b"RENAME", b"b", b"g"], [b"TTL", b"g"]) == b":-1\r\n+OK\r\n:1000\r\n"
    assert ask([b"RENAME", b"g", b"b"], [b"COPY", b"b", b"h"], [b"TTL", b"h"]) == b"+OK\r\n:1\r\n:1000\r\n"
    assert ask([b"MGET", b"b", b"d"], [b"STRLEN", b"e"]) == b"*2\r\n$1\r\n7\r\n$2\r\n8!\r\n:1001\r\n"


def test_parts_of_values_and_numbers_with_a_point(ask: Ask) -> None:
    """What one operation of a transaction makes, the next ones see; expiries stay."""
    assert ask([b"SET", b"a", b"12345", b"EX", b"1000"], [b"SET", b"n", b"10.50", b"EX", b"1000"]) == b"+OK\r\n+OK\r\n"
    commands = {
        (b"SETRANGE", b"a", b"1", b"__"): b":5\r\n",
        (b"SETRANGE", b"a", b"6", b"!"): b":7\r\n",
        (b"SETRANGE", b"a", b"100", b""): b":7\r\n",
        (b"APPEND", b"a", b"?"): b":8\r\n",
        (b"SETRANGE", b"a", b"0", b"0"): b":8\r\n",
        (b"COPY", b"a", b"b"): b":1\r\n",
        (b"GET", b"b"): b"$8\r\n0__45\0!?\r\n",
        (b"SETRANGE", b"new", b"2", b"7"): b":3\r\n",
        (b"SETRANGE", b"new", b"0", b"12"): b":3\r\n",
        (b"INCR", b"new"): b":128\r\n",
        (b"SETRANGE", b"nothing", b"9", b""): b":0\r\n",
        (b"EXISTS", b"nothing"): b":0\r\n",
        (b"INCRBYFLOAT", b"n", b"0.1"): b"$4\r\n10.6\r\n",
        (b"INCRBYFLOAT", b"n", b"-5.6e0"): b"$1\r\n5\r\n",
        (b"INCR", b"n"): b":6\r\n",
        (b"INCRBYFLOAT", b"n", b"x"): b"-ERR value is not a valid float\r\n",
        (b"INCRBYFLOAT", b"a", b"1"): b"-ERR value is not a valid float\r\n",
        (b"INCRBYFLOAT", b"other", b"1e4933"): b"-ERR value is not a valid float\r\n",
        (b"INCRBYFLOAT", b"other", b"inf"): b"-ERR increment would produce NaN or Infinity\r\n",
        (b"INCRBYFLOAT", b"other", b"-0.0"): b"$1\r\n0\r\n",
    }
    found = ask([b"MULTI"], *map(list, commands), [b"EXEC"])
    queued = b"+OK\r\n" + b"+QUEUED\r\n" * len(commands)
    assert found == queued + b"*%d\r\n" % len(commands) + b"".join(commands.values())
    assert ask([b"TTL", b"a"], [b"TTL", b"b"], [b"TTL", b"n"], [b"TTL", b"new"]) == b":1000\r\n" * 3 + b":-1\r\n"
    assert ask([b"GET", b"a"], [b"GET", b"n"]) == b"$8\r\n0__45\0!?\r\n$1\r\n6\r\n"


def test_no_part_begins_behind_the_longest_value(store: Store, ask: Ask) -> None:
    too_long = b"-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n"
    most = store.limits.value_bytes_max
    for first in (most, most + 1, 10**18 - 1):
        assert ask([b"SETRANGE", b"key", b"%d" % first, b"x"]) == too_long
    assert ask([b"SETRANGE", b"key", b"%d" % (most - 1), b"x"]) == b":%d\r\n" % most


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[Ask]:
    """The same of a store that makes and reads little at once."""
    config = StoreConfig(limits=Limits(result_bytes_max=10_000), batch_result_bytes_max=20_000, **SMALL)
    with Store(tmp_path / "narrow", config) as store, locks(store) as ask:
        yield ask


TOO_MUCH = b"-ERR ops: its operations make too many bytes"


def test_values_that_are_made_at_once_have_a_bound(narrow: Ask) -> None:
    """A transaction that makes more is refused, and others' together run one after the other."""
    parts = [[b"SETRANGE", b"%d" % number, b"4999", b"x"] for number in range(5)]
    refused = narrow([b"MULTI"], *parts, [b"EXEC"])
    assert refused.endswith(
        b"-EXECABORT Transaction discarded because of: ERR ops: its operations make too many bytes of "
        b"others' values, or read them first, the limit is 20,000 (batch_result_bytes_max): split it\r\n"
    )
    assert narrow([b"EXISTS", b"0"], *parts) == b":0\r\n" + b":5000\r\n" * 5


def test_a_value_that_is_changed_often_is_made_once(narrow: Ask) -> None:
    """Where nobody sees what is between; else it is made anew."""
    parts = [[b"SETRANGE", b"key", b"%d" % number, b"%d" % (number % 10)] for number in range(4000)]
    assert narrow([b"MULTI"], *parts, [b"EXEC"], [b"GETRANGE", b"key", b"3990", b"-1"]).endswith(
        b":3999\r\n:4000\r\n$10\r\n0123456789\r\n"
    )
    seen = [[b"SETRANGE", b"key", b"0", b"a"], [b"GETRANGE", b"key", b"0", b"1"]]
    seen += [[b"SETRANGE", b"key", b"1", b"b"], [b"COPY", b"key", b"other"], [b"SETRANGE", b"key", b"0", b"c"]]
    found = narrow([b"MULTI"], *seen, [b"EXEC"], [b"GETRANGE", b"other", b"0", b"1"], [b"GETRANGE", b"key", b"0", b"1"])
    assert found.endswith(b"*5\r\n:4000\r\n$2\r\na1\r\n:4000\r\n:1\r\n:4000\r\n$2\r\nab\r\n$2\r\ncb\r\n")


def test_what_conditions_read_has_a_bound(narrow: Ask) -> None:
    """Nothing of it is returned, and nothing made."""
    value, keys = bytes(5000), [b"%d" % number for number in range(5)]
    assert narrow(*[[b"SET", key, value] for key in keys]) == b"+OK\r\n" * 5
    assert narrow([b"EVAL", EXTEND, b"5", *keys, value, b"100000"]).startswith(TOO_MUCH)
    assert narrow([b"EVAL", EXTEND, b"5", *keys, b"short", b"100000"], [b"TTL", b"0"]) == b":0\r\n:-1\r\n"
    assert narrow([b"EVAL", EXTEND, b"1", *keys[:1], value, b"100000"], [b"TTL", b"0"]) == b":1\r\n:100\r\n"


def test_long_numbers_with_a_point_have_a_bound(narrow: Ask) -> None:
    """To read and write one takes a millisecond."""
    assert narrow([b"SET", b"n", b"1e4000"]) == b"+OK\r\n"
    assert narrow([b"INCRBYFLOAT", b"n", b"1"]).startswith(b"$4000\r\n999999")
    refused = narrow([b"MULTI"], *[[b"INCRBYFLOAT", b"n", b"1"]] * 9, [b"EXEC"])
    assert refused.endswith(b"split it\r\n")
    assert narrow(*[[b"INCRBYFLOAT", b"short", b"1"]] * 9).endswith(b"$1\r\n9\r\n")
