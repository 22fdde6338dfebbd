"""Transactions of two reads and two writes by concurrent callers, beside the same without checks, SETs, and etcd."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import cycle
from pathlib import Path

from gpkvs.bench.peers.contender import BenchError, Progress
from gpkvs.bench.peers.etcd_peer import Etcd, find_etcd
from gpkvs.bench.report.comparison import Comparison
from gpkvs.bench.report.results import Run
from gpkvs.bench.server.load import callers_of
from gpkvs.bench.server.measured_server import ServerBenchOptions, serve_numbers
from gpkvs.client import AsyncClient, AsyncTable, AsyncTransaction

CALLERS = 64
_ACCOUNTS = 100_000
_AT_FIRST = 1000
_DRAWN = 10_000  # pairs of accounts, for a run
_LOAD = 1000  # accounts in a request
_AIM = 0.7  # of the same reads and writes without checks

Move = Callable[[bytes], Awaitable[object]]
"""Move one from an account to another one; the argument is both keys, each as long as the other."""


async def measure_transactions(options: ServerBenchOptions, directory: Path, progress: Progress) -> list[Comparison]:
    """Return transactions a second over the same reads and writes without checks, over gathered SETs, and over etcd.

    The last one if it is installed. SETs have no aim: two messages and four operations of a client in Python, without
    any transaction, reach 0.3 of them.

    Raises
    ------
    BenchError
        If money was made or lost.
    """
    accounts = min(options.records, _ACCOUNTS)
    few = replace(options, records=1000)
    sets, plain, moves, peers = [], [], [], []
    async with (
        serve_numbers(directory / "transactions", few, few.records) as (_, client),
        _etcd(directory / "etcd", options, accounts, progress) as etcd,
    ):
        table = await _accounts(client, accounts)
        for number in range(options.runs):
            progress(f"transactions of {CALLERS} callers: run {number + 1} of {options.runs}")
            sets.append(await _run(lambda pair: table.set(b"set" + pair, b"%d" % _AT_FIRST), options, accounts, number))
            plain.append(await _run(_unchecked(table), options, accounts, number))
            moves.append(await _run(_move(table), options, accounts, number))
            if etcd:
                peers.append(await _run(etcd.move, options, accounts, number))
        await _require_sum(table, accounts)
        peer = f"etcd {etcd.version}" if etcd else ""
    what = f"server: transactions of two reads and two writes, {CALLERS} callers"
    found = [
        _compared(what, "the same without checks", moves, plain, _AIM),
        _compared(what, "gathered SETs", moves, sets, None),
    ]
    return [*found, _compared(what, peer, moves, peers, None)] if peer else found


def _compared(what: str, beside: str, moves: list[Run], others: list[Run], aim: float | None) -> Comparison:
    ratios = [one.rate / other.rate for one, other in zip(moves, others, strict=True)]
    one, other = moves[len(moves) // 2], others[len(others) // 2]
    note = (
        f"{one.rate:,.0f} a second (p99 {one.latencies_ms['p99']:.1f} ms), "
        f"{other.rate:,.0f} (p99 {other.latencies_ms['p99']:.1f} ms)"
    )
    return Comparison(what, "gpkvs", beside, ratios, aim=aim, note=note)


async def _run(call: Move, options: ServerBenchOptions, accounts: int, seed: int) -> Run:
    draw = random.Random(seed)
    pairs = [b"%08d%08d" % tuple(draw.sample(range(accounts), 2)) for _ in range(_DRAWN)]
    return await callers_of([call] * CALLERS, cycle(pairs), options.seconds)


def _unchecked(table: AsyncTable) -> Move:
    """Return what reads two accounts and writes two records, which nobody checks; the accounts keep their sum."""

    async def read_and_write(pair: bytes) -> None:
        giver, receiver = pair[:8], pair[8:]
        there = await table.get_all((giver, receiver))
        async with table.batch() as batch:
            batch.set(b"set" + giver, there[giver])
            batch.set(b"set" + receiver, there[receiver])

    return read_and_write


def _move(table: AsyncTable) -> Move:
    async def move(pair: bytes) -> None:
        giver, receiver = pair[:8], pair[8:]

        async def work(t: AsyncTransaction) -> None:
            there = await t.get_all((giver, receiver))
            t.set(giver, b"%d" % (int(there[giver]) - 1))
            t.set(receiver, b"%d" % (int(there[receiver]) + 1))

        await table.transact(work)

    return move


async def _accounts(client: AsyncClient, count: int) -> AsyncTable:
    await client.create_table("accounts")
    table = client.table("accounts")
    for start in range(0, count, _LOAD):
        async with table.batch() as batch:
            for number in range(start, min(start + _LOAD, count)):
                batch.set(b"%08d" % number, b"%d" % _AT_FIRST)
    return table


async def _require_sum(table: AsyncTable, count: int) -> None:
    total = 0
    for start in range(0, count, _LOAD):
        there = await table.get_all(b"%08d" % number for number in range(start, min(start + _LOAD, count)))
        total += sum(map(int, there.values()))
    if total != count * _AT_FIRST:
        raise BenchError(f"the accounts hold {total:,} after the transactions, {count * _AT_FIRST:,} before")


@asynccontextmanager
async def _etcd(
    directory: Path, options: ServerBenchOptions, accounts: int, progress: Progress
) -> AsyncIterator[Etcd | None]:
    if not find_etcd():
        progress("etcd is not installed: transactions are not compared with its")
        yield None
        return
    async with Etcd.started(directory, options.promise) as etcd:
        await etcd.load({b"%08d" % number: b"%d" % _AT_FIRST for number in range(accounts)})
        yield etcd
