"""The same calls to both doors of a server: what they answer, and what they leave in the store, must be the same.

``python -m tests.fuzz_doors --seconds 30 --seed 7``. gRPC's own server is the oracle, the native door is compared with
it. In each round two servers begin with an empty store and get the same calls one after the other: right ones, broken
ones, methods that are not there, odd headers, frames that are cut anywhere. Exit status 1 where they differ.
"""

from __future__ import annotations

import argparse
import random
import re
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import NamedTuple

from google.protobuf.message import DecodeError

from gpkvs.batch import HAS_VALUE
from gpkvs.changes import Position
from gpkvs.client import Client
from gpkvs.client.watch import decode_response
from gpkvs.proto.metadata import REQUEST_ID_KEY
from gpkvs.proto.v1 import kv_pb2
from tests.conftest import assert_clean
from tests.server.http2_client import Answer, Headers, Http2Client, framed
from tests.server.wire import ABSENT, ADD, CHECK, DELETE, EQUALS, EXPIRY, GET, INCREMENT, SET, batch, u32, u64
from tests.serving import Server

CALLS_A_ROUND = 300
BATCH, WATCH = "/gpkvs.v1.KV/Batch", "/gpkvs.v1.KV/Watch"
TABLES = ("", "", "", "default", "numbers", "numbers", "rows", "rows", "none", "\0", "\N{SNOWMAN}")
KEYS = (b"key0", b"key1", b"key2", b"12345678", b"\0" * 8, b"k" * 300, b"")
VALUES = (b"", b"value", b"\1" * 8, b"v" * 700, b"v" * 9000, b"17")
FAR = 1 << 42  # an expiry that no round reaches, milliseconds

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
_POSITION = re.compile("[0-9a-f]{16}-[0-9]+")


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
        Of a Pipeline: each message is sent when the response to the last one is there. Then there are no frames. Of a
        Watch: what is written while it is open.
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
    values = [b"\1" * 8 if op == INCREMENT else random.choice(VALUES) for op in ops if HAS_VALUE[op]]
    if message.table == "rows" and random.random() < 0.7:
        ops = [random.choice((GET, SET, DELETE, ADD, ADD)) for _ in ops]
        values = [b"" for op in ops if HAS_VALUE[op]]
    if message.table in ("numbers", "rows") and random.random() < 0.9:
        keys = [random.choice((b"12345678", b"\0" * 8)) for _ in ops]
        values = [b"\1" * 8 for _ in values]
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
        conditions = bytes(0 if op in (GET, 4, EXPIRY) else random.randrange(4) for op in ops)
        message.conditions = conditions
        if EQUALS in conditions or random.random() < 0.1:
            message.expected = u64(*(random.randrange(3) for _ in ops))
    if random.random() < 0.1:
        message.expiries = u64(*(random.choice((0, FAR)) for _ in ops))
    if random.random() < (0.1 if GET in ops else 0.4):
        first = random.randrange(1, len(ops) + 1)
        cuts = [1] * len(ops), [len(ops)], [first, len(ops) - first], [1, 2]
        message.request_ops = u32(*random.choice(cuts))
    if random.random() < (0.5 if message.table == "numbers" else 0.1):
        message.numbers = True
    if random.random() < 0.1:
        message.layout = random.choice(("int32[2]", "int32[2]", "u64", "bytes", "int32[3]"))
    return bytes(message.SerializeToString())


def writes_of(random: Random) -> bytes:
    """Return a right `BatchRequest` that changes something."""
    if random.random() < 0.3:
        operations: list[tuple[int, bytes] | tuple[int, bytes, bytes]] = [(SET, b"12345678", random.randbytes(8))]
        return bytes(batch(operations, table="numbers").SerializeToString())
    operations = [(SET, random.choice(KEYS[:3]), random.choice(VALUES)) for _ in range(random.randrange(1, 4))]
    if random.random() < 0.5:
        operations.append((DELETE, random.choice(KEYS[:3])))
    return bytes(batch(operations).SerializeToString())


def get_of(random: Random) -> bytes:
    """Return a `GetRequest`."""
    return bytes(kv_pb2.GetRequest(table=random.choice(TABLES), key=random.choice(KEYS)).SerializeToString())


def set_of(random: Random) -> bytes:
    """Return a `SetRequest`."""
    message = kv_pb2.SetRequest(table=random.choice(TABLES), key=random.choice(KEYS), value=random.choice(VALUES))
    if random.random() < 0.2:
        message.condition = random.choice((ABSENT, 2, EQUALS, 9))
    if random.random() < 0.1:
        message.expected = random.randrange(5)
    if random.random() < 0.1:
        message.expiry_ms = FAR
    return bytes(message.SerializeToString())


def delete_of(random: Random) -> bytes:
    """Return a `DeleteRequest`."""
    message = kv_pb2.DeleteRequest(table=random.choice(TABLES), key=random.choice(KEYS))
    if random.random() < 0.2:
        message.condition = random.choice((ABSENT, 2, EQUALS))
    return bytes(message.SerializeToString())


