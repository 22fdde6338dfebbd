"""Both doors of a server answer the same calls the same; `python -m tests.fuzz_doors` runs it for long."""

from __future__ import annotations

import secrets

from tests.fuzz_doors import one_round


def test_both_doors_answer_the_same() -> None:
    """A difference names the seed."""
    assert one_round(secrets.randbelow(1 << 32), 200, ("grpcio", "native"), ()) == []
