"""A small part of `gpkvs consistency`, and proof that it finds a server that forgets."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpkvs.batch import BatchResult, Op, Status
from gpkvs.errors import ConflictError
from gpkvs.recovery.proof.consistency.clients import ConsistencyClientOptions, ConsistencyClients
from gpkvs.recovery.proof.consistency.consistency import ConsistencyOptions, NotSerializableError, check_consistency
from gpkvs.recovery.proof.consistency.history import History, RequestOutcome
from gpkvs.recovery.proof.consistency.looking import Looked, LookingClients
from gpkvs.recovery.proof.consistency.serializability import judge
from gpkvs.recovery.proof.model import Asked
from gpkvs.recovery.proof.servers import kill_plan
from gpkvs.recovery.proof.servers.killed_servers import KilledServers
from gpkvs.recovery.proof.servers.server_process import ServerOptions
from tests.serving import error_line, run_gpkvs


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> ConsistencyClients:
    """Return clients of a server that was killed once."""
    path, seed = tmp_path_factory.mktemp("consistency"), secrets.randbelow(1 << 32)
    print(f"seed {seed}")

    async def run() -> ConsistencyClients:
        clients = ConsistencyClients(ConsistencyClientOptions(keys=60), seed)
        servers = KilledServers(path / "store", ServerOptions(), clients)
        for life in range(2):
            with closing(servers.start()) as server:
                await server.ready()
                load = asyncio.create_task(clients.run(server.target))
                while clients.recorder.operations < 8000 * (life + 1) and not load.done():
                    await asyncio.wait([load], timeout=0.01)
                if life == 0:
                    server.kill()
                clients.stopping = life == 1
                await load
                if life == 1:
                    await clients.read_back(server.target)
        assert not clients.strange
        return clients

    return asyncio.run(run())


@pytest.fixture(scope="module")
def recorded(clients: ConsistencyClients) -> History:
    """Return their history."""
    return clients.recorder.history()


@pytest.mark.parametrize("commit", ["undo", "journal"])
def test_a_server_that_is_killed_is_strictly_serializable(tmp_path: Path, commit: str) -> None:
    seed = secrets.randbelow(1 << 32)
    options = [f"--commit={commit}", f"--seed={seed}", f"--data={tmp_path / 'l'}", "--json"]
    done = run_gpkvs("consistency", "--operations=20000", "--faults=4", *options)
    assert done.returncode == 0, f"seed {seed}: {done.stderr.decode()}"
    report = json.loads(done.stdout)
    assert report["seed"] == seed
    assert report["operations"] >= 20000
    assert sum(report["kills"].values()) >= 4
    assert report["requests_writing"] > 100
    assert report["requests_reading"] > 100
    assert report["looking_operations"] > 50
    assert report["anomalies"] == []
    # How far a run of this length comes depends on the machine; longer ones do both.
    assert report["index_doublings"] or report["heap_moved_bytes"]


def test_calls_that_were_cut_off_are_part_of_it(recorded: History) -> None:
    assert judge(recorded).is_serializable, judge(recorded).anomalies
    unknown = recorded.outcome == RequestOutcome.UNKNOWN
    assert 0 < unknown.sum() < len(unknown) / 4
    lengths = np.diff(recorded.first_op)
    assert lengths.max() > 10  # batches
    assert set(recorded.op.tolist()) == {Op.GET, Op.SET, Op.DELETE}


def test_what_a_single_set_wrote_is_never_deleted(recorded: History) -> None:
    """Else a SET whose response was lost could be done without a trace, but for a DELETE that found it."""
    lengths = np.diff(recorded.first_op)
    request = np.repeat(np.arange(len(lengths)), lengths)
    single = recorded.key[(recorded.op == Op.SET) & (lengths[request] == 1) & (recorded.key < 60)]
    deleted = recorded.key[recorded.op == Op.DELETE]
    assert len(single)
    assert len(deleted)
    assert not set(single.tolist()) & set(deleted.tolist())


@pytest.mark.parametrize("column", ["value", "version"])
def test_no_response_may_be_another(recorded: History, column: str) -> None:
    """Change one response at a time of a real history."""
    seed = secrets.randbelow(1 << 32)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    request = np.repeat(np.arange(len(recorded.outcome)), np.diff(recorded.first_op))
    answered = (recorded.outcome == RequestOutcome.OK)[request]
    found = np.flatnonzero(answered & (recorded.op == Op.GET) & recorded.found)
    for at in rng.choice(found, 10, replace=False):
        others = getattr(recorded, column)[found]
        other = rng.choice(others[others != getattr(recorded, column)[at]])
        changed = {column: np.where(np.arange(len(recorded.op)) == at, other, getattr(recorded, column))}
        assert not judge(replace(recorded, **changed)).is_serializable, at


def copied(looking: LookingClients) -> LookingClients:
    other = LookingClients(0, [replace(looked) for looked in looking.requests], conflicts=looking.conflicts)
    other._final = dict(looking._final)
    return other


def test_operations_that_look_first_are_what_a_dictionary_does(clients: ConsistencyClients) -> None:
    looking = copied(clients.looking)
    looking.judge()
    assert looking.anomalies == []
    assert looking.conflicts > 5
    assert looking.operations > 500


def planted(looking: LookingClients, kind: str, rng: random.Random) -> None:
    """Put a mistake into what clients were told."""
    done = [looked for looked in looking.requests if looked.result and not looked.conflict]
    match kind:
        case "sum":  # an increment that was done twice, or on an old value
            sums = [one for one in done if any(asked.op is Op.INCREMENT for asked in one.request) and statuses(one)]
            looked = rng.choice(sums)
            assert looked.result
            part = looked.result.part
            values = part.result.values.copy()
            at = [asked.op in (Op.GET, Op.INCREMENT) for asked in looked.request]
            returned = [asked.op for asked, returns in zip(looked.request, at, strict=True) if returns]
            lengths = part.result.value_lengths.tolist()
            number = next(n for n, op in enumerate(returned) if op is Op.INCREMENT and lengths[n])
            values[sum(lengths[:number])] ^= 1
            changed = replace(part.result, values=values)
            looked.result = BatchResult(replace(part, result=changed), {}, 1)
        case "status":  # a condition that was decided on another value
            looked = rng.choice([one for one in done if any(asked.condition for asked in one.request)])
            assert looked.result
            part = looked.result.part
            number = next(n for n, asked in enumerate(looked.request) if asked.condition)
            status = part.result.status.copy()
            status[number] = Status.OK if status[number] else Status.CONDITION_FAILED
            looked.result = BatchResult(replace(part, result=replace(part.result, status=status)), {}, 1)
        case "guard":  # a check that failed on what was never there
            looked = rng.choice([one for one in looking.requests if one.conflict])
            assert looked.conflict
            refusal = ConflictError(looked.conflict.index, (looked.conflict.found or 0) + (1 << 40))
            looked.result = BatchResult(None, {0: refusal}, 1)
        case "half":  # a request that a check refused, of which a part is there
            looked = rng.choice([one for one in looking.requests if one.conflict])
            later = max(one.base + len(one.request) for one in looking.requests if one.base is not None)
            assert looked.conflict
            write = Asked(Op.SET, looked.request[looked.conflict.index].key, b"half")
            looking.requests.append(Looked([write], 0, looked.start, base=later))
        case "forgotten":  # the last write of a key
            looking._final.pop(next(iter(looking._final)))


def statuses(looked: Looked) -> bool:
    """Whether an increment of a request was done."""
    assert looked.result
    found = looked.result.request(0).status.tolist()
    return any(asked.op is Op.INCREMENT and not status for asked, status in zip(looked.request, found, strict=True))


@pytest.mark.parametrize("kind", ["sum", "status", "guard", "half", "forgotten"])
def test_no_result_of_an_operation_that_looks_first_may_be_another(clients: ConsistencyClients, kind: str) -> None:
    seed = secrets.randbelow(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(5):
        looking = copied(clients.looking)
        planted(looking, kind, rng)
        looking.judge()
        assert looking.anomalies, kind


def test_a_store_that_forgets_acknowledged_writes_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two servers, the store is replaced by an older copy of itself.

    Rounds of failpoints may die before they acknowledge anything. The third round never does: it is a SIGKILL after
    seconds of load, and nine kills reach it, as no round has more than three.
    """
    monkeypatch.setattr(kill_plan, "_LOAD_SECONDS", (2.0, 2.0))
    seed = secrets.randbelow(1 << 32)
    options = ConsistencyOptions(6000, 2, seed, tmp_path, ServerOptions(), ConsistencyClientOptions(keys=60))
    copies = [tmp_path / "copy"]

    def forget(kills: int, _operations: int, death: str) -> None:
        if death == "SIGTERM":  # nobody reads it any more
            return
        if kills and not copies[0].exists():
            shutil.copytree(tmp_path / "store", copies[0])
        elif kills and copies[0].exists():
            shutil.rmtree(tmp_path / "store")
            shutil.copytree(copies[0], tmp_path / "store")

    with pytest.raises(NotSerializableError) as found:
        asyncio.run(check_consistency(replace(options, faults=9), forget))
    assert f"seed {seed}" in str(found.value)
    again = run_gpkvs("consistency", "--history", str(tmp_path / "history.npz"))
    assert again.returncode == 1
    assert b"request" in again.stdout


def test_what_is_no_history_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"nonsense")
    assert "cannot be read as a history" in error_line(run_gpkvs("consistency", f"--history={tmp_path / 'file'}"), 1)


def test_a_directory_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    assert "is not empty" in error_line(run_gpkvs("consistency", f"--data={tmp_path}"), 1)
