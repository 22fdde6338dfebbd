"""The kernels as one translation unit, for a compiler that is handed text: a GPU's, at run time."""

from __future__ import annotations

import re
from pathlib import Path

_FOLDER = Path(__file__).parent
_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"\n', re.MULTILINE)


def translation_unit(pattern: str = "*.cu") -> str:
    """Return every kernel file, or those that a pattern names, with the headers they need, each once.

    Headers are put in place, not named: a compiler's cache that goes by the text then sees when one of them changes.
    Messages name the file and line as they are in this folder.
    """
    seen: set[str] = set()
    return "".join(_file(path.name, seen) for path in sorted(_FOLDER.glob(pattern)))


def with_headers(source: str, name: str) -> str:
    """Return the source of a user's kernels with the headers of this folder in place; messages call it by a name."""
    return _placed(source, name, set())


def _file(name: str, seen: set[str]) -> str:
    seen.add(name)
    text = (_FOLDER / name).read_text()
    return _placed(text.replace("#pragma once\n", "\n"), name, seen)  # in a main file, compilers warn of it


def _placed(text: str, name: str, seen: set[str]) -> str:
    parts = [f'#line 1 "{name}"\n']
    at = 0
    for include in _INCLUDE.finditer(text):
        parts.append(text[at : include.start()])
        if include[1] not in seen and (_FOLDER / include[1]).exists():
            parts.append(_file(include[1], seen))
        at = include.end()
        parts.append(f'#line {text.count(chr(10), 0, at) + 1} "{name}"\n')
    return "".join([*parts, text[at:], "\n"])
