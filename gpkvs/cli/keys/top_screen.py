"""What `gpkvs top` shows: each interval, from two looks at the metrics of a server."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import typer
from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gpkvs.cli.terminal.keyboard import key_presses, no_key_within
from gpkvs.cli.terminal.output import failures_exit
from gpkvs.credentials import Access
from gpkvs.errors import InvalidArgumentError
from gpkvs.server.signs.metrics_reader import Interval, Scrape, ScrapeError, summarize
from gpkvs.text import counted, no_such, readable_bytes, readable_seconds

_ALL = "all"
_LONG_NAMES = {
    "records": "records",
    "heap": "heap of these",
    "operations": "operations a second",
    "in": "keys and values that come, a second",
    "out": "values that are returned, a second",
    "expiring": "keys with an expiry",
    "expired": "keys that expire, a second",
    "late": "so late is their removal",
}


def watch(access: Access, metrics: str, interval: float, *, once: bool, table: str, as_json: bool) -> None:
    """Show a server until the user ends it; the parameters are those of the command."""
    with failures_exit(2):
        first = Scrape(metrics, access)
        _require_table(first, table)
    show = partial(render, metrics=metrics, table=table)
    try:
        if once or not (as_json or sys.stdout.isatty()):
            time.sleep(interval)
            with failures_exit(2):
                summary = summarize(Interval(first, Scrape(metrics, access)))
            if as_json:
                typer.echo(json.dumps(summary))
            else:
                Console(highlight=False).print(show(summary))
        elif as_json:
            for state in _watch(metrics, access, first, interval, no_key_within):
                typer.echo(json.dumps(state if isinstance(state, dict) else {"error": str(state)}))
        else:
            with key_presses(b"q") as is_ended, Live(Text("looking ..."), screen=True, auto_refresh=False) as live:
                for state in _watch(metrics, access, first, interval, is_ended):
                    shown = show(state) if isinstance(state, dict) else Text(f"{state}; trying again")
                    live.update(shown, refresh=True)
    except KeyboardInterrupt:
        return


def _watch(
    metrics: str, access: Access, last: Scrape, interval: float, is_ended: Callable[[float], bool]
) -> Iterator[dict[str, object] | ScrapeError]:
    """Yield a summary of each interval, or the error if there is none: a server that is away may come back."""
    while not is_ended(interval):
        try:
            now = Scrape(metrics, access)
        except ScrapeError as error:
            yield error
        else:
            yield summarize(Interval(last, now))
            last = now


def _require_table(seen: Scrape, table: str) -> None:
    """Refuse to watch a table that there is not.

    Raises
    ------
    InvalidArgumentError
    """
    names = list(seen.by("gpkvs_table_records", "table"))
    if table not in ("", _ALL, *names):
        raise InvalidArgumentError(no_such("table", table, names), field="table")


def render(summary: dict[str, Any], metrics: str, table: str = "") -> RenderableType:
    """Put a summary into tables; it is about the server, or about one table or all."""
    if table:
        return Group(_head(summary, metrics), _work_on(summary["tables"], table))
    middle = Table.grid(padding=(0, 2), expand=True)
    middle.add_column()
    middle.add_column(ratio=1)
    middle.add_row(_facts(summary), _phases(summary))
    return Group(_head(summary, metrics), middle, _tables(summary))


def _head(summary: dict[str, Any], metrics: str) -> Text:
    state = ("serving", "bold green") if summary["serving"] else ("NOT SERVING", "bold red")
    head = Text("gpkvs ")
    head.append(f"{summary['version']} at {metrics}  ")
    head.append(*state)
    head.append(f"  up {readable_seconds(summary['uptime_seconds'])}  {summary['backend']}  ")
    head.append(f"{summary['domain']}\n", "bold")
    return head


def _facts(summary: dict[str, Any]) -> Table:
    facts = Table("", "a second", box=None, padding=(0, 1, 0, 0))
    facts.columns[1].justify = "right"
    for op, rate in summary["operations"].items():
        facts.add_row(f"{op.upper()}s", f"{rate:,.0f}")
    for reason, rate in summary["refused"].items():
        facts.add_row(f"refused: {reason}", f"[{'red' if rate else 'default'}]{rate:,.1f}[/]")
    facts.add_row("transactions", f"{summary['batches']:,.0f}")
    facts.add_row("written by users", readable_bytes(summary["user_bytes"]))
    facts.add_row("stored", readable_bytes(summary["written_bytes"]))
    facts.add_row("written to devices", _known(summary["device_written_bytes"], readable_bytes))
    facts.add_section()
    held = sum(summary["memory_bytes"].values())
    for name, text in (
        ("write amplification", f"{summary['write_amplification']:.2f}"),
        ("device amplification", _known(summary["device_amplification"], "{:,.2f}".format)),
        ("operations a batch", f"{summary['batch_operations']:,.1f}"),
        ("requests a batch", f"{summary['batch_requests']:,.1f}"),
        ("call p50, p99", _pair(summary["call_seconds"])),
        ("transaction p50, p99", _pair(summary["batch_seconds"])),
        ("waiting requests", f"{summary['queue_requests']:,}"),
        ("clients hold", f"{readable_bytes(held)} of {readable_bytes(summary['memory_max_bytes'])}"),
        ("resident memory", readable_bytes(summary["resident_bytes"])),
        ("watches", f"{summary['watches']:,}"),
        ("last backup", _known(summary["backup_age_seconds"], _ago)),
        ("archived up to", _known(summary["archive_age_seconds"], _ago)),
    ):
        facts.add_row(name, text)
    if journal := summary["journal"]:
        share = journal["used_bytes"] / journal["capacity_bytes"]
        style = "red" if journal["waiting"] else "default"
        used = f"{readable_bytes(journal['used_bytes'])}, {100 * share:.0f} % full"
        facts.add_row("journal in use", f"[{style}]{used}[/]")
    return facts


def _phases(summary: dict[str, Any]) -> Table:
    phases = Table("phase", box=None, padding=(0, 1, 0, 0), expand=True)
    phases.add_column("mean", justify="right", no_wrap=True)
    phases.add_column("busy", justify="right", no_wrap=True)
    phases.add_column("", ratio=1)
    longest = max((phase["busy"] for phase in summary["phases"].values()), default=0.0)
    at_work = {name: phase for name, phase in summary["phases"].items() if phase["busy"] > 0}
    for name, phase in at_work.items():
        bar = Bar(longest or 1.0, 0, phase["busy"], color="cyan")
        phases.add_row(name, _seconds(phase["seconds"]), f"{100 * phase['busy']:.1f} %", bar)
    if others := len(summary["phases"]) - len(at_work):
        phases.add_row(f"[dim]{counted(others, 'other')}[/]", "", "[dim]0.0 %[/]", "")
    phases.add_row("[bold]engine[/]", "", f"[bold]{100 * summary['engine_busy']:.1f} %[/]", "")
    return phases


def _tables(summary: dict[str, Any]) -> Table:
    live, free, total = (summary[f"heap_{which}bytes"] for which in ("live_", "free_", ""))
    moved = summary["moved_bytes"]
    compaction = f"; compaction moves {readable_bytes(moved)} a second" if moved else ""
    given = summary["heap_given_back_bytes"]
    given_back = f", {readable_bytes(given)} given back" if given else ""
    parts = f"{readable_bytes(live)} live, {readable_bytes(free)} free{given_back}"
    caption = f"heap: {parts} of {readable_bytes(total)}{compaction}"
    tables = Table("table", caption=caption)
    tables.caption_justify = "left"
    for heading in ("records", "slots", "load", "heap", "bytes per key", "moved"):
        tables.add_column(heading, justify="right")
    for table in summary["tables"]:
        load = 100 * table["load_factor"]
        style = "red" if load > 85 else "default"
        tables.add_row(
            table["name"],
            f"{table['records']:,}",
            f"{table['slots']:,}",
            f"[{style}]{load:.1f} %[/]",
            readable_bytes(table["heap_bytes"]),
            f"{table['bytes_per_key']:,.0f}" if table["records"] else "-",
            _known(table["moved_share"], lambda share: f"{100 * share:.0f} %"),
        )
    return tables


def _work_on(tables: list[dict[str, Any]], table: str) -> Table:
    """Return what clients do with one table, or with all."""
    if table == _ALL:
        view = Table("table", box=None, padding=(0, 1, 0, 0))
        for heading in ("records", "heap", "operations", "in", "out", "expiring", "expired", "late"):
            view.add_column(heading, justify="right")
        for found in sorted(tables, key=lambda found: -sum(found["operations"].values())):
            view.add_row(found["name"], *(text for _, text in _work(found)))
        view.caption = "operations, bytes and expired keys a second"
        view.caption_justify = "left"
        return view
    view = Table(table, "", box=None, padding=(0, 1, 0, 0))
    view.columns[1].justify = "right"
    for found in tables:
        if found["name"] == table:
            for op, rate in found["operations"].items():
                view.add_row(f"{op.upper()}s a second", f"{rate:,.0f}")
            for name, text in _work(found):
                view.add_row(_LONG_NAMES[name], text)
    return view


def _work(table: dict[str, Any]) -> Iterator[tuple[str, str]]:
    moved = table["bytes"]
    yield "records", f"{table['records']:,}"
    yield "heap", readable_bytes(table["heap_bytes"])
    yield "operations", f"{sum(table['operations'].values()):,.0f}"
    yield "in", readable_bytes(moved.get("in", 0.0))
    yield "out", readable_bytes(moved.get("out", 0.0))
    yield "expiring", f"{table['expiring_keys']:,}"
    yield "expired", f"{table['expired_keys']:,.0f}"
    yield "late", _seconds(table["expiry_due_seconds"]) if table["expiry_due_seconds"] else "-"


def _pair(quantiles: dict[str, float]) -> str:
    return ", ".join(_seconds(value) for value in quantiles.values())


def _known(value: float | None, shown: Callable[[float], str]) -> str:
    return "-" if value is None else shown(value)


def _ago(seconds: float) -> str:
    return f"{readable_seconds(seconds)} ago"


def _seconds(value: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"
