"""gpkvs watch: what it prints, and where it says that one goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gpkvs.cli.main import app
from gpkvs.client import Client
from tests.conftest import assert_clean
from tests.serving import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("watch-command")
    server = Server(folder / "store", folder)
    try:
        yield server
        server.stop()
    finally:
        server.kill()
    assert_clean(folder / "store")


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.target) as client:
        yield client


def watched(server: Server, *words: str, writes: Callable[[], object]) -> Result:
    """Run the command, and write as soon as the server has the watch."""
    while server.metric("gpkvs_watches"):
        time.sleep(0.01)  # one that has ended is counted for a moment

    def write() -> None:
        while not server.metric("gpkvs_watches"):
            pass
        writes()

    writer = threading.Thread(target=write)
    writer.start()
    result = CliRunner().invoke(app, ["watch", *words, "--target", server.target])
    writer.join()
    return result


def test_lines(server: Server, client: Client) -> None:
    def write() -> None:
        client.set(b"user:1", b"ann")
        client.set(b"item", b"1")
        client.set(b"user:\n", b"\xff", ttl=1000)
        client.delete(b"user:1")

    result = watched(server, "user:", "--limit", "3", writes=write)
    assert (result.exit_code, result.stdout) == (0, "set\tuser:1\tann\nset\tuser:\\n\t\\xff\ndeleted\tuser:1\n")
    told, _, position = result.stderr.strip().partition(" --since ")
    assert told == "gpkvs: go on with"
    client.set(b"user:3", b"3")
    again = CliRunner().invoke(app, ["watch", "--since", position, "--limit", "1", "--json", "--target", server.target])
    line = json.loads(again.stdout)
    assert {name: line[name] for name in ("kind", "key", "value", "table")} == {
        "kind": "set",
        "key": "user:3",
        "value": "3",
        "table": "default",
    }
    assert line["version"] > 1
    assert line["position"] == again.stderr.split()[-1] > position


def test_json_of_all_tables(server: Server, client: Client) -> None:
    def write() -> None:
        client.create_table("n", layout="u64", index_bytes=1 << 16)
        client.set(7, 8, table="n")
        client.set(b"k", b"\xff", ttl=1000)
        client.drop_table("n")
        client.delete(b"k")

    result = watched(server, "--all-tables", "--json", "--limit", "3", writes=write)
    assert result.exit_code == 0, result.stderr
    lines: list[dict[str, Any]] = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["kind"], line["table"]) for line in lines] == [
        ("table_made", "n"),
        ("set", "n"),
        ("set", "default"),
        ("table_dropped", "n"),
        ("deleted", "default"),
    ]
    assert (lines[1]["key"], lines[1]["value"], "version" in lines[1]) == (7, 8, False)
    assert lines[2]["value_base64"] == "/w=="
    assert lines[2]["expiry_ms"] > lines[2]["time_ms"]
    assert "value" not in lines[4]


def test_lines_of_all_tables(server: Server, client: Client) -> None:
    def write() -> None:
        client.create_table("m", layout="u64", index_bytes=1 << 16)
        client.set(7, 8, table="m")
        client.drop_table("m")
        client.set(b"k", b"v")

    result = watched(server, "--all-tables", "--limit", "2", writes=write)
    assert result.stdout == "m\ttable made\nm\tset\t7\t8\nm\ttable dropped\ndefault\tset\tk\tv\n"


def test_lines_of_rows(server: Server, client: Client) -> None:
    def write() -> None:
        client.create_table("rows", layout="int16[2,1]", index_bytes=1 << 16)
        rows = client.rows("int16[2,1]", table="rows")
        rows.set([7], [[[1], [-2]]])
        rows.add([7], [[[1], [1]]])
        rows.delete([7])

    result = watched(server, "--all-tables", "--limit", "3", writes=write)
    lines = ["table made", "set\t7\t[[1], [-2]]", "set\t7\t[[2], [-1]]", "deleted\t7"]
    assert result.stdout == "".join(f"rows\t{line}\n" for line in lines)
    result = watched(server, "--table", "rows", "--json", "--limit", "3", writes=lambda: write_again(client))
    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(one["key"], one.get("value")) for one in told] == [(8, [[3], [4]]), (8, None), (9, [[5], [6]])]


def write_again(client: Client) -> None:
    rows = client.rows("int16[2,1]", table="rows")
    rows.set([8], [[[3], [4]]])
    rows.delete([8])
    rows.set([9], [[[5], [6]]])


def test_nothing_more_comes(server: Server, client: Client) -> None:
    client.create_table("gone", layout="u64", index_bytes=1 << 16)

    def write() -> None:
        client.set(7, 8, table="gone")
        client.drop_table("gone")

    result = watched(server, "--table", "gone", writes=write)
    assert (result.exit_code, result.stdout) == (1, "set\t7\t8\ntable dropped\n")
    assert "gpkvs: table: table 'gone' was dropped" in result.stderr
    assert "--since" not in result.stderr, "nobody can go on"


def test_changes_that_are_lost(tmp_path: Path) -> None:
    """The command stands still while more is written than the server holds, and more than flow control takes."""
    server = Server(tmp_path / "store", tmp_path, "--changes-bytes", "64KiB")
    command = [sys.executable, "-m", "gpkvs.cli", "watch", "--target", server.target]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while not server.metric("gpkvs_watches"):
            assert process.poll() is None
        with Client(server.target) as client:
            client.set(b"k", b"v")
            assert process.stdout
            assert process.stdout.readline() == "set\tk\tv\n"
            process.send_signal(signal.SIGSTOP)
            for number in range(400):
                client.set(b"%d" % (number % 50), b"v" * 20_000)
        process.send_signal(signal.SIGCONT)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 1, errors
        assert "are no longer held" in errors
        assert "--since" not in errors, "nobody can go on"
        server.stop()
    finally:
        process.kill()
        process.wait()
        server.kill()


def test_refusals(server: Server) -> None:
    for words, status, text in (
        (["--since", "x"], 2, "since: 'x' is no position"),
        (["--since", "00000000000000ff-1"], 1, "not of this opening of the store"),  # its changes are not held
        (["--table", "none"], 2, "no table 'none'"),
        (["--all-tables", "--table", "default"], 2, "--all-tables and --table"),
        (["--all-tables", "k"], 2, "prefix: a watch of all tables"),
    ):
        result = CliRunner().invoke(app, ["watch", *words, "--target", server.target])
        assert (result.exit_code, result.stdout) == (status, "")
        assert text in result.stderr


INTERRUPTIBLE = """
import signal
from gpkvs.cli.main import run
signal.signal(signal.SIGINT, signal.default_int_handler)  # else ignored, where the tests run in the background
run()
"""


def test_ctrl_c_ends_it_with_a_position(server: Server, client: Client) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, "watch", "--target", server.target],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not server.metric("gpkvs_watches"):
            assert process.poll() is None
        client.set(b"k", b"v")
        assert process.stdout
        assert process.stdout.readline() == "set\tk\tv\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 130
        assert errors.startswith("gpkvs: go on with --since ")
        assert errors.count("\n") == 1
    finally:
        process.kill()
        process.wait()
