"""Python objects as values, through both clients and a real server."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from gpkvs.client import AsyncClient, AsyncObjects, Client, InvalidArgumentError, Objects
from gpkvs.client.objects import pack, unpack
from tests.serving import Server

VALUES: list[Any] = [
    None,
    False,
    -(2**63),
    2**64 - 1,
    0.5,
    "ü",
    b"\x00\xff",
    [1, [2]],
    {"name": "Ada", 1: {}},
    datetime(2026, 11, 21, 12, 30, tzinfo=UTC),
]
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 9), inner),
)


@given(PLAIN)
def test_what_is_packed_comes_back(value: object) -> None:
    assert unpack(pack(value)) == value


@pytest.mark.parametrize("value", [object(), 2**64, {1, 2}, "\udc80"])
def test_what_msgpack_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgumentError, match="value: msgpack cannot hold it"):
        pack(value)


def test_blocking(server: Server) -> None:
    with Client(server.target) as client:
        objects = Objects(client)
        versions = [objects.set(b"%d" % i, value) for i, value in enumerate(VALUES)]
        assert versions == sorted(set(versions))
        assert [objects.get(b"%d" % i) for i in range(len(VALUES))] == VALUES
        assert objects.get(b"none", default="nothing") == "nothing"
        assert objects.get(b"0", default="nothing") is None  # stored, not absent
        assert objects.delete(b"0")
        assert not objects.delete(b"0")
        client.set(b"raw", b"\xc1")  # the one byte that msgpack never uses
        with pytest.raises(InvalidArgumentError, match="the stored value is no msgpack"):
            objects.get(b"raw")


def test_async(server: Server) -> None:
    async def main() -> None:
        async with AsyncClient(server.target) as client:
            objects = AsyncObjects(client)
            for i, value in enumerate(VALUES):
                await objects.set(b"%d" % i, value)
            assert [await objects.get(b"%d" % i) for i in range(len(VALUES))] == VALUES
            assert await objects.delete(b"1")
            assert await objects.get(b"1", default=7) == 7

    uvloop.run(main())
