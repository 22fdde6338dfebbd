"""How many requests redis-benchmark is told to send, where its own trial misleads."""

from __future__ import annotations

import asyncio

import pytest

from gpkvs.bench.peers import resp_port
from gpkvs.bench.peers.resp_port import RespPort

FAST, SLOW, TOO_SHORT = "100000.00", "200.00", "inf"


@pytest.mark.parametrize(
    ("rates", "sent"),
    [
        ([FAST, FAST], [1000, 200_000]),
        ([SLOW, FAST, FAST], [1000, 400, 200_000]),
        ([SLOW, TOO_SHORT, FAST, FAST], [1000, 400, 800_000]),
    ],
    ids=["usual", "a slow trial", "less than a millisecond"],
)
def test_a_run_that_a_trial_misled_is_made_again(
    monkeypatch: pytest.MonkeyPatch, rates: list[str], sent: list[int]
) -> None:
    told, left = [], [*rates]

    def output_of(*command: str) -> str:
        told.append(int(command[command.index("-n") + 1]))
        return f'"test","rps","p50_latency_ms","p95_latency_ms","p99_latency_ms"\n"SET","{left.pop(0)}",1,2,3\n'

    monkeypatch.setattr(resp_port, "output_of", output_of)
    port = RespPort(0)
    run = asyncio.run(port.benchmark("SET", 100, 2.0, 1, 1))
    assert told == sent
    assert run.seconds == pytest.approx(sent[-1] / 100_000)
    assert len(port.load_busy) == 1
