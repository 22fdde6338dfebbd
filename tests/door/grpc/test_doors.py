"""The native door answers as its oracle does; `python -m tests.tools.fuzz_doors` compares them for long."""

from __future__ import annotations

import secrets

from tests.tools.fuzz_doors import one_round


def test_the_door_answers_as_its_oracle() -> None:
    """A difference names the seed."""
    assert one_round(secrets.randbelow(1 << 32), 200) == []
