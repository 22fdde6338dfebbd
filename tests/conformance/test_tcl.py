"""Redis' own suite passes on gpkvs, but for what is on the list of skips."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gpkvs.client import Client
from tests.conformance.tcl_suite import run_suite
from tests.programs import needs
from tests.server.redis.two_servers import resp_port
from tests.serving import StartServer

PASSED_MIN = 252  # Redis itself passes 369 of these units


def skips() -> list[str]:
    """Return the names on the list; no two are the same."""
    lines = (Path(__file__).parent / "tcl_skips.txt").read_text().splitlines()
    names = [line for line in lines if line and not line.startswith("#")]
    assert len(names) == len(set(names))
    return names


@needs("tclsh")
@pytest.mark.skipif(not shutil.which("apt-get"), reason="the suite lies in a source package of Debian: needs apt-get")
def test_redis_own_suite(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server("--resp", "127.0.0.1:0", "--heap-bytes", "256MiB")
    with Client(server.target) as client:
        for number in (1, 9, 10, 11):
            client.create_table(str(number))
    outcome = run_suite(tmp_path, resp_port(server), skips())
    print(dict(outcome.passed))
    assert not outcome.failed, outcome.output
    assert outcome.skipped == set(skips()), "these are no tests of the suite"
    assert outcome.passed.total() >= PASSED_MIN
