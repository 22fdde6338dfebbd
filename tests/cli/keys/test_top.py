"""`gpkvs top` beside a real server."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest

from gpkvs.cli.keys.top_screen import _phases
from gpkvs.engine.seam.meter import COMMIT_PHASES, PHASES
from gpkvs.text import readable_seconds
from tests.record_header import HEADER_BYTES
from tests.server.wire import GET, SET, batch
from tests.serving import COMMAND, Server, error_line, run_gpkvs

# The terminal on standard input becomes that of the session, so that its Ctrl-C is a signal; then the command.
IN_A_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


def load(server: Server, stop: threading.Event) -> None:
    operations = [(SET, b"%d" % i, b"value") for i in range(50)] + [(GET, b"%d" % i) for i in range(100)]
    while not stop.is_set():
        server.kv.Batch(batch(operations))


def top(server: Server, *options: str) -> str:
    """Return what one look shows, while the server works."""
    stop = threading.Event()
    thread = threading.Thread(target=load, args=(server, stop))
    thread.start()
    try:
        result = run_gpkvs("top", "--metrics", server.metrics_address, "--interval", "0.5", "--once", *options)
    finally:
        stop.set()
        thread.join()
    assert result.returncode == 0, result.stderr
    return result.stdout.decode()


def test_a_pipe_gets_one_look(server: Server) -> None:
    result = run_gpkvs("top", "--metrics", server.metrics_address, "--interval", "0.1")
    assert (result.returncode, result.stderr) == (0, b"")
    assert b"operations" in result.stdout
    assert b"\x1b" not in result.stdout


@pytest.mark.undo
def test_json(server: Server) -> None:
    seen = json.loads(top(server, "--json"))
    assert seen["serving"] is True
    assert seen["domain"]
    assert 0.4 < seen["interval_seconds"] < 10
    assert seen["operations"]["get"] == pytest.approx(2 * seen["operations"]["set"])
    assert seen["operations"]["set"] == pytest.approx(50 * seen["batches"], rel=0.1)
    assert seen["operations"]["delete"] == 0
    assert 150 <= seen["batch_operations"] <= 151
    assert 0 < seen["batch_seconds"]["p50"] <= seen["batch_seconds"]["p99"]
    assert list(seen["phases"]) == list(PHASES)
    assert all(seen["phases"][phase]["seconds"] > 0 for phase in ("plan", *COMMIT_PHASES))
    assert seen["engine_busy"] == pytest.approx(sum(phase["busy"] for phase in seen["phases"].values()))
    assert 0 < seen["engine_busy"] < 1.1
    # Of each SET: 6 or 7 bytes of the user, a record of 32 or 48 bytes, an undo entry of 48, a slot of 32.
    assert (HEADER_BYTES + 96) / 7 < seen["write_amplification"] < 170 / 6
    # Exact figures are the system's business: nothing on tmpfs, whole pages on a disk.
    assert seen["device_written_bytes"] >= 0
    assert seen["device_amplification"] * seen["user_bytes"] == pytest.approx(seen["device_written_bytes"])
    (table,) = seen["tables"]
    assert table["name"] == "default"
    assert table["records"] == 50
    assert table["load_factor"] == pytest.approx(50 / table["slots"])
    assert table["heap_bytes"] == 50 * -(-(HEADER_BYTES + 8) // 16) * 16 == seen["heap_live_bytes"]
    assert table["expiring_keys"] == 0
    assert table["bytes_per_key"] == 32 + -(-(HEADER_BYTES + 8) // 16) * 16  # a slot, a record
    assert 0 < seen["heap_live_bytes"] < seen["heap_bytes"]
    assert 0 < seen["heap_free_bytes"] < seen["heap_bytes"]


def test_a_line_of_json_is_there_as_soon_as_its_interval_is_over(server: Server) -> None:
    command = [*COMMAND, "top", "--json", "--interval", "0.05", "--metrics", server.metrics_address]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        for _ in range(2):  # far less than what a pipe is filled with before Python writes it
            assert json.loads(process.stdout.readline())["serving"]
        process.terminate()


def test_picture(server: Server) -> None:
    shown = top(server)
    for word in (
        server.metrics_address,
        "serving",
        "SETs",
        "write amplification",
        "written to devices",
        "device amplification",
        "waiting requests",
        "default",
        " others",  # phases without work
    ):
        assert word in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_tables(server: Server) -> None:
    seen = json.loads(top(server, "--json"))
    (table,) = seen["tables"]
    rates = table["operations"]
    # Another batch may be counted between two of these figures.
    assert rates["get"] == pytest.approx(2 * rates["set"], rel=0.1)
    assert rates["set"] == pytest.approx(seen["operations"]["set"], rel=0.1)
    assert table["bytes"]["in"] == pytest.approx(rates["set"] / 50 * (90 + 250 + 190), rel=0.1)
    assert table["bytes"]["out"] == pytest.approx(rates["set"] * 5, rel=0.1)
    shown = top(server, "--table", "all")
    assert "default" in shown
    assert "operations" in shown
    assert max(map(len, shown.splitlines())) <= 80
    shown = top(server, "--table", "default")
    assert "GETs a second" in shown
    assert "heap of these" in shown
    assert "keys with an expiry" in shown
    assert max(map(len, shown.splitlines())) <= 80
    result = run_gpkvs("top", "--metrics", server.metrics_address, "--table", "nosuch")
    assert error_line(result, 2) == "gpkvs: table: there is no table 'nosuch'; there are default"


def test_live_view_outlives_its_server(server: Server, tmp_path: Path) -> None:
    server.kv.Batch(batch([(SET, b"key", b"value")]))
    output = tmp_path / "top.jsonl"
    with output.open("wb") as stdout:
        process = subprocess.Popen(
            [*COMMAND, "top", "--metrics", server.metrics_address, "--interval", "0.05", "--json"], stdout=stdout
        )
    try:
        while output.read_text().count("\n") < 3:
            assert process.poll() is None
        server.stop()
        while "error" not in output.read_text():
            assert process.poll() is None
    finally:
        process.terminate()
        process.wait(30)
    lines = [json.loads(line) for line in output.read_text().splitlines() if line.endswith("}")]
    assert all("serving" in line or server.metrics_address in line["error"] for line in lines)


@pytest.mark.parametrize(
    ("key", "number", "status"),
    [
        (b"q", 0, 0),
        (b"\x03", 0, 0),
        (b"", signal.SIGTERM, 128 + signal.SIGTERM),
        (b"", signal.SIGHUP, 128 + signal.SIGHUP),
    ],
    ids=["q", "Ctrl-C", "SIGTERM", "SIGHUP"],
)
def test_it_ends_and_leaves_the_terminal_as_it_was(server: Server, key: bytes, number: int, status: int) -> None:
    outer, inner = pty.openpty()
    before = termios.tcgetattr(inner)
    process = subprocess.Popen(
        [sys.executable, "-c", IN_A_TERMINAL, *COMMAND, "top", "--interval", "0.1"],
        stdin=inner,
        stdout=inner,
        start_new_session=True,
        env={**os.environ, "GPKVS_METRICS_TARGET": server.metrics_address, "TERM": "xterm"},
    )
    try:
        shown = b""
        while b"waiting requests" not in shown:
            assert select.select([outer], [], [], 30)[0], shown
            shown += os.read(outer, 1 << 16)
        assert termios.tcgetattr(inner) != before  # keys come one by one, and are not shown
        os.write(outer, b"x" + key)
        if number:
            process.send_signal(number)
        give_up = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < give_up:
            if select.select([outer], [], [], 0.1)[0]:
                os.read(outer, 1 << 16)
        assert process.returncode == status
        assert termios.tcgetattr(inner) == before
    finally:
        process.kill()
        process.wait()
        os.close(outer)
        os.close(inner)


def test_nothing_there(server: Server) -> None:
    assert "127.0.0.1:1" in error_line(run_gpkvs("top", "--metrics", "127.0.0.1:1", "--once"), 2)
    # The gRPC port is a likely mistake.
    assert server.target in error_line(run_gpkvs("top", "--metrics", server.target, "--once"), 2)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.4, "0 s"), (7, "7 s"), (420, "7 min 0 s"), (3 * 3600 + 59, "3 h 0 min"), (90061, "1 d 1 h")],
)
def test_the_time_since_the_start_names_its_units(seconds: float, shown: str) -> None:
    assert readable_seconds(seconds) == shown


def test_phases_without_work_share_a_row() -> None:
    idle, busy = {"seconds": 0.0, "busy": 0.0}, {"seconds": 0.001, "busy": 0.2}
    summary = {"phases": {"route": idle, "plan": busy, "order": idle}, "engine_busy": 0.2}
    assert list(_phases(summary).columns[0].cells) == ["plan", "[dim]2 others[/]", "[bold]engine[/]"]
