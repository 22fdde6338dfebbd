"""gpkvs bench backup: backups beside writers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpkvs.bench.backup.benchmark import BackupOptions, backup_rows, draw_backups, run_backup
from gpkvs.bench.peers.contender import Promise
from gpkvs.cli.bench.shared import DIRECTORY, JSON, PROMISE, print_result, shown
from gpkvs.cli.terminal.cleanup import ended_by_signals
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.cli.terminal.output import failures_exit


@exits({0: "measured", 1: "something is missing, or a backup fails"})
def backup_command(
    directory: Annotated[Path, typer.Option(help=DIRECTORY, exists=True, file_okay=False)] = Path("/dev/shm"),
    promise: Annotated[Promise, typer.Option(help=PROMISE)] = BackupOptions.promise,
    records: Annotated[int, typer.Option(help="Records that both hold.", min=1)] = BackupOptions.records,
    seconds: Annotated[float, typer.Option(help="Of the SETs before each backup.", min=0.001)] = BackupOptions.seconds,
    redis: Annotated[bool, typer.Option(help="Compare with redis.")] = BackupOptions.redis,
    plot: Annotated[
        Path | None, typer.Option(help="Draw what SETs took over time into this file, as SVG.", dir_okay=False)
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help=JSON, dir_okay=False)] = None,
) -> None:
    """Back up a server that is used: how long it takes, and what writers feel, beside BGSAVE of redis.

    Both hold the same records. One connection sends SETs, one at a time and 64 at a time.

    Example: gpkvs bench backup --records 1000000 --json bench/results/backup-process.json
    """
    options = BackupOptions(directory, promise, records, seconds=seconds, redis=redis)
    with failures_exit(1), ended_by_signals(), shown() as show:
        result = run_backup(options, show)
    if plot:
        plot.write_text(draw_backups(result))
    print_result([backup_rows(result)], result, json_file)
