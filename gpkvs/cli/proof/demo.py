"""gpkvs demo: serve, load, kill -9 in the middle, recover, verify, in twenty seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpkvs.cli.terminal.exit_status import exits
from gpkvs.config import BackendName


@exits({0: "nothing was lost", 1: "something was lost, or the demo could not run (the data is then kept)"})
def demo_command(
    records: Annotated[int, typer.Option(help="Records of 1 KB that YCSB loads.", min=1)] = 20_000,
    seconds: Annotated[float, typer.Option(help="How long the load runs before the server is killed.", min=0.2)] = 5.0,
    data: Annotated[
        Path | None, typer.Option(help="A directory for the store, which is kept. By default a temporary directory.")
    ] = None,
    backend: Annotated[BackendName, typer.Option(help="Where the kernels run.")] = "auto",
    seed: Annotated[int, typer.Option(help="Seed of the values that are written.", min=0)] = 1,
) -> None:
    """Kill a server with SIGKILL under full load, start it again, and show that it has lost nothing.

    It starts a server on a free loopback port and loads it with YCSB. YCSB's workload a then runs, while other clients
    write and remember every acknowledged write. The demo kills the server in the middle, starts it again, shows the
    recovery, and reads back every one of these writes. YCSB goes on when the server is back.
    """
    from gpkvs.cli.proof.demo_story import tell  # noqa: PLC0415 - it loads servers and clients, which help can do without

    tell(data, backend, records, seconds, seed)
