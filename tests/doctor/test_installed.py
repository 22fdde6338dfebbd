"""The command that installs gpkvs again is the one by which it was installed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gpkvs.doctor.installed import install_again

# What pip writes, for each way.
WAYS: list[tuple[dict[str, Any] | None, str]] = [
    (None, "pip install --force-reinstall --no-deps gpkvs"),
    (
        {"url": "file:///home/me/my%20wheels/gpkvs-0.1.0-py3-none-any.whl", "archive_info": {"hash": "sha256=00"}},
        "pip install --force-reinstall --no-deps '/home/me/my wheels/gpkvs-0.1.0-py3-none-any.whl'",
    ),
    ({"url": "file:///home/me/gpkvs", "dir_info": {}}, "pip install --force-reinstall --no-deps /home/me/gpkvs"),
    ({"url": "file:///home/me/gpkvs", "dir_info": {"editable": True}}, "make install, in /home/me/gpkvs"),
]


@pytest.mark.parametrize(("noted", "command"), WAYS)
def test_each_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noted: object, command: str) -> None:
    folder = tmp_path / "gpkvs-0.1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: gpkvs\nVersion: 0.1.0\n")
    if noted:
        (folder / "direct_url.json").write_text(json.dumps(noted))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert install_again() == command


def test_a_source_that_is_only_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert install_again().startswith("make install (or pip install .)")
