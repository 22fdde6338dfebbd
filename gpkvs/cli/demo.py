"""gpkvs demo: serve, load, kill -9 in the middle, recover, verify. The whole story in half a minute."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gpkvs.cli.output import failures_exit
from gpkvs.config import BackendName
from gpkvs.errors import GpkvsError
from gpkvs.recovery.ledger import Ledger
from gpkvs.recovery.server_process import ServerOptions, ServerProcess, run_gpkvs
from gpkvs.recovery.witness import Witnesses, WitnessOptions
from gpkvs.recovery.ycsb_process import YcsbProcess

_WATCH_SECONDS = 0.1
_ENDLESS = 1_000_000_000  # operations of a run that is going to be killed
_SERVER = ServerOptions(index="16MiB", heap="512MiB", log="16MiB")
_WITNESSES = WitnessOptions(
    single_clients=4, keys_per_client=250, batch_clients=2, shared_keys=1000, cell_keys_max=30, untouched_keys=100
)


class DemoError(GpkvsError):
    """The demo found something that must not be."""


def demo_command(
    records: Annotated[int, typer.Option(help="Records of 1 KB that YCSB loads.", min=1)] = 20_000,
    seconds: Annotated[float, typer.Option(help="How long the load runs before the server is killed.", min=0.2)] = 5.0,
    data: Annotated[
        Path | None, typer.Option(help="Where to make the store; it is kept. By default a temporary directory.")
    ] = None,
    backend: Annotated[BackendName, typer.Option(help="Where the kernels run.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of what is written.", min=0)] = 1,
) -> None:
    """Show what this is about: a server is killed with SIGKILL under full load, restarts, and has lost nothing.

    Starts a server on a free loopback port, loads it with YCSB, runs YCSB's workload a against it while other clients
    write and remember every acknowledged write, kills the server in the middle, restarts it, reports the recovery,
    and reads back every one of these writes. Exit status: 0 nothing was lost, 1 something was (the data is then kept).
    """
    console = Console(highlight=False, soft_wrap=True)
    with failures_exit(1):
        directory = Path(tempfile.mkdtemp(prefix="gpkvs-demo-")) if data is None else data
        directory.mkdir(parents=True, exist_ok=True)
        story = _Story(console, directory / "store", replace(_SERVER, backend=backend), records, seconds, seed)
        asyncio.run(story.tell())
    if data is None:
        shutil.rmtree(directory)


class _Story:
    """The demo, step by step."""

    def __init__(
        self, console: Console, store: Path, options: ServerOptions, records: int, seconds: float, seed: int
    ) -> None:
        self._console = console
        self._store = store
        self._options = options
        self._records = records
        self._seconds = seconds
        self._ledger = Ledger()
        self._witnesses = Witnesses(self._ledger, _WITNESSES, f"demo {seed}")
        self._step = 0
        self._summary = Table(show_header=False, title="What happened", title_justify="left")
        self._summary.add_column()
        self._summary.add_column(justify="right")

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
            await self._run_until_killed(processes, server)
            server = await self._start(processes, "Start it again: it recovers before it serves")
            self._show_recovery()
            await self._verify(server)
            await self._run(server)
            await self._stop_and_check(server)
        self._summary.add_row("seconds, all in all", f"{time.monotonic() - begin:.1f}")
        self._console.print(self._summary)

    async def _start(self, processes: ExitStack, title: str) -> ServerProcess:
        self._title(title)
        server = processes.enter_context(closing(ServerProcess(self._store, self._options)))
        with self._console.status("starting"):
            seconds = await server.ready()
        self._say(
            f"process {server.pid} serves {escape(str(self._store))} on {server.target}, {seconds:.1f} s after start"
        )
        return server

    async def _show_promise(self, server: ServerProcess) -> None:
        """Say what an acknowledged write survives here."""
        info = await self._witnesses.ask(server.target)
        self._say(f"persistence domain {info.domain}: {info.domain_note}")
        self._summary.add_row("persistence domain", f"{info.domain}: {info.domain_note}")

    async def _load(self, server: ServerProcess) -> None:
        self._title(f"YCSB load: {self._records:,} records of 1 KB")
        with self._console.status("loading"):
            rate = await self._ycsb("load", server)
        self._say(f"{rate:,.0f} inserts a second, each acknowledged only when durable")
        self._summary.add_row("YCSB load", f"{rate:,.0f} inserts/s")

    async def _run_until_killed(self, processes: ExitStack, server: ServerProcess) -> None:
        self._title("YCSB run, workload a, and clients that remember what was acknowledged")
        running = processes.enter_context(YcsbProcess("run", server.target, self._records, _ENDLESS))
        clients = asyncio.create_task(self._witnesses.run(server.target))
        begin = time.monotonic()
        with self._console.status("running") as status:
            while (left := begin + self._seconds - time.monotonic()) > 0 and not clients.done():
                status.update(f"{self._witnesses.counts.writes:,} writes acknowledged and remembered")
                await asyncio.sleep(min(_WATCH_SECONDS, left))
        if clients.done() or not server.alive or not running.alive:
            raise server.error(f"the load ended before the kill ({self._witnesses.last_error})")
        self._title("kill -9")
        server.kill()
        await clients
        counts = self._witnesses.counts
        self._say(
            f"process {server.pid} got SIGKILL {self._seconds:.1f} s into the run, after {counts.writes:,} remembered "
            f"writes; {sum(len(cell.open) for cell in self._ledger.cells)} requests will never be answered"
        )
        self._summary.add_row("killed after", f"{self._seconds:.1f} s of workload a")

    def _show_recovery(self) -> None:
        report = json.loads((self._store / "recovery.json").read_text())
        self._say(f"recovery: {report['text']}")
        self._summary.add_row("recovery", report["text"])

    async def _verify(self, server: ServerProcess) -> None:
        self._title("Read back every write that was acknowledged")
        with self._console.status("reading"):
            keys = await self._witnesses.read_back(server.target, other_records=self._records)
        counts, violations = self._witnesses.counts, self._ledger.violations
        if violations:
            found = "\n  ".join(map(str, violations[:20]))
            raise DemoError(f"{len(violations)} violations; the data is kept in {self._store.parent}\n  {found}")
        self._say(
            f"{counts.writes:,} acknowledged writes ({counts.batches:,} of them atomic batches) over {keys:,} keys: "
            f"[bold green]lost: 0[/bold green], half batches: 0, values that nobody wrote: 0"
        )
        self._say(f"YCSB's {self._records:,} records are all there")
        self._summary.add_row("acknowledged writes verified", f"{counts.writes:,}")
        self._summary.add_row("lost", "[bold green]0[/bold green]")

    async def _run(self, server: ServerProcess) -> None:
        self._title("And on: YCSB run on the recovered store")
        with self._console.status("running"):
            rate = await self._ycsb("run", server)
        self._say(f"{rate:,.0f} operations a second, half of them reads, half updates")
        self._summary.add_row("YCSB run, workload a", f"{rate:,.0f} operations/s")

    async def _stop_and_check(self, server: ServerProcess) -> None:
        self._title("Stop it with SIGTERM, and check every structure and every checksum")
        with self._console.status("checking"):
            await server.stop()
            status, output = await asyncio.to_thread(run_gpkvs, "check", str(self._store))
        if status != 0:
            raise DemoError(f"gpkvs check found damage; the data is kept in {self._store.parent}\n{output}")
        self._say(f"gpkvs check: {escape(output.strip())}")
        self._summary.add_row("gpkvs check", "clean")

    async def _ycsb(self, phase: str, server: ServerProcess) -> float:
        """Run one phase of YCSB to its end; return its operations per second."""
        with YcsbProcess(phase, server.target, self._records, self._records) as process:
            return await asyncio.to_thread(process.finish)

    def _title(self, text: str) -> None:
        self._step += 1
        self._console.print(f"\n[bold cyan]{self._step}[/bold cyan]  [bold]{text}[/bold]")

    def _say(self, text: str) -> None:
        self._console.print(f"   {text}")
