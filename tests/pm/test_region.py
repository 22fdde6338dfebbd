"""Mapped files that grow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpkvs.pm.domain import Domain, DomainName
from gpkvs.pm.region import Region
from gpkvs.process.fatal import EXIT_FATAL

PAGE = 4096
PROCESS = Domain(DomainName.PROCESS, DomainName.PROCESS)

# The file is cut behind the place that was mapped first: the line that ends the process must still name it.
CUT_AFTER_GROWTH = """
import os, sys
from pathlib import Path
from gpkvs.pm.domain import Domain, DomainName
from gpkvs.pm.region import Region
path = Path(sys.argv[1])
region = Region(path, Domain(DomainName.PROCESS, DomainName.PROCESS))
os.truncate(path, 1 << 20)
region.grow(1 << 20)
os.truncate(path, 8192)
region.read(1 << 19, 8)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a file of two pages."""
    path = tmp_path / "file"
    path.write_bytes(b"12345678" * (2 * PAGE // 8))
    return path


def test_a_region_maps_what_it_is_told(path: Path) -> None:
    region = Region(path, PROCESS, PAGE, PAGE - 8)
    assert region.bytes == PAGE - 8
    region.close()


def test_a_region_grows_with_its_file(path: Path) -> None:
    region = Region(path, PROCESS)
    beside = Region(path, PROCESS)  # so that it cannot grow where it is
    os.truncate(path, 1 << 30)
    region.grow(1 << 30)
    assert region.read(2 * PAGE - 8, 16) == b"12345678" + bytes(8)
    region.store((1 << 30) - 8, b"the last")
    region.persist()
    assert region.words((1 << 30) - 8, 1).tobytes() == b"the last"
    region.close()
    beside.close()
    with path.open("rb") as file:
        file.seek(-8, os.SEEK_END)
        assert file.read() == b"the last"


def test_what_cannot_grow_stays(path: Path) -> None:
    region = Region(path, PROCESS)
    with pytest.raises(OSError, match=r"Invalid argument|memory"):
        region.grow(1 << 62)
    assert region.read(0, 8) == b"12345678"
    assert region.bytes == 2 * PAGE
    region.close()


def test_a_grown_file_that_is_cut_is_named(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", CUT_AFTER_GROWTH, str(path)], capture_output=True, check=False)
    assert done.returncode == 70
    assert f"{path} cannot be read or written at byte {1 << 19}".encode() in done.stderr


def test_a_region_with_free_addresses_grows_where_it_is(path: Path) -> None:
    region = Region(path, PROCESS)
    region.reserve(1 << 30)
    beside = Region(path, PROCESS)
    at = region.address
    assert region.read(0, 8) == b"12345678"
    os.truncate(path, 1 << 20)
    assert region.map_ahead(1 << 20)
    assert region.bytes == 2 * PAGE
    region.grow(1 << 20)
    os.truncate(path, 1 << 30)
    region.grow(1 << 30)
    region.store((1 << 30) - 8, b"the last")
    region.store(2 * PAGE, b"the next")
    assert region.address == at
    assert region.read(0, 8) == b"12345678"
    assert beside.read(0, 8) == b"12345678"
    beside.close()
    region.close()
    data = path.read_bytes()
    assert (data[2 * PAGE : 2 * PAGE + 8], data[-8:]) == (b"the next", b"the last")


def test_the_free_addresses_go_with_the_region(path: Path) -> None:
    def mapped() -> int:
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmSize"))
        return int(line.split()[1]) << 10

    before = mapped()
    for _ in range(10):
        region = Region(path, PROCESS)
        region.reserve(1 << 36)
        region.close()
    assert mapped() - before < 1 << 36


def test_a_region_whose_addresses_are_refused_moves(path: Path) -> None:
    region = Region(path, PROCESS)
    region.reserve(1 << 60)
    os.truncate(path, 1 << 20)
    assert not region.map_ahead(1 << 20)
    region.grow(1 << 20)
    assert region.read(0, 8) == b"12345678"
    region.close()


def test_a_file_cut_behind_free_addresses_names_itself(path: Path) -> None:
    first = "os.truncate(path, 1 << 20)"
    program = CUT_AFTER_GROWTH.replace(first, f"region.reserve(1 << 30); {first}")
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == EXIT_FATAL
    assert str(path) in done.stderr
