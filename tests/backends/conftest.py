"""What tests of native launches share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpkvs.backends.cpu.backend import CpuBackend
from gpkvs.native import library
from tests.backends.noted_driver import NotedDriver


@pytest.fixture
def driver() -> Iterator[NotedDriver]:
    noted = NotedDriver()
    yield noted
    library.gpkvs_launcher_delete(noted.launcher)


@pytest.fixture
def in_place_of_a_gpu() -> Iterator[CpuBackend]:
    """Return threads on which native code launches kernels."""
    backend = CpuBackend(2)
    yield backend
    backend.close()
