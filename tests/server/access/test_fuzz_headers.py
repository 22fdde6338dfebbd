"""A short run of the fuzzer of headers; the nightly run has more time."""

from __future__ import annotations

import secrets
from pathlib import Path

from tests.server.access.fuzz_headers import fuzz


def test_broken_headers_let_nobody_in(tmp_path: Path) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    tried = fuzz(2.0, seed, tmp_path)
    assert len(tried) >= 6, tried
