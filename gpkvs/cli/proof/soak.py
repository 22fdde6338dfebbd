"""gpkvs soak: keep a server nearly full for a long time, kill it and not, and prove that it stays right."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gpkvs.cli.options.sizes import format_bytes, parse_bytes
from gpkvs.cli.terminal.cleanup import ended_by_signals, scratch_directory
from gpkvs.cli.terminal.counts_table import counts_table
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.cli.terminal.output import failures_exit, print_json
from gpkvs.config import MIB, BackendName, CommitName, DurabilityName, FormatName
from gpkvs.recovery.proof.servers.kill_plan import SIGKILL
from gpkvs.recovery.proof.servers.server_process import ServerOptions
from gpkvs.recovery.proof.soak.memory import DRIFT_MAX, SECONDS_MIN
from gpkvs.recovery.proof.soak.soak import Life, SoakError, SoakOptions, SoakReport, soak
from gpkvs.recovery.startup.opening import usual_commit
from gpkvs.text import counted

_HEAP_BYTES = 64 * MIB


@exits({0: "nothing was wrong", 1: "something was wrong (the data is then kept)"})
def soak_command(
    minutes: Annotated[float, typer.Option(help="How long it takes.", min=0.05)] = 10.0,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of the choices; that of an earlier soak repeats them. By default a new one.", min=0),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="An empty directory for the store, on the file system to be tested; it is kept. By default a "
            "temporary one, kept only if something is wrong."
        ),
    ] = None,
    heap_bytes: Annotated[
        int,
        typer.Option(
            parser=parse_bytes,
            metavar="SIZE",
            help="Size of the heap, most of which the clients remember too.",
            show_default=format_bytes(_HEAP_BYTES),
        ),
    ] = _HEAP_BYTES,
    backend: Annotated[BackendName, typer.Option(help="Where the servers' kernels run.")] = "auto",
    durability: Annotated[DurabilityName, typer.Option(help="The persistence domain of the store.")] = "auto",
    commit: Annotated[CommitName, typer.Option(help="How batches become durable; auto: as in a new store.")] = "auto",
    store_format: Annotated[
        FormatName,
        typer.Option("--format", help="Format of the store; auto: 4, with values of 3 MiB in blobs."),
    ] = "auto",
    copies: Annotated[
        bool, typer.Option("--copies", help="Take backups all the while, one after the other.", show_default=False)
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")] = False,
) -> None:
    """Keep a real server nearly full for a long time, and see that it loses, leaks and refuses nothing.

    Clients write, overwrite, read and delete records of 8 bytes to large ones, in tables of both layouts, and make and
    drop tables. They keep the heap, without reserve and tails, 80 to 85 % full and remember what was acknowledged. In
    the first half of the time the server is killed again and again, at random moments and at failpoints. After each
    kill everything is read back, and `gpkvs check` must be clean. In the second half one server lives on: its memory
    may not grow. Writes that are refused for want of room are counted by what was full. A store that compacts may
    refuse none for the heap up to these 85 %. Indexes begin small and grow meanwhile. In a store of format 4 some
    values lie in blobs, which must take no more than these values. With --copies backups are taken one after the other:
    one may fail only when the server dies, and nobody is refused for it.

    Example: gpkvs soak --minutes 10 --data /mnt/pmem/soak
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    with failures_exit(1), ended_by_signals(), scratch_directory(data, "gpkvs-soak-") as directory:
        options = SoakOptions(
            seconds=60 * minutes,
            seed=secrets.randbelow(1 << 32) if seed is None else seed,
            directory=directory,
            server=ServerOptions(
                backend=backend,
                durability=durability,
                commit=usual_commit(directory, durability, commit),
                index="64KiB",  # it grows
                heap=str(heap_bytes),
                journal="8MiB",
                more=_more(store_format, has_copies=copies),
            ),
            has_copies=copies,
        )
        console.print(f"seed {options.seed}, {minutes:g} minutes, data in {directory}", markup=False)
        try:
            report = asyncio.run(soak(options, lambda life: console.print(_line(life), markup=False)))
        except SoakError as error:
            if as_json:
                print_json({"seed": error.seed, "directory": str(error.directory), "violations": list(error.problems)})
            raise
    if as_json:
        print_json(_as_json(report))
    else:
        _print(report)


