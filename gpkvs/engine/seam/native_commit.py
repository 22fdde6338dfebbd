"""A native committer: one call stores a write set of the host's threads, in order (``kernels/commit/commit.hpp``)."""

from __future__ import annotations

import ctypes

from gpkvs.backends.cpu.backend import address_of
from gpkvs.backends.fields import KernelFields
from gpkvs.engine.seam.meter import Meter
from gpkvs.engine.seam.write_set import WriteSet
from gpkvs.engine.state.heap import Heap
from gpkvs.errors import NoMemoryError
from gpkvs.media.layout import RUNS_MAX, Growth
from gpkvs.native import library, native_step
from gpkvs.process import failpoint

# The first fields: of a write set, what is new since the last one, and the store's.
_WRITE_SET = ("tables", "table_count", "operations", "tail_segment", "tail_units")
_STATE = ("growth_table", "growth_blocks", "growth_unmoved", "log", "log_words")
_NO_GATE = (1 << 64) - 1


class NativeCommit:
    """The struct of a committer, and its step.

    Parameters
    ----------
    step
        Its name in ``gpkvs/kernels``.
    calls
        What the native engine calls, by its name.
    heap, meter
        They are counted in.
    **words
        The committer's own fields: numbers and addresses.

    Attributes
    ----------
    address
        Of the struct.
    calls
        The address of what the native engine calls.
    """

    def __init__(self, step: str, calls: str, heap: Heap, meter: Meter, **words: int) -> None:
        names = [field.name for field in KernelFields(step).fields]
        at = {name: number for number, name in enumerate(names)}
        self._write_set = slice(0, len(_WRITE_SET))
        self._state = slice(len(_WRITE_SET), len(_WRITE_SET) + len(_STATE))
        assert (*names[self._write_set], *names[self._state]) == (*_WRITE_SET, *_STATE)
        self._words = (ctypes.c_uint64 * len(names))()
        self._tables = (ctypes.c_uint64 * RUNS_MAX)()
        self._tables_address = ctypes.addressof(self._tables)
        words |= {
            "tables": self._tables_address,
            "heap_state": address_of(heap.state),
            "meter": meter.address,
            "failpoint": failpoint.address(),
        }
        for name, word in words.items():
            self._words[at[name]] = word
        self._gate, self._time = at["gate"], at["time_ms"]
        self.address = ctypes.addressof(self._words)
        self.calls = ctypes.addressof(ctypes.c_uint64.in_dll(library, calls))
        self._step = native_step(step, keeps_lock=False)

    def begin(self, growth: Growth, log: int, log_words: int) -> None:
        """Take note of the table that grows, and of where the log is and how many words it has for entries."""
        self._words[self._state] = [*growth, log, log_words]

    @property
    def time_ms(self) -> int:
        """The time that the next transaction keeps."""
        return self._words[self._time]

    @time_ms.setter
    def time_ms(self, now_ms: int) -> None:
        self._words[self._time] = now_ms

    def run(self, write_set: WriteSet) -> int:
        """Store a write set; return its gate.

        Raises
        ------
        NoMemoryError
            If there is no memory for it; nothing was stored.
        """
        tables, tail = write_set.tables, write_set.tail
        self._tables[: len(tables)] = [writes.address for writes in tables]
        operations = write_set.operations
        self._words[self._write_set] = [self._tables_address, len(tables), operations, tail.segment, tail.units]
        self._step(self.address, 0, 1)
        gate = self._words[self._gate]
        if gate == _NO_GATE:
            raise NoMemoryError
        return gate
