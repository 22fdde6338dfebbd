"""The same calls to a server and to the oracle: what they answer, and what they leave in the store, must be the same.

``python -m tests.tools.fuzz_doors --seconds 30 --seed 7``. `oracle.py` is gRPC's own server over an embedded store; the
native door is compared with it. In each round both begin with an empty store and get the same calls one after the
other: right ones, broken ones, methods that are not there, odd headers, frames that are cut anywhere. Exit status 1
where they differ.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from gpkvs.batch import HAS_VALUE
from gpkvs.cli.options.sizes import parse_bytes
from gpkvs.client import Client
from gpkvs.proto.metadata import REQUEST_ID_KEY
from gpkvs.proto.v1 import kv_pb2
from gpkvs.store import Store
from tests.conftest import assert_clean
from tests.door.http2_client import Answer, Http2Client, framed
from tests.server.wire import ABSENT, ADD, CHECK, DELETE, EQUALS, EXISTS, EXPIRY, GET, INCREMENT, SET, u32, u64
from tests.serving import SIZES, Server
from tests.tools.oracle import Oracle

CALLS_A_ROUND = 300
LOOK_CALLS = 50  # after so many, the stores are compared
BATCH, PIPELINE = "/gpkvs.v1.KV/Batch", "/gpkvs.v1.KV/Pipeline"
LAYOUTS = {"numbers": "u64", "rows": "int32[2]"}
TABLES = (*[""] * 6, *["default", "numbers", "rows"] * 3, "none", "\0", "\N{SNOWMAN}")
KEYS = (b"key0", b"key1", b"key2", b"12345678", b"\0" * 8, b"k" * 300, b"")
VALUES = (b"", b"value", b"\1" * 8, b"v" * 700, b"v" * 9000, b"17")
NUMBERS, ONES = (b"12345678", b"\0" * 8), b"\1" * 8
EXPECTED = (0, 1, 2, int.from_bytes(ONES, "little"))
FAR = 1 << 42  # an expiry that no round reaches, milliseconds

_COLUMNS = (
    "ops",
    "keys",
    "key_lengths",
    "values",
    "value_lengths",
    "conditions",
    "expected",
    "expiries",
    "request_ops",
)

# Headers that every call has, and those that some have.
_COMMON = (":method", "POST"), (":scheme", "http")
_TYPE, _TE = ("content-type", "application/grpc"), ("te", "trailers")
_ODD_HEADERS = (
    ("grpc-timeout", "100S"),
    ("grpc-timeout", "99999999H"),
    ("grpc-timeout", "5000m"),
    ("grpc-accept-encoding", "gzip"),
    ("user-agent", "odd/1.0"),
    ("x-anything", "value"),
    ("x-binary-bin", "AAEC"),
    ("authorization", "Bearer nothing"),
)

Random = random.Random


class Call(NamedTuple):
    """One call, as both doors get it.

    Attributes
    ----------
    path
        Of the method.
    headers
        Beside the usual ones.
    frames
        What its DATA frames have.
    steps
        Of a Pipeline: each message is sent when the response to the last one is there. Then there are no frames.
    """

    path: str
    headers: tuple[tuple[str, str], ...]
    frames: tuple[bytes, ...]
    steps: tuple[bytes, ...] = ()


def messages_of(random: Random, operations_max: int = 6) -> bytes:
    """Return a `BatchRequest`, right or nearly so."""
    message = kv_pb2.BatchRequest(table=random.choice(TABLES), id=random.choice((0, 7, 1 << 40)))
    kinds = random.choice(((1, 2, 3, 4), (1, 2, 3, 4), (2, 3, 4), tuple(range(1, 11))))
    ops = [random.choice(kinds) for _ in range(random.randrange(1, operations_max))]
    keys = [random.choice(KEYS[:5] if random.random() < 0.95 else KEYS) for _ in ops]
    values = [ONES if op == INCREMENT else random.choice(VALUES) for op in ops if HAS_VALUE[op]]
    if message.table == "rows" and random.random() < 0.7:
        ops = [random.choice((GET, SET, DELETE, ADD, ADD)) for _ in ops]
        values = [b"" for op in ops if HAS_VALUE[op]]
    if message.table in ("numbers", "rows") and random.random() < 0.9:
        keys = [random.choice(NUMBERS) for _ in ops]
        values = [ONES for _ in values]
    message.ops, message.keys, message.values = bytes(ops), b"".join(keys), b"".join(values)
    if len(set(map(len, keys))) == 1 and random.random() < 0.5:
        message.key_size = len(keys[0])
    else:
        message.key_lengths = u32(*map(len, keys))
    if len(set(map(len, values))) == 1 and random.random() < 0.5:
        message.value_size = len(values[0])
    elif values:
        message.value_lengths = u32(*map(len, values))
    if random.random() < 0.2 or CHECK in ops:
        reads = (GET, EXISTS, EXPIRY) if random.random() < 0.9 else ()  # they may have none
        conditions = bytes(0 if op in reads else random.randrange(4) for op in ops)
        message.conditions = conditions
        if EQUALS in conditions or random.random() < 0.1:
            message.expected = u64(*(random.choice(EXPECTED) for _ in ops))
    if random.random() < 0.25:
        message.expiries = u64(*(random.choice((0, FAR, FAR)) for _ in ops))
    if random.random() < (0.1 if GET in ops else 0.4):
        first = random.randrange(1, len(ops) + 1)
        cuts = ([1] * len(ops), [len(ops)]) * 3 + ([first, len(ops) - first], [1, 2])
        message.request_ops = u32(*random.choice(cuts))
    if random.random() < (0.5 if message.table == "numbers" else 0.1):
        message.numbers = True
    if random.random() < 0.1:
        distort(random, message)
    if random.random() < 0.1:
        message.layout = random.choice(("int32[2]", "int32[2]", "u64", "bytes", "int32[3]"))
    return bytes(message.SerializeToString())


def distort(random: Random, message: kv_pb2.BatchRequest) -> None:
    """Change a column so that it no longer fits the others, or give it another size beside its lengths."""
    name = random.choice((*_COLUMNS, "key_size", "value_size"))
    column = getattr(message, name)
    if isinstance(column, int):
        setattr(message, name, random.choice((0, 1, 8, column + 1)))
    else:
        changed = column[:-1], column[:-4], column + b"\0", column + column, random.randbytes(len(column))
        setattr(message, name, random.choice(changed))


def place_of(random: Random) -> tuple[str, bytes, bytes]:
    """Return a table, a key and a value, which mostly fit it."""
    table = random.choice(TABLES)
    if table in LAYOUTS and random.random() < 0.8:
        return table, random.choice(NUMBERS), ONES
    return table, random.choice(KEYS), random.choice(VALUES)


def get_of(random: Random) -> bytes:
    """Return a `GetRequest`."""
    table, key, _ = place_of(random)
    return bytes(kv_pb2.GetRequest(table=table, key=key).SerializeToString())


def set_of(random: Random) -> bytes:
    """Return a `SetRequest`."""
    table, key, value = place_of(random)
    message = kv_pb2.SetRequest(table=table, key=key, value=value)
    if random.random() < 0.2:
        message.condition = random.choice((ABSENT, 2, EQUALS, 9))
    if random.random() < 0.1:
        message.expected = random.choice(EXPECTED)
    if random.random() < 0.1:
        message.expiry_ms = FAR
    return bytes(message.SerializeToString())


def delete_of(random: Random) -> bytes:
    """Return a `DeleteRequest`."""
    table, key, _ = place_of(random)
    message = kv_pb2.DeleteRequest(table=table, key=key)
    if random.random() < 0.2:
        message.condition = random.choice((ABSENT, 2, EQUALS))
    return bytes(message.SerializeToString())


def increment_of(random: Random) -> bytes:
    """Return an `IncrementRequest`."""
    table, key, _ = place_of(random)
    return bytes(kv_pb2.IncrementRequest(table=table, key=key, delta=random.randrange(-9, 5)).SerializeToString())


def multi_get_of(random: Random) -> bytes:
    """Return a `MultiGetRequest`."""
    table, *_ = place_of(random)
    keys = [random.choice(NUMBERS if table in LAYOUTS else KEYS[:6]) for _ in range(random.randrange(4))]
    return bytes(kv_pb2.MultiGetRequest(table=table, keys=keys).SerializeToString())


def count_of(random: Random) -> bytes:
    """Return a `CountRequest`."""
    return bytes(kv_pb2.CountRequest(table=random.choice(TABLES)).SerializeToString())


METHODS: tuple[tuple[str, Callable[[Random], bytes]], ...] = (
    ("/gpkvs.v1.KV/Get", get_of),
    ("/gpkvs.v1.KV/Set", set_of),
    ("/gpkvs.v1.KV/Set", set_of),
    ("/gpkvs.v1.KV/Delete", delete_of),
    (BATCH, messages_of),
    (BATCH, messages_of),
    ("/gpkvs.v1.KV/Increment", increment_of),
    ("/gpkvs.v1.KV/Increment", increment_of),
    ("/gpkvs.v1.KV/MultiGet", multi_get_of),
    ("/gpkvs.v1.KV/Count", count_of),
    ("/gpkvs.v1.KV/Nothing", get_of),
    ("/nothing", get_of),
)


def mutated(random: Random, data: bytes) -> bytes:
    """Return data with some bytes changed, cut out or put in."""
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(len(data) + 1)
        data = data[:at] + random.randbytes(random.randrange(3)) + data[at + random.randrange(3) :]
    return data


def nearly(random: Random, message: bytes, share: float) -> bytes:
    """Return a message, broken in a share of all calls."""
    changed = mutated(random, message) if random.random() < share else message
    return changed if never_expires(changed) else message


def never_expires(message: bytes) -> bool:
    """Whether a message has no time to live: the two servers would count it from two moments."""
    for method in (kv_pb2.SetRequest, kv_pb2.IncrementRequest, kv_pb2.BatchRequest):
        try:
            read = method.FromString(message)
        except DecodeError:
            continue
        if getattr(read, "ttl_ms", 0) or getattr(read, "ttls", b""):
            return False
    return True


def cut(random: Random, data: bytes) -> tuple[bytes, ...]:
    """Cut data into frames."""
    bounds = sorted({0, len(data), *(random.randrange(len(data) + 1) for _ in range(random.choice((0, 0, 1, 4))))})
    return tuple(data[begin:end] for begin, end in pairwise(bounds))


def call_of(random: Random) -> Call:
    """Return a call."""
    headers = tuple(random.sample(_ODD_HEADERS, random.choice((0, 0, 0, 1, 2))))
    if random.random() < 0.25:
        steps = tuple(nearly(random, messages_of(random), 0.05) for _ in range(random.randrange(1, 6)))
        return Call(PIPELINE, headers, (), steps)
    path, make = random.choice(METHODS)
    message = nearly(random, make(random), 0.15)
    match random.randrange(40):
        case 0:
            data = b""
        case 1 | 2:
            data = framed(message) + framed(make(random))
        case 3 | 4 | 5:  # reads: what is not framed may be executed or not
            path, message = "/gpkvs.v1.KV/Get", get_of(random)
            data = random.choice(
                (
                    framed(message, flag=random.choice((1, random.randrange(2, 256)))),
                    framed(message, length=len(message) + random.randrange(1, 9)),
                    random.randbytes(random.randrange(12)),
                )
            )
        case _:
            data = framed(message)
    return Call(path, headers, cut(random, data))


def run(client: Http2Client, target: str, call: Call) -> tuple[Answer, list[bytes | None]]:
    """Make a call; return its end, and of a Pipeline the responses to its steps."""
    headers = (*_COMMON, (":authority", target), (":path", call.path), _TYPE, _TE, *call.headers)
    if not call.steps:
        return client.call(headers, call.frames), []
    stream = client.begin(headers)
    responses = []
    for number, step in enumerate(call.steps):
        client.send(stream, framed(step))
        responses.append(client.message(stream, number))
        if responses[-1] is None:
            break
    client.send(stream, b"", ends=True)
    return client.answer(stream), responses


def is_framed(data: bytes) -> bool:
    """Whether bytes are whole messages, not compressed. What gRPC's own server says of others depends on its timing."""
    while data:
        length = int.from_bytes(data[1:5], "big")
        if len(data) < 5 + length or data[0]:
            return False
        data = data[5 + length :]
    return True


