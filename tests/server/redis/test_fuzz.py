"""Random commands are answered as by a real Redis."""

from __future__ import annotations

import secrets
from pathlib import Path

from tests.server.redis.two_servers import gpkvs_server, redis_server
from tests.tools.fuzz_redis import fuzz

COMMANDS = 1500


def test_random_commands_are_answered_as_by_redis(tmp_path: Path) -> None:
    seed = secrets.randbits(32)
    print(f"python -m tests.tools.fuzz_redis --seed {seed}")
    with redis_server(tmp_path) as expected, gpkvs_server(tmp_path) as found:
        assert fuzz(seed, found, expected, float("inf"), COMMANDS) >= COMMANDS
