"""The GPUs of a store: which there are, and that each reaches the memory of all."""

from __future__ import annotations

from itertools import pairwise

import cupy
from cupy.cuda import runtime
from cupy_backends.cuda.api.runtime import CUDARuntimeError

from gpkvs.config import MIB
from gpkvs.errors import BackendError

STRIPE_BYTES = 16 * MIB
"""How much of an index one GPU has before the next one's turn. A smaller index lies on the first one alone; smaller
stripes would take longer to map (0.1 ms each)."""

_ALREADY_ENABLED = 704  # cudaErrorPeerAccessAlreadyEnabled


class Gpus:
    """The GPUs that hold the mirrors of a store's indexes, stripe by stripe.

    Parameters
    ----------
    asked
        Their numbers, as CUDA counts them, with commas between; or ``all``. One that is named twice has two shares.

    Attributes
    ----------
    numbers
        Of each, in the order in which stripes are dealt.

    Raises
    ------
    BackendError
        If one is not there, or two of them cannot reach each other's memory.
    """

    def __init__(self, asked: str) -> None:
        try:
            count = runtime.getDeviceCount()
        except CUDARuntimeError as error:
            raise BackendError(
                f"no NVIDIA GPU can be used: {error}; look at CUDA_VISIBLE_DEVICES, or use --backend cpu"
            ) from error
        self.numbers = tuple(range(count)) if asked == "all" else _numbers(asked, count)
        self._names = {number: runtime.getDeviceProperties(number)["name"].decode() for number in set(self.numbers)}
        for number in set(self.numbers):
            for other in set(self.numbers) - {number}:
                _reach(number, other)
        runtime.setDevice(self.numbers[0])

    def __len__(self) -> int:
        return len(self.numbers)

    def __str__(self) -> str:
        if len(self) == 1:
            return str(self._names[self.numbers[0]])
        names = sorted(set(self._names.values()))
        return f"GPUs {', '.join(map(str, self.numbers))}: {', '.join(names)}"

    def name(self, number: int) -> str:
        """Return what people call one of them."""
        return f"GPU {number} ({self._names[number]})"

    def free_and_total(self) -> tuple[int, int]:
        """Return how many bytes can be mapped, all taking the same part of them, and how many there are."""
        shares = {number: self.numbers.count(number) for number in self._names}
        free, total = [], 0
        for number, share in shares.items():
            with cupy.cuda.Device(number):
                here = runtime.memGetInfo()
            free.append(here[0] // share)
            total += here[1]
        return min(free) * len(self), total

    def cut(self, first: int, last: int) -> list[tuple[int, tuple[int, int]]]:
        """Cut a range of bytes of an index where stripes meet; return each piece with the GPU that has it."""
        if len(self) == 1:
            return [(self.numbers[0], (first, last))]
        bounds = [first, *range(first // STRIPE_BYTES * STRIPE_BYTES + STRIPE_BYTES, last, STRIPE_BYTES), last]
        return [(self.numbers[begin // STRIPE_BYTES % len(self)], (begin, end)) for begin, end in pairwise(bounds)]

    def give_back_unused(self) -> None:
        """Have CuPy give back memory that it keeps for later."""
        for number in self._names:
            with cupy.cuda.Device(number):
                cupy.get_default_memory_pool().free_all_blocks()

    def synchronize(self) -> None:
        """Return when all of them have done what was launched; the calling thread uses the first one then."""
        for number in [number for number in self._names if number != self.numbers[0]] + [self.numbers[0]]:
            runtime.setDevice(number)
            runtime.deviceSynchronize()


def _numbers(asked: str, count: int) -> tuple[int, ...]:
    words = [word.strip() for word in asked.split(",")]
    if not all(word.isdecimal() for word in words):
        raise BackendError(f"gpus={asked}: numbers are needed, with commas between them (0,1), or all")
    missing = [word for word in words if int(word) >= count]
    if missing:
        raise BackendError(f"gpus={asked}: there is no GPU {missing[0]}, CUDA sees {count} (0 to {count - 1})")
    return tuple(map(int, words))


def _reach(number: int, other: int) -> None:
    """Have a GPU reach the memory of another one."""
    if not runtime.deviceCanAccessPeer(number, other):
        raise BackendError(
            f"GPU {number} cannot reach the memory of GPU {other}, over NVLink or PCIe: name GPUs that can "
            "(nvidia-smi topo -p2p r shows them), or one alone"
        )
    with cupy.cuda.Device(number):
        try:
            runtime.deviceEnablePeerAccess(other)
        except CUDARuntimeError as error:
            if error.status != _ALREADY_ENABLED:
                raise BackendError(f"GPU {number} was refused the memory of GPU {other}: {error}") from error