class Told(NamedTuple):
    """What a client of gRPC can tell of an answer. The messages of Batch and Pipeline are parsed."""

    ends: dict[str, Any]
    texts: list[str]
    messages: list[Any]


def told(call: Call, answer: Answer, responses: Iterable[bytes | None]) -> Told:
    """Return what a client can tell of a call's end and of the responses to its steps."""
    blocks = dict(answer.headers), dict(answer.trailers)
    trailing = {**blocks[0], **blocks[1]}
    text = trailing.pop("grpc-message", "")
    trailing.pop(REQUEST_ID_KEY, None)  # no other call has that
    ends = {name: text for name, text in sorted(trailing.items()) if name.startswith(("grpc-status", "gpkvs-", "x-"))}
    ends |= {
        "http": blocks[0].get(":status"),
        "type": blocks[0].get("content-type"),
        "reset": answer.reset or None,  # 0 only says that the rest of the request is not needed
        "closed": answer.is_closed,
    }
    messages: list[Any] = [answer.data]
    texts = [text]
    if call.path in (BATCH, PIPELINE) and answer.data:
        messages = [kv_pb2.BatchResponse.FromString(data[5:]) for data in (responses or [answer.data]) if data]
        for failed in (one for message in messages for one in (message, *message.failures)):
            texts.append(failed.message)
            failed.message = ""
    return Told(ends, texts, messages)


