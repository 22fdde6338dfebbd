"""What tests of exports and imports ask a server and its tables for."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner, Result

from gpkvs.batch import Op
from gpkvs.cli.main import app
from gpkvs.client import Client
from tests.serving import Server


def columns(numbers: dict[int, int]) -> tuple[Any, Any]:
    return np.array(list(numbers), np.uint64), np.array(list(numbers.values()), np.uint64)


def fill(server: Server, table: str, records: dict[bytes, bytes]) -> None:
    pairs = iter(records.items())
    with Client(server.target, table=table) as client:
        while part := list(islice(pairs, 1000)):
            client.batch([(Op.SET, key, value) for key, value in part])


def contents(server: Server, table: str) -> dict[bytes, bytes]:
    with Client(server.target, table=table) as client:
        return {key: value for piece in client.scan_pieces() for key, value in piece.pairs()}


def empty(server: Server, table: str) -> None:
    with Client(server.target) as client:
        found = next(one for one in client.list_tables() if one.name == table)
        client.drop_table(table)
        client.create_table(table, layout=found.layout, index_bytes=1 << 20)


def gpkvs(server: Server, *words: str | Path) -> Result:
    return CliRunner().invoke(app, [*map(str, words), "--target", server.target])


def refusal(server: Server, *words: str | Path) -> str:
    result = gpkvs(server, *words)
    assert result.exit_code == 2, result.output
    errors = [line for line in result.stderr.splitlines() if line.startswith("gpkvs: ")]
    assert len(errors) == 1, result.stderr
    return errors[0]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
