"""The kernels as one translation unit, for a compiler that is handed text: a GPU's, at run time."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent
_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"\n', re.MULTILINE)
_KERNEL = re.compile(r"^GPKVS_(PM_|GROUP_|)KERNEL(?:_SOON)?\((\w+),", re.MULTILINE)


def translation_unit() -> str:
    """Return every kernel file with the headers they need, each once.

    Headers are put in place, not named: a compiler's cache that goes by the text then sees when one of them changes.
    Messages name the file and line as they are in this folder.
    """
    seen: set[str] = set()
    return "".join(_file(path.name, seen) for path in sorted(_FOLDER.glob("*.cu")))


def group_kernels() -> frozenset[str]:
    """Return the kernels that take eight lanes an item."""
    return _of_kind("GROUP_")


def pm_kernels() -> frozenset[str]:
    """Return the kernels that store to PM."""
    return _of_kind("PM_")


@cache
def _of_kind(wanted: str) -> frozenset[str]:
    return frozenset(name for kind, name in _KERNEL.findall(translation_unit()) if kind == wanted)


def _file(name: str, seen: set[str]) -> str:
    seen.add(name)
    text = (_FOLDER / name).read_text()
    parts = [f'#line 1 "{name}"\n']
    at = 0
    for include in _INCLUDE.finditer(text):
        parts.append(text[at : include.start()])
        if include[1] not in seen:
            parts.append(_file(include[1], seen))
        at = include.end()
        parts.append(f'#line {text.count(chr(10), 0, at) + 1} "{name}"\n')
    return "".join([*parts, text[at:], "\n"])
