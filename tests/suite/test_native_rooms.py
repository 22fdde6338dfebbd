"""The rooms of native code: files include only headers of their own room and of the rooms below it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
ROOMS = {
    "door": ("base", "request", "net", "queue", "python", "grpc", "resp"),
    "gpkvs/kernels": ("base", "gpm", "cu", "space", "plan", "commit", "engine"),
}
"""From the lowest up. What stands beside them, such as `door.hpp` and `cpu.cpp`, is above all of them."""
CONTRACTS = ("door.h", "engine_batch.h")
"""What others see of the door and of the engine: every room may know it."""
NAMES_MAX = 23

_INCLUDED = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
_SUFFIXES = (".h", ".hpp", ".cuh", ".cu")  # a .cpp of the door may see the whole door

folders = pytest.mark.parametrize("folder", ROOMS)


@folders
def test_every_folder_is_a_room(folder: str) -> None:
    found = {path.parent.name for path in (REPOSITORY / folder).glob("*/*") if path.suffix in _SUFFIXES}
    assert found == set(ROOMS[folder])


@folders
def test_headers_and_kernels_look_down(folder: str) -> None:
    rooms = ROOMS[folder]
    seen = 0
    for path in sorted((REPOSITORY / folder).glob("*/*")):
        if path.suffix not in _SUFFIXES:
            continue
        for included in _INCLUDED.findall(path.read_text()):
            if included in CONTRACTS or included.startswith("../"):
                continue
            room = included.partition("/")[0]
            assert room in rooms, f"{path} includes {included}, which is in no room"
            assert rooms.index(room) <= rooms.index(path.parent.name), f"{path} includes {included}, of a room above"
            seen += 1
    assert seen > 50


@folders
def test_a_reader_sees_all_of_a_room(folder: str) -> None:
    for room in ROOMS[folder]:
        names = {path.stem for path in (REPOSITORY / folder / room).iterdir() if path.suffix in (*_SUFFIXES, ".cpp")}
        assert len(names) <= NAMES_MAX, room
