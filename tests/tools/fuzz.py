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
from itertools import pairwise
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st

import gpkvs
from gpkvs.batch import RETURNS_VALUE, Batch, Op
from gpkvs.errors import ConflictError, InvalidArgumentError, NoSpaceError
from gpkvs.proto.v1 import kv_pb2
from gpkvs.recovery.startup.check import check
from gpkvs.server.calls import codec
from gpkvs.store import OpenTable
from tests.door.probes import BATCH, parse
from tests.server.wire import columns_of

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


def checked(data: bytes, store: gpkvs.Store) -> tuple[kv_pb2.BatchRequest, OpenTable] | None:
    """Take a message as the server's handlers do; None if they refuse it. What they take, the door takes too."""
    try:
        message = kv_pb2.BatchRequest.FromString(data)
    except DecodeError:
        return None
    try:
        table = codec.table_of(message, store)
        if message.request_ops:
            codec.check_requests(message, MESSAGE_BYTES_MAX)
        codec.check(message, table.limits, lambda: store.now_ms)
    except REFUSALS:
        return None
    if not is_left_to_the_engine(message, table):
        assert parse(BATCH, message.SerializeToString(), table.limits, table.layout), message
    return message, table


def is_left_to_the_engine(message: kv_pb2.BatchRequest, table: OpenTable) -> bool:
    """Whether a table has no such operation; the store refuses it."""
    has_records = table.layout != "u64"
    of_records = {Op.APPEND, Op.EXPIRE, Op.EXPIRY, Op.ADD}.intersection(message.ops)
    return not has_records and bool(of_records or message.expiries)


def execute(batch: Batch, store: gpkvs.Store) -> int:
    """Run what messages ask for, and check the shape of every result; return how many requests were executed."""
    result = store.execute_requests(batch)
    assert result.requests == len(batch.request_ops)
    assert all(isinstance(error, REFUSALS) for error in result.rejected.values()), result.rejected
    ends = batch.request_ops.cumsum()
    for number in sorted(set(range(result.requests)) - set(result.rejected)):
        ops = batch.ops[ends[number] - batch.request_ops[number] : ends[number]]
        own = result.request(number)
        assert len(own.status) == len(ops)
        assert set(own.status.tolist()) <= {0, 1, 3, 4, 5}
        assert len(own.value_lengths) == np.count_nonzero(RETURNS_VALUE[ops])
        assert own.value_lengths.sum() == len(own.values)
    return result.requests - len(result.rejected)


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
            taken = [request for data in messages if (request := checked(data, store))]
            for table in {table.id for _, table in taken}:  # a batch is of one table, as the server's are
                parts = [columns_of(message, table) for message, of in taken if of.id == table]
                executed += execute(Batch.concatenate(parts).on_table(table), store)

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
