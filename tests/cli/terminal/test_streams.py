"""Every command whose output cannot be written, or whose terminal has few characters: the status says which it was."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import gpkvs
from gpkvs.proto.v1 import kv_pb2
from tests.cli.test_help import EVERY
from tests.serving import COMMAND, SIZES, Server, run_gpkvs

KEY = "schlüssel☃"
# Runs each case in a child of its own, which has all modules already: each start of Python would take longer than that.
RUNNER = """
import contextlib, gc, io, json, os, sys
from gpkvs.cli.__main__ import main
from gpkvs.cli.lazy_commands import load
from gpkvs.cli.main import Gpkvs, app
for name, (place, _) in Gpkvs.subcommands.items():
    load(name, place)
with contextlib.redirect_stdout(io.StringIO()):
    app(["config", "show"], standalone_mode=False)  # typer loads pydantic when it first reads an option
gc.freeze()
folder, cases = json.load(sys.stdin)
for number, (way, words) in enumerate(cases):
    child = os.fork()
    if not child:
        output, errors = (os.open(f"{folder}/{number}.{end}", os.O_CREAT | os.O_WRONLY) for end in ("out", "err"))
        if way == "full":
            output = os.open("/dev/full", os.O_WRONLY)
        if way == "pipe":
            reader, output = os.pipe()
            os.close(reader)
        os.dup2(output, 1)
        os.dup2(errors, 2)
        os.close(output)
        if way == "closed":
            os.close(1)
        sys.argv = ["gpkvs", *words]
        try:
            main()
        except SystemExit as end:
            os._exit(end.code or 0)  # without the time that it takes to free all modules
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@dataclass(frozen=True)
class Ended:
    """How a command ended whose standard output was full, a pipe without a reader, closed, or a file."""

    way: str
    words: list[str]
    status: int
    output: bytes
    errors: str


Case = tuple[str, list[str]]


def ended(folder: Path, cases: list[Case], **environment: str) -> Iterator[Ended]:
    """Yield how each command ends."""
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps([str(folder), cases]),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=600,
        env={**os.environ, "COLUMNS": "200", **environment},
    )
    for number, ((way, words), status) in enumerate(zip(cases, done.stdout.split(), strict=True)):
        output, errors = ((folder / f"{number}.{end}").read_bytes() for end in ("out", "err"))
        yield Ended(way, words, int(status), output, errors.decode(errors="replace"))


def printing(target: str, metrics: str, folder: Path, new_table: str) -> list[list[str]]:
    """Return a call of each command that prints something within a moment; the keys and paths are no ASCII."""
    server = ["--target", target]
    store, users, file = (str(folder / name) for name in ("däta", "nützer.toml", "äusfuhr"))
    return [
        ["--version"],
        ["config", "show", "--data", store],
        ["size", "--records", "1M", "--value", "100"],
        ["get", KEY, *server],
        ["get", KEY, "--json", *server],
        ["get", f"no {KEY}", "--json", *server],
        ["set", KEY, KEY, "--json", *server],
        ["delete", f"no {KEY}", "--json", *server],
        ["incr", f"n {KEY}", *server],
        ["append", f"a {KEY}", "x", "--json", *server],
        ["ttl", KEY, *server],
        ["exists", f"no {KEY}", "--json", *server],
        ["scan", *server],
        ["count", *server],
        ["export", "--out", file, "--overwrite", *server],
        ["import", file, *server],
        ["info", *server],
        ["slowlog", *server],
        ["table", "create", new_table, "--json", *server],
        ["table", "list", *server],
        ["user", "token", "alice", "--users", users],
        ["user", "list", "--users", users],
        ["top", "--once", "--interval", "0.1", "--metrics", metrics],
        ["ycsb", "load", "-p", "recordcount=1", *server],
        ["ycsb", "run", "--workload", "c", "-p", "recordcount=1", "-p", "operationcount=1", *server],
        ["check", store],
        ["check", store, "--json"],
        ["recover", store],
        ["doctor", "--data", store],
        ["doctor", "--data", store, "--json"],
    ]


# They print nothing, or not within a moment; their help shows how they print.
OTHERS = {
    ("serve",),
    ("expire",),
    ("watch",),
    ("backup",),
    ("archive",),
    ("restore",),
    ("table", "drop"),
    ("user", "add"),
    ("user", "rights"),
    ("user", "password"),
    ("user", "certificate"),
    ("user", "remove"),
    ("copy",),
    ("drill",),
    ("consistency",),
    ("soak",),
    ("bitflip",),
    ("crash",),
    ("demo",),
}
LEAVES = {words for words, command in EVERY.items() if not hasattr(command, "list_commands")}
HELPS = [[*words, "--help"] for words in LEAVES if words in OTHERS]
FEW = {"--version", "get", "scan", "check"}


