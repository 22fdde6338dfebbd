"""The undo log grows for a transaction that it has no room for; the disk may refuse that."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import Batch, Op, Status
from gpkvs.engine.commit import log_growth
from gpkvs.engine.host.native_planner import OPS_MAX
from gpkvs.errors import InvalidArgumentError, NoSpaceError
from gpkvs.media.files import log_bytes_for
from gpkvs.media.root_copies import RootCopies
from gpkvs.process import failpoint
from tests.conftest import assert_clean

pytestmark = pytest.mark.undo

MIB = 1 << 20
SMALL = {"index_bytes": 2 * MIB, "heap_bytes": 8 * MIB, "log_bytes": 128 << 10}


def sets(count: int, value: bytes = b"v", prefix: bytes = b"k") -> Batch:
    return Batch.of([(Op.SET, prefix + b"%d" % number, value) for number in range(count)])


@pytest.mark.parametrize("host_ops_max", [OPS_MAX, 0], ids=["at-once", "by-phases"])
def test_a_request_that_the_log_has_no_room_for(store_path: Path, host_ops_max: int) -> None:
    with gpkvs.open(store_path, **SMALL, log_bytes_max=4 * MIB) as store:  # type: ignore[arg-type]
        store._backend.host_ops_max = host_ops_max
        has = store._files.log_entries_max
        store.execute(sets(has))
        assert store.info().log_bytes == 128 << 10
        store.execute(sets(has + 1))
        assert store.info().log_bytes == 256 << 10  # twice of what it was
        store.execute(sets(20_000, b"again"))
        size = store.info().log_bytes
        assert 20_000 * 48 < size < 4 * MIB
        assert [copy.log_bytes for copy in RootCopies.read(store._files.root_region).copies] == [size] * 2  # type: ignore[union-attr]
        assert store._files.log.bytes == size
        assert store._files.log.path.stat().st_size == size
        store.execute(sets(20_000, b"third"))
        assert store.info().log_bytes == size
        most = store.limits.request_ops_max
        assert log_bytes_for(most) <= 4 * MIB < log_bytes_for(most + 64)
        with pytest.raises(InvalidArgumentError, match="request_ops_max"):
            store.execute(sets(most + 1))
    with gpkvs.open(store_path) as store:
        assert store.info().log_bytes == size
        assert store.get(b"k19999") == b"third"
        store.execute(sets(30_000, b"fourth"))
        assert store.get(b"k29999") == b"fourth"


def test_a_log_of_one_size_is_fixed(store_path: Path) -> None:
    with gpkvs.open(store_path, **SMALL) as store:  # type: ignore[arg-type]
        assert store.limits.request_ops_max == store._files.log_entries_max
        requests = Batch.concatenate([sets(500, prefix=b"%d-" % number) for number in range(10)])
        assert store.execute_requests(requests).requests == store._files.log_entries_max // 500 < 10
        assert store.info().log_bytes == 128 << 10


def test_a_disk_that_refuses(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gpkvs.open(store_path, **SMALL, log_bytes_max=4 * MIB) as store:  # type: ignore[arg-type]
        has = store._files.log_entries_max

        def refuse(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        store.set(b"before", b"v")
        with monkeypatch.context() as patch:
            patch.setattr(log_growth, "extend_file", refuse)
            with pytest.raises(NoSpaceError, match=r"log full: one transaction would log .*--log-bytes-max"):
                store.execute(sets(has + 1))
            reads = store.execute(Batch.of([(Op.GET, b"before")] * (has + 1)))
            assert reads.status.tolist() == [Status.OK] * (has + 1)
            several = Batch.concatenate([sets(has), sets(has + 1, b"w"), sets(3, b"x")])
            first = store.execute_requests(several)
            assert (first.requests, first.rejected) == (1, {})
            rest = store.execute_requests(several.take(np.arange(3) >= 1))
            assert list(rest.rejected) == [0]
            assert store.get(b"k0") == b"v"
            store.delete(b"before")
        monkeypatch.setattr(log_growth, "_RETRY_SECONDS", 0)
        store.execute(sets(has + 1, b"w"))
        assert store.get(b"k%d" % has) == b"w"


_LIFE = """
import sys
import gpkvs
from gpkvs.batch import Batch, Op
with gpkvs.open(sys.argv[1], index_bytes=2 << 20, heap_bytes=8 << 20, log_bytes=128 << 10, log_bytes_max=4 << 20,
                commit="undo", durability="process") as store:
    store.set(b"k0", b"first")
    print("acknowledged", flush=True)
    store.execute(Batch.of([(Op.SET, b"k%d" % number, b"second") for number in range(10_000)]))
"""


@pytest.mark.parametrize("point", [*failpoint.LOG_GROWTH, "between_roots:2", "before_apply:2", "before_idle_flag:2"])
def test_killed_while_it_grows_and_after(tmp_path: Path, point: str) -> None:
    path = tmp_path / "store"
    environment = {**os.environ, failpoint.VARIABLE: point}
    life = subprocess.run(
        [sys.executable, "-c", _LIFE, str(path)], env=environment, capture_output=True, text=True, check=False
    )
    assert (life.returncode, life.stdout) == (-9, "acknowledged\n"), life.stderr
    with gpkvs.open(path) as store:
        assert store.get(b"k0") == b"first"
        assert store.get(b"k9999") is None
        assert store.info().log_bytes == store._files.log.bytes
        store.execute(sets(12_000, b"third"))
        assert store.get(b"k11999") == b"third"
    assert_clean(path)
