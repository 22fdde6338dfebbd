"""What tests of exports and imports ask a server and its tables for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner, Result

from gpkvs.batch import Op
from gpkvs.cli.main import app
from gpkvs.client import Client
from tests.conftest import assert_clean
from tests.serving import Server

SMALL = {b"user:1": b"ann", b"user:2": b"b\xff\n", b"item": b"", b"k" * 4096: bytes(70_000), b"m" * 300: b"v" * 300}
NUMBERS = {n: (n * 0x9E3779B97F4A7C15) % (1 << 64) for n in (0, 1, 127, 128, 1 << 32, (1 << 64) - 1, *range(999))}


@contextmanager
def served_tables(folder: Path, *names: str) -> Iterator[Server]:
    """Serve tables of bytes, of which ``small`` has SMALL, and two of numbers, of which ``numbers`` has NUMBERS."""
    server = Server(folder / "store", folder, "--heap-bytes", "64MiB", "--journal-bytes", "24MiB")
    try:
        with Client(server.target) as client:
            for table in names:
                client.create_table(table, index_bytes=1 << 20)
            for table in ("numbers", "copied_numbers"):
                client.create_table(table, layout="u64", index_bytes=1 << 20)
            client.set_many(*columns(NUMBERS), table="numbers")
        fill(server, "small", SMALL)
        yield server
        server.stop()
    finally:
        server.kill()
    assert_clean(folder / "store")


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
