"""Freed memory goes back to the system, whatever else is the matter."""

from __future__ import annotations

import asyncio
import os
import resource

from gpkvs.server.account.resident import FreeMemory


async def look_without_a_free_file() -> None:
    memory = FreeMemory(1 << 40)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        memory.look()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    memory.look()


def test_a_look_without_a_free_file_is_left_out() -> None:
    """An error would end the looks of a server for good."""
    asyncio.run(look_without_a_free_file())
