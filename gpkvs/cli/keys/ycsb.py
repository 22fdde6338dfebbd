"""gpkvs ycsb: load a store with records and measure it, in YCSB's words."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from gpkvs.cli.options.access import takes_access
from gpkvs.cli.options.connection import Target
from gpkvs.cli.terminal.exit_status import EVERY, exits
from gpkvs.config import ServerConfig
from gpkvs.credentials import Access

EXIT_FAILED = 1
EXIT_NOT_RUN = 2
_STATUSES = {
    0: "done",
    EXIT_FAILED: "operations failed, the server went away, or it was interrupted (the report says how many)",
    EXIT_NOT_RUN: "no operation was run",
}

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


class Given(NamedTuple):
    """What the options say."""

    workload: Workload | None
    files: list[Path]
    pairs: list[str]
    threads: int | None
    batch: int | None
    ops_per_second: float | None
    status: bool
    as_json: bool


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
    given = Given(workload, files or [], pairs or [], threads, batch, ops_per_second, status=status, as_json=as_json)
    _measure(given, access, target, is_load=True)


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
    given = Given(workload, files or [], pairs or [], threads, batch, ops_per_second, status=status, as_json=as_json)
    _measure(given, access, target, is_load=False)


def _measure(given: Given, access: Access, target: str, *, is_load: bool) -> None:
    from gpkvs.cli.keys.ycsb_run import measure  # noqa: PLC0415 - it loads the client, which help can do without

    measure(given, access, target, is_load=is_load)
