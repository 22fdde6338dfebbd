"""Run a test file again and again beside busy processes, and print which tests failed; ``make loaded FILE=...``.

A test that passes on a quiet machine may assume that something is fast. Each run has its own directory of temporary
files, which goes when it passed. Exit status 1 if any run failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
BUSY_PROCESSES = 8
# It ends by itself when the one that started it is gone, however that ended.
_BUSY = """
import os, sys
parent = int(sys.argv[1])
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


@contextmanager
def busy(count: int = BUSY_PROCESSES) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Have so many processes do nothing but work; none is left afterwards."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            started.append(subprocess.Popen([sys.executable, "-c", _BUSY, str(os.getpid())]))
        yield started
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


def run(arguments: list[str], times: int, *, beside: int = BUSY_PROCESSES) -> int:
    """Run tests so many times beside busy processes; return how many runs failed.

    Parameters
    ----------
    arguments
        Of pytest.
    times
        How often.
    beside
        How many processes are busy.
    """
    failed = 0
    with busy(beside):
        for number in range(1, times + 1):
            with tempfile.TemporaryDirectory(prefix="gpkvs-loaded-") as folder:
                command = [
                    sys.executable,
                    "-m",
                    "pytest",
                    "-q",
                    "-p",
                    "no:cacheprovider",
                    "--basetemp",
                    f"{folder}/run",
                ]
                done = subprocess.run(
                    [*command, *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
                )
            passed = done.returncode == 0
            failed += not passed
            lines = done.stdout.splitlines()
            print(f"run {number} of {times}: {lines[-1] if lines else done.stderr.strip()}", flush=True)
            if not passed:  # with what the tests printed: seeds
                print(done.stdout, done.stderr, flush=True)
    print(f"{failed} of {times} runs failed beside {beside} busy processes")
    return failed


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20, help="how often")
    parser.add_argument("--beside", type=int, default=BUSY_PROCESSES, help="how many processes are busy")
    parser.add_argument("tests", help="a file of tests, or a directory")
    parser.add_argument("more", nargs=argparse.REMAINDER, help="of pytest's arguments")
    options = parser.parse_args()
    if options.times < 1:
        parser.error("--times: at least once")
    sys.exit(bool(run([options.tests, *options.more], options.times, beside=options.beside)))


if __name__ == "__main__":
    main()
