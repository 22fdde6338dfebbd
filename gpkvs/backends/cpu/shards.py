"""Several processors that share the indexes of a store, where there is only one: threads stand for each of them.

For tests and for the crash explorer: what several GPUs plan and store together goes through the same steps here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpkvs.backends.base import Processor, Result
from gpkvs.backends.cpu.mirrored import MirroredThreads
from gpkvs.backends.cpu.pair import PairBackend

_SHARDS = 3


class ShardsBackend(PairBackend):
    """Runs the kernels of several GPUs, each on threads of its own.

    Parameters
    ----------
    threads
        Of each processor; 0 takes one for each of the machine's.
    """

    description = "cpu, in place of several GPUs and their host"
    shared_ops_min = 2  # every batch that is not run as a single operation

    def __init__(self, threads: int = 0) -> None:
        super().__init__(threads)
        self._others = [MirroredThreads(threads, self._mirrors) for _ in range(_SHARDS - 1)]
        self._turn = 0

    @property
    def processors(self) -> Sequence[Processor]:
        """See `Backend.processors`."""
        return (self, *self._others)

    def each(self, calls: Sequence[Callable[[], Result]], /) -> list[Result]:
        """See `Backend.each`: one after the other, and another one first each time."""
        self._turn += 1
        results: dict[int, Result] = {}
        failed: dict[int, BaseException] = {}
        for number in range(len(calls)):
            at = (number + self._turn) % len(calls)
            try:
                results[at] = calls[at]()
            except Exception as error:  # noqa: BLE001 - all of them end
                failed[at] = error
        if failed:
            raise failed[min(failed)]
        return [results[at] for at in range(len(calls))]

    def begin(self) -> None:
        """See `Backend.begin`."""
        super().begin()
        for other in self._others:
            other.begin()

    def close(self) -> None:
        """See `Backend.close`."""
        for other in self._others:
            other.close()
        super().close()
