"""Run the tests of the 40 faults, or of those whose numbers are given, and print a table: fault, tests, result.

With ``--commit journal`` in stores with a journal.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from tests.faults.cases import CASES, Case

TESTS = Path(__file__).parents[1]


class Results:
    """A pytest plugin that counts what became of each test."""

    def __init__(self) -> None:
        self.by_test: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.by_test[report.nodeid] = "failed"
        elif report.skipped:
            self.by_test[report.nodeid] = "skipped"
        elif report.when == "call":
            self.by_test.setdefault(report.nodeid, "passed")

    def of(self, test: str) -> Counter[str]:
        """Count the results of a test as a case names it."""
        name = f"tests/{test}"
        return Counter(result for node, result in self.by_test.items() if node == name or node.startswith(f"{name}["))


NOT_RUN = "not run: needs a GPU"


def verdict(results: Results, case: Case, commit: str = "auto") -> str:
    """Say what became of a case: it passed only if each of its tests ran, or was skipped here, and none failed."""
    counts = [results.of(test) for test in case.tests_of(commit)]
    total = sum(counts, Counter[str]())
    if case.needs_gpu and not total["passed"] + total["failed"]:
        return NOT_RUN
    if not all(counts) or not total["passed"]:
        return "FAILED: a test did not run"
    if total["failed"]:
        return f"FAILED: {total['failed']} of {total.total()}"
    return f"passed ({total['passed']})" + f", skipped here: {total['skipped']}" * bool(total["skipped"])


def parse(arguments: list[str]) -> tuple[list[int], str]:
    """Return the numbers of the faults, and the commit."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("numbers", nargs="*", type=int, metavar="NUMBER")
    parser.add_argument("--commit", choices=["auto", "undo", "journal"], default="auto")
    given = parser.parse_args(arguments)
    if unknown := sorted(set(given.numbers) - set(CASES)):
        parser.error(f"there is no fault {unknown[0]}: they are 1 to {max(CASES)}")
    return given.numbers or list(CASES), given.commit


def main() -> int:
    """Run and print."""
    chosen, commit = parse(sys.argv[1:])
    tests = dict.fromkeys(f"{TESTS}/{test}" for number in chosen for test in CASES[number].tests_of(commit))
    results = Results()
    if tests:
        pytest.main(["-q", "--no-header", f"--commit={commit}", *tests], plugins=[results])
    table = Table("", "fault", "tests", "result")
    failed = run = 0
    for number in chosen:
        case = CASES[number]
        result = verdict(results, case, commit) if case.tests else ""
        run += bool(result) and result != NOT_RUN
        failed += result.startswith("FAILED")
        table.add_row(
            str(number),
            case.fault,
            "\n".join(case.tests_of(commit)),
            "\n".join(filter(None, [result, case.not_applicable])),
        )
    Console(highlight=False, markup=False, width=200).print(table)
    print(f"{run - failed} of {run} passed, {len(chosen) - run} not applicable or not run")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
