"""What a benchmark needs beside gpkvs: memory as a file system, and the peers that it is measured beside."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SHM = Path("/dev/shm")
needs_shm = pytest.mark.skipif(not SHM.is_dir(), reason="there is no /dev/shm")
needs_lmdb = pytest.mark.skipif(
    not importlib.util.find_spec("lmdb"), reason="LMDB is not installed: pip install 'gpkvs[bench]'"
)
needs_peers = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("lmdb", "rocksdict"))),
    reason="LMDB or RocksDB is not installed: pip install 'gpkvs[bench]'",
)
