"""Runs the Python blocks of one document in one namespace, as a reader who pastes them one after the other.

Standard input gives blocks, one JSON object a line; standard output answers each with a line: "ok" or "failed".
What a block prints, and why it failed, goes to standard error.

An expression whose comment begins with a Python literal, such as ``store.get(key)  # b"value"``, must have that value.
So must what a ``print`` of one value shows.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import signal
import sys
import tokenize
import traceback
import types
from pathlib import Path
from typing import Any


def comments_of(text: str) -> dict[int, str]:
    """Return the comments of a program by line."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}


class Expectations(ast.NodeTransformer):
    """Turns each expression with a value as its comment into an assertion."""

    def __init__(self, text: str) -> None:
        self._comments = comments_of(text)

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        said = self._comments.get(node.end_lineno or 0, "").partition(";")[0]
        try:
            ast.literal_eval(said)
        except (SyntaxError, ValueError):
            return node
        match node.value:
            case ast.Call(ast.Name("print"), [shown], []):
                value: ast.expr = ast.Call(ast.Name("str", ast.Load()), [shown], [])
                expected: ast.expr = ast.Constant(said.strip())
            case value:
                expected = ast.parse(said, mode="eval").body
        check = ast.Assert(ast.Compare(value, [ast.Eq()], [expected]), ast.Constant(f"it is not {said}"))
        return ast.fix_missing_locations(ast.copy_location(check, node))


def run(text: str, file: Path, main: types.ModuleType) -> None:
    """Run one block; it lies in a file, so that processes which it starts find what it defines."""
    file.write_text(text)
    main.__file__ = str(file)
    tree = Expectations(text).visit(ast.parse(text, str(file)))
    exec(compile(tree, str(file), "exec"), main.__dict__)


def serve() -> None:
    """Answer blocks until standard input ends."""
    # A shell starts what it runs in the background with Ctrl-C ignored; a reader is in the foreground.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    answers = sys.stdout
    for line in sys.stdin:
        block: dict[str, Any] = json.loads(line)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                run(block["text"], Path(block["file"]), main)
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
            print("failed", file=answers, flush=True)
        else:
            print("ok", file=answers, flush=True)


if __name__ == "__main__":
    serve()
