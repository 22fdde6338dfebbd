"""The phases that plan a batch of one table: what each layout has to give. They only read PM.

read -> measure -> place -> stage; a batch that only reads goes read -> measure. What does not fit, and what only the
host's planner sees to, is left to that one: `ForHostError`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.base import Column, Processor
from gpkvs.batch import U8, U32, U64, Batch, RequestResult, Status, constant
from gpkvs.engine.device.plan import Plan, Seen
from gpkvs.engine.meter import Meter
from gpkvs.engine.table import Table
from gpkvs.media.files import StoreFiles


class Phases(ABC):
    """The phases of one table, on one processor.

    Parameters
    ----------
    place
        Where the plan runs: it runs the kernels and holds the columns.
    files
        The mapped store.
    table
        Whose operations are planned.
    meter
        Told when a phase ends.
    """

    def __init__(self, place: Processor, files: StoreFiles, table: Table, meter: Meter) -> None:
        self._backend = place
        self._files = files
        self._index = table.index
        self._hash_key0, self._hash_key1 = table.index.hash_keys
        self._meter = meter
        self.table = table

    @property
    def _xp(self) -> ModuleType:
        return self._backend.xp

    def begin(self, batch: Batch, first_sequence: int, now: int) -> Plan:
        """Return an empty plan of some operations; the arguments are those of `Plan`."""
        return Plan(self._backend, batch, first_sequence, now)

    @abstractmethod
    def read(self, plan: Plan) -> None:
        """Find every key and what each operation sees; PM is only read.

        Raises
        ------
        ForHostError
            If some key looks expired.
        """

    def measure(self, plan: Plan) -> None:
        """Find out how long the values of all GETs are, which reads and checks the records that they come from."""
        plan.result_bytes = self._result_bytes(plan) if plan.batch.has_reads else 0
        self._meter.lap("measure")

    @abstractmethod
    def place(self, plan: Plan) -> None:
        """Find a way for every new key.

        Raises
        ------
        ForHostError
            If one finds none.
        """

    @abstractmethod
    def stage(self, plan: Plan) -> None:
        """Work out the new contents of every slot that changes."""

    @abstractmethod
    def removed(self, plan: Plan) -> int:
        """Return how many keys the table loses."""

    def old_expiring(self, plan: Plan) -> int:
        """Return how many slots with an expiry lose their record, to a new one or for good."""
        del plan
        return 0

    def bounds(self, plan: Plan) -> U32:
        """Return how long each GET's value in the heap is at most, from what its slot says alone.

        Up to 15 bytes are too much. What a GET sees of its own batch does not count: whether that SET has room is not
        known yet.
        """
        nothing: U32 = self._xp.zeros(plan.gets, np.uint32)  # values are in the slots
        return nothing

    def result(self, plan: Plan) -> RequestResult:
        """Return the results of a plan, with the values of its GETs, where the keys are: on the host or the device.

        On their way to the host they are there after `Backend.delivered`: the commit need not wait for them.
        """
        on_host, count = isinstance(plan.batch.keys, np.ndarray), len(plan.batch)
        if plan.batch.has_only_sets:
            return self._result_of_sets(plan)
        deliver = self._backend.deliver if on_host else _as_it_is
        versions = deliver(plan.seen.versions) if self._has_versions else constant(np.uint64(0), count)
        values = deliver(self._values(plan) if plan.result_bytes else self._xp.empty(0, np.uint8))
        alike = not self._has_versions and plan.result_bytes == 8 * plan.gets
        lengths = constant(np.uint32(8), plan.gets) if alike else deliver(self.lengths(plan))
        return RequestResult(deliver(plan.seen.status), versions, lengths, values)

    def _result_of_sets(self, plan: Plan) -> RequestResult:
        """Return the results of SETs only: all are done, with versions in the order of their arrival."""
        count, first = len(plan.batch), plan.first_sequence
        versions = constant(np.uint64(0), count)
        if self._has_versions:
            versions = self._backend.deliver(self._xp.arange(first, first + count, dtype=np.uint64))
        status = constant(np.uint8(Status.OK), count)  # zeros would be a page fault for each 4 KiB
        return RequestResult(status, versions, np.empty(0, np.uint32), np.empty(0, np.uint8))

    def lengths(self, plan: Plan) -> U32:
        """Return the length of each GET's value."""
        if plan.get_lengths is None:
            plan.get_lengths = self._lengths(plan)
        return plan.get_lengths

    def columns_of_seen(self, count: int) -> Seen:
        """Return uninitialised columns for what the operations of a batch with writes see."""
        status, versions = self._result_columns(count)
        return Seen(status, versions, *self._scratch(count, np.uint64, np.uint32))

    def _result_columns(self, count: int) -> tuple[U8, U64]:
        """Return columns for status and, where there are any, versions; they outlive the transaction."""
        return self._xp.empty(count, np.uint8), self._xp.empty(count if self._has_versions else 0, np.uint64)

    def _scratch(self, count: int, *types: type[np.generic]) -> list[NDArray[Any]]:
        """Return new columns, one of each type, that last as long as the transaction."""
        return [self._backend.scratch(count, dtype) for dtype in types]

    @property
    @abstractmethod
    def _has_versions(self) -> bool:
        """Whether slots hold versions."""

    @abstractmethod
    def _result_bytes(self, plan: Plan) -> int:
        """Return the bytes of the values of all GETs."""

    @abstractmethod
    def _lengths(self, plan: Plan) -> U32:
        """Return the length of each GET's value, after checking where it comes from."""

    @abstractmethod
    def _values(self, plan: Plan) -> U8:
        """Return the values of the GETs, one after the other."""


def _as_it_is(column: Column) -> Column:
    return column
