"""Logins that are nearly right, for two seconds; `make nightly` has ten minutes of them."""

from __future__ import annotations

import secrets
from pathlib import Path

from tests.tools.fuzz_logins import fuzz

SECONDS = 2.0


def test_nobody_gets_in_who_is_nearly_right(tmp_path: Path) -> None:
    seed = secrets.randbits(32)
    print(f"python -m tests.tools.fuzz_logins --seed {seed}")
    counts = fuzz(SECONDS, seed, tmp_path)
    assert {name.split()[0] for name in counts} == {"grpc", "http/2", "http/1"}