def _more(store_format: FormatName, *, has_copies: bool) -> tuple[str, ...]:
    """Return other options of the servers."""
    of_format = () if store_format == "auto" else (f"--format={store_format}",)
    # What changes beside copies is held in memory, which grows to this size and must not count as a leak.
    return (*of_format, "--changes-bytes=16MiB") if has_copies else of_format


def _line(life: Life) -> str:
    return (
        f"{life.end} after {life.seconds:.1f} s of load: {counted(life.keys_read_back, 'key')} read back, none wrong; "
        f"so far {counted(life.writes, 'write')}, {life.refused:,} refused; the heap is {life.share:.1%} full"
    )


def _as_json(report: SoakReport) -> dict[str, object]:
    memory = report.memory
    return {
        "seed": report.seed,
        "seconds": round(report.seconds, 3),
        "commit": report.commit,
        "domain": report.domain,
        "lives": report.lives,
        "kills": dict(report.kills),
        "failpoints_missed": dict(report.missed),
        "writes_acknowledged": report.writes,
        "blobs_written": report.blobs_written,
        "reads": report.reads,
        "keys_read_back": report.keys_read_back,
        "tables_made": report.tables_made,
        "leases_seen": report.leases_seen,
        "expired_seen": report.expired_seen,
        "tables_dropped": report.tables_dropped,
        "copies": report.copies,
        "copies_cut": report.copies_cut,
        "refused": dict(report.refused),
        "refusal": report.refusal_text,
        "promise_judged": report.is_promised,
        "heap_share_lowest": min(report.shares, default=None),
        "heap_share_highest": max(report.shares, default=None),
        "memory_seconds": round(memory.seconds, 3),
        "memory_before_bytes": memory.before_bytes,
        "memory_after_bytes": memory.after_bytes,
        "memory_drift": memory.drift,
        "memory_judged": memory.is_judged,
        "violations": [],
    }


def _print(report: SoakReport) -> None:
    console = Console(highlight=False, soft_wrap=True)
    kills, memory = report.kills, report.memory
    rows = (
        ("lives of the server", report.lives),
        ("  ended by SIGKILL at a random moment", kills[SIGKILL]),
        (f"  ended at {len(kills.keys() - {SIGKILL})} different failpoints", kills.total() - kills[SIGKILL]),
        ("  ended by SIGKILL because a failpoint did not come", report.missed.total()),
        ("writes acknowledged, none lost", report.writes),
        ("  large values in blobs among them", report.blobs_written),
        ("reads under load, none wrong", report.reads),
        ("keys read back after restarts", report.keys_read_back),
        ("tables made", report.tables_made),
        ("reads of keys before their time was over", report.leases_seen),
        ("  and after it", report.expired_seen),
        ("tables dropped", report.tables_dropped),
        ("backups taken meanwhile", report.copies),
        *((f"requests refused because the {full} was full", count) for full, count in report.refused.items()),
        ("violations", 0),
    )
    console.print(counts_table("Nothing wrong", rows, report.seconds))
    if report.refusal_text:
        console.print(f"the last refusal: {report.refusal_text}", markup=False)
    if not report.is_promised:
        console.print("the store does not compact: it promises nothing about refusals", markup=False)
    if report.shares:
        low, high = min(report.shares), max(report.shares)
        console.print(f"heap in use in the second half: {low:.1%} to {high:.1%} of what it can hold", markup=False)
    verdict = f"at most {DRIFT_MAX:.0%}" if memory.is_judged else f"not judged in less than {SECONDS_MIN:.0f} s"
    console.print(
        f"memory of the server beyond files: {memory.before_bytes:,}, then {memory.after_bytes:,} bytes: "
        f"{memory.drift:+.2%} in {memory.seconds:.0f} s ({verdict})",
        markup=False,
    )
    console.print(f"seed {report.seed}", markup=False)
