"""Python objects as values, through both clients and a real server."""

from __future__ import annotations

import math
import re
from array import array
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgpack
import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpkvs
from gpkvs.client import AsyncClient, AsyncObjects, Client, ConditionFailedError, InvalidArgumentError, Objects
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


BERLIN = ZoneInfo("Europe/Berlin")
KEYS: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(st.characters())  # with surrogates
    | st.binary()
    | st.datetimes(timezones=st.sampled_from([None, UTC, BERLIN])),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=2),
    max_leaves=4,
)
ANYTHING: Any = st.recursive(
    KEYS | st.binary().map(bytearray),
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=12,
)


def read_form(value: Any) -> Any:
    """Return what stands for an object where it was read: equal if and only if the objects are the same."""
    if isinstance(value, dict):
        return {key: read_form(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [read_form(item) for item in value]
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value.hex()
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return bytes(value) if isinstance(value, bytearray) else value


# A busy machine takes long to make an object.
UNTIMED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@UNTIMED
@given(PLAIN)
def test_what_is_packed_comes_back(value: object) -> None:
    assert unpack(pack(value)) == value


@UNTIMED
@given(ANYTHING)
def test_what_cannot_come_back_is_refused(value: object) -> None:
    with suppress(InvalidArgumentError):
        packed = pack(value)
        assert read_form(unpack(packed)) == read_form(value)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ((1, (2,)), [1, [2]]),
        (OrderedDict(a=bytearray(b"x")), {"a": b"x"}),
        ({"t": datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN)}, {"t": datetime(2026, 10, 25, 1, 30, tzinfo=UTC)}),
        ({None: 1, 1: 2, "1": 3, b"1": 4, 1.5: 5}, {None: 1, 1: 2, "1": 3, b"1": 4, 1.5: 5}),
        (msgpack.ExtType(5, b"x"), msgpack.ExtType(5, b"x")),
    ],
)
def test_what_comes_back(value: object, found: object) -> None:
    assert unpack(pack(value)) == found


def nested(levels: int, make: Callable[[Any], Any] = lambda inner: [inner]) -> Any:
    value: Any = []
    for _ in range(levels):
        value = make(value)
    return value


def test_how_deep_an_object_may_be() -> None:
    assert unpack(pack(nested(400))) == nested(400)
    itself: list[Any] = []
    itself.append(itself)
    for value in (itself, nested(5000), nested(5000, lambda inner: (inner,)), nested(5000, lambda inner: {1: inner})):
        with pytest.raises(InvalidArgumentError, match="nested too deeply, or holds itself"):
            pack(value)


REFUSED: dict[str, Any] = {
    "can not serialize 'object' object": object(),
    "Integer value out of range": 2**64,
    "[1]: can not serialize 'set' object": [0, {1, 2}],
    "['a']['b'][0]: 'utf-8' codec": {"a": {"b": ["\udc80"]}},
    "[(1, 2)]: a tuple as a key would come back as [1, 2]": {(1, 2): 3},
    "['a'][1][((1,),)]: a tuple as a key would come back as [[1]]": {"a": [0, {((1,),): 1}]},
    "['k'][nan]: a float as a key would come back as nan": {"k": {math.nan: 1}},
    "['t']: a Timestamp would come back as datetime": {"t": msgpack.Timestamp(1, 5)},
    "['t']: days=": {"t": msgpack.Timestamp(2**60)},  # too late for a time of Python
    "['t']: can not serialize 'datetime.datetime' object where tzinfo=None": {"t": datetime(2026, 1, 1)},
    "as a key would come back as datetime": {datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN): 1},
    "a memoryview would come back as b'": memoryview(array("i", [1])),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_msgpack_cannot_hold_is_refused_with_its_place(reason: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^value: msgpack cannot hold it: .*{re.escape(reason)}"):
        pack(REFUSED[reason])


@pytest.mark.parametrize("packed", [b"\xc1", b"", b"\x81\x91\x01\x02", b"\xc7\x0c\xff" + bytes(4) + b"\x7f" * 8])
def test_what_python_has_no_object_for_is_told_so(packed: bytes) -> None:
    """No msgpack, nothing, a map with a list as its key, a time that is too late: of clients in other languages."""
    with pytest.raises(InvalidArgumentError, match="the stored value is no msgpack that Python can read"):
        unpack(packed)


def test_options_are_those_of_the_client(server: Server) -> None:
    with Client(server.target) as client:
        client.create_table("other", index_bytes=1 << 16, exist_ok=True)
        for keys, objects in ((client, Objects(client)), (client.table("other"), Objects(client.table("other")))):
            version = objects.set(b"o", {"n": 1}, ttl=100, if_absent=True)
            assert 90 < (keys.ttl(b"o") or 0) <= 100
            with pytest.raises(ConditionFailedError):
                objects.set(b"o", {"n": 2}, if_absent=True)
            assert objects.get_with_version(b"o") == ({"n": 1}, version)
            version = objects.set(b"o", {"n": 2}, if_version=version)
            objects.set(b"o", {"n": 3}, if_present=True, timeout=30)
            assert keys.ttl(b"o") == math.inf
            with pytest.raises(ConditionFailedError):
                objects.set(b"o", {"n": 4}, if_version=version)
            with pytest.raises(ConditionFailedError):
                objects.delete(b"o", if_version=version)
            assert objects.get(b"o", timeout=30) == {"n": 3}
            assert objects.get_with_version(b"none") is None
        objects = Objects(client)
        objects.set(b"t", [1], table="other")
        assert objects.get(b"t") is None
        assert objects.get(b"t", table="other") == [1]
        assert objects.delete(b"t", table="other")


def test_a_store_of_this_process(store: gpkvs.Store) -> None:
    objects = Objects(store)
    objects.set(b"o", (1, 2), ttl=100)
    assert objects.get(b"o") == [1, 2]


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
            version = await objects.set(b"o", {"n": 1}, ttl=100, if_absent=True)
            assert 90 < (await client.ttl(b"o") or 0) <= 100
            assert await objects.get_with_version(b"o") == ({"n": 1}, version)
            with pytest.raises(ConditionFailedError):
                await objects.set(b"o", 2, if_version=version + 1)
            with pytest.raises(ConditionFailedError):
                await objects.set(b"none", 2, if_present=True)
            with pytest.raises(InvalidArgumentError, match="a tuple as a key"):
                await objects.set(b"o", {(1, 2): 3})
            assert await objects.delete(b"o", if_version=version)
            assert await objects.get_with_version(b"o") is None

    uvloop.run(main())
