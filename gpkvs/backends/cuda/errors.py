"""Errors of CUDA as errors of gpkvs."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import cupy
from cupy.cuda import runtime
from cupy_backends.cuda.api.driver import CUDADriverError
from cupy_backends.cuda.api.runtime import CUDARuntimeError

from gpkvs.errors import BackendError
from gpkvs.process.fatal import stop_process

P = ParamSpec("P")
T = TypeVar("T")


def explained(call: Callable[P, T]) -> Callable[P, T]:
    """Turn an error of CUDA into a `BackendError`; a GPU that does not respond any more ends the process.

    The method of a processor runs on its GPU (`number`), whatever the calling thread used before.
    """

    @wraps(call)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        number = getattr(args[0], "number", None) if args else None
        try:
            if number is not None:
                runtime.setDevice(number)
            return call(*args, **kwargs)
        except (CUDARuntimeError, CUDADriverError, cupy.cuda.memory.OutOfMemoryError) as error:
            what = next((argument for argument in args if isinstance(argument, str)), call.__name__)
            reason = BackendError(f"CUDA, {what}: {error}")
            if _is_lost():
                # The context is gone for good.
                who = getattr(args[0], "gpu_name", "the GPU") if args else "the GPU"
                stop_process(f"{who} does not answer any more", reason)
            raise reason from error

    return guarded


def _is_lost() -> bool:
    try:
        runtime.deviceSynchronize()
    except (CUDARuntimeError, CUDADriverError):
        return True
    return False
