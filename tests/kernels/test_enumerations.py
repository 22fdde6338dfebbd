"""What native code counts from 0 in an `enum`, and Python by its own names: the numbers are the same."""

from __future__ import annotations

import re
from enum import IntEnum
from pathlib import Path
from types import ModuleType

import pytest

from gpkvs.backends.path_costs import Mix
from gpkvs.changes import ChangeKind
from gpkvs.engine.host.native_engine import Ran
from gpkvs.engine.seam import meter
from gpkvs.engine.space import compaction
from gpkvs.engine.state import heap
from gpkvs.engine.tables import expiry, scan
from gpkvs.recovery.proof.powerfail import recorder
from gpkvs.server.account.memory import KINDS
from gpkvs.server.door.library import EventKind, Protocol, Turn
from gpkvs.server.redis.commands.scripts import Program

REPOSITORY = Path(__file__).parents[2]
_COMMENT = re.compile(r"//.*")


def numbers_of(header: str, enum: str, prefix: str = "") -> dict[str, int]:
    """Return names and numbers, without those that are made of others."""
    text = _COMMENT.sub("", (REPOSITORY / header).read_text())
    (body,) = re.findall(rf"enum {enum}(?: : \w+)? \{{(.*?)\}}", text, re.DOTALL)
    numbers: dict[str, int] = {}
    for item in filter(None, (item.strip() for item in body.split(","))):
        name, _, number = item.partition(" = ")
        if not number or number.isdigit():
            numbers[name.removeprefix(prefix)] = int(number) if number else max(numbers.values(), default=-1) + 1
    return numbers


@pytest.mark.parametrize(
    ("header", "enum", "prefix", "ours"),
    [
        ("gpkvs/kernels/engine_batch.h", "EngineRan", "ENGINE_", Ran),
        ("gpkvs/kernels/commit/changes.hpp", "ChangeKind", "CHANGED_", ChangeKind),
        ("door/door.h", "DoorProtocol", "DOOR_", Protocol),
        ("door/door.h", "DoorTurn", "TURN_", Turn),
        ("door/door.h", "DoorEventKind", "EVENT_", EventKind),
        ("door/resp/scripts.hpp", "class Program", "", Program),
    ],
)
def test_members_have_the_numbers_of_native_code(header: str, enum: str, prefix: str, ours: type[IntEnum]) -> None:
    assert numbers_of(header, enum, prefix).items() - {("NONE", 0)} == {(member.name, member.value) for member in ours}


@pytest.mark.parametrize(
    ("header", "enum", "prefix", "ours"),
    [
        ("gpkvs/kernels/engine/native_engine.hpp", "Mix", "MIX_", [mix.name for mix in Mix]),
        ("gpkvs/kernels/base/meter.hpp", "Phase", "PHASE_", [phase.upper() for phase in meter.PHASES]),
        ("door/base/account.hpp", "Kind", "", [kind.upper() for kind in KINDS]),
    ],
)
def test_rows_are_in_the_order_of_native_code(header: str, enum: str, prefix: str, ours: list[str]) -> None:
    assert [name for name in numbers_of(header, enum, prefix) if name not in ("MIXES", "KINDS")] == ours


@pytest.mark.parametrize(
    ("header", "enum", "prefix", "module", "only_theirs"),
    [
        ("gpkvs/kernels/space/heap_state.hpp", "HeapState", "HEAP_", heap, {"STATE_WORDS"}),
        ("gpkvs/kernels/base/meter.hpp", "MeterWord", "METER_", meter, set()),
        ("gpkvs/kernels/plan/compact.hpp", "Moves", "MOVES_", compaction, {"WORDS"}),
        ("gpkvs/kernels/plan/expiry.hpp", "Found", "FOUND_", expiry, {"WORDS"}),
        ("gpkvs/kernels/plan/scan.hpp", "Scanned", "SCANNED_", scan, {"OTHER"}),
        ("gpkvs/kernels/base/trace.cuh", "TraceKind", "TRACE_", recorder, set()),
    ],
)
def test_words_have_the_numbers_of_native_code(
    header: str, enum: str, prefix: str, module: ModuleType, only_theirs: set[str]
) -> None:
    numbers = numbers_of(header, enum, prefix)
    assert {name: getattr(module, f"_{name}") for name in numbers.keys() - only_theirs} == {
        name: number for name, number in numbers.items() if name not in only_theirs
    }
