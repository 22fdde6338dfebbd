"""A door that is not built, or lacks a library: what the user reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpkvs.config import Limits, ServerConfig
from gpkvs.errors import BackendError, InvalidArgumentError
from gpkvs.proto.metadata import REQUEST_ID_BYTES_MAX
from gpkvs.server.bounds import bounds_of
from gpkvs.server.door import versions
from gpkvs.server.door.library import Library, SlowCall, _describe
from gpkvs.server.slow_log import KEY_BYTES_MAX

MIB, GIB = 1 << 20, 1 << 30


def installed_as(monkeypatch: pytest.MonkeyPatch, found: Path | BackendError) -> None:
    """Let the library be this file, or none."""

    def installed_library(name: str) -> Path:
        assert name == versions.NAME
        if isinstance(found, BackendError):
            raise found
        return found

    monkeypatch.delenv("GPKVS_DOOR_LIBRARY", raising=False)
    monkeypatch.setattr(versions, "installed_library", installed_library)


def refusal() -> str:
    """Return why no door can be made."""
    config = ServerConfig()
    with pytest.raises(InvalidArgumentError) as caught:
        Library(config, bounds_of(config, Limits(), 64 * MIB, 64 * GIB))
    return str(caught.value)


def test_a_door_that_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    installed_as(monkeypatch, BackendError("there is none"))
    assert versions.versions() == ""
    told = refusal()
    assert told.startswith("this build of gpkvs has no server, only the embedded store")
    for packages in ("libnghttp2-dev libssl-dev", "libnghttp2-devel openssl-devel", "libnghttp2 openssl@3"):
        assert packages in told


def test_a_door_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / versions.NAME
    broken.write_bytes(b"no library")
    installed_as(monkeypatch, broken)
    assert versions.versions().startswith("cannot be loaded: ")
    assert str(broken) in refusal()


def test_what_the_door_keeps_of_texts_is_what_python_shows() -> None:
    _describe(versions.library_path())
    assert SlowCall.key.size == KEY_BYTES_MAX
    assert SlowCall.request_id.size == REQUEST_ID_BYTES_MAX + 1
