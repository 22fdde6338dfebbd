"""What `make install` shows while pip works: each step, and a failure with what the compiler said."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.docs.blocks import REPOSITORY

PROJECT = {
    "pyproject.toml": """
[build-system]
requires = ["scikit-build-core"]
build-backend = "scikit_build_core.build"
[project]
name = "tiny"
version = "1"
""",
    "CMakeLists.txt": """
cmake_minimum_required(VERSION 3.25)
project(tiny LANGUAGES CXX)
add_library(tiny MODULE part.cpp)
install(TARGETS tiny LIBRARY DESTINATION tiny)
""",
    "part.cpp": "int number() { return 1; }\n",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    for name, text in PROJECT.items():
        (folder / name).write_text(text)
    return folder


def install(project: Path) -> subprocess.CompletedProcess[str]:
    """Install a project with its real build, into a folder beside it."""
    options = ("-v", "--disable-pip-version-check", "--no-deps", "--no-index", "--no-build-isolation")
    program = (sys.executable, str(REPOSITORY / "requirements/show_pip.py"), "3 of 4: tiny", "logs/compile.log")
    command = [*program, "install", *options, "--target", "installed", str(project)]
    return subprocess.run(command, cwd=project.parent, capture_output=True, text=True, check=False, timeout=120)


def test_each_file_that_is_compiled_is_shown(project: Path) -> None:
    done = install(project)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "3 of 4: tiny: 1 of 2: part.cpp" in lines
    assert "3 of 4: tiny: looking at the compiler and the libraries" in lines
    assert lines[-1].startswith("3 of 4: tiny: done, ")
    assert done.stderr == ""
    assert "Building CXX object" in (project.parent / "logs/compile.log").read_text()


def test_a_failure_shows_what_the_compiler_said(project: Path) -> None:
    (project / "part.cpp").write_text("this is no C++;\n")
    done = install(project)
    assert done.returncode == 1
    assert "3 of 4: tiny: failed, " in done.stdout
    first, *_ = done.stderr.splitlines()
    assert "FAILED:" in first
    assert "part.cpp:1:1: error:" in done.stderr
    assert done.stderr.splitlines()[-1] == "all that was printed is in logs/compile.log"


def test_a_failure_of_cmake_shows_its_words(project: Path) -> None:
    with (project / "CMakeLists.txt").open("a") as file:
        file.write('message(FATAL_ERROR "the door needs the packages X")\n')
    done = install(project)
    assert done.returncode == 1
    assert done.stderr.lstrip().startswith("CMake Error")
    assert "the door needs the packages X" in done.stderr


def test_packages_are_counted(tmp_path: Path) -> None:
    for name in ("first", "second"):
        with zipfile.ZipFile(tmp_path / f"{name}-1-py3-none-any.whl", "w") as wheel:
            folder = f"{name}-1.dist-info"
            wheel.writestr(f"{folder}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
            wheel.writestr(f"{folder}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{folder}/RECORD", "")
    (tmp_path / "lock.txt").write_text("# zeroth==1\nfirst==1\nsecond==1\n")
    program = (sys.executable, str(REPOSITORY / "requirements/show_pip.py"), "2 of 4: packages", str(tmp_path / "log"))
    options = ("--no-index", "--find-links", str(tmp_path), "--target", str(tmp_path / "installed"))
    command = [*program, "install", *options, "--requirement", str(tmp_path / "lock.txt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    first, second, installing, end = done.stdout.splitlines()
    assert first.startswith("2 of 4: packages: 1 of 2: ")
    assert "second-1-py3-none-any.whl" in second
    assert "2 of 2" in second
    assert installing == "2 of 4: packages: installing them"
    assert end.startswith("2 of 4: packages: done, ")