def prepared(folder: Path, target: str) -> list[Case]:
    """Return the commands that make what these calls ask for; make a store."""
    with gpkvs.open(folder / "däta", index_bytes=1 << 20, heap_bytes=1 << 24) as store:
        store.set(KEY.encode(), KEY.encode())
    return [
        ("file", ["set", KEY, KEY, "--target", target]),
        ("file", ["export", "--out", str(folder / "äusfuhr"), "--target", target]),
        ("file", ["user", "add", "alice", "--create", "--users", str(folder / "nützer.toml")]),
    ]


def test_every_command_is_run() -> None:
    calls = printing("", "", Path(), "")
    run = {tuple(words[: 2 if words[0] in ("config", "table", "user", "ycsb") else 1]) for words in calls}
    assert {words for words in LEAVES if words[0] != "bench"} == run - {("--version",)} | OTHERS
    assert not run & OTHERS


def test_output_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    expected = {
        "full": (74, "gpkvs: cannot write to standard output: No space left on device\n"),
        "closed": (74, "gpkvs: cannot write to standard output: Bad file descriptor\n"),
        "pipe": (-signal.SIGPIPE, ""),
        "file": (0, None),
    }
    cases = prepared(tmp_path, server.target)
    for way in expected.keys() - {"file"}:
        calls = printing(server.target, server.metrics_address, tmp_path, f"made.{way}")
        few = [words for words in calls if words[0] in FEW]
        cases += [(way, words) for words in (few if way != "full" else calls + HELPS)]
    for end in ended(tmp_path, cases):
        status, errors = expected[end.way]
        assert end.status == status, end
        if errors is not None:
            of_the_token = r"(this is token .*\n)?"
            assert re.fullmatch(of_the_token + errors, end.errors), end
            assert end.output == b""


@pytest.mark.parametrize(
    "environment",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C"}],
    ids=str,
)
def test_a_terminal_of_few_characters(server: Server, tmp_path: Path, environment: dict[str, str]) -> None:
    preparing = prepared(tmp_path, server.target)
    calls = printing(server.target, server.metrics_address, tmp_path, "made")
    cases = [("file", words) for words in calls]
    for end in list(ended(tmp_path, preparing + cases, **environment))[len(preparing) :]:
        is_miss = f"no {KEY}" in end.words and end.words[0] != "delete"
        assert end.status == (1 if is_miss else 0), end
        assert end.output, end
        assert "Traceback" not in end.errors, end
        if end.words[0] == "get" and "--json" not in end.words:
            assert end.output == KEY.encode()  # a value is bytes, whatever the terminal is


def test_what_an_encoding_has_not_is_escaped(tmp_path: Path) -> None:
    done = run_gpkvs("check", str(tmp_path / "ü☃"), env={"PYTHONIOENCODING": "latin-1"})
    assert (done.returncode, done.stderr) == (3, f"gpkvs: there is no store at {tmp_path}/ü\\u2603\n".encode("latin-1"))


def test_a_reader_that_has_seen_enough(server: Server) -> None:
    """The status is that of a shell's pipe."""
    for number in range(3):
        server.kv.Set(kv_pb2.SetRequest(key=b"%d" % number, value=bytes(1_000_000)))  # more than a pipe holds
    script = f'{" ".join(COMMAND)} scan --target {server.target} | head -c 1 >/dev/null; echo "${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("141\n", "")


def test_nobody_hears_the_errors(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = [*COMMAND, "check", tmp_path / "none"]
        assert subprocess.run(command, stderr=full, check=False, timeout=60).returncode == 3
    closed = subprocess.run(["sh", "-c", f"{' '.join(COMMAND)} check {tmp_path}/none 2>&-"], check=False, timeout=60)
    assert closed.returncode == 3


@pytest.mark.parametrize(
    "error", ["ValueError('no')", "BrokenPipeError(32, 'of a socket')", "EOFError()", "MemoryError()"]
)
def test_an_unexpected_error_has_a_status_of_its_own(error: str) -> None:
    code = (
        "import gpkvs.cli.data.check as check\n"
        "from gpkvs.cli.__main__ import main\n"
        f"def fails(path): raise {error}\n"
        "check.check = fails\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "check", "store"], capture_output=True, check=False, text=True, timeout=60
    )
    assert done.returncode == 71, done.stderr
    assert "Traceback" in done.stderr
    assert done.stderr.endswith("which is a fault of gpkvs: please report the lines above\n")


def test_a_server_of_closed_streams(tmp_path: Path) -> None:
    """The files of a store must not become what a library takes for a stream."""
    ready = tmp_path / "ready"
    options = f"--data {tmp_path}/store --ready-file {ready} --listen 127.0.0.1:0 --metrics 127.0.0.1:0"
    command = f"exec {' '.join(COMMAND)} serve {options} {' '.join(SIZES)} <&- >&- 2>&-"
    process = subprocess.Popen(["sh", "-c", command])
    try:
        give_up = time.monotonic() + 60
        while not ready.exists():
            assert process.poll() is None
            assert time.monotonic() < give_up
            time.sleep(0.01)
        streams = [Path(f"/proc/{process.pid}/fd/{number}").readlink() for number in range(3)]
        assert streams == [Path(os.devnull)] * 3
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