def increment_of(random: Random) -> bytes:
    """Return an `IncrementRequest`."""
    message = kv_pb2.IncrementRequest(
        table=random.choice(TABLES), key=random.choice(KEYS), delta=random.randrange(-5, 5)
    )
    return bytes(message.SerializeToString())


def multi_get_of(random: Random) -> bytes:
    """Return a `MultiGetRequest`."""
    keys = [random.choice(KEYS) for _ in range(random.randrange(4))]
    return bytes(kv_pb2.MultiGetRequest(table=random.choice(TABLES), keys=keys).SerializeToString())


def count_of(random: Random) -> bytes:
    """Return a `CountRequest`."""
    return bytes(kv_pb2.CountRequest(table=random.choice(TABLES)).SerializeToString())


def watch_of(random: Random) -> bytes:
    """Return a `WatchRequest`."""
    message = kv_pb2.WatchRequest(table=random.choice(TABLES), all_tables=random.random() < 0.2)
    if message.all_tables and random.random() < 0.8:
        message.table = ""
    if random.random() < 0.2:
        message.prefix = random.choice(KEYS)
    if random.random() < 0.2:
        message.since = random.choice(("0123456789abcdef-7", "newest", "-", "0123456789ABCDEF-7"))
    message.only_position = random.random() < 0.2
    return bytes(message.SerializeToString())


METHODS: tuple[tuple[str, Callable[[Random], bytes]], ...] = (
    ("/gpkvs.v1.KV/Get", get_of),
    ("/gpkvs.v1.KV/Set", set_of),
    ("/gpkvs.v1.KV/Set", set_of),
    ("/gpkvs.v1.KV/Delete", delete_of),
    ("/gpkvs.v1.KV/Batch", messages_of),
    ("/gpkvs.v1.KV/Batch", messages_of),
    ("/gpkvs.v1.KV/Increment", increment_of),
    ("/gpkvs.v1.KV/MultiGet", multi_get_of),
    ("/gpkvs.v1.KV/Count", count_of),
    (WATCH, watch_of),
    ("/gpkvs.v1.Admin/ListTables", lambda random: b""),
    ("/grpc.health.v1.Health/Check", lambda random: random.choice((b"", b"\n\x0bgpkvs.v1.KV", b"\n\x01x"))),
    ("/gpkvs.v1.KV/Nothing", get_of),
    ("/nothing", get_of),
)


def mutated(random: Random, data: bytes) -> bytes:
    """Return data with some bytes changed, cut out or put in."""
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(len(data) + 1)
        data = data[:at] + random.randbytes(random.randrange(3)) + data[at + random.randrange(3) :]
    return data


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
        steps = tuple(messages_of(random) for _ in range(random.randrange(1, 6)))
        return Call("/gpkvs.v1.KV/Pipeline", headers, (), steps)
    path, make = random.choice(METHODS)
    message = make(random)
    if random.random() < 0.15:
        changed = mutated(random, message)
        message = changed if never_expires(changed) else message
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
    written = tuple(writes_of(random) for _ in range(random.randrange(4))) if path == WATCH else ()
    return Call(path, headers, cut(random, data), written)


def _headers(target: str, path: str) -> Headers:
    return (*_COMMON, (":authority", target), (":path", path), _TYPE, _TE)


def run(client: Http2Client, target: str, call: Call) -> tuple[Answer, list[bytes | None]]:
    """Make a call; return its end, and of a Pipeline the responses to its steps, of a Watch what it tells."""
    headers = (*_headers(target, call.path), *call.headers)
    if call.path == WATCH:
        return watched(client, target, headers, call)
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


def watched(client: Http2Client, target: str, headers: Headers, call: Call) -> tuple[Answer, list[bytes | None]]:
    """Watch until all is told that is written meanwhile; return the end without its messages, and what was told.

    No two servers have positions in common. Each tells together what comes in one millisecond, so of each key only the
    last effect counts.
    """
    stream = client.begin(headers)
    client.send_all(stream, call.frames)
    if client.message(stream, 0) is None or _asks_for_position(call):
        answer = client.answer(stream)
        trailers = tuple((name, _POSITION.sub("POSITION", text)) for name, text in answer.trailers or answer.headers)
        return answer._replace(trailers=trailers, data=b""), []
    written = [client.call(_headers(target, BATCH), [framed(step)]) for step in call.steps]
    position_only = kv_pb2.WatchRequest(only_position=True).SerializeToString()
    asked = client.call(_headers(target, WATCH), [framed(position_only)])
    newest = Position.parse(kv_pb2.WatchResponse.FromString(asked.data[5:]).position) if asked.data else None
    told: dict[tuple[str, bytes], str] = {}
    number = 0
    while newest and (message := client.message(stream, number)) is not None:
        arrival = decode_response(kv_pb2.WatchResponse.FromString(message[5:]))
        for entry in arrival.entries:
            columns = entry.kinds.tolist(), entry.value_list(), entry.versions.tolist(), entry.expiries.tolist()
            rows = zip_longest(*columns)
            told |= {(entry.name, key): str(row) for key, row in zip(entry.key_list(), rows, strict=True)}
        if arrival.position.reaches(newest):
            break
        number += 1
    client.reset(stream)
    left = client.so_far(stream)
    responses = [answer.data for answer in written]
    return left._replace(trailers=(), data=b"", reset=None), [*responses, repr(sorted(told.items())).encode()]


