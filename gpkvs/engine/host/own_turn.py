"""Requests of this process, batch after batch, in a turn of the native engine that lives on between them."""

from __future__ import annotations

import ctypes
import struct
import time
import weakref
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gpkvs.backends.fields import fields_of
from gpkvs.batch import U8, Batch, BatchResult, RequestColumns
from gpkvs.engine.host.crew import CLOSED_WITHIN, Crew
from gpkvs.engine.host.kinds import count_kinds
from gpkvs.engine.host.native_engine import NativeEngine, Ran
from gpkvs.engine.host.own_batch import OwnBatch
from gpkvs.engine.host.places import Places
from gpkvs.engine.seam.engine_batch import EngineBatch, EngineRefusal, GivenBatch
from gpkvs.engine.seam.left import Left
from gpkvs.engine.seam.meter import Meter
from gpkvs.errors import GpkvsError, NoMemoryError, memory_refused
from gpkvs.native import library, number

# A larger request is run as a batch of columns. Python's lock may be kept for so long.
OPS_MAX, _BYTES_MAX = 512, 64 << 10
READ_BYTES_MAX = number("OWN_BYTES_MAX")

_BATCH_PARAMETERS: tuple[type[Any], ...] = (
    ctypes.c_void_p,
    ctypes.POINTER(EngineBatch),
    *[ctypes.c_void_p] * 7,
    ctypes.c_uint64,
)
_REQUEST = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32)
_PARAMETERS = (*_REQUEST, *[ctypes.c_char_p] * 8)
_INTO_PARAMETERS = (*_REQUEST, *[ctypes.c_char_p] * 3, ctypes.c_void_p, *[ctypes.c_char_p] * 2)
_RESULTS = struct.Struct(f"{len(fields_of(library.gpkvs_own_results_fields()))}Q")


class Answer(NamedTuple):
    """What became of a request; nobody may see it before its gate is durable.

    Parameters
    ----------
    gate
        0 if it is durable.
    statuses, versions
        Of each operation.
    values
        Of those that return one.
    refusal
        If there is no room for the request, or a check stopped it: nothing of it was done.
    lengths
        Of values that lie in the caller's memory, which `values` has not.
    """

    gate: int
    statuses: Sequence[int]
    versions: Sequence[int]
    values: Sequence[bytes]
    refusal: GpkvsError | None = None
    lengths: Sequence[int] = ()


