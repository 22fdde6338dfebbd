"""Every block of every document runs as it is written, in order."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.blocks import REPOSITORY, Block, blocks_of, documents, rooms
from tests.docs.exceptions import EXEMPTIONS, Exemption, reason_to_leave_out
from tests.docs.session import Session
from tests.examples.node import node_tools
from tests.programs import PACKAGES, require

RUN = ("sh", "python")
COMMAND = re.compile(r"(?:^|[|&;(])\s*(?:\w+=\S*\s+)*([\w-]+)", re.MULTILINE)
SECONDS_MAX, SLOW_SECONDS_MAX = 120, 1800


def parts_of(block: Block) -> list[str]:
    """Return what can be left out of a block: the commands of a shell block, a Python block by its first line."""
    return block.commands if block.language == "sh" else block.text.splitlines()[:1]


def programs_of(commands: list[str]) -> set[str]:
    """Return the programs that no package of README brings."""
    return {word for command in commands for word in COMMAND.findall(command)} & PACKAGES.keys()


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """Return a copy of the repository with gpkvs in .venv: installed anew for the slow blocks, else as it is here."""
    folder = tmp_path_factory.mktemp("checkout")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    for name in subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split("\0"):
        source = REPOSITORY / name
        if name and (source.exists() or source.is_symlink()):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, folder / name, follow_symlinks=False)
    if pytestconfig.getoption("--docs-all"):
        subprocess.run(["make", "install", f"PYTHON={sys.executable}"], cwd=folder, check=True)
    else:
        (folder / ".venv").symlink_to(sys.prefix)
    return folder


@pytest.fixture
def session(tmp_path: Path, checkout: Path) -> Iterator[Session]:
    tools = node_tools(tmp_path / "tools")
    folder = tmp_path / "reader"
    folder.mkdir()
    opened = Session(folder, checkout, tools)
    try:
        yield opened
    finally:
        opened.close()


@pytest.mark.timeout(0)  # each command has its own
@pytest.mark.parametrize("document", documents())
def test_blocks_run_as_written(document: str, session: Session, pytestconfig: pytest.Config) -> None:
    docs_all = bool(pytestconfig.getoption("--docs-all"))
    here = {name for name, module in (("torch", "torch"), ("feast", "gpkvs_feast")) if find_spec(module)}
    if docs_all:  # on a fresh installation
        here = {"docs-all"}
    if str(pytestconfig.getoption("--backend")).startswith("cuda"):
        here.add("gpu")
    parts = [
        (block, part)
        for block in blocks_of(document)
        if block.language in RUN
        for part in parts_of(block)
        if not reason_to_leave_out(document, part, here)
    ]
    # A program that is missing in the middle would leave the reader of the next block without its result.
    require(*sorted(programs_of([part for block, part in parts if block.language == "sh"])))
    for block, part in parts:
        session.run(block, part, seconds_max=SLOW_SECONDS_MAX if docs_all else SECONDS_MAX)
    session.stop_servers()


@pytest.mark.parametrize("document", documents())
def test_every_block_says_what_it_is(document: str) -> None:
    blocks_of(document)


@pytest.mark.parametrize("document", rooms())
def test_a_room_has_no_block_to_run(document: str) -> None:
    assert [block for block in blocks_of(document) if block.language in RUN] == []


@pytest.mark.parametrize("exemption", EXEMPTIONS, ids=lambda exemption: f"{exemption.document}-{exemption.commands[0]}")
def test_an_exemption_is_of_a_block_that_is_there(exemption: Exemption) -> None:
    shown = [part for block in blocks_of(exemption.document) if block.language in RUN for part in parts_of(block)]
    assert set(exemption.commands) <= set(shown)
    assert exemption.reason


PATH = re.compile(
    r"`((?:gpkvs|server|door|client|recovery|bench|proto|tests|deploy|docs|examples|integrations)/[\w./{},-]+)`"
)


@pytest.mark.parametrize("document", [name for name in (*documents(), *rooms()) if name != "CHANGELOG.md"])
def test_every_file_that_a_document_names_is_there(document: str) -> None:
    """A file that moves takes its name in the documents along."""
    named = PATH.findall((REPOSITORY / document).read_text())
    missing = [name for name in named if "{" not in name and not (REPOSITORY / name).exists()]
    assert missing == []
