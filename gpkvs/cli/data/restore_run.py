"""What `gpkvs restore` does: it makes a store of an archive, or lists what can be restored."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import Progress as Bar

from gpkvs.archive.contents import Contents, Run, read_contents
from gpkvs.archive.moment import format_time, parse_moment
from gpkvs.archive.restore import RestoreReport, restore
from gpkvs.cli.data.restore import EXIT_NOT_RESTORED
from gpkvs.cli.terminal.cleanup import ended_between_steps
from gpkvs.cli.terminal.output import failures_exit, print_json
from gpkvs.engine.tables.table_quota import raise_open_files
from gpkvs.media.directory import disk_bytes
from gpkvs.text import counted, readable_bytes


def restore_store(source: Path, new: Path, until: str, *, as_json: bool) -> None:
    """Restore, and say what."""
    raise_open_files()
    console = Console(stderr=True)
    try:
        with (
            failures_exit(EXIT_NOT_RESTORED),
            ended_between_steps() as step,
            Bar(console=console, transient=True, disable=not console.is_terminal) as bar,
        ):
            task = bar.add_task("reading", total=1.0)

            def show(what: str, share: float) -> None:
                step()
                bar.update(task, description=what, completed=share)

            report = restore(
                source,
                new,
                parse_moment(until) if until else None,
                show,
            )
    except SystemExit:
        typer.echo(f"gpkvs: stopped: {new} holds {'a whole store' if new.exists() else 'no store'}", err=True)
        raise
    if as_json:
        described = asdict(report) | {"position": str(report.position) if report.position else None}
        print_json(json.loads(json.dumps(described, default=str)))
    else:
        _print(report)


def _print(report: RestoreReport) -> None:
    at = f", position {report.position}" if report.position else ""
    by = f", the last change of {format_time(report.time_ms)}" if report.time_ms else ""
    typer.echo(f"{report.directory}: {counted(report.keys, 'key')}{at}{by}")
    typer.echo(f"of {report.base}; {counted(report.entries, 'entry')} applied and checked in {report.seconds:.1f} s")
    if report.note:
        typer.echo(report.note)


def list_moments(source: Path, *, as_json: bool) -> None:
    """Show what can be restored."""
    with failures_exit(EXIT_NOT_RESTORED):
        contents = read_contents(source)
        runs = [_described(contents, run) for run in contents.runs]
    losses = [text for text in (contents.loss, *contents.damaged) if text]
    if as_json:
        print_json({"archive": str(source), "runs": runs, "damaged": losses})
        return
    for run in runs:
        _print_run(run)
    for loss in losses:
        typer.echo(f"damaged: {loss}")


def _described(contents: Contents, run: Run) -> dict[str, Any]:
    last = run.segments[-1]
    first_ms = contents.first_ms(run)
    return {
        "loss_before": run.loss,
        "first_position": str(run.bases[0].position) if run.bases else None,
        "last_position": str(run.end) if run.bases else None,
        "first_time_ms": first_ms,
        "last_time_ms": run.last_ms if first_ms else 0,
        "segments": len(run.segments),
        "segment_bytes": sum(segment.path.stat().st_size for segment in run.segments),
        "not_sealed": None
        if last.is_sealed
        else f"{last.path} is not sealed: it is read up to byte {last.bytes_whole}",
        "bases": [
            {
                "directory": str(base.directory),
                "position": str(base.position),
                "keys": base.keys,
                "bytes": disk_bytes(base.directory),
            }
            for base in (*run.bases, *run.ahead)
        ],
    }


def _print_run(run: dict[str, Any]) -> None:
    if run["loss_before"]:
        typer.echo(f"damaged: {run['loss_before']}")
    if run["first_time_ms"]:
        typer.echo(f"{format_time(run['first_time_ms'])} to {format_time(run['last_time_ms'])}")
    if run["first_position"]:
        typer.echo(f"  positions {run['first_position']} to {run['last_position']}")
    else:
        typer.echo("no base yet: nothing of this can be restored")
    typer.echo(f"  {counted(run['segments'], 'segment')}, {readable_bytes(run['segment_bytes'])}")
    if run["not_sealed"]:
        typer.echo(f"  {run['not_sealed']}")
    for base in run["bases"]:
        typer.echo(
            f"  base {base['directory']}, position {base['position']}: {counted(base['keys'], 'key')}, "
            f"{readable_bytes(base['bytes'])}"
        )