def _asks_for_position(call: Call) -> bool:
    """Whether a watch ends by itself."""
    try:
        return kv_pb2.WatchRequest.FromString(b"".join(call.frames)[5:]).only_position
    except DecodeError:
        return False


def is_framed(data: bytes) -> bool:
    """Whether bytes are whole messages, not compressed. What gRPC's own server says of others depends on its timing."""
    while data:
        length = int.from_bytes(data[1:5], "big")
        if len(data) < 5 + length or data[0]:
            return False
        data = data[5 + length :]
    return True


def told(answer: Answer) -> dict[str, object]:
    """Return of an answer what a client of gRPC can tell."""
    blocks = dict(answer.headers), dict(answer.trailers)
    ends = {**blocks[0], **blocks[1]}
    shown = ("grpc-status", "grpc-message", "gpkvs-", "x-")
    ends.pop(REQUEST_ID_KEY, None)  # no other call has that
    names = sorted(name for name, text in ends.items() if name.startswith(shown) and text)  # no message is an empty one
    return {
        "http": blocks[0].get(":status"),
        "type": blocks[0].get("content-type"),
        "end": {name: ends[name] for name in names},
        "data": answer.data,
        "reset": answer.reset or None,  # 0 only says that the rest of the request is not needed
        "closed": answer.is_closed,
    }


def contents(server: Server) -> dict[str, list[tuple[bytes, bytes, int, int]]]:
    """Return all that a server's store holds: keys, values, versions and expiries."""
    found = {}
    with Client(server.target) as client:
        for table in ("default", "numbers", "rows"):
            pieces = list(client.scan_pieces(table=table))
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


class _Door:
    """One of the two servers."""

    def __init__(self, name: str, folder: Path, options: Sequence[str]) -> None:
        folder.mkdir()
        self.name, self.data = name, folder / "store"
        self.server = Server(self.data, folder, "--door", name, *options)
        with Client(self.server.target) as client:
            client.create_table("numbers", layout="u64")
            client.create_table("rows", layout="int32[2]")
        self._client = Http2Client(self.server.target)

    def run(self, call: Call) -> tuple[dict[str, object], list[bytes | None]]:
        """Make a call, on a new connection if the last one is gone."""
        if self._client.is_closed:
            self._client = Http2Client(self.server.target)
        answer, responses = run(self._client, self.server.target, call)
        if not is_framed(b"".join(call.frames)):
            return {}, []
        return told(answer), responses

    def stop(self) -> None:
        """Stop in order; the store is clean."""
        self._client.__exit__()
        self.server.stop()
        assert_clean(self.data)


def one_round(seed: int, calls: int, doors: Sequence[str], options: Sequence[str]) -> list[str]:
    """Make calls; return where the doors differ."""
    random, differences = Random(seed), []
    with tempfile.TemporaryDirectory(prefix="gpkvs-doors-") as folder:
        left, right = (_Door(name, Path(folder) / f"{number}", options) for number, name in enumerate(doors))
        try:
            for number in range(calls):
                call = call_of(random)
                answers = left.run(call), right.run(call)
                if answers[0] != answers[1]:
                    differences.append(
                        f"seed {seed}, call {number}: {call}\n  {left.name}: {answers[0]}\n  {right.name}: {answers[1]}"
                    )
            if contents(left.server) != contents(right.server):
                differences.append(f"seed {seed}: the stores differ after {calls} calls")
            left.stop()
            right.stop()
        finally:
            left.server.kill()
            right.server.kill()
    return differences


def main() -> None:
    """Compare until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--calls", type=int, default=CALLS_A_ROUND, help="of a round")
    parser.add_argument("--doors", nargs=2, default=("grpcio", "native"))
    given = parser.parse_args()
    print(f"seed {given.seed}")
    give_up, rounds = time.monotonic() + given.seconds, 0
    while time.monotonic() < give_up:
        differences = one_round(given.seed + rounds, given.calls, given.doors, ())
        rounds += 1
        if differences:
            sys.exit("\n".join(differences[:20]) + f"\n{len(differences)} differences")
    print(f"{rounds} rounds of {given.calls} calls: the doors answer the same")


if __name__ == "__main__":
    main()
