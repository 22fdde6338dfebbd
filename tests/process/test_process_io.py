"""What the process wrote, as Linux says; and nothing, not zero, where it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import generate_latest

import gpkvs
from gpkvs.cli.keys.info import as_dict
from gpkvs.process.process_io import process_io
from gpkvs.server.calls.admin import to_message
from gpkvs.server.signs.exporter import Metrics


def test_what_linux_counts() -> None:
    io = process_io()
    assert io is not None
    assert min(io) >= 0


def test_an_embedded_store_says_it(store: gpkvs.Store) -> None:
    before = process_io()
    assert before is not None
    store.set(b"key", b"value")
    io = store.info().process_io
    assert io is not None
    assert io.written_bytes >= before.written_bytes
    assert as_dict(to_message(store.info(), 1))["process_written_bytes"] >= io.written_bytes


@pytest.mark.parametrize("error", [PermissionError(13, "no"), FileNotFoundError(2, "no"), None])
def test_where_the_system_says_nothing_it_is_absent(
    store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch, error: OSError | None
) -> None:
    def read_text(path: Path) -> str:
        assert path == Path("/proc/self/io")
        if error:
            raise error
        return "rchar: 1\n"

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", read_text)
        assert process_io() is None
        message = to_message(store.info(), 1)
        exported = generate_latest(Metrics().registry)
    assert as_dict(message)["process_written_bytes"] is None
    assert not message.HasField("process_read_bytes")
    assert b"gpkvs_process" not in exported
    assert b"gpkvs_process_written_bytes_total" in generate_latest(Metrics().registry)
