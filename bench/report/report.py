"""Writes the tables and plots of a document from the kept results; nobody types them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpkvs.bench.peers.contender import BenchError
from gpkvs.bench.report.plot import draw
from gpkvs.bench.report.tables import tables_of
from gpkvs.bench.report.timeline_plot import draw_timelines

# The other files are results of commands that have documents of their own.
KINDS = ("engine", "server", "calls", "operations", "growth", "scan", "security", "wear", "rows", "door", "redis")
_USUAL_KINDS = KINDS[:-1]
BEGIN, END = "<!-- gpkvs bench report: begin -->", "<!-- gpkvs bench report: end -->"


def write_report(results: Path, document: Path, kinds: Sequence[str] = ()) -> list[Path]:
    """Put tables of results into a document, between its two marks, and plots beside it; return what was written.

    Parameters
    ----------
    results
        The folder of the results.
    document
        A Markdown file. Names of plots begin with its own, unless it is a README.
    kinds
        Benchmarks whose results are written; none: all but ``redis``.

    Raises
    ------
    BenchError
        If there are no results, a result cannot be read, or the document lacks one of the marks.
    """
    found = [_read(file) for kind in kinds or _USUAL_KINDS for file in sorted(results.glob(f"{kind}*.json"))]
    if not found:
        raise BenchError(f"there are no results in {results}: gpkvs bench engine --json FILE makes one")
    text = document.read_text() if document.exists() else ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BenchError(f"{document} needs the lines {BEGIN} and {END}: the text between them is replaced")
    sections, written = [], [document]
    prefix = "" if document.stem == "README" else f"{document.stem}-"
    for result in found:
        plot = document.with_name(f"{prefix}{Path(result['file']).stem}.svg")
        if result["measurements"]:
            plot.write_text(draw(result))
            written.append(plot)
        plots = {"Throughput beside the peers": plot.name} if result["measurements"] else {}
        if any(line["buckets"] for line in result.get("timelines", ())):
            timelines = plot.with_stem(f"{plot.stem}-timeline")
            timelines.write_text(draw_timelines(result))
            written.append(timelines)
            plots["Batches over time"] = timelines.name
        sections.append(_section(result, plots))
    document.write_text(f"{before}{BEGIN}\n\n{''.join(sections)}{END}{after}")
    return written


def _read(file: Path) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads(file.read_text())
        return {**result, "file": file.name, "promise": result["promise"], "measurements": result["measurements"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchError(f"{file} is not a result of gpkvs bench: {error!r}") from error


def _section(result: dict[str, Any], plots: dict[str, str]) -> str:
    """Return one result in Markdown."""
    machine = result["machine"]
    lines = [
        f"### {result['benchmark'].capitalize()}, promise `{result['promise']}`",
        "",
        f"{machine['processors']} processors ({machine['processor']}), {machine['memory_bytes'] / (1 << 30):.0f} GiB "
        f"of memory, Linux {machine['kernel']}, Python {machine['python']}, stores on {machine['file_system']}; "
        f"{result['date'][:10]}, commit `{result['commit'][:12]}`, {result['seconds'] / 60:.0f} minutes; "
        f"every run is in `bench/results/{result['file']}`.",
        "",
    ]
    for name, contender in result.get("contenders", {}).items():
        settings = [contender.get("settings", "")]
        settings += [f"{shape}: {one['settings']}" for shape, one in contender.items() if isinstance(one, dict)]
        lines.append(f"- {name} {contender['version']}: {'; '.join(filter(None, settings)) or 'defaults'}")
    for title, plot in plots.items():
        lines += ["", f"![{title}]({plot})"]
    tables = [table.markdown() for table in tables_of(result, profile=True)]
    return "\n".join(lines) + "\n\n" + "\n".join(tables) + "\n"
