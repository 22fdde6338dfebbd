"""The workloads of examples/gpm: their results are right, and the same after any number of kills."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from gpkvs.bench.gpm.workloads import CLASSES, bfs, workload
from gpkvs.bench.gpm.workloads.bfs import Bfs
from gpkvs.bench.gpm.workloads.black_scholes import BlackScholes
from gpkvs.bench.gpm.workloads.cfd import Cfd
from gpkvs.bench.gpm.workloads.dnn import Dnn
from gpkvs.bench.gpm.workloads.gpdb import COLUMNS, Gpdb
from gpkvs.bench.gpm.workloads.hotspot import AIR, OF_POWER, TO_AIR, TO_NEIGHBOUR, Hotspot
from gpkvs.bench.gpm.workloads.prefix_sum import PrefixSum
from gpkvs.bench.gpm.workloads.srad import STEP, Srad
from gpkvs.errors import NoSpaceError
from gpkvs.gpm import Place
from tests.docs.blocks import REPOSITORY

SHM = Path("/dev/shm")
pytestmark = pytest.mark.skipif(not SHM.is_dir(), reason="there is no /dev/shm")
KILLS = 2 if os.environ.get("CI") else 4
SIZE = os.environ.get("GPM_SIZE", "small")  # paper takes a GPU, gigabytes and minutes


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=SHM) as name:
        yield Path(name)


@pytest.mark.parametrize("name", CLASSES)
def test_kills_change_no_result(name: str, folder: Path, place: Place) -> None:
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    print(f"SEED={seed}")
    options = (str(folder), SIZE, str(seed), str(KILLS), place.name)
    command = [sys.executable, "-m", "tests.gpm.killed_workload", name, *options]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # its threads wait long for each other on a busy machine
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    assert json.loads(done.stdout)["killed"] > 0, "no kill came in time"
    with np.load(folder / "whole.npz") as whole, np.load(folder / "killed.npz") as killed:
        assert whole.files == killed.files
        for array in whole.files:
            np.testing.assert_array_equal(killed[array], whole[array], err_msg=array)


@pytest.mark.parametrize("name", CLASSES)
def test_what_is_done_is_not_done_again(name: str, folder: Path, place: Place) -> None:
    kind = workload(name)
    with kind(folder, kind.SIZES["tiny"], place) as work:
        assert work.run() > 0
        before = work.result()
    with kind(folder, kind.SIZES["tiny"], place) as work:
        assert work.run() == (2 if name == "prefix_sum" else 0)  # its kernels look, and find all there
        for array, values in work.result().items():
            np.testing.assert_array_equal(values, before[array])


@pytest.mark.parametrize("name", CLASSES)
def test_it_runs_as_a_program(name: str, folder: Path, place: Place) -> None:
    options = ("--size", "tiny", "--path", str(folder), "--place", place.name)
    command = [sys.executable, f"examples/gpm/{name}.py", *options]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "result:" in done.stdout
    assert not list(folder.iterdir())


def test_prefix_sums_are_sums(folder: Path, place: Place) -> None:
    with PrefixSum(folder, PrefixSum.SIZES["tiny"], place) as work:
        work.run()
        np.testing.assert_array_equal(work.result()["sums"], np.cumsum(place.to_host(work.values), dtype=np.uint32))


def test_a_whole_subarray_is_left_as_it_is(folder: Path, place: Place) -> None:
    with PrefixSum(folder, PrefixSum.SIZES["tiny"], place) as work:
        work.partial.host[0], work.partial.host[255] = 7, 9
        work.step()
        assert work.partial.host[0] == 7
        assert work.partial.host[256] == int(work.values[256])


@pytest.mark.parametrize("narrow", [bfs.NARROW, 2], ids=["narrow", "wide"])
def test_costs_are_those_of_a_plain_search(
    folder: Path, place: Place, narrow: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bfs, "NARROW", narrow)  # levels of the tiny graph have up to 7 nodes
    with Bfs(folder, Bfs.SIZES["tiny"], place) as work:
        source = int(work.sequence.host[0])
        work.run()
        first_edge, neighbour = place.to_host(work.first_edge), place.to_host(work.neighbour)
        cost, queue = np.zeros(work.size.nodes, np.uint32), deque([source])
        cost[source] = 1
        while queue:
            node = queue.popleft()
            for other in neighbour[first_edge[node] : first_edge[node + 1]]:
                if not cost[other]:
                    cost[other] = cost[node] + 1
                    queue.append(int(other))
        np.testing.assert_array_equal(work.result()["cost"], cost)


def test_diffusion_is_that_of_the_paper(folder: Path, place: Place) -> None:
    with Srad(folder, Srad.SIZES["tiny"], place) as work:
        size = work.size
        image = place.to_host(work.image).reshape(size.rows, size.columns).astype(np.float64)
        work.run()
        for _ in range(size.passes):
            speckle = image[:32, :32].var() / image[:32, :32].mean() ** 2
            around = np.pad(image, 1, mode="edge")
            north, south = around[:-2, 1:-1] - image, around[2:, 1:-1] - image
            west, east = around[1:-1, :-2] - image, around[1:-1, 2:] - image
            gradient = (north**2 + south**2 + west**2 + east**2) / image**2
            laplacian = (north + south + west + east) / image
            variation = (gradient / 2 - laplacian**2 / 16) / (1 + laplacian / 4) ** 2
            weight = np.clip(1 / (1 + (variation - speckle) / (speckle * (1 + speckle))), 0, 1)
            beyond = np.pad(weight, 1, mode="edge")
            flow = weight * (north + west) + beyond[2:, 1:-1] * south + beyond[1:-1, 2:] * east
            image = image + STEP / 4 * flow
        np.testing.assert_allclose(work.result()["image"], image.ravel(), rtol=1e-4)
        np.testing.assert_allclose(work.result()["coefficient"], weight.ravel(), atol=1e-3)


def test_an_update_changes_rows_once_and_is_undone_whole(folder: Path, place: Place) -> None:
    with Gpdb(folder, Gpdb.SIZES["tiny"], place) as work:
        size, stride = work.size, 2654435761
        for _ in range(size.inserts):
            work.step()
        inserted = work.result()["table"]
        at = np.arange(COLUMNS, size.rows * COLUMNS, dtype=np.uint64)
        np.testing.assert_array_equal(inserted[1:].ravel(), at * np.uint64(stride))
        chosen = work.place.to_host(work.chosen())
        assert (np.diff(chosen.astype(np.int64)) > 0).all()
        work.step()
        changed = 1 + np.flatnonzero((work.result()["table"][1:] != inserted[1:]).any(1))
        np.testing.assert_array_equal(changed, chosen)
        np.testing.assert_array_equal(
            changed, sorted(1 + number * stride % (size.rows - 1) for number in range(size.updated))
        )
        assert (work.rows, work.updates) == (size.rows - 1, 1)
        before = work.result()["table"]
        with suppress(KeyboardInterrupt), work.log.transaction():
            work.change_rows(work.log)
            raise KeyboardInterrupt
        assert (work.result()["table"] != before).any()
    with Gpdb(folder, Gpdb.SIZES["tiny"], place) as work:
        np.testing.assert_array_equal(work.result()["table"], before)


def test_the_network_learns(folder: Path, place: Place) -> None:
    with Dnn(folder, Dnn.SIZES["tiny"], place) as work:
        assert work.accuracy() < 0.5
        work.run()
        assert work.accuracy() > 0.9


def test_the_gas_is_neither_made_nor_lost(folder: Path, place: Place) -> None:
    with Cfd(folder, Cfd.SIZES["tiny"], place) as work:
        first = {name: place.to_host(array).copy() for name, array in work.arrays.items()}
        work.run()
        for name, array in work.arrays.items():
            found, before = (of.sum((-2, -1), np.float64) for of in (place.to_host(array), first[name]))
            np.testing.assert_allclose(found, before, rtol=1e-5, atol=1e-3)
        density = place.to_host(work.arrays["density"])
        assert (density != first["density"]).any()
        np.testing.assert_allclose(density, density.T, rtol=1e-5)  # the blast is the same in all directions


def test_prices_are_those_of_the_formula(folder: Path, place: Place) -> None:
    with BlackScholes(folder, BlackScholes.SIZES["tiny"], place) as work:
        work.advance()
        for option in range(0, work.size.options, 97):
            spot, strike, years = (float(each[option]) for each in (work.spot, work.strike, work.years))
            rate, deviation = 0.01, 0.1 * math.sqrt(years)
            d1 = (math.log(spot / strike) + rate * years) / deviation + deviation / 2
            below = [(1 + math.erf(d / math.sqrt(2))) / 2 for d in (d1, d1 - deviation)]
            call = spot * below[0] - strike * math.exp(-rate * years) * below[1]
            assert float(work.arrays["call"][option]) == pytest.approx(call, rel=1e-3, abs=1e-4)
            put = call - spot + strike * math.exp(-rate * years)  # the parity of calls and puts
            assert float(work.arrays["put"][option]) == pytest.approx(put, rel=1e-3, abs=1e-3)


def test_heat_flows_as_the_equation_says(folder: Path, place: Place) -> None:
    with Hotspot(folder, Hotspot.SIZES["tiny"], place) as work:
        heat, side = np.full((work.size.side,) * 2, AIR), work.size.side
        power = place.to_host(work.power)
        assert 0 < power.max() <= OF_POWER
        for _ in range(work.size.passes):
            around = np.pad(heat, 1, mode="edge")
            neighbours = around[:side, 1:-1] + around[2:, 1:-1] + around[1:-1, :side] + around[1:-1, 2:]
            heat = heat + power + TO_NEIGHBOUR * (neighbours - 4 * heat) + TO_AIR * (AIR - heat)
        work.run()
        np.testing.assert_allclose(work.result()["temperature"], heat, rtol=1e-5)


def test_a_size_that_does_not_fit_is_refused(folder: Path) -> None:
    huge = Hotspot.SIZES["paper"].__class__(1 << 24, 1, 1)
    with pytest.raises(NoSpaceError, match="--size small"):
        Hotspot(folder, huge)
    assert not list(folder.iterdir())
