"""gpkvs bench expiry: expiring keys beside plain ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpkvs.bench.expiry.benchmark import ExpiryOptions, expiry_rows, run_expiry
from gpkvs.bench.peers.contender import Promise
from gpkvs.cli.bench.shared import DIRECTORY, JSON, PROMISE, print_result, shown
from gpkvs.cli.terminal.cleanup import ended_by_signals
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.cli.terminal.output import failures_exit


@exits({0: "measured", 1: "something is missing, or a store returns wrong values"})
def expiry_command(
    directory: Annotated[Path, typer.Option(help=DIRECTORY, exists=True, file_okay=False)] = Path("/dev/shm"),
    promise: Annotated[Promise, typer.Option(help=PROMISE)] = ExpiryOptions.promise,
    keys: Annotated[int, typer.Option(help="Keys that expire, and as many that stay.", min=1)] = ExpiryOptions.keys,
    spread: Annotated[float, typer.Option(help="Seconds over which they expire.", min=0.001)] = (
        ExpiryOptions.spread_seconds
    ),
    batch: Annotated[int, typer.Option(help="Operations in a batch of the traffic.", min=1)] = ExpiryOptions.batch,
    redis: Annotated[bool, typer.Option(help="Compare with redis.")] = ExpiryOptions.redis,
    json_file: Annotated[Path | None, typer.Option("--json", help=JSON, dir_okay=False)] = None,
) -> None:
    """How long after their time expired keys are removed, beside traffic on other keys, and beside redis.

    Nobody sees a key after its time, in either store, removed or not. The lag is how long it takes up space.

    Example: gpkvs bench expiry --keys 100000 --json bench/results/expiry-process.json
    """
    options = ExpiryOptions(directory, promise, keys, spread, batch, redis=redis)
    with failures_exit(1), ended_by_signals(), shown() as show:
        result = run_expiry(options, show)
    print_result([expiry_rows(result)], result, json_file)
