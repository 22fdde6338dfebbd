"""The gate counts the calls under way."""

from __future__ import annotations

import asyncio

import pytest

from gpkvs.server.gate import Gate, NotServingError


def test_a_stop_waits_for_the_last_call_under_way() -> None:
    async def within() -> None:
        gate = Gate()
        with pytest.raises(NotServingError, match="recovering"):
            gate.serving()
        with gate:
            with gate:
                idle = asyncio.ensure_future(gate.wait_idle())
                await asyncio.sleep(0)
            await asyncio.sleep(0.01)
            assert not idle.done()
            gate.close()
            with pytest.raises(NotServingError, match="stopping"):
                gate.serving()
        await asyncio.wait_for(idle, 10)

    asyncio.run(within())
