"""A throw-away copy of the checkout, with a Python that imports the copy and nothing of the original."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_TEST_SECONDS_MAX = 60  # of one test: a mistake may make it wait for ever
_RUN_SECONDS_MAX = 900

_BUILD = "build/plain"  # of the checkout, from which copies take what no mistake changes
_OTHER_BUILDS = "GPKVS_KERNELS", "GPKVS_DOOR_LIBRARY"  # they would stand for those of the copy

HUNG = -1000  # the status of a run that had to be ended


@dataclass(frozen=True)
class Run:
    """How pytest ended."""

    status: int
    output: str


class BuildError(Exception):
    """A library does not compile."""


def build_plain() -> None:
    """Compile the libraries of the checkout for tests, or what is out of date of them.

    Raises
    ------
    BuildError
        If the compiler refuses.
    """
    done = subprocess.run(["make", "-s", _BUILD], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(done.stdout + done.stderr)


class Copy:
    """A copy of the checkout.

    Parameters
    ----------
    root
        Where it is.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            if os.path.lexists(ROOT / name):  # a file that was removed is listed until that is committed
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, root / name, follow_symlinks=False)
        self._python = _make_environment(root)

    def build(self, library: str, changed: str | None = None) -> None:
        """Compile a library of the copy; it lies beside the Python files, where it is looked for first.

        CMake takes no build of another folder. So this runs the compiler as it ran in `build_plain`, on files of the
        copy: on the changed one alone, or on all of the library if they include the changed one.

        Raises
        ------
        BuildError
            If the compiler refuses.
        """
        shutil.copytree(ROOT / _BUILD, self.root / _BUILD, dirs_exist_ok=True)
        *compilers, link = _commands(library)
        if changed is None:
            compilers = []
        elif own := [command for command in compilers if command.endswith(f" {ROOT / changed}")]:
            compilers = own
        for command in (*compilers, link):
            there = command.replace(str(ROOT), str(self.root))
            done = subprocess.run(
                there, shell=True, cwd=self.root / _BUILD, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise BuildError(done.stderr)
        (self.root / _BUILD / library).rename(self.root / "gpkvs" / library)

    def run(self, tests: Sequence[str], *options: str) -> Run:
        """Run tests, named as in `Mutant.tests`."""
        command = [str(self._python), "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", *options]
        # Mistakes of the journal are the explorer's of disks (recovery/proof/diskfail/mutants.py).
        command += ["--commit", "undo"]
        # By a thread: a test that waits inside uvloop does not end by a signal.
        command += [f"--timeout={_TEST_SECONDS_MAX}", "--timeout-method=thread", *(f"tests/{test}" for test in tests)]
        environment = {name: value for name, value in os.environ.items() if name not in _OTHER_BUILDS}
        environment["TMPDIR"] = str(self.root)
        process = subprocess.Popen(
            command,
            cwd=self.root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=_RUN_SECONDS_MAX)
            return Run(process.returncode, output)
        except subprocess.TimeoutExpired:
            return Run(HUNG, "")
        finally:
            _end_group(process)


def _commands(library: str) -> list[str]:
    """Return how a library of the checkout is made in its build folder; the linker comes last."""
    ninja = Path(sysconfig.get_path("scripts")) / "ninja"
    asked = [ninja, "-C", ROOT / _BUILD, "-t", "commands", library]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()


def _make_environment(root: Path) -> Path:
    """Make a virtual environment that has the packages of this one, but not its editable gpkvs; return its Python.

    Python reads ``.pth`` files in its own site folder only. The site folder of this environment is a mere path of the
    new one, so the new one does not run the hook that finds an editable install.
    """
    home = root / ".venv"
    venv.create(home, symlinks=True)
    [site] = home.glob("lib/python*/site-packages")
    (site / "copy.pth").write_text(f"{root}\n{sysconfig.get_path('purelib')}\n")
    return home / "bin" / "python"


def _end_group(process: subprocess.Popen[str]) -> None:
    """End what a run left behind: servers of a test that was cut short, and pytest itself if it hangs."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def fresh_copy() -> Iterator[Copy]:
    """Make a copy that is gone after the block."""
    with tempfile.TemporaryDirectory(prefix="gpkvs-mutant-", ignore_cleanup_errors=True) as folder:
        yield Copy(Path(folder))
