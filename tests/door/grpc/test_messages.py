"""The native door reads and writes messages as Python's protobuf does."""

from __future__ import annotations

import random
import struct
from itertools import pairwise

import numpy as np
import pytest
from google.protobuf.message import DecodeError, Message

from gpkvs.batch import HAS_VALUE, RETURNS_VALUE, Op
from gpkvs.config import Limits
from gpkvs.errors import ConflictError, GpkvsError
from gpkvs.proto.v1 import kv_pb2
from gpkvs.server.calls import codec
from gpkvs.server.calls.options import options_of
from gpkvs.server.calls.wire import require_message
from tests.door.probes import (
    BATCH,
    DELETE,
    GET,
    INCREMENT,
    METHODS,
    MULTI_GET,
    SET,
    Parsed,
    failed_response,
    parse,
    response,
)
from tests.server.wire import TTL_MS_MAX, u32, u64

BYTES = Limits(key_bytes_max=9, value_bytes_max=12, request_ops_max=5)
NUMBERS = Limits(8, 8, 8, 8, request_ops_max=5)
ROWS = Limits(8, 8, 12, 12, request_ops_max=5)
LAYOUTS = {BYTES: "bytes", NUMBERS: "u64", ROWS: "float32[3]"}
REQUESTS = {
    GET: kv_pb2.GetRequest,
    SET: kv_pb2.SetRequest,
    DELETE: kv_pb2.DeleteRequest,
    INCREMENT: kv_pb2.IncrementRequest,
    MULTI_GET: kv_pb2.MultiGetRequest,
    BATCH: kv_pb2.BatchRequest,
}
OPS = {GET: Op.GET, SET: Op.SET, DELETE: Op.DELETE, INCREMENT: Op.INCREMENT}


def oracle(method: int, data: bytes, limits: Limits) -> Parsed | None:
    """Return what Python's server makes of a message; None if it refuses it, or if it is not plain."""
    try:
        message = REQUESTS[method].FromString(require_message(data))
        gives_ttls = any(getattr(message, name, None) for name in ("ttl_ms", "ttls"))
        request = decoded(method, message, limits)
    except (DecodeError, GpkvsError):
        return None
    ops = np.frombuffer(request.ops, np.uint8)
    needs_record = {Op.APPEND, Op.EXPIRE, Op.EXPIRY, Op.ADD}.intersection(request.ops)
    if limits is ROWS and Op.INCREMENT in request.ops:  # of another length; Python leaves that to the engine
        return None
    if (needs_record and limits is NUMBERS) or not message.table.isascii():
        return None
    expiries = request.expiries
    if expiries and (limits is NUMBERS or (gives_ttls and max(times_of(expiries)) > TTL_MS_MAX)):
        return None
    return Parsed(
        message.id if method == BATCH else 0,
        len(ops),
        int(np.count_nonzero(RETURNS_VALUE[ops])),
        int(np.count_nonzero(HAS_VALUE[ops])),
        request.key_size,
        request.value_size,
        message.table.encode(),
        request.ops,
        request.keys,
        request.key_lengths,
        request.values,
        request.value_lengths,
        request.request_ops,
        b"" if gives_ttls else expiries,
        expiries if gives_ttls else b"",
        request.conditions,
        request.expected if request.conditions else b"",
    )


