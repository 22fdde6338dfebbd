"""gpkvs ycsb: load a store with records and measure it, in YCSB's words."""

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
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from gpkvs.cli.access import takes_access
from gpkvs.cli.connection import Target
from gpkvs.cli.exit_status import EVERY, exits
from gpkvs.cli.output import failures_exit, print_json
from gpkvs.client import AsyncClient
from gpkvs.client.ycsb.batched import BatchRunner
from gpkvs.client.ycsb.properties import Properties, read_file, read_workload
from gpkvs.client.ycsb.report import Report
from gpkvs.client.ycsb.runner import Runner, tick
from gpkvs.client.ycsb.workload import CoreWorkload
from gpkvs.config import ServerConfig
from gpkvs.credentials import Access
from gpkvs.errors import GpkvsError, InvalidArgumentError

EXIT_FAILED = 1
EXIT_NOT_RUN = 2
_STATUSES = {
    0: "done",
    EXIT_FAILED: "operations failed, the server went away, or it was interrupted (the report says how many)",
    EXIT_NOT_RUN: "no operation was run",
}

_READY_SECONDS_MAX = 10.0
_BAR_SECONDS = 0.25

_HELP = (
    "Load a running server with records and measure it, in YCSB's words.",
    "First `load` records, then `run` a workload on them, with the same recordcount:",
    "  gpkvs ycsb load --workload a -p recordcount=100000 --threads 64",
    "  gpkvs ycsb run --workload a -p recordcount=100000 -p operationcount=500000 --threads 64",
    "Workloads: a updates and reads half and half, b 95 % reads, c reads only, d reads of the newest records and 5 % "
    "inserts, f reads and read-modify-writes half and half; e is refused, because a scan here has no order of keys. "
    "All properties, their defaults and the report's lines are those of YCSB's core workload. What differs:",
    "- --target is the server's address. YCSB's -target (operations per second) is --ops-per-second N or -p target=N.",
    "- A record is one value: a msgpack map of fieldcount fields. An update of one field (writeallfields=false) reads "
    "the record, changes the field and writes the record back. The latency of such an UPDATE is that of both calls. If "
    "two of them change one record at the same time, one may be lost. With writeallfields=true an update is one write.",
    "- --threads are concurrent callers of one connection, whose calls the client gathers into messages.",
    "- With --batch N, each caller puts N operations into a message. An operation's latency is then its message's.",
    "- -p table=NAME names the table; else it is the default one. seed=N repeats the choices of a run.",
    "- -p ttl=SECONDS gives each record that is inserted or updated a time to live. A record that has expired counts "
    "as Return=NOT_FOUND, which is no failure then.",
    "- It ends with status 2 if the server is not ready within 10 s, and with status 1 if no response has come for 60 "
    "s: -p maxunavailabletime=SECONDS changes that, 0 waits for ever.",
)

app = typer.Typer(help="\n\n".join(_HELP), rich_markup_mode="rich", no_args_is_help=True, epilog=EVERY)


class Workload(StrEnum):
    """The shipped workload files."""

    A = "a"
    B = "b"
    C = "c"
    D = "d"
    E = "e"
    F = "f"


WorkloadOption = Annotated[
    Workload | None, typer.Option(help="One of the workloads that come with gpkvs; -P and -p change its properties.")
]
Files = Annotated[
    list[Path] | None,
    typer.Option("-P", metavar="FILE", help="A file of properties. May be repeated; the last file wins."),
]
Pairs = Annotated[
    list[str] | None,
    typer.Option(
        "-p", metavar="NAME=VALUE", help="One property, such as table=NAME; it wins over files. May be repeated."
    ),
]
Threads = Annotated[
    int | None, typer.Option("--threads", "-threads", min=1, help="Concurrent callers (property threadcount, 1).")
]
BatchSize = Annotated[
    int | None, typer.Option("--batch", metavar="N", min=1, help="Operations in a message (property batch, 1).")
]
Rate = Annotated[
    float | None,
    typer.Option("--ops-per-second", metavar="N", min=0, help="Throttle to N operations per second (property target)."),
]
Status = Annotated[
    bool, typer.Option("--status", "-s", help="Print a status line on stderr every status.interval seconds, for logs.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as one JSON object, for scripts.")]


@app.command("load")
@exits(_STATUSES, interrupted=False)
@takes_access
def load_command(
    access: Access,
    workload: WorkloadOption = None,
    files: Files = None,
    pairs: Pairs = None,
    threads: Threads = None,
    batch: BatchSize = None,
    target: Target = ServerConfig.listen,
    ops_per_second: Rate = None,
    status: Status = False,
    as_json: AsJson = False,
) -> None:
    """Insert recordcount records.

    A failed insert is counted and does not end the load; core_workload_insertion_retry_limit=N tries it N times more.
    """
    with failures_exit(EXIT_NOT_RUN):
        properties = _properties(workload, files, pairs, threads, batch, ops_per_second)
        _main(properties, access, target, is_load=True, status=status, as_json=as_json)


@app.command("run")
@exits(_STATUSES, interrupted=False)
@takes_access
def run_command(
    access: Access,
    workload: WorkloadOption = None,
    files: Files = None,
    pairs: Pairs = None,
    threads: Threads = None,
    batch: BatchSize = None,
    target: Target = ServerConfig.listen,
    ops_per_second: Rate = None,
    status: Status = False,
    as_json: AsJson = False,
) -> None:
    """Do operationcount operations on loaded records and report throughput and latencies.

    dataintegrity=true, given to load and run alike, verifies every record that is read ([VERIFY] in the report).
    """
    with failures_exit(EXIT_NOT_RUN):
        properties = _properties(workload, files, pairs, threads, batch, ops_per_second)
        if properties.operationcount < 1:
            raise InvalidArgumentError("0, say how many with -p operationcount=N", field="operationcount")
        _main(properties, access, target, is_load=False, status=status, as_json=as_json)


def _properties(
    workload: Workload | None,
    files: list[Path] | None,
    pairs: list[str] | None,
    threads: int | None,
    batch: int | None,
    ops_per_second: float | None,
) -> Properties:
    given = read_workload(workload.value) if workload else {}
    for path in files or []:
        given |= read_file(path)
    if batch is not None:
        given["batch"] = str(batch)
    for pair in pairs or []:
        name, mark, value = pair.partition("=")
        if not mark:
            raise InvalidArgumentError(f"{pair!r}, write it as name=value", field="-p")
        given[name.strip()] = value
    properties, unknown = Properties.parse(given)
    for name in unknown:
        typer.echo(f"gpkvs: warning: property {name!r} is not known here and has no effect", err=True)
    if threads is not None:
        properties = replace(properties, threadcount=threads)
    if ops_per_second is not None:
        properties = replace(properties, target=ops_per_second)
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
