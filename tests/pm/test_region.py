"""Mapped files that grow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpkvs.pm.domain import Domain, DomainName
from gpkvs.pm.region import Region

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
