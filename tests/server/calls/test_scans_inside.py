"""What a scan does beside batches: it goes in small steps, leaves time between them, and sends several in a piece."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.config import MIB
from gpkvs.engine.seam.traffic import Traffic
from gpkvs.engine.tables import scan as engine_scan
from gpkvs.proto.v1 import kv_pb2
from gpkvs.scan import ScanPiece, join_pieces
from gpkvs.server import threads
from gpkvs.server.access.caller import ANYONE
from gpkvs.server.account.memory import Account
from gpkvs.server.calls.scan import Scans
from gpkvs.server.gate import Gate, Serving
from gpkvs.server.signs.exporter import Metrics
from tests.server.counted import Counted

KEYS = 1000
IN_USE = 50  # keys of a step


class Inside:
    """The scans of a store without a door; a step takes a second of its clock."""

    def __init__(self, store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch, *, is_in_use: bool) -> None:
        self.slept: list[float] = []
        self.steps: list[int] = []
        monkeypatch.setattr(engine_scan, "_KEYS_IN_USE", IN_USE)
        monkeypatch.setattr(Traffic, "is_lately", lambda _: is_in_use)
        clock = count()
        fake = SimpleNamespace(sleep=self.slept.append, thread_time=lambda: next(clock))
        monkeypatch.setattr(threads, "time", fake)
        step = store.scan_step
        monkeypatch.setattr(store, "scan_step", lambda *a, **b: self._counted(step(*a, **b)))
        gate, none = Gate(), None
        queue: Any = none
        gate.open(Serving(store, queue, 64 * MIB))
        self._scans = Scans(gate, Metrics())
        self._account = Account(Counted().connection("ipv4:1.1.1.1:1"))

    def _counted(self, piece: ScanPiece) -> ScanPiece:
        self.steps.append(len(piece))
        return piece

    def scan(self, **asked: Any) -> list[list[bytes]]:
        """Return the keys of each piece."""

        async def pieces() -> list[list[bytes]]:
            found = self._scans.scan(kv_pb2.ScanRequest(keys_only=True, **asked), ANYONE, self._account)
            return [cut(response) async for response in found]

        return asyncio.run(pieces())


def cut(response: kv_pb2.ScanResponse) -> list[bytes]:
    ends = np.cumsum(np.frombuffer(response.key_lengths, "<u4")).tolist()
    return [response.keys[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


@pytest.fixture
def full(store: gpkvs.Store) -> gpkvs.Store:
    store.execute(Batch.of([(Op.SET, b"%03d" % number, b"") for number in range(KEYS)]))
    return store


@pytest.fixture
def inside(full: gpkvs.Store, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Inside]:
    return lambda **how: Inside(full, monkeypatch, **how)


def test_beside_batches_a_piece_has_small_steps_with_time_between_them(inside: Callable[..., Inside]) -> None:
    place = inside(is_in_use=True)
    pieces = place.scan()
    assert sorted(key for piece in pieces for key in piece) == [b"%03d" % number for number in range(KEYS)]
    assert max(place.steps) <= IN_USE
    assert len(pieces) < len(place.steps) / 4
    assert place.slept == [0.0] + [3.0] * (len(place.steps) - 1)


def test_where_nobody_else_is_a_piece_is_one_step(inside: Callable[..., Inside]) -> None:
    place = inside(is_in_use=False)
    assert [len(piece) for piece in place.scan()] == place.steps == [KEYS]
    assert place.slept == []


def test_a_limit_counts_for_all_steps_of_a_piece(inside: Callable[..., Inside]) -> None:
    place = inside(is_in_use=True)
    for limit in (1, IN_USE - 1, IN_USE, 2 * IN_USE + 1, KEYS - 1):
        assert sum(map(len, place.scan(limit=limit))) == limit


def test_steps_that_bring_nothing_are_a_piece_soon(inside: Callable[..., Inside]) -> None:
    """Other calls wait for the thread meanwhile."""
    place = inside(is_in_use=True)
    assert not any(place.scan(prefix=b"nobody"))
    assert len(place.steps) >= KEYS // IN_USE


def test_pieces_are_joined(full: gpkvs.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where keys of some of them expire."""
    monkeypatch.setattr(Traffic, "is_lately", lambda _: False)
    full.set(b"expires", b"value", ttl=1000)
    pieces, cursor = [], b""
    while not pieces or cursor:
        pieces.append(full.scan_step(cursor=cursor, keys_max=100))
        cursor = pieces[-1].cursor
    joined = join_pieces(pieces)
    assert 0 < sum(len(piece.expiries) > 0 for piece in pieces) < len(pieces)
    expiries = dict(zip(joined.key_list(), joined.expiry_list(), strict=True))
    assert [key for key, expiry in expiries.items() if expiry] == [b"expires"]
    assert joined.cursor == pieces[-1].cursor
    for column in (ScanPiece.key_list, ScanPiece.value_list, ScanPiece.expiry_list, _versions):
        assert column(joined) == [item for piece in pieces for item in column(piece)]


def _versions(piece: ScanPiece) -> list[int]:
    versions: list[int] = piece.versions.tolist()
    return versions
