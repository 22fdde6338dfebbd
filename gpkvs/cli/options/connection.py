"""The options of subcommands that talk to a server; `gpkvs.cli.options.channel` connects."""

from __future__ import annotations

from typing import Annotated

import typer

EXIT_FAILED = 2

Target = Annotated[str, typer.Option(help="The address of the server.", envvar="GPKVS_TARGET", metavar="HOST:PORT")]
Table = Annotated[str, typer.Option(help="The table; without it, the default table.")]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds to wait for the response.", min=0.001)]
