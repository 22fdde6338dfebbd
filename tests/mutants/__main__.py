"""Put mistakes into copies of the checkout, one at a time, and see whether tests see them.

``python -m tests.mutants`` runs all mutants, ``python -m tests.mutants NAME...`` some. It fails if no test sees a
mutant, or if the text that it replaces is no longer there.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from itertools import chain

import pytest
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.mutants.all_mutants import MUTANTS
from tests.mutants.checkout_copy import HUNG, ROOT, BuildError, Run, build_plain, fresh_copy
from tests.mutants.mutant import Mutant, StaleError

_FIRST_FAILURE = re.compile(r"^(?:FAILED|ERROR) (?:tests/)?(\S+)", re.MULTILINE)
_STOPPED = 70  # `gpkvs.process.fatal.stop_process`: the code under test ended its process


class MutantOutcome(StrEnum):
    """What became of a mutant; all but the first make the run fail."""

    SEEN = "seen"
    UNSEEN = "NOT SEEN"
    STALE = "STALE"
    BROKEN = "BROKEN"


Verdict = tuple[MutantOutcome, str]


def judge(run: Run) -> Verdict:
    """Say whether tests saw the mutant that they ran on."""
    match run.status:
        case pytest.ExitCode.OK:
            return MutantOutcome.UNSEEN, "all tests passed"
        case pytest.ExitCode.TESTS_FAILED:
            found = _FIRST_FAILURE.search(run.output)
            return MutantOutcome.SEEN, found[1] if found else "a test hangs"
        case status if status == HUNG:
            return MutantOutcome.SEEN, "the tests hang"
        case status if status < 0 or status == _STOPPED:
            return MutantOutcome.SEEN, f"the process died ({status})"
    return MutantOutcome.BROKEN, run.output[-2000:]


def examine(mutant: Mutant, tests: Sequence[str]) -> Verdict:
    """Run tests on a copy with the mutant in it."""
    try:
        text = mutant.text(ROOT)
        with fresh_copy() as copy:
            (copy.root / mutant.file).write_text(text)
            if mutant.library:
                copy.build(mutant.library, mutant.file)
            return judge(copy.run(tests, "-x"))
    except StaleError as error:
        return MutantOutcome.STALE, str(error)
    except BuildError as error:
        return MutantOutcome.BROKEN, str(error)


def passes_unchanged(mutants: Sequence[Mutant], tests: Sequence[str]) -> bool:
    """Whether the tests pass on a copy without a mistake; else nothing that they see means anything."""
    with fresh_copy() as copy:
        for library in {mutant.library for mutant in mutants if mutant.library}:
            copy.build(library)
        run = copy.run(tests)
    if run.status != pytest.ExitCode.OK:
        print(run.output)
    return run.status == pytest.ExitCode.OK


def parsed() -> tuple[list[Mutant], argparse.Namespace]:
    """Return the mutants that the command line names, and its options."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to run; all of them without a name")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1, help="mutants at the same time")
    parser.add_argument("--list", action="store_true", help="list the mutants and end")
    parser.add_argument(
        "--tests",
        action="append",
        metavar="TESTS",
        help="run these instead of the tests that are expected to see a mutant, for example engine or "
        "engine/host/test_native_planner.py",
    )
    options = parser.parse_args()
    if unknown := set(options.names) - MUTANTS.keys():
        parser.error(f"no mutant {', '.join(sorted(unknown))}; --list has them all")
    return [MUTANTS[name] for name in options.names or MUTANTS], options


def main() -> int:
    """Run and print."""
    mutants, options = parsed()
    if options.list:
        for mutant in mutants:
            print(f"{mutant.name} ({mutant.file}): {mutant.why}")
        return 0
    if any(mutant.library for mutant in mutants):
        build_plain()  # copies compile what a mistake changes
    tests_of = {mutant: tuple(options.tests or mutant.tests) for mutant in mutants}
    if not passes_unchanged(mutants, list(dict.fromkeys(chain.from_iterable(tests_of.values())))):
        print("the tests fail without a mutant")
        return 1
    table = Table("mutant", "result", "first seen by, or why not")
    seen = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        verdicts = pool.map(lambda mutant: examine(mutant, tests_of[mutant]), mutants)
        for mutant, (outcome, detail) in zip(mutants, verdicts, strict=True):
            print(f"{mutant.name}: {outcome}", flush=True)
            table.add_row(mutant.name, outcome, escape(detail))
            seen += outcome is MutantOutcome.SEEN
    Console(highlight=False, width=160).print(table)
    print(f"{seen} of {len(mutants)} seen")
    return 0 if seen == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
