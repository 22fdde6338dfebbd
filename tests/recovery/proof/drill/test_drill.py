"""The crash drill: failpoints of a real server, other ones in each run; and that a drill can fail."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

import gpkvs
from gpkvs.process.failpoint import SERVING_BY_COMMIT
from gpkvs.recovery.proof.drill.clients import DrillClientOptions, DrillClients
from gpkvs.recovery.proof.drill.ledger import Ledger
from gpkvs.recovery.proof.servers.kill_plan import IN_CHECKPOINT, LEAVES_ACTIVE, LEAVES_BATCHES, SIGKILL, plan
from gpkvs.recovery.proof.servers.server_process import GPKVS, ServerOptions, ServerProcess
from gpkvs.recovery.proof.servers.ycsb_process import YcsbProcess
from tests.conftest import assert_clean

ALL_KILLS = "GPKVS_ALL_KILLS"  # in the environment: visit each failpoint; `make nightly` does
ROUNDS = 4  # else


def run_drill(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*GPKVS, "drill", *arguments], capture_output=True, text=True, timeout=280, check=False)


def points_of(commit: str) -> tuple[str, ...]:
    in_batches, in_starts = SERVING_BY_COMMIT[commit]
    return in_batches + in_starts


@pytest.mark.parametrize(("commit", "more"), [("undo", ["--tls"]), ("journal", [])])
def test_kills_at_failpoints_and_at_random(tmp_path: Path, commit: str, more: list[str]) -> None:
    """At others in each run: tests/recovery/startup visits each of them in a process that is no server."""
    seed, points = secrets.randbelow(1 << 32), points_of(commit)
    rounds = plan(len(points) + 1 if os.environ.get(ALL_KILLS) else ROUNDS, seed, commit)
    options = [f"--seed={seed}", f"--commit={commit}", f"--data={tmp_path / 'drill'}", "--json", *more]
    done = run_drill(f"--rounds={len(rounds)}", *options)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["seed"] == seed
    assert report["kills"].keys() == {name for round in rounds for name in (round.kind, round.engine_point) if name}
    assert report["writes_acknowledged"] > len(rounds)
    assert report["batches_undone"] >= sum(round.undoes is True for round in rounds)
    for store in (tmp_path / "drill").glob("store-*/root"):
        assert_clean(store.parent)
    log = (tmp_path / "drill" / "store-1.server.log").read_text()
    assert ("--users=" in log) == ("--tls" in more)
    assert "Bearer" not in log


def test_a_drill_that_fails_says_how_to_repeat_it_and_keeps_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "drill"
    monkeypatch.setenv("GPKVS_THREADS", "-1")  # no server starts with that
    done = run_drill("--rounds=1", "--seed=7", f"--data={data}", "--json")
    failure = json.loads(done.stdout)
    assert done.returncode == 1
    assert failure["seed"] == 7
    assert failure["round"] == 1
    assert "seed 7, round 1" in done.stderr
    assert str(data) in done.stderr
    assert Path(failure["directory"]).with_name("store-1.server.log").exists()


def test_a_directory_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    done = run_drill("--rounds=1", f"--data={tmp_path}")
    assert done.returncode == 1
    assert "is not empty" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


class Tampered:
    """A store that real clients wrote to until it was killed, whose contents are then changed behind their backs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = Ledger()
        self.clients = DrillClients(self.ledger, DrillClientOptions(shared_keys=300, cell_keys_max=30), "tampered")

    async def write_and_kill(self) -> None:
        with closing(ServerProcess(self.path, ServerOptions(backend="cpu"))) as server:
            await server.ready()
            load = asyncio.create_task(self.clients.run(server.target))
            await asyncio.wait([load], timeout=1.0)
            server.kill()
            await load
            assert server.killed

    async def read_back(self) -> dict[bytes, str]:
        with closing(ServerProcess(self.path, ServerOptions(backend="cpu"))) as server:
            await server.ready()
            await self.clients.read_back(server.target)
            await server.stop()
        return {violation.key: violation.invariant for violation in self.ledger.violations}


