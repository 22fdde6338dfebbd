"""gpkvs copy: a store that no process has open, into a new one."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress as Bar

from gpkvs.cli.options.sizes import format_bytes, parse_bytes
from gpkvs.cli.terminal.cleanup import ended_by_signals
from gpkvs.cli.terminal.exit_status import IN_USE, exits
from gpkvs.cli.terminal.output import failures_exit, print_json
from gpkvs.config import CommitName, FormatName
from gpkvs.media.directory import ROOT_FILE
from gpkvs.recovery.copy.copy import CopyReport, CopySizes, copy_store
from gpkvs.text import counted, quoted

Old = Annotated[Path, typer.Argument(help="The store's directory; nothing in it is changed.", metavar="OLD")]
New = Annotated[Path, typer.Argument(help="A directory for the new store, empty or not there yet.", metavar="NEW")]
IndexBytes = Annotated[
    int | None,
    typer.Option(
        parser=parse_bytes,
        metavar="SIZE",
        help="Size of the index of the table default: 32 bytes for each slot.",
        show_default="as in OLD",
    ),
]
TableIndexBytes = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=SIZE", help="Size of a table's index; may be repeated.", show_default="as in OLD"),
]
HeapBytes = Annotated[
    int | None,
    typer.Option(
        parser=parse_bytes,
        metavar="SIZE",
        help="Size of the heap, which holds keys and values. Given alone, it is also the largest size.",
        show_default="as in OLD",
    ),
]
HeapBytesMax = Annotated[
    int | None,
    typer.Option(
        parser=parse_bytes, metavar="SIZE", help="Largest size of the heap, which grows.", show_default="as in OLD"
    ),
]
LogBytes = Annotated[
    int | None,
    typer.Option(parser=parse_bytes, metavar="SIZE", help="Size of the undo log.", show_default="as in OLD"),
]
JournalBytes = Annotated[
    int | None,
    typer.Option(parser=parse_bytes, metavar="SIZE", help="Size of the journal.", show_default="as in OLD"),
]
Commit = Annotated[
    CommitName,
    typer.Option(help="How the batches of NEW become durable; auto: as in any new store there."),
]
StoreFormat = Annotated[
    FormatName,
    typer.Option(
        "--format",
        help="Format of NEW; auto: 4. An older gpkvs opens 3 alone, whose records are longer, and whose values have at "
        "most 16 MiB.",
    ),
]


@exits(
    {
        0: "copied",
        1: "not copied: OLD is damaged or unsafe, or does not fit the sizes given; NEW holds no store",
        IN_USE: "another process has OLD, or NEW",
        143: "SIGTERM; NEW holds no store",
    }
)
def copy_command(
    old: Old,
    new: New,
    index_bytes: IndexBytes = None,
    table_index_bytes: TableIndexBytes = None,
    heap_bytes: HeapBytes = None,
    heap_bytes_max: HeapBytesMax = None,
    log_bytes: LogBytes = None,
    journal_bytes: JournalBytes = None,
    commit: Commit = "auto",
    store_format: StoreFormat = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")] = False,
) -> None:
    """Copy a store that no process has open into a new one: of other sizes, or of an older format into today's.

    The new store has the same tables, keys, values and versions. OLD may lie on a read-only file system: a batch in
    progress is rolled back in memory. The copy is read back and compared before NEW becomes a store.

    Example: gpkvs copy data data-larger --heap-bytes-max 8GiB --index-bytes 512MiB
    """
    console = Console(stderr=True)
    try:
        with (
            failures_exit(1),
            ended_by_signals(),
            Bar(console=console, transient=True, disable=not console.is_terminal) as bar,
        ):
            task = bar.add_task("opening", total=1.0)
            report = copy_store(
                old,
                new,
                CopySizes(
                    index_bytes=index_bytes,
                    heap_bytes=heap_bytes,
                    heap_bytes_max=heap_bytes_max,
                    log_bytes=log_bytes,
                    journal_bytes=journal_bytes,
                    table_index_bytes=_sizes_by_table(table_index_bytes or []),
                ),
                lambda step, share: bar.update(task, description=step, completed=share),
                commit=commit,
                store_format=store_format,
            )
    except SystemExit:
        held = "a store" if (new / ROOT_FILE).exists() else "no store"
        typer.echo(f"gpkvs: stopped: {new} holds {held}", err=True)
        raise
    if as_json:
        print_json(json.loads(json.dumps(asdict(report), default=str)))
    else:
        _print(report)


def _sizes_by_table(options: list[str]) -> dict[str, int]:
    """Return the sizes given for single tables."""
    sizes = {}
    for option in options:
        name, equals, size = option.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"{quoted(option)} is not NAME=SIZE", param_hint="--table-index-bytes")
        sizes[name] = parse_bytes(size)
    return sizes


def _print(report: CopyReport) -> None:
    typer.echo(f"{report.old}: format {report.old_format}; {report.recovery}")
    for table in report.tables:
        typer.echo(
            f"{table.name} ({table.layout}): {counted(table.keys, 'key')}, index {format_bytes(table.index_bytes)}"
        )
    typer.echo(
        f"{report.new}: {counted(report.keys, 'key')} in {counted(len(report.tables), 'table')}, "
        f"{report.record_bytes:,} bytes of records, copied and verified in {report.seconds:.1f} s"
    )
