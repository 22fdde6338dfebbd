"""Each link of a document leads to a file that is there, and each anchor to a heading of it."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.docs.blocks import REPOSITORY

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCED = re.compile(r"^\s*```.*?^\s*```", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ +(.+?)\s*$", re.MULTILINE)


def markdown_files() -> list[str]:
    """Return all Markdown files of the repository that git knows or would add, and that are there."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    names = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split()
    return sorted({name for name in names if (REPOSITORY / name).is_file() and not (REPOSITORY / name).is_symlink()})


def anchors_of(text: str) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a document; a second heading of one name gets ``-1``."""
    anchors: list[str] = []
    for heading in _HEADING.findall(_FENCED.sub("", text)):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        count = sum(anchor == name or re.fullmatch(rf"{re.escape(name)}-\d+", anchor) is not None for anchor in anchors)
        anchors.append(f"{name}-{count}" if count else name)
    return set(anchors)


@pytest.mark.parametrize("document", markdown_files())
def test_links_lead_somewhere(document: str) -> None:
    path = REPOSITORY / document
    broken = []
    for link in _LINK.findall(_FENCED.sub("", path.read_text())):
        name, _, anchor = link.partition("#")
        if "://" in name or name.startswith("mailto:"):
            continue
        target = path.parent / name if name else path
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors_of(target.read_text())):
            broken.append(link)
    assert broken == []


def test_anchors_are_those_of_github() -> None:
    text = "# Two words\n\n## `gpkvs serve --resp`: it\n\n```sh\n# no heading\n```\n\n## Two words\n"
    assert anchors_of(text) == {"two-words", "gpkvs-serve---resp-it", "two-words-1"}