def agree(oracle: Told, native: Told) -> bool:
    """Whether two answers say the same; of texts those count that the oracle gives: they are the store's."""
    return oracle._replace(texts=[]) == native._replace(texts=[]) and all(
        text in ("", other) for text, other in zip(oracle.texts, native.texts, strict=True)
    )


def contents(store: Client | Store) -> dict[str, list[tuple[bytes, bytes, int, int]]]:
    """Return all that a store holds: keys, values, versions and expiries."""
    found = {}
    for table in ("default", *LAYOUTS):
        pieces = list(store.scan_pieces(table=table))
        found[table] = sorted(
            entry
            for piece in pieces
            for entry in zip(
                piece.key_list(),
                piece.value_list(),
                piece.versions.tolist() or [0] * len(piece),
                piece.expiry_list(),
                strict=True,
            )
        )
    return found


class _Caller:
    """Calls one of the two, on a new connection if the last one is gone."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._client = Http2Client(target)

    def run(self, call: Call) -> Told | None:
        """Make a call; return nothing if its answer may be another one the next time."""
        if self._client.is_closed:
            self._client = Http2Client(self._target)
        answer, responses = run(self._client, self._target, call)
        return told(call, answer, responses) if is_framed(b"".join(call.frames)) else None


def one_round(seed: int, calls: int) -> list[str]:
    """Make calls; return where the native door and the oracle differ."""
    random, differences = Random(seed), []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpkvs-doors-")))
        server = Server(folder / "native", folder)
        stack.callback(server.kill)
        sizes = zip(SIZES[::2], SIZES[1::2], strict=True)
        oracle = Oracle(folder / "oracle", **{name[2:].replace("-", "_"): parse_bytes(size) for name, size in sizes})
        stack.callback(oracle.stop)
        client = stack.enter_context(Client(server.target))
        for name, layout in LAYOUTS.items():
            client.create_table(name, layout=layout)
            oracle.store.create_table(name, layout=layout)
        callers = _Caller(oracle.target), _Caller(server.target)
        for number in range(calls):
            if number % LOOK_CALLS == 0 and contents(oracle.store) != contents(client):
                differences.append(f"seed {seed}: the stores differ after {number} calls")
                break
            call = call_of(random)
            wanted, got = (caller.run(call) for caller in callers)
            if wanted and got and not agree(wanted, got):
                differences.append(f"seed {seed}, call {number}: {call}\n  oracle: {wanted}\n  native: {got}")
        if contents(oracle.store) != contents(client):
            differences.append(f"seed {seed}: the stores differ after {calls} calls")
        server.stop()
        assert_clean(server.data)
    return differences


def main() -> None:
    """Compare until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--calls", type=int, default=CALLS_A_ROUND, help="of a round")
    given = parser.parse_args()
    print(f"seed {given.seed}")
    give_up, rounds = time.monotonic() + given.seconds, 0
    while time.monotonic() < give_up:
        differences = one_round(given.seed + rounds, given.calls)
        rounds += 1
        if differences:
            sys.exit("\n".join(differences[:20]) + f"\n{len(differences)} differences")
    print(f"{rounds} rounds of {given.calls} calls: native door and oracle answer the same")


if __name__ == "__main__":
    main()
