"""The streams and events of slots that are logged and stored in chunks (``kernels/commit/chunks.hpp``)."""

from __future__ import annotations

import ctypes
from typing import Any

import cupy

from gpkvs.media.layout import CHUNK_MARKERS

# Priorities of streams: entries go before plans, which wait for the GPU and not for the link, and these before slots.
PLANS_FIRST, _ENTRIES_FIRST = -1, -2


class ChunkQueues:
    """Those of one GPU, which the calling thread uses.

    Parameters
    ----------
    launcher, waiter
        The addresses of what launches, and of what another thread waits with.

    Attributes
    ----------
    fields
        What native code is given.
    """

    def __init__(self, launcher: int, waiter: int) -> None:
        self._log = cupy.cuda.Stream(non_blocking=True, priority=_ENTRIES_FIRST)
        self._slots, self._host = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
        self._marked, self._left = ([_untimed() for _ in range(CHUNK_MARKERS)] for _ in range(2))
        self._planned, self._before, self._stored = (cupy.cuda.Event() for _ in range(3))
        self._handles = [_handles(events) for events in (self._marked, self._left)]
        marked, left = map(ctypes.addressof, self._handles)
        self.fields: dict[str, int] = {
            "launcher": launcher,
            "waiter": waiter,
            "log_queue": self._log.ptr,
            "slot_queue": self._slots.ptr,
            "host_queue": self._host.ptr,
            "planned": self._planned.ptr,
            "marked": marked,
            "left": left,
            "before": self._before.ptr,
            "stored": self._stored.ptr,
        }


def _untimed() -> Any:
    return cupy.cuda.Event(disable_timing=True)


def _handles(events: list[Any]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(events))(*[event.ptr for event in events])
