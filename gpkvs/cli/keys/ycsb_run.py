"""What `gpkvs ycsb` does: it runs a workload against a server, shows how far it is, and reports."""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

import typer
import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from gpkvs.cli.keys.ycsb import EXIT_FAILED, EXIT_NOT_RUN, Given
from gpkvs.cli.terminal.output import failures_exit, print_json
from gpkvs.client import AsyncClient
from gpkvs.client.ycsb.batched import BatchRunner
from gpkvs.client.ycsb.properties import Properties, read_file, read_workload
from gpkvs.client.ycsb.report import Report
from gpkvs.client.ycsb.runner import Runner, tick
from gpkvs.client.ycsb.workload import CoreWorkload
from gpkvs.credentials import Access
from gpkvs.errors import GpkvsError, InvalidArgumentError

_READY_SECONDS_MAX = 10.0
_BAR_SECONDS = 0.25


def measure(asked: Given, access: Access, target: str, *, is_load: bool) -> None:
    """Load records, or do operations on them, and print the report."""
    with failures_exit(EXIT_NOT_RUN):
        properties = _properties(asked)
        if not is_load and properties.operationcount < 1:
            raise InvalidArgumentError("0, say how many with -p operationcount=N", field="operationcount")
        _main(properties, access, target, is_load=is_load, status=asked.status, as_json=asked.as_json)


def _properties(asked: Given) -> Properties:
    given = read_workload(asked.workload.value) if asked.workload else {}
    for path in asked.files:
        given |= read_file(path)
    if asked.batch is not None:
        given["batch"] = str(asked.batch)
    for pair in asked.pairs:
        name, mark, value = pair.partition("=")
        if not mark:
            raise InvalidArgumentError(f"{pair!r}, write it as name=value", field="-p")
        given[name.strip()] = value
    properties, unknown = Properties.parse(given)
    for name in unknown:
        typer.echo(f"gpkvs: warning: property {name!r} is not known here and has no effect", err=True)
    if asked.threads is not None:
        properties = replace(properties, threadcount=asked.threads)
    if asked.ops_per_second is not None:
        properties = replace(properties, target=asked.ops_per_second)
    return properties


def _main(properties: Properties, access: Access, target: str, *, is_load: bool, status: bool, as_json: bool) -> None:
    if ":" not in target:
        raise InvalidArgumentError(
            f"{target!r} is not HOST:PORT (operations per second, YCSB's -target, are --ops-per-second N)",
            field="--target",
        )
    report, is_interrupted, gave_up = uvloop.run(_measure(properties, access, target, is_load=is_load, status=status))
    if as_json:
        print_json(report.as_json())
    else:
        typer.echo("\n".join(report.lines()))
    if is_interrupted:
        typer.echo(f"gpkvs: interrupted after {report.operations:,} operations", err=True)
    if gave_up is not None:
        typer.echo(
            f"gpkvs: gave up after {report.operations:,} operations: no response has come for "
            f"{properties.maxunavailabletime:g} s (property maxunavailabletime): {gave_up}",
            err=True,
        )
    if report.measurements.not_ok:
        typer.echo(
            f"gpkvs: {report.measurements.not_ok:,} of {report.operations:,} operations failed: see Return=", err=True
        )
    if is_interrupted or gave_up or report.measurements.not_ok:
        raise typer.Exit(EXIT_FAILED)


async def _measure(
    properties: Properties, access: Access, target: str, *, is_load: bool, status: bool
) -> tuple[Report, bool, Exception | None]:
    workload = CoreWorkload(properties, properties.seed or secrets.randbits(32))
    steps, total = (
        (workload.loads(), properties.records_to_insert)
        if is_load
        else (workload.transactions(), properties.operationcount)
    )
    stopped = asyncio.Event()
    async with AsyncClient(target, table=properties.table, **access.as_arguments()) as client:
        kind = BatchRunner if properties.batch > 1 else Runner
        runner = kind(client, properties, workload, _print_error)
        ready = asyncio.create_task(client.wait_ready(_READY_SECONDS_MAX))

        def stop() -> None:
            stopped.set()
            ready.cancel()
            runner.stop()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        await asyncio.wait([ready])
        if stopped.is_set():
            steps = iter(())
        else:
            ready.result()
        with _progress(runner, total, properties.status_interval if status else 0):
            report = await runner.run(steps)
        closing = time.perf_counter()
        await client.close()
        runner.record_cleanup(time.perf_counter() - closing)
    return report, stopped.is_set(), runner.gave_up


def _print_error(error: GpkvsError) -> None:
    typer.echo(f"gpkvs: first {type(error).__name__}: {error}", err=True)


@contextmanager
def _progress(runner: Runner, total: int, status_interval_s: int) -> Iterator[None]:
    """Show the progress: YCSB's status lines if they were asked for, else a bar on a terminal."""
    console = Console(stderr=True)
    bar = Progress(
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %  {task.completed:,.0f} operations  {task.description} ops/sec"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=bool(status_interval_s) or not console.is_terminal,
    )
    task = bar.add_task("", total=total)

    def show_line() -> None:
        stamp = datetime.now().astimezone().isoformat(sep=" ", timespec="milliseconds")
        print(stamp, runner.progress(total).line(), file=sys.stderr, flush=True)

    def show_bar() -> None:
        progress = runner.progress(total)
        bar.update(task, completed=progress.operations, description=f"{progress.operations_per_second:,.0f}")

    ticker = asyncio.create_task(
        tick(status_interval_s, show_line) if status_interval_s else tick(_BAR_SECONDS, show_bar)
    )
    try:
        with bar:
            yield
    finally:
        ticker.cancel()
        if status_interval_s:
            show_line()
