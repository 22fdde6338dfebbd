"""gpkvs top: a live view of a running server."""

from __future__ import annotations

from typing import Annotated

import typer

from gpkvs.cli.options.access import takes_access
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.config import ServerConfig
from gpkvs.credentials import Access


@exits({0: "ended, also by Ctrl-C", 2: "the first look found no server"}, interrupted=False)
@takes_access
def top_command(
    access: Access,
    metrics: Annotated[
        str,
        typer.Option(
            help="The address of the server's metrics (gpkvs serve --metrics).",
            envvar="GPKVS_METRICS_TARGET",
            metavar="HOST:PORT",
        ),
    ] = ServerConfig.metrics,
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.05)] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Watch one interval, print it, and end, as where the output is no terminal.")
    ] = False,
    table: Annotated[
        str,
        typer.Option(help="Show what clients do with this table, or with all of them.", metavar="NAME|all"),
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each interval as a line with one JSON object.")
    ] = False,
) -> None:
    """Watch a server: throughput, time by phase, batches, queue, space.

    It reads the server's metrics, which costs the server next to nothing. The key q ends it, as Ctrl-C does.

    With --table it shows the operations on one table by kind, or all tables side by side: operations, bytes that came
    and went, keys that expired. With --json each interval has both in any case.

    Example: gpkvs top --metrics 127.0.0.1:9171 --interval 2

    Example: gpkvs top --table all
    """
    from gpkvs.cli.keys.top_screen import watch  # noqa: PLC0415 - it loads what reads metrics, which help can do without

    watch(access, metrics, interval, once=once, table=table, as_json=as_json)
