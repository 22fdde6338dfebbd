"""gpkvs doctor on real folders: what it finds, that it removes its probe, and how it ends."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gpkvs
from gpkvs.process.mounts import mount_of
from gpkvs.server.account.bounds import usual_memory_bytes
from tests.serving import COMMAND, WITHOUT_ROOT_RIGHTS, run_gpkvs


def doctor(*arguments: str, status: int = 0) -> dict[str, dict[str, Any]]:
    """Return the facts by their names."""
    done = run_gpkvs("doctor", "--json", *arguments)
    assert done.returncode == status, done.stdout.decode() + done.stderr.decode()
    return by_name(done.stdout)


def by_name(text: bytes) -> dict[str, dict[str, Any]]:
    facts = json.loads(text)["facts"]
    named = {fact["name"]: fact for fact in facts}
    assert len(named) == len(facts)
    return named


@pytest.fixture
def in_memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


def test_a_disk(tmp_path: Path) -> None:
    mount = mount_of(tmp_path)
    assert mount
    if mount.kind == "tmpfs":
        pytest.skip("the tests' folder is in memory")
    facts = doctor("--data", str(tmp_path))
    assert facts["durability"]["figures"] == {"domain": "msync", "survives_power_loss": True}
    assert facts["file system"]["figures"]["type"] == mount.kind
    flush = facts["flush"]["figures"]
    assert 2 <= flush["flushes"] <= 100
    assert 0 < flush["median_seconds"] <= flush["p99_seconds"]
    assert flush["batches_per_second"] == pytest.approx(1 / flush["median_seconds"])
    assert list(tmp_path.iterdir()) == []


def test_memory_survives_no_power_loss(in_memory: Path) -> None:
    facts = doctor("--data", str(in_memory))
    durability = facts["durability"]
    assert durability["verdict"] == "could be better"
    assert "NOT power loss" in durability["value"]
    assert "--data on a disk" in durability["mend"]
    assert facts["commit"]["figures"]["commit"] == "undo"
    assert facts["flush"]["value"].startswith("not needed")
    assert facts["file system"]["figures"]["type"] == "tmpfs"
    assert list(in_memory.iterdir()) == []


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_a_new_store_commits_as_it_says(where: str, tmp_path: Path, in_memory: Path) -> None:
    data = (tmp_path if where == "disk" else in_memory) / "store"
    before = doctor("--data", str(data))
    assert not data.exists()
    assert "is not there" in before["folder"]["value"]
    with gpkvs.open(data) as store:
        info = store.info()
        during = doctor("--data", str(data))  # beside whoever has the store
    assert before["commit"]["figures"]["commit"] == info.commit
    assert before["durability"]["figures"]["domain"] == during["durability"]["figures"]["domain"] == info.domain
    assert during["folder"]["figures"]["has_store"] is True
    assert not [path for path in data.iterdir() if "doctor" in path.name]
    assert run_gpkvs("check", str(data)).returncode == 0


def test_text_and_json_say_the_same(in_memory: Path) -> None:
    told = run_gpkvs("doctor", "--data", str(in_memory))
    assert told.returncode == 0, told.stderr
    lines = told.stdout.decode().splitlines()
    words = " ".join(told.stdout.decode().split())
    facts = doctor("--data", str(in_memory))
    moving = {"memory", "free space", "free inodes"}
    for name, fact in facts.items():
        assert fact["why"] in words
        (line,) = [line for line in lines if line[12:].startswith(f"{name}  ")]
        assert name in moving or line.endswith(f"  {fact['value']}")
        assert not fact["mend"] or any(line.strip() == f"mend: {fact['mend']}" for line in lines) or name in moving
    assert sum(line[2:10].strip() in ("fine", "better", "WRONG", "not seen") for line in lines) == len(facts)


def test_what_a_server_would_take(in_memory: Path) -> None:
    facts = doctor("--data", str(in_memory))
    assert facts["memory-max"]["figures"]["memory_bytes_max"] == usual_memory_bytes()
    assert facts["processors"]["figures"]["processors"] == len(os.sched_getaffinity(0))
    assert facts["open files"]["figures"]["open_files_max"] == resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert facts["gpkvs"]["value"] in run_gpkvs("--version").stdout.decode()


def test_a_folder_with_something_else_is_refused_as_serve_refuses_it(in_memory: Path) -> None:
    (in_memory / "letter.txt").write_text("Dear")
    facts = doctor("--data", str(in_memory), status=1)
    assert facts["folder"]["verdict"] == "wrong"
    assert "is not empty and holds no store" in facts["folder"]["value"]
    assert facts["durability"]["figures"]["domain"] == "process"  # the rest is looked at all the same
    assert run_gpkvs("serve", "--data", str(in_memory)).returncode == 1
    assert [path.name for path in in_memory.iterdir()] == ["letter.txt"]


def test_without_a_folder_it_looks_where_one_would_be_made(in_memory: Path) -> None:
    (in_memory / "letter.txt").write_text("Dear")
    done = subprocess.run([*COMMAND, "doctor", "--json"], cwd=in_memory, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert by_name(done.stdout)["folder"]["value"].startswith(f"{in_memory}, where")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    facts = doctor("--data", str(tmp_path / "file"), status=1)
    assert "is a file" in facts["folder"]["value"]
    assert {facts[name]["verdict"] for name in ("durability", "commit", "flush", "O_DIRECT")} == {"not seen"}


@pytest.mark.parametrize("name", ["", "store/deeper"])
def test_a_folder_that_is_not_writable(tmp_path: Path, name: str) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    command = [sys.executable, "-c", WITHOUT_ROOT_RIGHTS, *COMMAND, "doctor", "--json", "--data", str(closed / name)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 1, done.stderr
    fact = by_name(done.stdout)["folder"]
    assert fact["value"] == f"user {os.geteuid()} may not write in {closed}"
    assert fact["mend"].startswith(f"chown {os.geteuid()} {closed} ")
    closed.chmod(0o755)


@pytest.mark.parametrize(
    ("files", "verdict", "status", "told"),
    [
        (28, "wrong", 1, "does not start"),
        (90, "could be better", 0, "no table"),
        (200, "could be better", 0, "for about"),
    ],
)
def test_few_open_files(in_memory: Path, files: int, verdict: str, status: int, told: str) -> None:
    # By a shell: a `preexec_fn` runs in a fork, and a fork of gRPC's threads may end there.
    limited = ["sh", "-c", f'ulimit -n {files}; exec "$0" "$@"']
    command = [*limited, *COMMAND, "doctor", "--json", "--data", str(in_memory)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == status, done.stderr
    fact = by_name(done.stdout)["open files"]
    assert (fact["verdict"], fact["figures"]["open_files_max"]) == (verdict, files)
    assert told in fact["value"]
    assert "LimitNOFILE" in fact["mend"]


def test_without_kernels_it_says_so(in_memory: Path) -> None:
    done = run_gpkvs("doctor", "--json", "--data", str(in_memory), env={"GPKVS_KERNELS": "/nonexistent.so"})
    assert done.returncode == 1, done.stderr
    ((name, fact),) = by_name(done.stdout).items()
    assert (name, fact["verdict"]) == ("kernels", "wrong")
    assert "/nonexistent.so" in fact["value"]
    assert "make install" in fact["mend"]


def test_without_the_native_door_a_server_does_not_start(in_memory: Path) -> None:
    library = {"GPKVS_DOOR_LIBRARY": "/nonexistent.so"}
    done = run_gpkvs("doctor", "--json", "--data", str(in_memory), env=library)
    assert done.returncode == 1, done.stderr
    assert by_name(done.stdout)["native door"]["verdict"] == "wrong"


def test_a_signal_leaves_no_probe(tmp_path: Path) -> None:
    process = subprocess.Popen([*COMMAND, "doctor", "--data", str(tmp_path)], stdout=subprocess.DEVNULL)
    while process.poll() is None and not any(tmp_path.iterdir()):
        time.sleep(0.0005)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) in (0, 143)  # 0: it was as good as done
    assert list(tmp_path.iterdir()) == []


SCRIPT = """
mount -t "$1" -o "$2" none "$3" || exit 99
shift 3
exec "$@"
"""


def mounted(kind: str, options: str, point: Path, *command: str) -> subprocess.CompletedProcess[bytes]:
    """Run gpkvs beside a mount that nobody else sees."""
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    arguments = [*unshare, "sh", "-c", SCRIPT, "sh", kind, options, str(point), *COMMAND, *command]
    done = subprocess.run(arguments, capture_output=True, check=False)
    if b"unshare:" in done.stderr or done.returncode == 99:
        pytest.skip(f"nothing can be mounted here: {done.stderr.decode()}")
    return done


@pytest.mark.parametrize(
    ("options", "name", "told"),
    [
        ("size=8m", "free space", "a new store takes 9.1 MiB"),
        ("nr_inodes=7", "free inodes", "another --data"),
        ("ro", "mount options", "mount -o remount,rw"),
    ],
)
def test_what_stops_a_server_is_wrong(tmp_path: Path, options: str, name: str, told: str) -> None:
    done = mounted("tmpfs", options, tmp_path, "doctor", "--json", "--data", str(tmp_path))
    assert done.returncode == 1, done.stderr
    fact = by_name(done.stdout)[name]
    assert fact["verdict"] == "wrong"
    assert told in fact["mend"]
    addresses = ("--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
    served = mounted("tmpfs", options, tmp_path, "serve", "--data", str(tmp_path), *addresses)
    assert served.returncode == 1, served.stderr


def test_a_layer_of_a_container(tmp_path: Path) -> None:
    for folder in ("lower", "upper", "work", "merged"):
        (tmp_path / folder).mkdir()
    point = tmp_path / "merged"
    layers = f"lowerdir={tmp_path / 'lower'},upperdir={tmp_path / 'upper'},workdir={tmp_path / 'work'}"
    done = mounted("overlay", layers, point, "doctor", "--json", "--data", str(point))
    assert done.returncode == 0, done.stderr
    facts = by_name(done.stdout)
    assert facts["file system"]["verdict"] == "could be better"
    assert "docker run -v" in facts["file system"]["mend"]
    assert facts["durability"]["figures"]["domain"] == "msync"
    assert facts["flush"]["figures"]["flushes"] > 0
    done = mounted("overlay", f"{layers},volatile", point, "doctor", "--json", "--data", str(point))
    assert done.returncode == 1, done.stderr
    assert "does not reach the disk" in by_name(done.stdout)["mount options"]["why"]
