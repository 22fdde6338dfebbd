"""gpkvs bench: the speed of the engine and the server on this machine, beside other stores that promise the same."""

from __future__ import annotations

from typing import Any, ClassVar

import typer

from gpkvs.cli.lazy_commands import LazyGroup
from gpkvs.cli.terminal.exit_status import EVERY


class Bench(LazyGroup):
    """One line for each benchmark, in the order of the help text."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take ``--quick`` for what it is: a command."""
        if args[:1] == ["--quick"]:
            args = ["quick", *args[1:]]
        return super().parse_args(ctx, args)

    subcommands: ClassVar = {
        "quick": (
            "gpkvs.cli.bench.quick:quick_command",
            "Measure in a minute what this machine does: embedded and served, beside LMDB and redis where they are.",
        ),
        "engine": (
            "gpkvs.cli.bench.embedded.engine:engine_command",
            "Batches on the embedded store, beside LMDB and RocksDB.",
        ),
        "operations": (
            "gpkvs.cli.bench.embedded.operations:operations_command",
            "Measure batches of increments, conditions, appends and EXISTSs beside plain SETs and GETs of as many "
            "keys.",
        ),
        "server": (
            "gpkvs.cli.bench.served.server:server_command",
            "Clients of a real server, beside redis-benchmark on a real redis-server.",
        ),
        "disk": (
            "gpkvs.cli.bench.disk:disk_command",
            "Measure a store on a disk, with its journal, beside stores that sync: every figure that has a target.",
        ),
        "wear": (
            "gpkvs.cli.bench.embedded.wear:wear_command",
            "Overwrite records again and again in a heap that is nearly full, beside RocksDB with BlobDB and LMDB.",
        ),
        "expiry": (
            "gpkvs.cli.bench.served.expiry:expiry_command",
            "How long after their time expired keys are removed, beside traffic on other keys, and beside redis.",
        ),
        "growth": (
            "gpkvs.cli.bench.embedded.growth:growth_command",
            "Insert keys into a small store that grows: how late batches are meanwhile, beside a store made "
            "large, and redis.",
        ),
        "backup": (
            "gpkvs.cli.bench.served.backup:backup_command",
            "Back up a server that is used: how long it takes, and what writers feel, beside BGSAVE of redis.",
        ),
        "calls": (
            "gpkvs.cli.bench.embedded.calls:calls_command",
            "Set, get and count in an embedded store, one operation a call, beside LMDB.",
        ),
        "scan": (
            "gpkvs.cli.bench.embedded.scan:scan_command",
            "Scan a table from end to end: keys only, and whole records, beside the cursor of LMDB.",
        ),
        "security": (
            "gpkvs.cli.bench.served.security:security_command",
            "Measure what TLS and a token cost a server, beside a server without.",
        ),
        "door": (
            "gpkvs.cli.bench.served.door:door_command",
            "Load `gpkvs serve` with a native client, beside servers that do nothing, and beside redis.",
        ),
        "redis": (
            "gpkvs.cli.bench.served.redis:redis_command",
            "Load `gpkvs serve --resp` as users of Redis do, beside a real redis-server that keeps the same promise.",
        ),
        "values": (
            "gpkvs.cli.bench.values:values_command",
            "Measure values of 256 KiB and more beside peers that promise the same, and beside what moves the same "
            "bytes.",
        ),
        "rows": (
            "gpkvs.cli.bench.embedded.rows:rows_command",
            "Measure tables of rows, such as float32[128], beside peers that promise the same, and beside NumPy in "
            "memory.",
        ),
        "gpu": (
            "gpkvs.cli.bench.gpu.gpu:gpu_command",
            "Measure the engine on one GPU against the limits of the GPU and its link, in the same run.",
        ),
        "gpm": (
            "gpkvs.cli.bench.gpu.gpm:gpm_command",
            "Run the nine workloads of GPM (ASPLOS '22), in examples/gpm, with three ways to persist their results.",
        ),
        "paper": (
            "gpkvs.cli.bench.gpu.paper:paper_command",
            "Repeat the comparisons of the paper behind the engine (GPM, ASPLOS '22), with this code.",
        ),
        "paths": (
            "gpkvs.cli.bench.gpu.paths:paths_command",
            "Measure how well a store chooses who plans a batch, the host's threads or the GPU.",
        ),
        "report": (
            "gpkvs.cli.bench.report:report_command",
            "Write results that were kept into a document, as tables and plots.",
        ),
    }


app = typer.Typer(
    name="bench",
    cls=Bench,
    help="Measure the engine and the server beside other stores, and keep the figures.",
    epilog=EVERY,
    no_args_is_help=True,
)


@app.callback()
def _options() -> None:
    pass
