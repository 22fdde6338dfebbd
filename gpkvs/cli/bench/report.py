"""gpkvs bench report: results as tables in a document."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpkvs.bench.report.report import KINDS, write_report
from gpkvs.cli.bench.shared import chosen
from gpkvs.cli.exit_status import exits
from gpkvs.cli.output import failures_exit


@exits({0: "written", 1: "there are no results, or the document has no marks"})
def report_command(
    results: Annotated[Path, typer.Option(help="The folder of the JSON files.", exists=True, file_okay=False)] = Path(
        "bench/results"
    ),
    document: Annotated[
        Path,
        typer.Option(help="A Markdown file with two marks. The tables go between them, the plots beside the file."),
    ] = Path("bench/results/README.md"),
    benchmark: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Benchmark whose results are written: {', '.join(KINDS)}; by default all but redis. May be repeated."
        ),
    ] = None,
) -> None:
    """Write results that were kept into a document, as tables and plots.

    Example: gpkvs bench report --results bench/results --document bench/results/README.md
    """
    with failures_exit(1):
        for file in write_report(results, document, chosen("benchmark", benchmark, KINDS) if benchmark else ()):
            typer.echo(file)