def times_of(column: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(column) // 8}Q", column)


def decoded(method: int, message: Message, limits: Limits) -> kv_pb2.BatchRequest:
    """Check a message as `gpkvs.server.calls.service` does."""
    if isinstance(message, kv_pb2.BatchRequest):
        if message.numbers and limits is not NUMBERS:
            raise GpkvsError("the table's layout is not u64")
        if message.layout not in ("", LAYOUTS[limits]):
            raise GpkvsError("the table's layout is another one")
        if message.request_ops:
            codec.check_requests(message, 1 << 20)
        codec.check(message, limits, lambda: 0)
        return message
    if isinstance(message, kv_pb2.MultiGetRequest):
        keys = list(message.keys)
        lengths = u32(*map(len, keys))
        gets = kv_pb2.BatchRequest(ops=bytes([Op.GET]) * len(keys), keys=b"".join(keys), key_lengths=lengths)
        codec.check(gets, limits, lambda: 0)
        return gets
    names = ("condition", "expected", "expiry_ms", "ttl_ms")
    asked = {name: getattr(message, name) for name in names if hasattr(message, name)}
    value = message.value if isinstance(message, kv_pb2.SetRequest) else b""
    if isinstance(message, kv_pb2.IncrementRequest):
        value = message.delta.to_bytes(8, "little", signed=True)
    return codec.single(OPS[method], message.key, value, limits, options=options_of(lambda: 0, **asked))


# Of each method the fields of messages, by wire type: names and columns, then numbers.
STRINGS = {
    GET: (1, 2),
    SET: (1, 2, 3),
    DELETE: (1, 2),
    INCREMENT: (1, 2),
    MULTI_GET: (1, 2),
    BATCH: (1, 2, 3, 4, 6, 7, 10, 11, 12, 13, 14, 16),
}
VARINTS = {GET: (), SET: (4, 5, 6, 7), DELETE: (3, 4), INCREMENT: (3, 4), MULTI_GET: (), BATCH: (9, 15)}
VARINT, FIXED64, STRING, BEGIN, END, FIXED32 = range(6)


def varint(number: int, padding: int = 0) -> bytes:
    """Encode a number; with padding, in more bytes than it needs."""
    encoded = bytearray()
    while number >= 0x80 or padding:
        encoded.append(number & 0x7F | 0x80)
        padding -= number < 0x80
        number >>= 7
    return bytes([*encoded, number])


def tag(number: int, kind: int, rng: random.Random) -> bytes:
    size = 1 if number < 16 else 2
    return varint(number << 3 | kind, rng.randrange(6 - size) if rng.random() < 0.05 else 0)


def field(number: int, value: bytes | int, rng: random.Random) -> bytes:
    """Encode a field: bytes, or a varint."""
    padding = rng.randrange(4) if rng.random() < 0.05 else 0
    if isinstance(value, int):
        return tag(number, VARINT, rng) + varint(value, padding)
    return tag(number, STRING, rng) + varint(len(value), padding) + value


def foreign_field(known: tuple[int, ...], rng: random.Random, depth: int = 0) -> bytes:
    """Encode a field that the message does not have: of a strange number, or of a strange type."""
    number, kind = rng.choice((16, 17, 2047, 19_500)), rng.choice((VARINT, FIXED64, STRING, BEGIN, FIXED32))
    if known and rng.random() < 0.5:
        number, kind = rng.choice(known), rng.choice((FIXED64, BEGIN))
    head = tag(number, kind, rng)
    if kind == VARINT:
        return head + varint(rng.getrandbits(rng.randrange(65)))
    if kind == STRING:
        return head + varint(5) + rng.randbytes(5)
    if kind == BEGIN:
        inside = b"".join(foreign_field((), rng, depth + 1) for _ in range(rng.randrange(3 - min(depth, 2))))
        return head + inside + tag(number, END, rng)
    return head + rng.randbytes(8 if kind == FIXED64 else 4)


TIMES = (0, 1, TTL_MS_MAX, TTL_MS_MAX + 1, 2**64 - 1)


def times(count: int, rng: random.Random) -> bytes:
    """Encode expiries or times to live; now and then nothing but zeros, or wrongly."""
    largest = rng.randrange(1, len(TIMES) + 1)
    return u64(*rng.choices(TIMES[:largest], k=count)) + bytes(rng.random() < 0.05)


def request_ops(count: int, rng: random.Random) -> bytes:
    """Share operations out to requests; now and then wrongly."""
    ends = sorted(rng.sample(range(1, count), rng.randrange(count)))
    counts = [end - begin for begin, end in pairwise((0, *ends, count))]
    if rng.random() < 0.1:
        counts[rng.randrange(len(counts))] += rng.choice((1, -1, 2**32 - 1 - count))
        counts.insert(rng.randrange(len(counts)), rng.choice((0, 1)))
    return u32(*counts) + bytes(rng.random() < 0.05)


def columns(limits: Limits, rng: random.Random) -> list[bytes]:
    """Encode the columns of some operations."""
    count = rng.randrange(1, limits.request_ops_max + 1)
    is_several = rng.random() < 0.3
    kinds = (2, 3, 4) if is_several and rng.random() < 0.9 else (1, 2, 3, 4)
    if rng.random() < 0.5:
        kinds += (5, 6, 7, 8, 9, 10) if limits is not NUMBERS or rng.random() < 0.1 else (5, 7)
        kinds += (0, 11) if rng.random() < 0.05 else ()
    ops = bytes(rng.choices(kinds, k=count))
    fields = [field(2, ops, rng), *conditions(ops, limits, rng)]
    if is_several:
        fields += [field(14, request_ops(count, rng), rng)]
    if rng.random() < 0.3:
        fields += [field(rng.choice((12, 13)), times(count, rng), rng)]
    with_value = [op for op in ops if op in (Op.SET, Op.INCREMENT, Op.APPEND, Op.ADD)]
    for name, of, low, high in (
        (3, count, limits.key_bytes_min, limits.key_bytes_max),
        (6, len(with_value), limits.value_bytes_min, limits.value_bytes_max),
    ):
        is_one = rng.random() < 0.4
        lengths = [rng.randint(low, high)] * of if is_one else [rng.randint(low, high) for _ in range(of)]
        if name == 6 and Op.INCREMENT in ops and rng.random() < 0.8:
            is_one = rng.random() < 0.2
            lengths = [
                8 if is_one or op == Op.INCREMENT else length for op, length in zip(with_value, lengths, strict=True)
            ]
        fields.append(field(name, rng.randbytes(sum(lengths)), rng))
        if is_one and of:
            fields.append(tag(name + 2, FIXED32, rng) + u32(lengths[0]))
        else:
            fields.append(field(name + 1, u32(*lengths), rng))
    return fields


def conditions(ops: bytes, limits: Limits, rng: random.Random) -> list[bytes]:
    """Encode conditions of some operations, or none; now and then wrongly."""
    if rng.random() > 0.3 and not (Op.CHECK in ops and rng.random() < 0.9):
        return []
    known = (0, 1, 2, 3) if rng.random() < 0.95 else (0, 4, 255)
    reads = (Op.GET, Op.EXISTS, Op.EXPIRY)

    def one(op: int) -> int:
        if rng.random() < 0.98 and (op in reads or op == Op.CHECK):
            return 0 if op in reads else rng.randint(1, 3)
        return rng.choice(known)

    column = bytes(map(one, ops))
    fields = [field(10, column + bytes(rng.random() < 0.03), rng)]
    if 3 in column or rng.random() < 0.2:
        fields += [field(11, rng.randbytes(8 * len(ops)) + bytes(rng.random() < 0.03), rng)] * (rng.random() < 0.97)
    return fields


def well_formed(method: int, limits: Limits, rng: random.Random) -> bytes:
    """Return a message that any protobuf library may read; as a rule it is plain."""
    fields = []
    if method == BATCH:
        fields += columns(limits, rng)
        fields += [field(9, rng.getrandbits(rng.choice((1, 7, 32, 64))), rng)]
        if rng.random() < (0.3 if limits is NUMBERS else 0.05):
            fields += [field(15, rng.choice((0, 1)), rng)]
        if rng.random() < 0.2:
            fields += [field(16, rng.choice((LAYOUTS[limits], LAYOUTS[limits], "bytes", "float32")).encode(), rng)]
    else:
        fields += [field(2, rng.randbytes(rng.randint(limits.key_bytes_min, limits.key_bytes_max)), rng)]
        if method == MULTI_GET:
            more = range(rng.randrange(limits.request_ops_max))
            sizes = [rng.randint(limits.key_bytes_min, limits.key_bytes_max) for _ in more]
            fields += [field(2, rng.randbytes(size), rng) for size in sizes]
        elif method == INCREMENT:
            fields += [field(3, rng.getrandbits(rng.choice((0, 1, 7, 63, 64))), rng)]
            if rng.random() < 0.3:
                fields += [field(4, rng.choice(TIMES), rng)]
        elif method != GET and rng.random() < 0.3:
            condition, expected = (4, 5) if method == SET else (3, 4)
            fields += [field(condition, rng.choice((0, 1, 2, 3, 3, 4)), rng), field(expected, rng.getrandbits(64), rng)]
        if method == SET:
            fields += [field(3, rng.randbytes(rng.randint(limits.value_bytes_min, limits.value_bytes_max)), rng)]
            if rng.random() < 0.3:
                fields += [field(rng.choice((6, 7)), rng.choice(TIMES), rng)]
    if rng.random() < 0.5:
        fields += [field(1, rng.choice((b"", b"default", b"no.such")), rng)]
    rng.shuffle(fields)
    strings, varints = STRINGS[method], VARINTS[method]
    if rng.random() < 0.3:  # what comes later wins
        fields.insert(0, field(rng.choice(strings), rng.choice((b"", b"earlier")), rng))
    if rng.random() < 0.1:  # or spoils it
        fields.append(field(rng.choice(strings), rng.randbytes(rng.randrange(20)) if method == BATCH else b"", rng))
    if varints and rng.random() < 0.1:
        fields.append(field(rng.choice(varints), rng.choice((0, 0, 1, 2**31, *TIMES)), rng))
    for _ in range(rng.choice((0, 0, 1, 2))):
        fields.insert(rng.randint(0, len(fields)), foreign_field(strings + varints, rng))
    return b"".join(fields)


def damaged(message: bytes, rng: random.Random) -> bytes:
    """Change some bytes of a message: few of them mean the same then."""
    changed = bytearray(message)
    for _ in range(rng.randint(1, 3)):
        at = rng.randint(0, len(changed))
        match rng.randrange(4):
            case 0:
                del changed[at : at + rng.randint(1, 3)]
            case 1:
                changed[at:at] = rng.randbytes(rng.randint(1, 3))
            case 2:
                changed[at : at + 1] = rng.choice((b"\x00", b"\x7f", b"\x80", b"\xff", b"\x78", b"\x0b", b"\x0c"))
            case 3:
                del changed[at:]
    return bytes(changed)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("limits", LAYOUTS, ids=LAYOUTS.values())
def test_what_is_plain_is_read_as_python_reads_it(method: int, limits: Limits) -> None:
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    rng, plain = random.Random(seed), 0
    for _ in range(800):
        message = well_formed(method, limits, rng)
        expected = oracle(method, message, limits)
        assert parse(method, message, limits, LAYOUTS[limits]) == expected, message.hex()
        plain += expected is not None
    assert (plain > 200) == (limits is not ROWS or method != INCREMENT)


@pytest.mark.parametrize("method", METHODS)
def test_damaged_messages_are_left_to_python_unless_it_reads_the_same(method: int) -> None:
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    rng, plain = random.Random(seed), 0
    for _ in range(1500):
        message = damaged(well_formed(method, BYTES, rng), rng)
        found = parse(method, message, BYTES, "bytes")
        plain += found is not None
        assert found is None or found == oracle(method, message, BYTES), message.hex()
    assert plain > 10


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"\x12\x01k\x0b\x14", id="the end of another group"),
        pytest.param(b"\x12\x81\x80\x80\x80\x10k", id="a length of more than 32 bits"),
        pytest.param(b"\x92\x80\x80\x80\x80\x01\x01k", id="a tag of more than 32 bits"),
        pytest.param(b"\x12\x01k\x0c", id="the end of no group"),
        pytest.param(b"\x12\x01k\x0b", id="a group without an end"),
        pytest.param(b"\x0a\x02\xc3\x28\x12\x01k\x0a\x00", id="a name that is no UTF-8, and then one that is"),
        pytest.param(b"\x12\x01k\x02\x00", id="field 0"),
        pytest.param(b"\x12\x01k\x16", id="an unknown type"),
        pytest.param(b"\x12\x01k\x80" + b"\x80" * 10 + b"\x01", id="a tag without an end"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_messages_that_python_refuses_are_left_to_it(message: bytes) -> None:
    assert parse(GET, b"\x12\x01k", BYTES, "bytes") is not None
    assert oracle(GET, message, BYTES) is None
    assert parse(GET, message, BYTES, "bytes") is None


# Of each kind one number that protobuf leaves out, small ones, and the largest.
NUMBERS_TO_SEND = (0, 1, 127, 128, 2**32, 2**64 - 1)


@pytest.mark.parametrize("version", NUMBERS_TO_SEND)
@pytest.mark.parametrize("status", [0, 1])
def test_responses_to_single_operations_are_pythons_bytes(version: int, status: int) -> None:
    found, versions = status == 0, u64(version)
    for value in (b"", b"v", bytes(127), bytes(100_000)):
        expected = kv_pb2.GetResponse(found=found, value=value, version=version).SerializeToString()
        assert response(GET, 0, bytes([status]), versions, u32(len(value)), value) == expected
    status_name = kv_pb2.Status.ValueType(status)
    stored = kv_pb2.SetResponse(version=version, status=status_name)
    assert response(SET, 0, bytes([status]), versions) == stored.SerializeToString()
    deleted = kv_pb2.DeleteResponse(found=found, version=version, status=status_name).SerializeToString()
    assert response(DELETE, 0, bytes([status]), versions) == deleted


@pytest.mark.parametrize("version", NUMBERS_TO_SEND)
@pytest.mark.parametrize("number", [0, 1, -1, 63, 64, -64, -65, 2**63 - 1, -(2**63)])
def test_responses_to_increments_are_pythons_bytes(version: int, number: int) -> None:
    expected = kv_pb2.IncrementResponse(number=number, version=version).SerializeToString()
    sum_bytes = number.to_bytes(8, "little", signed=True)
    assert response(INCREMENT, 0, bytes(1), u64(version), u32(8), sum_bytes) == expected


@pytest.mark.parametrize("has_versions", [True, False])
@pytest.mark.parametrize("lengths", [(), (0,), (3, None, 200), (70_000, 1, None)], ids=str)
def test_responses_to_many_keys_are_pythons_bytes(has_versions: bool, lengths: tuple[int | None, ...]) -> None:
    versions = [1 << 7 * at if has_versions and length is not None else 0 for at, length in enumerate(lengths)]
    values = [random.Random(1).randbytes(length or 0) for length in lengths]
    expected = kv_pb2.MultiGetResponse(
        results=[
            kv_pb2.GetResponse(found=length is not None, value=value, version=version)
            for length, value, version in zip(lengths, values, versions, strict=True)
        ]
    )
    status = bytes(length is None for length in lengths)
    own = u64(*versions) if has_versions else b""
    found = response(MULTI_GET, 0, status, own, u32(*map(len, values)), b"".join(values))
    assert found == expected.SerializeToString()


@pytest.mark.parametrize("request_id", NUMBERS_TO_SEND)
@pytest.mark.parametrize("has_versions", [True, False])
@pytest.mark.parametrize("lengths", [(), (0,), (3, 0, 200), (70_000, 1)])
def test_responses_to_batches_are_pythons_bytes(request_id: int, has_versions: bool, lengths: tuple[int, ...]) -> None:
    values = random.Random(1).randbytes(sum(lengths))
    status = bytes(len(lengths) + 2)
    versions = u64(*range(len(status))) if has_versions else b""
    expected = kv_pb2.BatchResponse(
        id=request_id, status=status, versions=versions, value_lengths=u32(*lengths), values=values
    )
    assert response(BATCH, request_id, status, versions, u32(*lengths), values) == expected.SerializeToString()


@pytest.mark.parametrize("request_id", NUMBERS_TO_SEND)
@pytest.mark.parametrize(("text", "full"), [("", ""), ("the heap is full: \u2014", "heap"), ("x" * 3000, "")])
def test_failures_in_a_stream_are_pythons_bytes(request_id: int, text: str, full: str) -> None:
    expected = kv_pb2.BatchResponse(id=request_id, code=8, message=text, full=full)
    assert failed_response(request_id, 8, text, full) == expected.SerializeToString()


@pytest.mark.parametrize("found", [None, 0, 1, 2**64 - 1])
@pytest.mark.parametrize("index", [0, 1, 2**32 - 1])
def test_a_conflict_in_a_stream_is_pythons_bytes(index: int, found: int | None) -> None:
    expected = kv_pb2.BatchResponse(id=7, code=10, message="stopped", failed_check=index, found=found)
    assert failed_response(7, 10, "stopped", "", ConflictError(index, found)) == expected.SerializeToString()