def test_the_processes_of_a_run_have_no_users_and_no_tls_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GPKVS_USERS", "GPKVS_TLS_CERT", "GPKVS_AUDIT_LOG", "GPKVS_CLIENT_TLS_CA", "GPKVS_TOKEN_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))

    async def main() -> None:
        with closing(ServerProcess(tmp_path / "store", ServerOptions(backend="cpu"))) as server:
            await server.ready()
            assert YcsbProcess("load", server.target, 1, 1).finish().operations == 1
            await server.stop()

    asyncio.run(main())


def test_ycsb_reports_once_it_is_at_work(tmp_path: Path) -> None:
    """Before that a SIGTERM ends it without a word, however long its start takes."""

    async def main() -> None:
        with closing(ServerProcess(tmp_path / "store", ServerOptions(backend="cpu"))) as server:
            await server.ready()
            with YcsbProcess("load", server.target, 10, 0) as load:
                assert load.finish().operations == 10
            with YcsbProcess("run", server.target, 10, 1 << 40) as ycsb:
                assert not ycsb.is_at_work
                while not ycsb.is_at_work:
                    assert ycsb.alive
                    await asyncio.sleep(0.01)
                ycsb.interrupt()
                assert ycsb.finish().failed == 0
            await server.stop()

    asyncio.run(main())


def test_a_drill_finds_what_was_done_to_a_store(tmp_path: Path) -> None:
    drill = Tampered(tmp_path / "store")
    asyncio.run(drill.write_and_kill())
    settled = [cell for cell in drill.ledger.cells if cell.newest.number and not cell.open and any(cell.newest.state)]
    lost, overwritten = [cell.keys[0] for cell in settled if len(cell.keys) == 1 and cell.newest.state[0]][:2]
    batch = next(cell for cell in settled if len(cell.keys) > 1)
    halved = next(key for key, value in zip(batch.keys, batch.newest.state, strict=True) if value)
    phantom = drill.ledger.cells[-1].keys[0]
    assert not drill.ledger.violations
    with gpkvs.open(drill.path) as store:
        store.delete(lost)
        store.delete(halved)
        store.set(overwritten, b"attempt 1 key 0|")
        store.set(phantom, b"boo")
    found = asyncio.run(drill.read_back())
    assert found.keys() == {lost, halved, overwritten, phantom, b"(all)"}
    assert found[lost] == found[halved] == "lost"
    assert found[phantom] == "phantom"


def test_a_store_that_nobody_touched_has_no_violations(tmp_path: Path) -> None:
    drill = Tampered(tmp_path / "store")
    asyncio.run(drill.write_and_kill())
    assert drill.ledger.acknowledged > 0
    assert asyncio.run(drill.read_back()) == {}
    assert_clean(drill.path)


@pytest.mark.parametrize("commit", ["undo", "journal"])
@pytest.mark.parametrize("beyond", [-100, -1, 0, 1, 70])
def test_plan(beyond: int, commit: str) -> None:
    points = points_of(commit)
    rounds = max(2, len(points) + beyond)
    chosen = plan(rounds, 3, commit)
    assert chosen == plan(rounds, 3, commit)
    assert [round.number for round in chosen] == list(range(1, rounds + 1))
    kinds = [round.kind for round in chosen]
    assert (set(points) <= set(kinds)) == (rounds >= len(points))
    assert (SIGKILL in kinds) == (rounds > len(points) or 3 <= rounds < len(points))
    for round in chosen:
        assert round.engine_point not in IN_CHECKPOINT or round.hit <= 3  # else a slow disk never gets there
        if round.kind in SERVING_BY_COMMIT[commit][1]:
            assert round.engine_point in (LEAVES_ACTIVE if commit == "undo" else LEAVES_BATCHES)
            assert round.recovery_kills >= 1
