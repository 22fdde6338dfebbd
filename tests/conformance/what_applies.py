"""A plugin for the pytest of a client library: it skips the tests that are not for gpkvs, and says why.

It runs in that pytest's process, without the rest of this repository. The environment names the library
(``GPKVS_LIBRARY``), the commands of Redis that gpkvs does not have (``GPKVS_OUTSIDE``, with ``|`` before a subcommand),
and the tests that are left out (``GPKVS_LEFT_OUT``, JSON: names under reasons).
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest

OUTSIDE = frozenset(os.environ["GPKVS_OUTSIDE"].split())
LEFT_OUT = {name: reason for reason, names in json.loads(os.environ["GPKVS_LEFT_OUT"]).items() for name in names}


def outside(words: Sequence[Any]) -> str | None:
    """Return the name of a command if gpkvs does not have it."""
    texts = [word.decode("latin-1") if isinstance(word, bytes) else str(word) for word in words[:2]]
    name, *rest = " ".join(texts).lower().split(" ")
    return next((command for command in (name, "|".join([name, *rest[:1]])) if command in OUTSIDE), None)


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Skip the tests that are left out by name."""
    for item in items:
        if reason := LEFT_OUT.get(item.originalname):
            item.add_marker(pytest.mark.skip(reason=f"left out: {item.originalname}: {reason}"))


def behind_a_look(encode: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that encodes a command, behind a look at the command."""

    def look(self: Any, *words: Any) -> Any:
        if command := outside(words):
            pytest.skip(f"outside: {command}")
        return encode(self, *words)

    return look


for module, of_class, method in (
    ("connection", "PythonRespSerializer", "pack"),
    ("asyncio.connection", "AbstractConnection", "pack_command"),
):
    owner = getattr(importlib.import_module(f"{os.environ['GPKVS_LIBRARY']}.{module}"), of_class)
    setattr(owner, method, behind_a_look(getattr(owner, method)))
