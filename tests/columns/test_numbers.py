"""Columns of numbers as requests, and results as arrays."""

from __future__ import annotations

import numpy as np
import pytest

from gpkvs.batch import Op, RequestResult, Status
from gpkvs.client.codec import encode
from gpkvs.columns.numbers import check_values, deletes_of, found_of, gets_of, sets_of, values_of
from gpkvs.config import Limits
from gpkvs.errors import InvalidArgumentError

KEYS = np.array([1, 2**64 - 1], np.uint64)


def result_of(status: list[Status], values: bytes, lengths: list[int]) -> RequestResult:
    return RequestResult(
        np.array(status, np.uint8),
        np.zeros(len(status), np.uint64),
        np.array(lengths, np.uint32),
        np.frombuffer(values, np.uint8),
    )


def test_requests_share_the_callers_memory_and_travel_without_lengths() -> None:
    values = KEYS + np.uint64(1)
    for batch, op in ((sets_of(KEYS, values), Op.SET), (gets_of(KEYS), Op.GET), (deletes_of(KEYS), Op.DELETE)):
        batch.validate(Limits())
        assert np.shares_memory(batch.keys, KEYS)
        message = encode(batch, "n")
        assert message.ops == bytes([op, op])
        assert (message.keys, message.key_size, message.key_lengths) == (
            bytes.fromhex("01" + "00" * 7 + "ff" * 8),
            8,
            b"",
        )
        assert message.value_lengths == b""
    assert np.shares_memory(sets_of(KEYS, values).values, values)


def test_results() -> None:
    ok, miss, eight = Status.OK, Status.NOT_FOUND, bytes(range(8))
    result = result_of([ok, ok], eight * 2, [8, 8])
    values, found = values_of(result, found_of(result))
    assert values.tolist() == [int.from_bytes(eight, "little")] * 2
    assert found.all()
    result = result_of([miss, ok], eight, [0, 8])
    values, found = values_of(result, found_of(result))
    assert (values.tolist(), found.tolist()) == ([0, int.from_bytes(eight, "little")], [False, True])
    for lengths in ([4, 12], [0, 16], [7, 8]):
        with pytest.raises(InvalidArgumentError, match="not u64"):
            check_values(result_of([ok, ok], bytes(sum(lengths)), lengths))


def test_wrong_arrays_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="2 keys, 1 value"):
        sets_of(KEYS, KEYS[:1])
    with pytest.raises(InvalidArgumentError, match=r"values: .* int64 with 1"):
        sets_of(KEYS, KEYS.astype(np.int64))
    with pytest.raises(InvalidArgumentError, match="contiguous"):
        gets_of(np.zeros(4, np.uint64)[::2])
