"""A native committer: one call stores a write set of the host's threads, in order (``kernels/commit.hpp``)."""

from __future__ import annotations

import ctypes

from gpkvs import failpoint
from gpkvs.backends.cpu.backend import address_of
from gpkvs.backends.fields import KernelFields
from gpkvs.engine.heap import Heap
from gpkvs.engine.meter import Meter
from gpkvs.engine.write_set import WriteSet
from gpkvs.media.layout import RUNS_MAX, Growth
from gpkvs.native import native_step

# The first fields: of a write set, and of the table that grows.
_GIVEN = ("tables", "table_count", "operations", "tail_segment", "tail_units")
_GROWTH = ("growth_table", "growth_blocks", "growth_unmoved")


class NativeCommit:
    """The struct of a committer, and its step.

    Parameters
    ----------
    step
        Its name in ``gpkvs/kernels``.
    heap, meter
        They are counted in.
    **words
        The committer's own fields: numbers and addresses.

    Attributes
    ----------
    address
        Of the struct.
    """

    def __init__(self, step: str, heap: Heap, meter: Meter, **words: int) -> None:
        names = [field.name for field in KernelFields(step).fields]
        self._at = {name: at for at, name in enumerate(names)}
        self._given = slice(0, len(_GIVEN))
        growth = self._at[_GROWTH[0]]
        self._growth = slice(growth, growth + len(_GROWTH))
        assert (*names[self._given], *names[self._growth]) == (*_GIVEN, *_GROWTH)
        self._words = (ctypes.c_uint64 * len(names))()
        self._tables = (ctypes.c_uint64 * RUNS_MAX)()
        self.address = ctypes.addressof(self._words)
        self.set(
            tables=ctypes.addressof(self._tables),
            heap_state=address_of(heap.state),
            meter=meter.address,
            failpoint=failpoint.address(),
            **words,
        )
        self._steps = [native_step(step, keeps_lock=keeps) for keeps in (False, True)]

    def set(self, **words: int) -> None:
        """Set fields of the struct."""
        for name, word in words.items():
            self._words[self._at[name]] = word

    def get(self, name: str) -> int:
        """Return a field of the struct."""
        return self._words[self._at[name]]

    def begin(self, growth: Growth) -> None:
        """Take note of the table that grows, before the commits that are to say so."""
        self._words[self._growth] = [*growth]

    def run(self, write_set: WriteSet, *, keeps_lock: bool) -> None:
        """Store a write set."""
        tables = write_set.tables
        for number, writes in enumerate(tables):
            self._tables[number] = writes.address
        tail = write_set.tail
        self._words[self._given] = [self._words[0], len(tables), write_set.operations, tail.segment, tail.units]
        self._steps[keeps_lock](self.address, 0, 1)
