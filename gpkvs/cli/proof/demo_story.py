"""The story that `gpkvs demo` tells, step by step."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gpkvs.batch import U64, Batch
from gpkvs.bench.server.load import stream
from gpkvs.bench.server.process_usage import cpu_seconds
from gpkvs.cli.terminal.cleanup import ended_by_signals, scratch_directory
from gpkvs.cli.terminal.output import failures_exit
from gpkvs.client import AsyncClient
from gpkvs.columns.numbers import gets_of, sets_of
from gpkvs.config import BackendName
from gpkvs.errors import GpkvsError
from gpkvs.recovery.proof.drill.clients import DrillClientOptions, DrillClients
from gpkvs.recovery.proof.drill.ledger import Ledger
from gpkvs.recovery.proof.servers.server_process import ServerOptions, ServerProcess, run_gpkvs
from gpkvs.recovery.proof.servers.ycsb_process import THREADS, YcsbProcess

_WATCH_SECONDS = 0.1
_ENDLESS = 1_000_000_000  # operations of a run that will be interrupted
_NUMBERS = "numbers"  # a table of the layout u64
_NUMBERS_PER_RECORD = 50
_LOAD_NUMBERS = 65_536  # in a request
_MESSAGE_NUMBERS, _IN_FLIGHT, _STREAM_SECONDS = 4096, 32, 1.0  # as README's figures over the network
_SERVER = ServerOptions(index="", heap="", log="", commit="", journal="")  # as `gpkvs serve` starts without options
_CLIENTS = DrillClientOptions(
    single_clients=12, keys_per_client=100, batch_clients=4, shared_keys=1000, cell_keys_max=30, untouched_keys=100
)


class DemoError(GpkvsError):
    """The demo found something wrong."""


def tell(data: Path | None, backend: BackendName, records: int, seconds: float, seed: int) -> None:
    """Tell the story; the parameters are those of the command."""
    console = Console(highlight=False, soft_wrap=True)
    with failures_exit(1), ended_by_signals(), scratch_directory(data, "gpkvs-demo-") as directory:
        story = Story(console, directory / "store", replace(_SERVER, backend=backend), records, seconds, seed)
        try:
            asyncio.run(story.tell())
        except GpkvsError:
            console.print(f"\n[bold red]The demo failed.[/bold red] The data is kept in {escape(str(directory))}")
            raise


@dataclass(frozen=True)
class Load:
    """The load on the server when it is killed."""

    ycsb: YcsbProcess
    clients: asyncio.Task[None]
    begin: float  # of the monotonic clock


def _seconds_of(load: Load) -> str:
    return f"{time.monotonic() - load.begin:.1f} s"


class Story:
    """The demo, step by step.

    Parameters
    ----------
    console
        Where the steps are printed.
    store
        The store's directory; the server makes it.
    options
        How to start the server.
    records
        How many records YCSB loads.
    seconds
        From the start of the load to the kill.
    seed
        Of the values that the remembering clients write.
    """

    def __init__(
        self, console: Console, store: Path, options: ServerOptions, records: int, seconds: float, seed: int
    ) -> None:
        self._console = console
        self._store = store
        self._options = options
        self._records = records
        self._seconds = seconds
        self._ledger = Ledger()
        self._clients = DrillClients(self._ledger, _CLIENTS, f"demo {seed}")
        self._step = 0
        self._summary = Table(show_header=False, title="Summary", title_justify="left")

    async def tell(self) -> None:
        """Run all steps.

        Raises
        ------
        DemoError
            If something was lost.
        """
        self._console.print("[bold]gpkvs demo[/bold]: kill a database server under load, and see what it remembers")
        begin = time.monotonic()
        with ExitStack() as processes:
            server = await self._start(processes, "Start a server")
            await self._show_promise(server)
            await self._load(server)
            await self._stream_columns(server)
            load = await self._run(processes, server)
            await self._kill(server, load)
            server = await self._start(processes, "Start it again: it recovers before it serves", server.target)
            self._show_recovery()
            await self._verify(server)
            await self._go_on(load.ycsb)
            await self._stop_and_check(server)
        self._summary.add_row("seconds, all in all", f"{time.monotonic() - begin:.1f}")
        self._console.print()
        self._console.print(self._summary)
        self._console.print(
            "The process was killed; the power was not cut. The persistence domain says what else a store survives."
        )
        self._console.print(
            "\nNow with a store of your own ([bold]docs/recipes.md[/bold] goes on from there):\n"
            f"  {escape(_command())} serve --data /tmp/first\n"
            f"  {escape(_command())} set greeting hello      # in another terminal"
        )

    async def _start(self, processes: ExitStack, title: str, listen: str = "127.0.0.1:0") -> ServerProcess:
        self._title(title)
        server = processes.enter_context(closing(ServerProcess(self._store, self._options, listen=listen)))
        with self._console.status("starting"):
            seconds = await server.ready()
        self._say(f"process {server.pid} serves {escape(str(self._store))} on {server.target}, after {seconds:.1f} s")
        return server

    async def _show_promise(self, server: ServerProcess) -> None:
        """Say what an acknowledged write survives here."""
        info = await self._clients.ask(server.target)
        self._say(f"persistence domain {info.domain}: {info.domain_note}")
        self._summary.add_row("persistence domain", f"{info.domain}: {info.domain_note}")

    async def _load(self, server: ServerProcess) -> None:
        self._title(f"YCSB load: {self._records:,} records of 1 KB")
        before = cpu_seconds(server.pid)
        with self._console.status("loading"), YcsbProcess("load", server.target, self._records, 0) as ycsb:
            report = await asyncio.to_thread(ycsb.finish)
        if report.failed or report.operations != self._records:
            raise DemoError(f"YCSB loaded {report.operations:,} of {self._records:,} records, {report.failed:,} failed")
        rate = f"{report.operations_per_second:,.0f}"
        busy_us = 1e6 * (cpu_seconds(server.pid) - before) / report.operations
        self._say(
            f"{rate} inserts a second, by {THREADS} callers in Python that send one record and wait for its answer"
        )
        self._say(f"each is acknowledged only when it is durable; the server worked {busy_us:,.0f} us for each")
        self._summary.add_row("YCSB load, one by one", f"{self._records:,} records, {rate} inserts/s")

    async def _stream_columns(self, server: ServerProcess) -> None:
        keys = self._numbers
        self._title(f"The same server, by columns: {len(keys):,} numbers, in messages of {_MESSAGE_NUMBERS:,}")
        with self._console.status("running"):
            async with AsyncClient(server.target, table=_NUMBERS) as client:
                await client.create_table(_NUMBERS, layout="u64", records=len(keys))
                await asyncio.gather(*(client.set_many(part, part + np.uint64(1)) for part in _requests(keys)))
                runs = {
                    operation: await stream(client, _messages(operation, len(keys)), _STREAM_SECONDS, _IN_FLIGHT)
                    for operation in ("SET", "GET")
                }
        rates = " and ".join(f"{run.rate:,.0f} {operation}s" for operation, run in runs.items())
        self._say(f"{rates} a second, from one client on a stream")
        self._say("each message is a transaction, and durable when it is acknowledged")
        self._summary.add_row("streams of numbers", f"{rates} a second")

    @property
    def _numbers(self) -> U64:
        return np.arange(self._records * _NUMBERS_PER_RECORD, dtype=np.uint64)

    async def _run(self, processes: ExitStack, server: ServerProcess) -> Load:
        self._title("YCSB run, and clients that remember every acknowledged write")
        ycsb = processes.enter_context(YcsbProcess("run", server.target, self._records, _ENDLESS))
        load = Load(ycsb, asyncio.create_task(self._clients.run(server.target)), time.monotonic())
        with self._console.status("running") as status:
            while not load.clients.done():
                is_over = time.monotonic() - load.begin >= self._seconds
                if is_over and (ycsb.is_at_work or not ycsb.alive):
                    break
                status.update(f"{self._clients.counts.writes:,} writes acknowledged and remembered")
                await asyncio.sleep(_WATCH_SECONDS)
        self._say(f"{self._clients.counts.writes:,} acknowledged writes remembered in {_seconds_of(load)}")
        return load

    async def _kill(self, server: ServerProcess, load: Load) -> None:
        self._title("kill -9, in the middle of it")
        if load.clients.done() or not server.alive or not load.ycsb.alive:
            raise server.error(f"the load ended before the kill ({self._clients.last_error})")
        seconds = _seconds_of(load)
        server.kill()
        await load.clients
        unanswered = sum(len(cell.open) for cell in self._ledger.cells)
        self._say(f"process {server.pid} is gone; {unanswered} of the remembering clients' writes were under way")
        self._say("YCSB does not know: its client waits, and tries again what is safe to repeat")
        self._summary.add_row("SIGKILL", f"{seconds} into YCSB's workload a")

    def _show_recovery(self) -> None:
        text = json.loads((self._store / "recovery.json").read_text())["text"]
        self._say(f"recovery: {escape(text)}")
        self._summary.add_row("recovery", text)

    async def _verify(self, server: ServerProcess) -> None:
        self._title("Read back every write that was acknowledged")
        with self._console.status("reading"):
            await self._read_columns(server)
            others = self._records + len(self._numbers)
            keys = await self._clients.read_back(server.target, other_records=others)
        counts, violations = self._clients.counts, self._ledger.violations
        if violations:
            raise DemoError("\n  ".join([f"{len(violations)} violations:", *map(str, violations[:20])]))
        self._say(
            f"{counts.writes:,} acknowledged writes ({counts.batches:,} of them atomic batches) over {keys:,} keys: "
            "[bold green]lost: 0[/bold green], half batches: 0, values that nobody wrote: 0"
        )
        self._say(f"all {len(self._numbers):,} numbers are there, with their values")
        self._summary.add_row("acknowledged writes verified", f"{counts.writes:,}, and {len(self._numbers):,} numbers")
        self._summary.add_row("lost", "[bold green]0[/bold green]")

    async def _read_columns(self, server: ServerProcess) -> None:
        keys = self._numbers
        async with AsyncClient(server.target, table=_NUMBERS) as client:
            read = [(part, *await client.get_many(part)) for part in _requests(keys)]
        wrong = sum(int(np.count_nonzero(~found | (values != part + np.uint64(1)))) for part, values, found in read)
        if wrong:
            raise DemoError(f"{wrong:,} of {len(keys):,} numbers are lost or have other values")

    async def _go_on(self, ycsb: YcsbProcess) -> None:
        self._title("YCSB has gone on all the while")
        with self._console.status("running"):
            await asyncio.sleep(self._seconds / 2)
            if not ycsb.alive:
                raise DemoError("YCSB gave up when the server was killed")
            ycsb.interrupt()
            report = await asyncio.to_thread(ycsb.finish)
        self._say(
            f"{report.operations:,} operations, the slowest {report.latency_us_max / 1e6:.1f} s for the crash; "
            f"{report.verified:,} records verified as read, to the byte"
        )
        self._say(f"{report.failed:,} operations are reported as failed, or of unknown outcome: the server was away")
        self._summary.add_row(
            "YCSB, through the crash",
            f"{report.operations:,} operations, {report.operations_per_second:,.0f}/s, {report.verified:,} verified",
        )

    async def _stop_and_check(self, server: ServerProcess) -> None:
        self._title("Stop the server with SIGTERM; check every structure and every checksum")
        with self._console.status("checking"):
            await server.stop()
            status, output = await asyncio.to_thread(run_gpkvs, "check", str(self._store))
        if status != 0:
            raise DemoError(f"gpkvs check found damage:\n{output}")
        self._say(f"gpkvs check: {escape(output.strip())}")
        self._summary.add_row("gpkvs check", "clean")

    def _title(self, text: str) -> None:
        self._step += 1
        self._console.print(f"\n[bold cyan]{self._step}[/bold cyan]  [bold]{text}[/bold]")

    def _say(self, text: str) -> None:
        self._console.print(f"   {text}")


def _requests(keys: U64) -> list[U64]:
    """Cut keys into those of single requests."""
    return [keys[first : first + _LOAD_NUMBERS] for first in range(0, len(keys), _LOAD_NUMBERS)]


def _messages(operation: str, count: int) -> Iterator[Batch]:
    """Yield messages on keys drawn uniformly, without end; SETs store the values that are there."""
    random = np.random.default_rng(1)
    while True:
        keys = random.integers(0, count, _MESSAGE_NUMBERS, dtype=np.uint64)
        yield sets_of(keys, keys + np.uint64(1)) if operation == "SET" else gets_of(keys)


def _command() -> str:
    """Return how this command was called, so that the next one can be typed alike."""
    return sys.argv[0] if Path(sys.argv[0]).name == "gpkvs" else "gpkvs"
