"""The calls of an engine (``gpkvs/kernels/engine_batch.h``), for tests that make them, or take them."""

from __future__ import annotations

import ctypes

from gpkvs.engine.engine_batch import EngineBatch, EngineRoom

_ADDRESS, _U64 = ctypes.c_void_p, ctypes.c_uint64

GivesRoom = ctypes.CFUNCTYPE(ctypes.c_bool, _ADDRESS, _U64, _U64, _U64, _U64, ctypes.POINTER(EngineRoom))
Run = ctypes.CFUNCTYPE(
    ctypes.c_int, _ADDRESS, ctypes.POINTER(EngineBatch), GivesRoom, _ADDRESS, *[ctypes.POINTER(_U64)] * 3
)
Durable = ctypes.CFUNCTYPE(_U64, _ADDRESS)
Wait = ctypes.CFUNCTYPE(None, _ADDRESS, _U64)
