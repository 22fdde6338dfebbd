"""The figures of docs/which-store.md are those that were measured: a new report changes them, too."""

from __future__ import annotations

import json
import re

from tests.docs.blocks import REPOSITORY

FIGURE = re.compile(r"(?<![\w.,])\d[\d,]*(?:\.\d+)?(?: M\b| ms\b| MiB\b)?")


def figures() -> list[str]:
    """Return the figures in the tables: all cells of a row but the first, which says what was measured."""
    rows = [line.split("|")[2:] for line in (REPOSITORY / "docs/which-store.md").read_text().splitlines()]
    return [figure for cells in rows for cell in cells for figure in FIGURE.findall(cell)]


def test_each_figure_is_in_a_report_or_a_result() -> None:
    notes = [
        comparison["note"] + f" {comparison['ratio']:.2f}"
        for file in REPOSITORY.glob("bench/results/memory-*.json")
        for comparison in json.loads(file.read_text())["comparisons"]
    ]
    documents = ("docs/performance.md", "docs/comparison.md", "bench/results/README.md")
    texts = [(REPOSITORY / name).read_text() for name in documents]
    measured = set(FIGURE.findall("\n".join(texts + notes)))
    found = figures()
    assert len(found) > 50
    assert [figure for figure in found if figure not in measured] == []
