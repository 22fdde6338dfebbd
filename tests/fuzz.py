"""Fuzzing of what clients send: bytes into messages, messages into columns, columns into a real store.

``make fuzz SECONDS=30 SEED=7``. Whatever arrives is executed and answered, or refused with one of the project's errors;
anything else fails: another exception, an answer that does not fit its request, a store that is not clean afterwards.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st

import gpkvs
from gpkvs.batch import RETURNS_VALUE, Op
from gpkvs.errors import ConflictError, InvalidArgumentError, NoSpaceError
from gpkvs.proto.v1 import kv_pb2
from gpkvs.recovery.startup.check import check
from gpkvs.server import codec
from gpkvs.server.several import decode_several

EXAMPLES_A_ROUND = 300
MESSAGE_BYTES_MAX = 64 << 20
REFUSALS = (InvalidArgumentError, NoSpaceError, ConflictError)

U32 = st.one_of(st.integers(0, 12), st.sampled_from([4096, 4097, 1 << 20, 2**31, 2**32 - 1]))
BYTES = st.one_of(st.binary(max_size=64), st.sampled_from([b"\1" * 8, b"\2" * 8, b"\3" * 8, b"\0" * 8, b"k" * 64]))
OPS = st.lists(st.sampled_from([1, 1, 2, 2, 3, 3, 0, 4, 5, 6, 7, 8, 9, 10, 11, 255]), max_size=12).map(bytes)
LENGTHS = st.lists(U32, max_size=12).map(lambda lengths: b"".join(n.to_bytes(4, "little") for n in lengths))
TABLES = st.sampled_from(["", "", "default", "numbers", "numbers", "rows", "rows", "none", "\0"])
ROWS = "int32[2]"


COLUMNS = (
    "ops",
    "keys",
    "key_lengths",
    "values",
    "value_lengths",
    "conditions",
    "expected",
    "expiries",
    "ttls",
    "request_ops",
)


@st.composite
def cuts(draw: st.DrawFn, operations: int) -> bytes:
    """Return how many operations each request of a message has, as a rule."""
    bounds = sorted({0, operations, *draw(st.lists(st.integers(0, operations), max_size=4))})
    counts = [end - begin for begin, end in pairwise(bounds)]
    if draw(st.integers(0, 5)) == 0:
        counts.append(draw(U32))
    return b"".join(count.to_bytes(4, "little") for count in counts)


@st.composite
def options(draw: st.DrawFn, ops: list[int]) -> dict[str, bytes]:
    """Return what operations ask for beside their keys and values; half of all requests ask for nothing."""
    if not draw(st.booleans()) and Op.CHECK not in ops:
        return {}
    allowed = {Op.GET: [0], Op.EXISTS: [0], Op.EXPIRY: [0], Op.CHECK: [1, 2, 3]}
    columns = {"conditions": bytes(draw(st.sampled_from(allowed.get(Op(op), [0, 1, 2, 3]))) for op in ops)}
    if 3 in columns["conditions"]:
        numbers = st.sampled_from([0, 1, 2, 3, 4, 0x6B6B6B6B6B6B6B6B, 2**64 - 1])
        columns["expected"] = b"".join(draw(numbers).to_bytes(8, "little") for _ in ops)
    if draw(st.booleans()):
        times = st.sampled_from([0, 0, 1, 1000, 2**42, 2**64 - 1])
        columns[draw(st.sampled_from(["expiries", "ttls"]))] = b"".join(draw(times).to_bytes(8, "little") for _ in ops)
    return columns


@st.composite
def near_requests(draw: st.DrawFn) -> bytes:
    """Return the bytes of a request that is right but for what was done to it in the end."""
    size = draw(st.sampled_from([0, 8, 8]))
    kinds = draw(
        st.sampled_from([[1, 2, 3], [1, 2, 3, 4, 5, 6], [1, 2, 3, 5, 7], [1, 2, 3, 7, 8, 10, 10], list(range(1, 11))])
    )
    ops = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=12))
    with_value = [op for op in ops if op in (Op.SET, Op.INCREMENT, Op.APPEND, Op.ADD)]
    key_lengths = [size or draw(st.integers(1, 20)) for _ in ops]
    value_lengths = [8 if op == Op.INCREMENT else size or draw(st.integers(0, 40)) for op in with_value]
    message = kv_pb2.BatchRequest(
        table=draw(TABLES),
        ops=bytes(ops),
        keys=draw(st.binary(min_size=1, max_size=1)) * sum(key_lengths),
        key_lengths=b"" if size else b"".join(n.to_bytes(4, "little") for n in key_lengths),
        key_size=size,
        values=draw(st.binary(min_size=1, max_size=1)) * sum(value_lengths),
        value_lengths=b"" if size else b"".join(n.to_bytes(4, "little") for n in value_lengths),
        value_size=size if with_value else 0,
        id=draw(st.integers(0, 2**64 - 1)),
        **draw(options(ops)),
    )
    if draw(st.integers(0, 3)) == 0:
        message.request_ops = draw(cuts(len(ops)))
    if draw(st.integers(0, 7)) == 0:
        message.layout = draw(st.sampled_from([ROWS, ROWS, "u64", "bytes", "int32[3]"]))
    match draw(st.sampled_from(["nothing", "nothing", "field", "bytes"])):
        case "field":
            name = draw(st.sampled_from(COLUMNS))
            setattr(message, name, draw(BYTES))
        case "bytes":
            return draw(mutations(message.SerializeToString()))
    return bytes(message.SerializeToString())


@st.composite
def mutations(draw: st.DrawFn, data: bytes) -> bytes:
    """Return data with some bytes changed, cut out or put in."""
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        cut = draw(st.integers(0, 3))
        data = data[:at] + draw(st.binary(max_size=3)) + data[at + cut :]
    return data


REQUESTS = st.one_of(
    near_requests(),
    near_requests(),
    st.builds(
        kv_pb2.BatchRequest,
        table=TABLES,
        ops=OPS,
        keys=BYTES,
        key_lengths=st.one_of(LENGTHS, BYTES),
        key_size=U32,
        values=BYTES,
        value_lengths=st.one_of(LENGTHS, BYTES),
        value_size=U32,
        conditions=BYTES,
        expected=BYTES,
        expiries=BYTES,
        ttls=BYTES,
        request_ops=st.one_of(st.just(b""), LENGTHS),
    ).map(lambda message: message.SerializeToString()),
    st.binary(max_size=200),
)


def decoded(data: bytes, store: gpkvs.Store) -> list[codec.Request]:
    """Take the requests of a message as the server does; none if it is refused."""
    try:
        message = kv_pb2.BatchRequest.FromString(data)
    except DecodeError:
        return []
    try:
        table = store.open_table(message.table)
        if message.request_ops:
            size = len(data), MESSAGE_BYTES_MAX
            return [decode_several(message, table.limits, table.id, *size, lambda: store.now_ms)]
        return [codec.decode(message, table.limits, table.id, len(data), lambda: store.now_ms)]
    except REFUSALS:
        return []


def without(request: codec.Request, failed: list[int]) -> codec.Request:
    """Return a request of several without those that failed."""
    counts = np.frombuffer(request.request_ops, "<u4")
    is_done = np.ones(len(counts), np.bool_)
    is_done[failed] = False
    if is_done.all():
        return request
    ops = np.frombuffer(request.ops, np.uint8)[np.repeat(is_done, counts)]
    return replace(request, operations=len(ops), returning=int(np.count_nonzero(RETURNS_VALUE[ops])))


def execute(requests: list[codec.Request], store: gpkvs.Store) -> int:
    """Run requests as one batch, and check the shape of every answer; return how many were executed."""
    executed = 0
    answers = codec.responses_of(store.execute_requests(codec.batch_of(requests)), requests)
    assert len(answers) == len(requests)
    for asked, answer in zip(requests, answers, strict=True):
        if not isinstance(answer, codec.Response):
            assert isinstance(answer, REFUSALS), repr(answer)
            continue
        request = without(asked, [number for number, _ in answer.failures])
        executed += 1
        lengths = [
            int.from_bytes(answer.value_lengths[i : i + 4], "little") for i in range(0, 4 * request.returning, 4)
        ]
        assert len(answer.status) == request.operations
        assert set(answer.status) <= {0, 1, 3, 4, 5}
        assert len(answer.versions) in (0, 8 * request.operations)  # a table may have none
        assert len(answer.value_lengths) == 4 * request.returning
        assert sum(lengths) == len(answer.values)
        kv_pb2.BatchResponse.FromString(codec.encode(7, answer).SerializeToString())
    return executed


def fuzz(seconds: float, seed: int, folder: Path) -> tuple[int, int]:
    """Send messages until the time is over; return how many there were, and how many were executed."""
    path = folder / "store"
    sent = executed = 0
    choose, ends = random.Random(seed), time.monotonic() + seconds
    with gpkvs.open(path, index_bytes=64 << 10, heap_bytes=1 << 20, log_bytes=256 << 10) as store:
        store.create_table("numbers", layout="u64", index_bytes=64 << 10)
        store.create_table("rows", layout=ROWS, index_bytes=64 << 10)

        @settings(
            max_examples=EXAMPLES_A_ROUND,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(st.lists(REQUESTS, min_size=1, max_size=6))
        def send(messages: list[bytes]) -> None:
            nonlocal sent, executed
            sent += len(messages)
            requests = [request for data in messages for request in decoded(data, store)]
            for table in {request.table for request in requests}:  # a batch is of one table, as the server's are
                executed += execute([request for request in requests if request.table == table], store)

        while time.monotonic() < ends:
            hypothesis_seed(choose.getrandbits(32))(send)()
    report = check(path)
    assert report.is_clean, report
    return sent, executed


def main() -> None:
    """Fuzz for some seconds; exit 1 at the first failure, with the smallest messages that cause it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    options = parser.parse_args()
    print(f"fuzzing for {options.seconds:.0f} s; repeat with SEED={options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        sent, executed = fuzz(options.seconds, options.seed, Path(folder))
    print(f"{sent:,} messages, {executed:,} of them executed, the others refused as they should be")
    if not executed:
        sys.exit("no message was executed: the fuzzer itself is broken")


if __name__ == "__main__":
    main()
