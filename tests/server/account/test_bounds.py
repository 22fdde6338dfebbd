"""The shares of a server's memory."""

from __future__ import annotations

import pytest

from gpkvs.config import GIB, MIB, Limits, ServerConfig
from gpkvs.errors import InvalidArgumentError
from gpkvs.process.machine import anonymous_bytes, machine_bytes
from gpkvs.server.account.bounds import CONNECTION_CALLS_MAX, WINDOW_BYTES, bounds_of
from gpkvs.server.account.resident import allocated_bytes, give_back_free


@pytest.mark.parametrize("memory_bytes_max", [64 * MIB, 256 * MIB, GIB, 4 * GIB, 64 * GIB])
def test_the_shares_fit(memory_bytes_max: int) -> None:
    bounds = bounds_of(ServerConfig(), Limits(), 64 * MIB, memory_bytes_max)
    message_bytes_max = bounds.config.message_bytes_max
    pending = bounds.connections_max * CONNECTION_CALLS_MAX * WINDOW_BYTES
    engine = bounds.working_bytes(bounds.config.batch_bytes_max, bounds.config.batch_ops_max)
    assert pending + bounds.freed_bytes_max + engine + bounds.clients_bytes_max <= memory_bytes_max
    assert bounds.connections_max > 5
    # The largest request and its response, with gRPC's copy, find room in half of what clients may take.
    assert message_bytes_max + 2 * 16 * bounds.limits.request_ops_max < bounds.clients_bytes_max // 2
    assert bounds.limits.result_bytes_max <= bounds.batch_result_bytes_max


def test_much_memory_raises_no_limit() -> None:
    config = ServerConfig(message_bytes_max=MIB, batch_ops_max=7, batch_bytes_max=99, stream_bytes_max=12)
    bounds = bounds_of(config, Limits(value_bytes_max=100), 64 * MIB, 64 * GIB)
    assert bounds.config == config
    assert bounds.limits.value_bytes_max == 100


def test_too_little_memory_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"memory_max: 67,108,863 bytes, a server needs at least 67,108,864"):
        bounds_of(ServerConfig(), Limits(), 64 * MIB, 64 * MIB - 1)


def test_what_the_process_holds() -> None:
    before = allocated_bytes()
    block = bytes(100 * MIB)
    assert allocated_bytes() - before >= len(block)
    assert anonymous_bytes() > 0
    del block
    give_back_free()
    assert allocated_bytes() - before < 50 * MIB
    assert machine_bytes() > 100 * MIB
