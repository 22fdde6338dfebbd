"""Gives asynchronous classes the signatures, overloads and bodies of the blocking ones; their docstrings are their own.

    python -m tools.async_faces [--check]

The blocking side is written by hand. A method that an asynchronous class has too is made of it, where it stands.
`TWINS` names those that are not, or have bodies of their own. With `--check` it only says which files are not as it
makes them. It needs ruff, for the layout.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

FACE, ASYNC_FACE = "gpkvs/face.py", "client/async_face.py"


@dataclass(frozen=True)
class Twin:
    """A class, and the asynchronous one.

    Attributes
    ----------
    source, target
        Their files and names.
    bodies
        Methods whose bodies are written by hand on both sides.
    apart
        Methods that are, altogether.
    """

    source: tuple[str, str]
    target: tuple[str, str]
    bodies: str = ""
    apart: str = ""


TWINS = (
    Twin(
        (FACE, "KeyValues"),
        (ASYNC_FACE, "AsyncKeyValues"),
        bodies="_one get _pairs exists set delete ttl watch",
        apart="_commit batch transact",
    ),
    Twin((FACE, "TableHandle"), (ASYNC_FACE, "AsyncTable"), bodies="__init__ __repr__"),
    Twin((FACE, "TransactionBlock"), (ASYNC_FACE, "AsyncTransactionBlock")),
    Twin(
        ("gpkvs/transaction.py", "Transaction"),
        (ASYNC_FACE, "AsyncTransaction"),
        bodies="_send",
        apart="__init__ run",
    ),
    Twin(("gpkvs/rows.py", "Rows"), ("client/async_rows.py", "AsyncRows"), bodies="get set_if_absent delete scan _run"),
    Twin(
        ("client/sync.py", "Client"),
        ("client/aio.py", "AsyncClient"),
        bodies="_execute_columns _read_into scan_pieces follow wait_ready _deadline _call",
        apart="__init__ close _watch _execute",
    ),
    Twin(("client/objects.py", "Objects"), ("client/objects.py", "AsyncObjects")),
)

# Of whom the methods are that are awaited, beside those of the class itself.
_OWNERS = {"self._db": "AsyncKeyValues", "self._client": "AsyncKeyValues", "self._transaction": "AsyncTransaction"}
_RENAMED = {
    **{name: f"Async{name}" for name in ("Following", "Iterator", "KeyValues", "Rows", "Scan", "Transaction", "Watch")},
    **{"TransactionBlock": "AsyncTransactionBlock", "TableHandle": "AsyncTable", "Follows": "AsyncFollowing"},
    **{"__enter__": "__aenter__", "__exit__": "__aexit__"},
}
_RENAMED_NAME = re.compile(rf"\b({'|'.join(_RENAMED)})\b")
_DEF = re.compile(r"^    def ", re.MULTILINE)
_CLASS = "class _:\n"  # so that a method stands in one


class Class:
    """The methods of a class in the text of a file, each with its overloads."""

    def __init__(self, text: str, name: str) -> None:
        (found,) = (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == name)
        functions = [node for node in found.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        self.awaited = {node.name for node in functions if isinstance(node, ast.AsyncFunctionDef)}
        self.methods: dict[str, str] = {}
        for method, group in groupby(functions, lambda node: node.name):
            nodes = list(group)
            first = min(node.lineno for node in (nodes[0], *nodes[0].decorator_list))
            self.methods[method] = _lines(text, first, nodes[-1].end_lineno)


def _lines(text: str, first: int, last: int | None = None) -> str:
    """Return lines of a text, counted from 1."""
    return "".join(text.splitlines(keepends=True)[first - 1 : last])


def _parts(method: str) -> tuple[str, str, str]:
    """Return what stands before a method's docstring, the docstring, and what stands behind it."""
    function = ast.parse(_CLASS + method).body[0].body[-1]
    first = function.body[0].lineno - 1
    end = function.body[0].end_lineno if ast.get_docstring(function) is not None else first
    return _lines(method, 1, first - 1), _lines(method, first, end - 1), _lines(method, end)


def _with_awaits(method: str, awaited: dict[str, set[str]]) -> str:
    """Await the calls of methods that their owners have."""
    lines = (_CLASS + method).splitlines(keepends=True)
    nodes = list(ast.walk(ast.parse("".join(lines))))
    in_parentheses = {node.value for node in nodes if isinstance(node, ast.Attribute | ast.Subscript)}
    edits = []
    for node in nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr in awaited.get(ast.unparse(node.func.value), ()):
            edits.append((node.lineno, node.col_offset, "(await " if node in in_parentheses else "await "))
            edits.append((node.end_lineno, node.end_col_offset, ")" if node in in_parentheses else ""))
    for line, column, text in sorted(edits, reverse=True):
        lines[line - 1] = lines[line - 1][:column] + text + lines[line - 1][column:]
    return "".join(lines[len(_CLASS.splitlines()) :])


def made(twin: Twin, texts: dict[str, str]) -> str:
    """Return the file of a twin's target as it should be."""
    text = texts[twin.target[0]]
    source, target = Class(texts[twin.source[0]], twin.source[1]), Class(text, twin.target[1])
    awaited = {owner: Class(texts[ASYNC_FACE], name).awaited for owner, name in _OWNERS.items()}
    awaited["self"] = target.awaited | awaited["self._db"]
    for name, method in source.methods.items():
        theirs = target.methods.get(_RENAMED.get(name, name))
        if theirs is None or name in twin.apart.split():
            continue
        ours = _RENAMED_NAME.sub(lambda found: _RENAMED[found[0]], method)
        if _RENAMED.get(name, name) in target.awaited:
            ours = _DEF.sub("    async def ", _with_awaits(ours, awaited))
        head, _, body = _parts(ours)
        _, docstring, own = _parts(theirs)
        text = text.replace(theirs, head + docstring + (own if name in twin.bodies.split() else body), 1)
    return text


def _formatted(path: str, text: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", path, "-"]
    return subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True).stdout


def main() -> int:
    """Write the files, or say which are not current; return the exit status."""
    texts = {path: Path(path).read_text() for twin in TWINS for path, _ in (twin.source, twin.target)}
    before = dict(texts)
    for twin in TWINS:
        texts[twin.target[0]] = made(twin, texts)
    changed = {path: new for path, text in texts.items() if (new := _formatted(path, text)) != before[path]}
    for path, text in changed.items():
        if "--check" in sys.argv:
            print(f"{path} is not as its blocking twin makes it: run make faces")
        else:
            Path(path).write_text(text)
    return 1 if changed and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
