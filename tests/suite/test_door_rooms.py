"""The rooms of the door: headers include only those of their own room and of the rooms below it."""

from __future__ import annotations

import re
from pathlib import Path

DOOR = Path(__file__).parents[2] / "door"
ROOMS = ("base", "request", "net", "queue", "python", "grpc", "resp")
"""From the lowest up; `door.hpp` stands above all, and each .cpp may see it."""

_INCLUDED = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def headers() -> list[Path]:
    return [path for path in sorted(DOOR.glob("*/*")) if path.suffix in (".h", ".hpp")]


def test_every_folder_is_a_room() -> None:
    assert {path.parent.name for path in headers()} == set(ROOMS)
    assert {path.name for path in DOOR.iterdir() if path.is_file()} == {"README.md", "door.cpp", "door.h", "door.hpp"}


def test_headers_look_down() -> None:
    looking_up = [
        f"{path.relative_to(DOOR)} includes {included}"
        for path in headers()
        for included in _INCLUDED.findall(path.read_text())
        if included == "door.hpp"
        or ((room := included.partition("/")[0]) in ROOMS and ROOMS.index(room) > ROOMS.index(path.parent.name))
    ]
    assert looking_up == []


def test_no_room_holds_more_than_a_reader_can_see() -> None:
    for room in ROOMS:
        names = {path.stem for path in (DOOR / room).iterdir()}
        assert len(names) <= 16, room
