"""The crash drill: every failpoint of a real server; and that a drill can fail."""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

import gpkvs
from gpkvs.failpoint import RECOVERY, SERVING
from gpkvs.recovery.proof.drill.clients import DrillClientOptions, DrillClients
from gpkvs.recovery.proof.drill.ledger import Ledger
from gpkvs.recovery.proof.servers.kill_plan import LEAVES_ACTIVE, SIGKILL, plan
from gpkvs.recovery.proof.servers.server_process import GPKVS, ServerOptions, ServerProcess
from tests.conftest import assert_clean


def run_drill(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*GPKVS, "drill", *arguments], capture_output=True, text=True, timeout=280, check=False)


def test_every_failpoint(tmp_path: Path) -> None:
    seed = secrets.randbelow(1 << 32)
    done = run_drill(f"--rounds={len(SERVING) + 1}", f"--seed={seed}", f"--data={tmp_path / 'drill'}", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["seed"] == seed
    assert report["kills"].keys() == {SIGKILL, *SERVING}
    assert report["writes_acknowledged"] > len(SERVING)
    assert report["batches_undone"] >= len(LEAVES_ACTIVE)
    for store in (tmp_path / "drill").glob("store-*/root"):
        assert_clean(store.parent)


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


@pytest.mark.parametrize("rounds", [1, 2, 5, len(SERVING) - 1, len(SERVING), len(SERVING) + 1, 100])
def test_plan(rounds: int) -> None:
    chosen = plan(rounds, seed=3)
    assert chosen == plan(rounds, seed=3)
    assert [round.number for round in chosen] == list(range(1, rounds + 1))
    kinds = [round.kind for round in chosen]
    assert (set(SERVING) <= set(kinds)) == (rounds >= len(SERVING))
    assert (SIGKILL in kinds) == (rounds > len(SERVING) or 3 <= rounds < len(SERVING))
    for round in chosen:
        if round.kind in RECOVERY:
            assert round.engine_point in LEAVES_ACTIVE
            assert round.recovery_kills >= 1
