"""A driver of a GPU that only takes notes of what native code asks of it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from gpkvs.native import launched_kernels, library

NAMES = launched_kernels()
CONTEXT, OTHER_CONTEXT = 91, 92  # of the GPU, and of the calling thread
_WORD, _SIZE = ctypes.c_void_p, ctypes.c_uint32
_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, _WORD, *[_SIZE] * 7, *[_WORD] * 3)
_FILL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint8, ctypes.c_size_t, _WORD)
_RECORD, _WAIT = ctypes.CFUNCTYPE(ctypes.c_int, _WORD, _WORD), ctypes.CFUNCTYPE(ctypes.c_int, _WORD, _WORD, _SIZE)
_BRING = ctypes.CFUNCTYPE(ctypes.c_int, _WORD, ctypes.c_uint64, ctypes.c_size_t, _WORD)
_SETTLE = ctypes.CFUNCTYPE(ctypes.c_int, _WORD)
_CONTEXT, _USE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_WORD)), ctypes.CFUNCTYPE(ctypes.c_int, _WORD)
_ELAPSED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_float), _WORD, _WORD)


class NotedDriver:
    """Takes notes of what it is asked to do, in order.

    Attributes
    ----------
    calls
        What was done, on which queue (0: none).
    fails_at
        Which call is refused, from 1 on; 0: none.
    launching
        Is told of the arguments of each kernel, by their address, and of how many items it has.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, str | int, int]] = []
        self.fails_at = 0
        self.launching: Callable[[int, int], None] = lambda _arguments, _items: None
        self._functions = (
            _LAUNCH(self._launch),
            _FILL(lambda *given: self._note("fill", 0, given[3])),
            _RECORD(lambda event, queue: self._note("record", event, queue)),
            _WAIT(lambda queue, event, _flags: self._note("wait", event, queue)),
            _BRING(lambda _to, _from, size, queue: self._note("bring", size, queue)),
            _SETTLE(lambda event: self._note("settle", event, 0)),
            _ELAPSED(self._elapsed),
            _CONTEXT(self._context),
            _USE(lambda context: self._note("use", context or 0, 0)),
        )
        addresses = (_WORD * len(self._functions))(*[ctypes.cast(function, _WORD) for function in self._functions])
        handles = (_WORD * len(NAMES))(*range(1, len(NAMES) + 1))
        self.launcher = library.gpkvs_gpu_launcher_new(addresses, handles, CONTEXT)

    def _note(self, call: str, what: str | int, queue: int) -> int:
        self.calls.append((call, what, queue))
        return 700 if len(self.calls) == self.fails_at else 0

    @staticmethod
    def _context(current: ctypes._Pointer[ctypes.c_void_p]) -> int:
        current[0] = OTHER_CONTEXT
        return 0

    def _launch(self, *given: int) -> int:
        arguments, items = (_WORD * 2).from_address(given[9])
        self.launching(arguments, ctypes.c_uint64.from_address(items).value)
        return self._note("launch", NAMES[given[0] - 1], given[8])

    def _elapsed(self, ms: ctypes._Pointer[ctypes.c_float], first: int, then: int) -> int:
        ms[0] = 1.5
        return self._note("elapsed", first, then)
