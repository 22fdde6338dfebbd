"""The tables and plots that the repository shows are those of the results that it keeps."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gpkvs.bench.report.report import write_report

REPOSITORY = Path(__file__).parents[2]
RESULTS = REPOSITORY / "bench" / "results"


@pytest.mark.parametrize(
    ("document", "kinds"), [("bench/results/README.md", ()), ("docs/comparison.md", ("redis",))], ids=["all", "redis"]
)
def test_a_document_shows_the_kept_results(tmp_path: Path, document: str, kinds: tuple[str, ...]) -> None:
    kept = REPOSITORY / document
    anew = shutil.copy(kept, tmp_path / kept.name)
    written = write_report(RESULTS, anew, kinds)
    assert len(written) > 3
    differ = [file.name for file in written if file.read_bytes() != kept.with_name(file.name).read_bytes()]
    assert differ == [], "run gpkvs bench report"
