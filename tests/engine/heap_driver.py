"""Drives a store with a small heap against a dictionary: any write is accepted while the charge is below its limit."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np

import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.engine.state.heap import charge_of
from gpkvs.errors import NoSpaceError
from gpkvs.media.layout import FORMAT_3, RECORD_HEADER_BYTES, SHORT_RECORD_HEADER_BYTES, UNIT_BYTES
from gpkvs.recovery.startup.opening import format_of
from tests.conftest import assert_clean, assert_counted

SEGMENT_BYTES = 64 << 10
SEGMENT_UNITS = SEGMENT_BYTES // UNIT_BYTES

ValueBytes = Callable[[random.Random], int]


class HeapDriver:
    """A store, and what it must hold.

    Parameters
    ----------
    path
        Of the store, which is made.
    segments
        Of its heap.
    rng
        Of all choices.
    opens
        Whether to make it at once.
    options
        Of `gpkvs.open`.
    """

    def __init__(self, path: Path, segments: int, rng: random.Random, *, opens: bool = True, **options: object) -> None:
        self.path = path
        self.rng = rng
        self._options = {
            "backend": "cpu",
            "index_bytes": 1 << 20,
            "heap_bytes": segments * SEGMENT_BYTES,
            "log_bytes": 1 << 20,
            "journal_bytes": 1 << 20,
            **options,
        }
        # As it will be made: some tests say what it holds before they open it.
        self._header_bytes = RECORD_HEADER_BYTES if format_of("auto") == FORMAT_3 else SHORT_RECORD_HEADER_BYTES
        self.expected: dict[bytes, bytes] = {}
        self.charged = 0
        self.written = 0
        if opens:
            self.open()

    def open(self, *, charged_is_known: bool = True) -> None:
        self.store = gpkvs.open(self.path, **self._options)  # type: ignore[arg-type]
        self.heap = self.store._engine.heap
        assert self.heap.segment_units == SEGMENT_UNITS
        assert self.heap.charged == self.charged or not charged_is_known

    def set_expected(self, key: bytes, value: bytes | None) -> None:
        """Take note of what a key holds."""
        self.charged -= self.charge_of_key(key)
        self.expected.pop(key, None)
        if value is not None:
            self.expected[key] = value
            self.charged += self.charge_of_key(key)

    def charge_units(self, key: bytes, value_bytes: int) -> int:
        """Return what a record is charged, which has no expiry."""
        units = -(-(self._header_bytes + len(key) + value_bytes) // UNIT_BYTES)
        return int(charge_of(np.array([units], np.uint64), SEGMENT_UNITS)[0])

    def charge_of_key(self, key: bytes) -> int:
        return self.charge_units(key, len(self.expected[key])) if key in self.expected else 0

    def write(self, key: bytes, value: bytes) -> bool:
        """Store a value; it must be accepted exactly if the charge allows it."""
        raised = self.charge_units(key, len(value)) - self.charge_of_key(key)
        allowed = raised <= 0 or self.charged + raised <= self.heap.charged_max
        refusal = None
        try:
            self.store.set(key, value)
        except NoSpaceError as error:
            refusal = error
        assert (refusal is None) == allowed, f"{refusal}: {self.heap.free_segments} free, {self.charged} charged"
        if allowed:
            self.set_expected(key, value)
            self.written += len(value)
        return allowed

    def delete(self, key: bytes) -> None:
        assert self.store.delete(key) == (key in self.expected)
        self.set_expected(key, None)

    def fill(self, value_bytes: ValueBytes) -> None:
        """Write new keys until one is refused, and some smaller ones."""
        number = 0
        for _ in range(20):
            while self.write(b"key%05d" % number, self.rng.randbytes(value_bytes(self.rng))):
                number += 1

    def churn(self, value_bytes: ValueBytes, heaps: float) -> None:
        """Overwrite keys at random, until so many times the heap was written; a few are deleted and written again."""
        self.churn_keys(sorted(self.expected), value_bytes, heaps)

    def churn_keys(self, keys: list[bytes], value_bytes: ValueBytes, heaps: float) -> None:
        """Do the same to some keys."""
        until = self.written + int(heaps * self.heap.bytes)
        while self.written < until:
            key = self.rng.choice(keys)
            if self.rng.random() < 0.05 or not self.write(key, self.rng.randbytes(value_bytes(self.rng))):
                self.delete(key)

    def check(self) -> None:
        """Compare every value, and what is counted with what an opening counts."""
        heap = self.heap
        assert heap.charged == self.charged == int(heap.charged_units.sum())
        keys = sorted(self.expected)
        for first in range(0, len(keys), 500):
            part = keys[first : first + 500]
            result = self.store.execute(Batch.of([(Op.GET, key) for key in part]))
            assert result.value_list() == [self.expected[key] for key in part]
        assert_counted(self.store)
        (table,) = self.store.info().tables
        assert table.heap_bytes == heap.live_bytes
        self.store.close()
        assert_clean(self.path)
        self.open()
        for key in keys[:: max(1, len(keys) // 50)]:
            assert self.store.get(key) == self.expected[key]
