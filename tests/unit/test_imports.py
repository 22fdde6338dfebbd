"""What an import brings along."""

from __future__ import annotations

import subprocess
import sys

import pytest

import gpkvs


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60).stdout.decode()


def test_the_client_alone_loads_neither_kernels_nor_store() -> None:
    loaded = run("import sys, gpkvs.client; print('\\n'.join(sys.modules))").split()
    assert "gpkvs.client" in loaded
    assert "gpkvs.batch" in loaded
    for name in ("native", "store", "engine", "backends", "pm", "server"):
        assert f"gpkvs.{name}" not in loaded


def test_the_store_is_there_when_it_is_asked_for() -> None:
    assert "gpkvs.native" in run("import sys, gpkvs; gpkvs.Store; print('\\n'.join(sys.modules))").split()
    assert gpkvs.open is gpkvs.store.open_store  # type: ignore[attr-defined]
    for name in gpkvs.__all__:
        assert getattr(gpkvs, name)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = gpkvs.nonsense  # type: ignore[attr-defined]
