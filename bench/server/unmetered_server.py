"""A `gpkvs serve` without metrics: the difference to the real one is their cost.

It counts nothing in the engine, and nothing about calls that Python serves; what the door counts stays. `gpkvs bench
server` starts it as a process of its own; its arguments are those of `gpkvs`.
"""

from __future__ import annotations

import runpy
from collections.abc import Awaitable, Callable
from typing import Any

import gpkvs.server.app
import gpkvs.store
from gpkvs.engine.seam.meter import Meter
from gpkvs.engine.seam.write_set import Volumes


class NoMeter(Meter):
    """Counts nothing."""

    def begin(self) -> None:
        """Do nothing."""

    def lap(self, phase: str) -> None:
        """Do nothing."""

    def committed(self, volumes: Volumes, header_bytes: int, flag_bytes: int) -> None:
        """Do nothing."""


class NoCallMetrics:
    """Passes calls on."""

    def __init__(self, _registry: object) -> None:
        pass

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """Return the handler as it is."""
        return await continuation(details)


if __name__ == "__main__":
    for module, name, replacement in (
        (gpkvs.store, "Meter", NoMeter),
        (gpkvs.server.app, "CallMetrics", NoCallMetrics),
    ):
        assert hasattr(module, name), name
        setattr(module, name, replacement)
    runpy.run_module("gpkvs.cli", run_name="__main__")
