"""Who plans a batch, the host's threads or a GPU: chosen from what both took for batches like it.

A small batch takes a GPU longer than the host, since each launch costs; a large one takes the host longer. Where that
changes depends on the machine, the load, and what else runs. So each store begins with what was measured at its start,
and goes on from what its batches take. Now and then the other path is tried: about one percent of the time goes into
that. The idea of choosing a data path from what was observed is that of AGPM (Adaptive Data Path Selection for Durable
Transaction in GPU Persistent Memory, section IV), where hardware counts the localities of log writes.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection
from enum import Enum
from typing import NamedTuple

_FEW = 64  # operations: so few are planned by the host, and nobody measures
_REMEMBERED = 9  # batches of each size: their median tells what the next one takes, whatever some of them waited for
_FASTER = 0.5  # of the median: what came before is forgotten, since chance makes batches slower and not faster
# Batches: of fewer, the fastest tells, or what was believed before. Two that waited would rule their path out.
_SURE = 5
_MANY = 64  # batches: chance does not change their mean by much
_TRIED_PART = 0.01  # of the time, for trying the other path
_WORSE_MAX = 2  # a path that is so many times as slow, or slower, is tried so many times as seldom
_TRIED_MAX = 2.0  # times what the host takes
_BITS_MAX = 24  # of the operations: no batch has more
ALL_OPS = 1 << 62  # operations: more than a batch can have
_WRITES_FEW = 0.25  # of a batch's operations: with fewer writes, a GPU does not order most of the others


class Path(Enum):
    """Who plans a batch."""

    HOST = "host"
    GPU = "gpu"

    @property
    def other(self) -> Path:
        """The one that this is not."""
        return Path.GPU if self is Path.HOST else Path.HOST


class Mix(Enum):
    """What a batch mostly does."""

    READS = "reads"
    FEW_WRITES = "few writes"
    WRITES = "writes"


class Kind(NamedTuple):
    """What batches must have in common for one of them to tell what another one takes.

    Attributes
    ----------
    layout
        Of the table.
    mix
        What they do.
    is_on_gpu
        Whether their keys are on a GPU.
    """

    layout: str
    mix: Mix
    is_on_gpu: bool


def mix_of(operations: int, gets: int) -> Mix:
    """Return what a batch with so many operations, so many of them GETs, mostly does."""
    if gets == operations:
        return Mix.READS
    return Mix.FEW_WRITES if operations - gets < _WRITES_FEW * operations else Mix.WRITES


class _Taken:
    """What batches of about the same size took, by one path; at first, what they are believed to take."""

    __slots__ = ("_believed", "_seconds", "operations", "seconds")

    def __init__(self, believed: float) -> None:
        self.operations = 0
        self.seconds = self._believed = believed
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)

    def add(self, operations: int, seconds: float) -> None:
        if self._seconds and seconds < _FASTER * self.seconds:
            self._seconds.clear()
            self._believed = seconds
        self._seconds.append(seconds)
        self.operations = operations
        in_order = sorted(self._seconds)
        self.seconds = in_order[len(in_order) // 2] if len(in_order) >= _SURE else min(in_order[0], self._believed)


class PathCosts:
    """What batches take by either path.

    Parameters
    ----------
    gpu_seconds
        What a batch of few operations takes a GPU, as measured at the start.
    host_seconds
        What an operation takes the host's threads in a large batch, as measured at the start.

    Attributes
    ----------
    forced
        The path that all batches take; `None`: the better one. For benchmarks.
    left_layouts
        Of the tables whose batches a server may leave for a GPU. Not of records: the host's threads store and check
        them either way, and a door that waited for a GPU lost up to half (docs/gpu.md).
    """

    left_layouts: Collection[str] = ("u64",)

    def __init__(self, gpu_seconds: float, host_seconds: float) -> None:
        self._at_start = {Path.GPU: (gpu_seconds, 0.0), Path.HOST: (0.0, host_seconds)}
        self._taken: dict[tuple[Kind, Path], dict[int, _Taken]] = defaultdict(dict)  # by bits of the operations
        self._credit: dict[tuple[Kind, int], float] = defaultdict(float)
        self._missed: dict[Kind, float] = defaultdict(float)  # seconds that the host took longer than a GPU would have
        self.forced: Path | None = None

    def choose(self, kind: Kind, operations: int, catch_up_seconds: float = 0.0) -> Path:
        """Return who is to plan a batch: who takes less time, or now and then the other one, to see what it takes.

        Parameters
        ----------
        kind, operations
            Of the batch.
        catch_up_seconds
            What a GPU takes before, to follow what the host has done since the last batch that it planned. It follows
            once the host has lost as much time as that takes.
        """
        if self.forced:
            return self.forced
        if operations <= _FEW:
            return Path.HOST
        host, gpu = self.expected(kind, Path.HOST, operations), self.expected(kind, Path.GPU, operations)
        better, less, more = (Path.HOST, host, gpu) if host <= gpu else (Path.GPU, gpu, host)
        if better is Path.GPU and catch_up_seconds:
            self._missed[kind] += more - less
            if self._missed[kind] < catch_up_seconds:
                return Path.HOST
            self._missed[kind] = 0.0
            return Path.GPU
        if not self._is_tried(kind, operations, less, more, catch_up_seconds):
            return better
        self._credit[kind, operations.bit_length()] = 0.0
        return better.other

    def prefers_gpu(self, kind: Kind, operations: int) -> bool:
        """Whether a batch is for a GPU that need not follow the host before, and the other path is not to be tried."""
        if self.forced:
            return self.forced is Path.GPU
        if operations <= _FEW:  # the host would have keys brought to it, and results back
            return kind.is_on_gpu and kind.mix is Mix.READS
        host, gpu = self.expected(kind, Path.HOST, operations), self.expected(kind, Path.GPU, operations)
        return gpu < host and not self._is_tried(kind, operations, gpu, host)

    def _is_tried(self, kind: Kind, operations: int, less: float, more: float, catch_up_seconds: float = 0.0) -> bool:
        """Whether it is the worse path's turn, which takes so much more: batches of this size have paid for it."""
        credit = self._credit[kind, operations.bit_length()]
        price = (more - less) * min(more / max(less, 1e-9), _WORSE_MAX) + catch_up_seconds
        return 0.0 < credit >= price

    def least_for_gpu(self, layout: str, mix: Mix) -> int:
        """Return from how many operations on a GPU takes less time, or is to be tried; `ALL_OPS`: never.

        That is for batches of a server. Smaller batches need not ask `choose`. A GPU that is believed to take more than
        twice as long is not tried.
        """
        if self.forced:
            return 1 if self.forced is Path.GPU else ALL_OPS
        if layout not in self.left_layouts:
            return ALL_OPS
        kind = Kind(layout, mix, is_on_gpu=False)
        for bits in range(_FEW.bit_length(), _BITS_MAX):
            operations = 1 << bits
            host, gpu = (self.expected(kind, path, operations) for path in (Path.HOST, Path.GPU))
            if gpu <= host or (gpu < _TRIED_MAX * host and self._is_tried(kind, operations, host, gpu)):
                return operations
        return ALL_OPS

    def measured(self, kind: Kind, operations: int, path: Path, seconds: float, batches: int = 1) -> None:
        """Take note of what a batch took, or several of one size in the mean: that of many is believed at once."""
        if operations <= _FEW:
            return
        bits, taken = operations.bit_length(), self._taken[kind, path]
        if bits not in taken:
            taken[bits] = _Taken(self.expected(kind, path, operations))
        for _ in range(_SURE if batches >= _MANY else 1):
            taken[bits].add(operations, seconds)
        self._credit[kind, bits] += _TRIED_PART * seconds * batches

    def expected(self, kind: Kind, path: Path, operations: int) -> float:
        """Return the seconds that a batch will take by a path."""
        taken, bits = self._taken[kind, path], operations.bit_length()
        size = taken.get(bits)
        if size is None:
            if not taken:
                fixed, each = self._at_start[path]
                return fixed + each * operations
            size = taken[min(taken, key=lambda other: abs(other - bits))]
        more = operations / size.operations
        # A GPU's launches cost the same for few operations; the host's time is in proportion.
        return size.seconds * (max(more, 1.0) if path is Path.GPU else more)