class OwnTurn:
    """Runs requests natively.

    Others use the engine between two requests only after `end`.

    Parameters
    ----------
    native
        Has the turns.
    crew
        Serves it.
    meter
        Of the store.

    Raises
    ------
    NoMemoryError
        If there is no memory for results.
    """

    def __init__(self, native: NativeEngine, crew: Crew, meter: Meter) -> None:
        self._native = native
        self._crew = crew
        self._meter = meter
        self._room = library.gpkvs_own_room_new()
        if not self._room:
            raise NoMemoryError
        # A thread that the end of the process does not wait for may be in there, or come.
        weakref.finalize(self, library.gpkvs_own_room_delete, self._room).atexit = False
        self._results = (ctypes.c_char * _RESULTS.size).from_address(library.gpkvs_own_results(self._room))
        # To hand over Python's lock takes longer than a small request, unless that waits for a disk.
        function_type = ctypes.PYFUNCTYPE if native.never_waits else ctypes.CFUNCTYPE
        self._run = function_type(ctypes.c_int, *_PARAMETERS)(("gpkvs_run_own", library))
        self._run_into = function_type(ctypes.c_int, *_INTO_PARAMETERS)(("gpkvs_run_own_into", library))
        run_batch = ("gpkvs_run_own_batch", library)
        self._run_long = ctypes.CFUNCTYPE(ctypes.c_int, *_BATCH_PARAMETERS)(run_batch)
        self._run_short = function_type(ctypes.c_int, *_BATCH_PARAMETERS)(run_batch)

    def run(self, table: int, columns: RequestColumns, into: Places | None = None) -> Answer | None:
        """Run a request of one table; None: it is for `run_batch`, nothing has happened.

        Parameters
        ----------
        table
            Its number.
        columns
            The request, valid, of at most `OPS_MAX` operations.
        into
            Where the values go, of a request of GETs on a table with records; kept by the caller.

        Raises
        ------
        NoMemoryError
            If there is no memory for it; nothing has happened.
        """
        native, n = self._native, len(columns.ops)
        if len(columns.keys) + len(columns.values) > _BYTES_MAX:
            return None
        if type(columns.values) is not bytes:
            columns = columns._replace(values=bytes(columns.values))
        self.have_turn()
        lacking: dict[Left, GpkvsError] = {}
        run_own: Callable[..., int] = self._run
        given: tuple[object, ...] = columns
        if into:
            run_own, given = self._run_into, (columns.ops, columns.keys, columns.key_lengths, *into)
        ran = run_own(native.engine_address, self._room, table, n, *given)
        if ran == Ran.LEFT:
            with memory_refused():
                batch = columns.batch(table)
            run = partial(run_own, native.engine_address, self._room, table, n, *given)
            ran = self._run_again(batch, run, lacking)
            if ran == Ran.LEFT:
                return None
        answer = self._answer(n, lacking, are_placed=into is not None)
        if ran == Ran.DUE:
            native.end_turn()
        return answer

    def run_batch(self, batch: Batch) -> tuple[BatchResult, int]:
        """Run the longest run of requests from the first on that fits one transaction; return its result and its gate.

        Parameters
        ----------
        batch
            Valid columns of the host; `run` may have left it just now.

        Raises
        ------
        NoMemoryError
            If there is no memory for it; nothing has happened.
        """
        if (left := self._meter.last_left) is not None:
            self._meter.helped(left)
        self.have_turn()
        return self._run_columns(batch, is_long=left is Left.MEMORY)  # `run` had too little for what it returns

    def run_within(self, deletes: Batch) -> None:
        """Run DELETEs of keys that have expired, which what is due beside batches, or a batch, asks for.

        Raises
        ------
        NoSpaceError
            If there is no room for them; nothing of them was done.
        """
        with memory_refused():
            self._native.begin_turn(closed=CLOSED_WITHIN, is_within=True)
        try:
            result, _ = self._run_columns(deletes, is_within=True)
        finally:
            self._native.end_turn()
        for refusal in result.rejected.values():
            raise refusal
        assert result.requests == 1

    def _run_columns(self, batch: Batch, *, is_within: bool = False, is_long: bool = False) -> tuple[BatchResult, int]:
        native = self._native
        count_kinds(batch)
        with memory_refused():
            own = OwnBatch(batch, has_records=native.has_records(batch))
            given = GivenBatch(batch, native.made_bytes_max, own.found_words)
        given_bytes = len(batch.keys) + len(batch.values)
        is_short = len(batch) <= OPS_MAX and given_bytes <= _BYTES_MAX and not is_long and _are_short(batch.into)
        run_batch = self._run_short if is_short else self._run_long
        ran = run_batch(native.engine_address, given.struct, *own.addresses, is_short)
        lacking: dict[Left, GpkvsError] = {}
        if ran == Ran.LEFT:
            ran = self._run_columns_again(batch, given, own, lacking, is_within=is_within)
        if ran == Ran.DUE:
            native.end_turn()
        return own.result(lacking)

    def _run_columns_again(
        self, batch: Batch, given: GivenBatch, own: OwnBatch, lacking: dict[Left, GpkvsError], *, is_within: bool
    ) -> int:
        meter = self._meter
        run = partial(self._run_long, self._native.engine_address, given.struct, *own.addresses, False)
        ran = int(Ran.LEFT)
        # A short one may return more than one may while Python's lock is kept.
        if meter.last_left is Left.MEMORY:
            meter.helped(Left.MEMORY)
            ran = run()
        if ran == Ran.LEFT:
            ran = self._run_again(batch, run, lacking, is_within=is_within)
        if ran == Ran.LEFT:
            raise self._crew.why_not()
        return ran

    def have_turn(self) -> None:
        """Begin a turn, unless one lives on."""
        native = self._native
        if native.is_in_turn and time.monotonic_ns() < native.ends_at_ns:  # one that nobody used for long is over
            return
        with memory_refused():
            native.begin_turn()

    @memory_refused()
    def _run_again(
        self, batch: Batch, run: Callable[[], int], lacking: dict[Left, GpkvsError], *, is_within: bool = False
    ) -> int:
        """Have what a batch lacks done, and run it again; return how it ran in the end.

        `lacking` gets what its requests hear that were refused. Batches may run within, which have their own.
        """
        ran = int(Ran.LEFT)

        def run_again() -> bool:
            nonlocal ran
            ran = run()
            return ran != Ran.LEFT

        try:
            self._crew.run_again(batch, run_again, lacking.__setitem__, is_within=is_within)
        except BaseException:
            self._meter.take_left()  # the next batch is another one
            raise
        return ran

    def _answer(self, n: int, lacking: dict[Left, GpkvsError], *, are_placed: bool) -> Answer:
        words = _RESULTS.unpack_from(self._results)
        gate, is_durable, returning, value_bytes, statuses, versions, lengths, values, status, version, refusal = words
        if is_durable:
            gate = 0
        if refusal:
            return Answer(gate, (), (), (), EngineRefusal.from_address(refusal).error(lacking))
        if are_placed:
            sizes = array("I", ctypes.string_at(lengths, 4 * n))
            return Answer(gate, ctypes.string_at(statuses, n), (), (), lengths=sizes)
        data = ctypes.string_at(values, value_bytes) if value_bytes else b""
        if n == 1:
            return Answer(gate, (status,), (version,), (data,) if returning else ())
        ends, found = 0, []
        for length in array("I", ctypes.string_at(lengths, 4 * returning)):
            found.append(data[ends : ends + length])
            ends += length
        return Answer(gate, ctypes.string_at(statuses, n), array("Q", ctypes.string_at(versions, 8 * n)), found)

    def end(self) -> None:
        """End the turn, if it lives: somebody else is to use the engine."""
        self._native.end_turn()


def _are_short(into: Sequence[U8] | U8 | None) -> bool:
    """Whether memory for values is small. Buffers count as large: `run` has taken those that are not."""
    return into is None or (isinstance(into, np.ndarray) and into.nbytes <= READ_BYTES_MAX)
