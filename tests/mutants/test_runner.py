"""The runner says of a mutant what is true, and never runs the checkout that it lies in."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.mutants.__main__ import MutantOutcome, judge
from tests.mutants.all_mutants import MUTANTS
from tests.mutants.checkout_copy import HUNG, ROOT, Run, fresh_copy
from tests.mutants.mutant import Mutant, StaleError


def test_a_mutant_is_one_change_of_a_text_that_is_there_once(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text("a < b\nc < d\n")
    mutant = Mutant("m", "file.py", "a < b", "a <= b", "why", ("unit/test_a.py",))
    assert mutant.text(tmp_path) == "a <= b\nc < d\n"
    for old, times in (("a > b", 0), ("<", 2)):
        with pytest.raises(StaleError, match=f"{times} times"):
            Mutant("m", "file.py", old, "", "why", ()).text(tmp_path)
    with pytest.raises(StaleError, match="0 times"):
        Mutant("m", "gone.py", "a < b", "", "why", ()).text(tmp_path)


@pytest.mark.parametrize(
    ("run", "outcome", "detail"),
    [
        (Run(0, "3 passed"), MutantOutcome.UNSEEN, "all tests passed"),
        (Run(1, "FAILED tests/unit/test_a.py::test_b[c] - assert"), MutantOutcome.SEEN, "unit/test_a.py::test_b[c]"),
        (Run(-11, ""), MutantOutcome.SEEN, "died"),
        (Run(70, ""), MutantOutcome.SEEN, "died"),
        (Run(HUNG, ""), MutantOutcome.SEEN, "hang"),
        # Nothing that a mistake did: no such test, or a copy that cannot be imported.
        (Run(2, "error during collection"), MutantOutcome.BROKEN, "collection"),
        (Run(4, "not found: tests/unit/test_a.py::gone"), MutantOutcome.BROKEN, "not found"),
        (Run(5, "no tests ran"), MutantOutcome.BROKEN, "no tests"),
    ],
    ids=lambda value: str(value.status) if isinstance(value, Run) else "",
)
def test_only_a_test_that_fails_sees_a_mutant(run: Run, outcome: MutantOutcome, detail: str) -> None:
    found, said = judge(run)
    assert found is outcome
    assert detail in said


def test_a_copy_runs_its_own_code() -> None:
    with fresh_copy() as copy:
        program = "import gpkvs.server.app, tests.conftest; print(gpkvs.server.app.__file__, tests.conftest.__file__)"
        done = subprocess.run(
            [copy.root / ".venv/bin/python", "-c", program], cwd="/", capture_output=True, text=True, check=True
        )
        assert [Path(file).is_relative_to(copy.root) for file in done.stdout.split()] == [True, True], done.stdout
        assert (copy.root / "gpkvs/server").is_symlink()
    assert not copy.root.exists()


def test_every_mutant_says_why_and_who_sees_it() -> None:
    for mutant in MUTANTS.values():
        assert mutant.text(ROOT)  # else it is stale
        assert mutant.why
        assert mutant.tests
        for test in mutant.tests:
            path, _, name = test.partition("::")
            assert (ROOT / "tests" / path).exists(), test
            assert not name or f"def {name.partition('[')[0]}(" in (ROOT / "tests" / path).read_text(), test
        assert mutant.old != mutant.new
        assert (ROOT / mutant.file).suffix in (".py", ".cu", ".cuh", ".hpp", ".cpp")
