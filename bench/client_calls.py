"""Calls a second of one AsyncClient with many concurrent callers.

    python bench/client_calls.py --target 127.0.0.1:7171 --callers 256 --seconds 5

Prints one JSON object for each kind of call. With --profile FILE the client's profile is written there (pstats).
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import time

import uvloop

from gpkvs.client import AsyncClient, GatherConfig

KEYS = 10_000
VALUE = bytes(range(100))


async def measure(client: AsyncClient, kind: str, callers: int, seconds: float) -> dict[str, object]:
    calls = 0
    end = time.perf_counter() + seconds

    async def caller(number: int) -> None:
        nonlocal calls
        i = number
        while time.perf_counter() < end:
            i = (i + callers) % KEYS
            if kind == "set" or (kind == "mixed" and i & 1):
                await client.set(b"key%d" % i, VALUE)
            else:
                await client.get(b"key%d" % i)
            calls += 1

    start, cpu_start = time.perf_counter(), time.process_time()
    await asyncio.gather(*(caller(number) for number in range(callers)))
    elapsed, cpu = time.perf_counter() - start, time.process_time() - cpu_start
    return {
        "kind": kind,
        "callers": callers,
        "calls_per_second": round(calls / elapsed),
        "latency_us": round(elapsed / calls * callers * 1e6),
        "client_cpu_us_per_call": round(cpu / calls * 1e6, 2),
    }


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="127.0.0.1:7171")
    parser.add_argument("--callers", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--messages-in-flight", type=int, default=GatherConfig.messages_in_flight_max)
    parser.add_argument("--profile")
    arguments = parser.parse_args()
    gather = GatherConfig(messages_in_flight_max=arguments.messages_in_flight)
    async with AsyncClient(arguments.target, gather=gather) as client:
        await client.wait_ready()
        await asyncio.gather(*(client.set(b"key%d" % i, VALUE) for i in range(KEYS)))
        profile = cProfile.Profile()
        for kind in ("get", "set", "mixed"):
            if arguments.profile:
                profile.enable()
            result = await measure(client, kind, arguments.callers, arguments.seconds)
            profile.disable()
            print(json.dumps(result), flush=True)
        if arguments.profile:
            profile.dump_stats(arguments.profile)


if __name__ == "__main__":
    uvloop.run(main())
