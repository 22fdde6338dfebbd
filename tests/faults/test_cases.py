"""The table of faults names tests that exist, and a case without a result does not pass."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.faults.__main__ import TESTS, Results, parse, verdict
from tests.faults.cases import CASES, Case
from tests.faults.conftest import ROOT


def test_there_are_40_and_each_has_tests_or_a_reason() -> None:
    assert list(CASES) == list(range(1, 41))
    assert all(case.tests or case.not_applicable for case in CASES.values())
    assert sum(bool(case.tests) for case in CASES.values()) >= 34


def test_every_test_that_is_named_exists() -> None:
    for number, case in CASES.items():
        for test in (*case.tests, *case.journal):
            file, _, name = test.partition("::")
            tree = ast.parse((TESTS / file).read_text())
            functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
            assert name.partition("[")[0] in functions, f"fault {number}: {test}"


def undo_only(file: str) -> set[str]:
    """Return the tests of a file that are about the undo log; all of them if the file is."""
    tree = ast.parse((TESTS / file).read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    of_file = any(
        isinstance(node, ast.Assign) and "pytestmark = pytest.mark.undo" in ast.unparse(node) for node in tree.body
    )
    return {
        function.name
        for function in functions
        if of_file or any(ast.unparse(decorator) == "pytest.mark.undo" for decorator in function.decorator_list)
    }


def test_no_test_of_a_journal_is_about_the_undo_log() -> None:
    """Else it would pass with an undo log, whatever --commit says."""
    for number, case in CASES.items():
        for test in case.tests_of("journal"):
            file, _, name = test.partition("::")
            assert name.partition("[")[0] not in undo_only(file), f"fault {number}: {test}"
            assert "undo" not in name.partition("[")[2], f"fault {number}: {test}"


def test_a_case_passes_only_if_all_of_its_tests_ran_and_passed() -> None:
    results = Results()
    one, two, more = ("a.py::one",), ("a.py::one", "a.py::two"), ("a.py::one_more",)
    assert verdict(results, Case("", one)).startswith("FAILED")
    assert verdict(results, Case("", one, needs_gpu=True)).startswith("not run")
    results.by_test = {"tests/a.py::one[x]": "passed", "tests/a.py::one_more": "failed", "tests/a.py::two": "skipped"}
    for needs_gpu in (False, True):
        assert verdict(results, Case("", one, needs_gpu=needs_gpu)) == "passed (1)"
        assert verdict(results, Case("", two, needs_gpu=needs_gpu)) == "passed (1), skipped here: 1"
        assert verdict(results, Case("", (*one, "a.py::three"), needs_gpu=needs_gpu)).startswith("FAILED")
        assert verdict(results, Case("", (*one, *more), needs_gpu=needs_gpu)).startswith("FAILED")
        assert verdict(results, Case("", more, needs_gpu=needs_gpu)).startswith("FAILED")
    only_skipped = Results()
    only_skipped.by_test = {"tests/a.py::one": "skipped"}
    assert verdict(only_skipped, Case("", one)).startswith("FAILED")


def test_the_arguments() -> None:
    assert parse([]) == (list(range(1, 41)), "auto")
    assert parse(["--commit=journal", "3", "17"]) == ([3, 17], "journal")
    with pytest.raises(SystemExit):
        parse(["41"])


@pytest.mark.parametrize("commit", ["auto", "journal"])
def test_the_command(commit: str) -> None:
    command = [sys.executable, "-m", "tests.faults", f"--commit={commit}", "13", "21"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout
    assert "1 of 1 passed, 1 not applicable or not run" in done.stdout
