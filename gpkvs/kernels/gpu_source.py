"""The kernels as one translation unit, for a compiler that is handed text: a GPU's, at run time."""

from __future__ import annotations

import re
from pathlib import Path

_FOLDER = Path(__file__).parent
_INCLUDE = re.compile(r'^#include "(?:\w+/)?(\w+\.cuh)"\n', re.MULTILINE)

HEADERS = {path.name: path for path in _FOLDER.glob("*/*.cuh")}
"""By their names: a user's kernels include ``gpm.cuh``, whatever room it lies in."""


def translation_unit(pattern: str = "*/*.cu") -> str:
    """Return every kernel file, or those that a pattern names, with the headers they need, each once.

    Headers are put in place, not named: a compiler's cache that goes by the text then sees when one of them changes.
    Messages name the file and line as they are in this folder.
    """
    seen: set[str] = set()
    return "".join(_file(path, seen) for path in sorted(_FOLDER.glob(pattern)))


def with_headers(source: str, name: str) -> str:
    """Return the source of a user's kernels with the headers of this folder in place; messages call it by a name."""
    return _placed(source, name, set())


def _file(path: Path, seen: set[str]) -> str:
    seen.add(path.name)
    text = path.read_text().replace("#pragma once\n", "\n")  # in a main file, compilers warn of it
    return _placed(text, path.relative_to(_FOLDER).as_posix(), seen)


def _placed(text: str, name: str, seen: set[str]) -> str:
    parts = [f'#line 1 "{name}"\n']
    at = 0
    for include in _INCLUDE.finditer(text):
        parts.append(text[at : include.start()])
        if include[1] not in seen and include[1] in HEADERS:
            parts.append(_file(HEADERS[include[1]], seen))
        at = include.end()
        parts.append(f'#line {text.count(chr(10), 0, at) + 1} "{name}"\n')
    return "".join([*parts, text[at:], "\n"])
