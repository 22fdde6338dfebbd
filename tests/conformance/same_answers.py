"""A plugin for the pytest of fakeredis: its machines compare only commands that gpkvs answers as Redis does."""

from __future__ import annotations

import importlib
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from what_applies import outside  # type: ignore[import-not-found]  # both are on the path of that pytest

VALUE_BYTES_MAX = 16 << 20
# On a whole table: not possible inside MULTI.
WHOLE_TABLE = (b"keys", b"dbsize", b"flushdb", b"flushall", b"select")


def pytest_collection_finish() -> None:
    """Have the machines pass over the other commands."""
    base = importlib.import_module("test.test_hypothesis.base")
    compare = base.BaseMachine._compare

    def look(machine: Any, command: Any) -> None:
        name, *words = map(command.encode, command.args) if command.args else [b""]
        name = name.lower()
        machine.in_multi = (getattr(machine, "in_multi", False) or name == b"multi") and name not in (
            b"exec",
            b"discard",
        )
        is_long = name == b"setrange" and len(words) > 1 and int(words[1]) + len(words[-1]) > VALUE_BYTES_MAX
        if not outside([name]) and not is_long and not (machine.in_multi and name in WHOLE_TABLE):
            compare(machine, command)

    base.BaseMachine._compare = look
    # A machine that is busy with other tests is slow, too; to shrink an example takes minutes.
    settings.register_profile(
        "gpkvs",
        settings.get_profile("fakeredis"),
        suppress_health_check=list(HealthCheck),
        deadline=None,
        phases=[Phase.generate],
    )
    settings.load_profile("gpkvs")
