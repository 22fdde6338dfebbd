"""The workloads of examples/gpm: their results are right, and the same after any number of kills."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gpkvs.bench.gpm.workloads import CLASSES, workload
from gpkvs.bench.gpm.workloads.bfs import Bfs
from gpkvs.bench.gpm.workloads.prefix_sum import PrefixSum
from gpkvs.bench.gpm.workloads.srad import STEP, Srad
from tests.docs.blocks import REPOSITORY

SHM = Path("/dev/shm")
pytestmark = pytest.mark.skipif(not SHM.is_dir(), reason="there is no /dev/shm")
KILLS = 4


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=SHM) as name:
        yield Path(name)


@pytest.mark.parametrize("name", CLASSES)
def test_kills_change_no_result(name: str, folder: Path) -> None:
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    print(f"SEED={seed}")
    command = [sys.executable, "-m", "tests.gpm.killed_workload", name, str(folder), "small", str(seed), str(KILLS)]
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
def test_what_is_done_is_not_done_again(name: str, folder: Path) -> None:
    kind = workload(name)
    with kind(folder, kind.SIZES["tiny"]) as work:
        assert work.run() > 0
        before = work.result()
    with kind(folder, kind.SIZES["tiny"]) as work:
        work.run()
        for array, values in work.result().items():
            np.testing.assert_array_equal(values, before[array])


@pytest.mark.parametrize("name", CLASSES)
def test_it_runs_as_a_program(name: str, folder: Path) -> None:
    command = [sys.executable, f"examples/gpm/{name}.py", "--size", "tiny", "--path", str(folder)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "result:" in done.stdout
    assert not list(folder.iterdir())


def test_prefix_sums_are_sums(folder: Path) -> None:
    with PrefixSum(folder, PrefixSum.SIZES["tiny"]) as work:
        work.run()
        np.testing.assert_array_equal(work.result()["sums"], np.cumsum(work.values, dtype=np.uint32))


def test_a_whole_subarray_is_left_as_it_is(folder: Path) -> None:
    with PrefixSum(folder, PrefixSum.SIZES["tiny"]) as work:
        work.partial.host[0], work.partial.host[255] = 7, 9
        work.step()
        assert work.partial.host[0] == 7
        assert work.partial.host[256] == work.values[256]


def test_costs_are_those_of_a_plain_search(folder: Path) -> None:
    with Bfs(folder, Bfs.SIZES["tiny"]) as work:
        source = int(work.sequence.host[0])
        work.run()
        cost, queue = np.zeros(work.size.nodes, np.uint32), deque([source])
        cost[source] = 1
        while queue:
            node = queue.popleft()
            for other in work.neighbour[work.first_edge[node] : work.first_edge[node + 1]]:
                if not cost[other]:
                    cost[other] = cost[node] + 1
                    queue.append(int(other))
        np.testing.assert_array_equal(work.result()["cost"], cost)


def test_diffusion_is_that_of_the_paper(folder: Path) -> None:
    with Srad(folder, Srad.SIZES["tiny"]) as work:
        size = work.size
        image = work.image.reshape(size.rows, size.columns).astype(np.float64)
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
