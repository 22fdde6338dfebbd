"""The package is typed for its users (PEP 561): what they install, and what a strict type checker makes of it."""

from __future__ import annotations

import importlib
import importlib.metadata
import pydoc
import rlcompleter
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import gpkvs
from gpkvs.info import package_version
from tests.serving import Server
from tests.store import typed_program

ROOT = Path(__file__).parent.parent.parent

NO_LIBRARY = ("--config-settings", "wheel.cmake=false")  # Debian 12's pip knows no short form


def run(*command: str | Path, folder: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_strict_user_finds_nothing(tmp_path: Path) -> None:
    # A wheel without the compiled library, in an environment of its own: an editable install hides from type checkers.
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *NO_LIBRARY, "-w", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        assert "gpkvs/py.typed" in archive.namelist()
        archive.extractall(packages)
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    user = tmp_path / "user"
    user.mkdir()
    (user / "program.py").write_text(Path(typed_program.__file__).read_text())
    checker = [sys.executable, "-m", "mypy", "--strict", "--python-executable", tmp_path / "venv" / "bin" / "python"]
    run(*checker, "--config-file=", "--cache-dir", tmp_path / "cache", "program.py", folder=user)


def test_the_users_program_runs(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed_program.main(server.target, tmp_path / "embedded") == 0
    assert "Ada" in capsys.readouterr().out


PACKAGES = ["gpkvs", "gpkvs.client", "gpkvs.gpm"]


@pytest.mark.parametrize("name", PACKAGES)
def test_public_names_are_sorted_and_there(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__all__ == sorted(module.__all__)
    assert all(hasattr(module, public) for public in module.__all__)


@pytest.mark.parametrize("name", PACKAGES)
def test_tab_completion_offers_what_is_public_and_no_imports_of_ours(name: str) -> None:
    # In a process of its own: here other tests have loaded what is late.
    code = f"import sys, {name}; print(*dir({name})); print('gpkvs.store' in sys.modules)"
    names, has_store = run(sys.executable, "-c", code).splitlines()
    offered = {offer for offer in names.split() if not offer.startswith("_")}
    module = importlib.import_module(name)
    modules = {path.stem for folder in module.__path__ for path in Path(folder).iterdir()}
    assert set(module.__all__) <= offered
    assert offered <= set(module.__all__) | modules
    assert has_store == "False"


def test_a_completer_finds_open_and_help_calls_it_so() -> None:
    completer = rlcompleter.Completer({"gpkvs": gpkvs})
    assert completer.complete("gpkvs.open", 0) == "gpkvs.open("
    assert pydoc.render_doc(gpkvs.open, renderer=pydoc.plaintext).startswith(
        "Python Library Documentation: function open in module gpkvs.store\n\nopen(path"
    )


def test_the_version_is_that_of_the_package() -> None:
    assert gpkvs.__version__ == package_version() == importlib.metadata.version("gpkvs")
    assert "__version__" in dir(gpkvs)
