"""The streams and events of slots that are logged and stored in chunks (``kernels/chunks.hpp``)."""

from __future__ import annotations

import ctypes
from typing import Any

import cupy

from gpkvs.media.layout import CHUNK_MARKERS

_FIRST = -1  # the priority of a stream whose kernels go before those of others


class ChunkQueues:
    """Those of one GPU, which the calling thread uses.

    Parameters
    ----------
    launcher
        The address of what launches.
    mirror
        The stream of the mirror.

    Attributes
    ----------
    fields
        What native code is given.
    """

    def __init__(self, launcher: int, mirror: Any) -> None:
        # Many threads of the slots wait for the link: the next entries go before them.
        self._log = cupy.cuda.Stream(non_blocking=True, priority=_FIRST)
        self._slots, self._host = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
        self._marked, self._left = ([_untimed() for _ in range(CHUNK_MARKERS)] for _ in range(2))
        self._followed = _untimed()
        self._planned, self._before, self._stored = (cupy.cuda.Event() for _ in range(3))
        self._handles = [_handles(events) for events in (self._marked, self._left)]
        marked, left = map(ctypes.addressof, self._handles)
        self.fields: dict[str, int] = {
            "launcher": launcher,
            "log_queue": self._log.ptr,
            "slot_queue": self._slots.ptr,
            "host_queue": self._host.ptr,
            "mirror_queue": mirror.ptr,
            "planned": self._planned.ptr,
            "marked": marked,
            "left": left,
            "before": self._before.ptr,
            "stored": self._stored.ptr,
            "followed": self._followed.ptr,
        }


def _untimed() -> Any:
    return cupy.cuda.Event(disable_timing=True)


def _handles(events: list[Any]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(events))(*[event.ptr for event in events])
