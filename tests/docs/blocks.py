"""The code blocks of the documents.

A block is a fence that names its language: `sh` and `python` are run, any other language, such as `text`, is
to be read. A fence without a language, and a block that is only indented, are errors: nobody could tell what
they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DOCUMENTS = (
    "README.md",
    "docs/*.md",
    "docs/*/*.md",
    "deploy/*.md",
    "examples/*/*.md",
    "integrations/*/*.md",
    "CHANGELOG.md",
)

ROOMS = ("*/README.md", "*/results/README.md", "gpkvs/*/README.md", "gpkvs/*/*/README.md")

_FENCE = "```"
_COMMENT = re.compile(r"(^|\s+)#\s.*$")


@dataclass(frozen=True)
class Block:
    """One block of a document."""

    document: str
    line: int  # of its first line of code
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The commands of a shell block, without comments; a line that ends with a backslash goes on in the next."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [command for line in lines if (command := _COMMENT.sub("", line).strip())]


def documents() -> list[str]:
    """Return the documents whose blocks are run, as paths in the repository."""
    return sorted(
        str(path.relative_to(REPOSITORY))
        for pattern in DOCUMENTS
        for path in REPOSITORY.glob(pattern)
        if "node_modules" not in path.parts
    )


def rooms() -> list[str]:
    """Return the documents that tell what a folder of the source is: they have no blocks to run."""
    paths = {path for pattern in ROOMS for path in REPOSITORY.glob(pattern)}
    hidden = {path for path in paths if any(part.startswith(".") for part in path.relative_to(REPOSITORY).parts)}
    found = {path.resolve() for path in paths - hidden}
    return sorted(
        str(path.relative_to(REPOSITORY)) for path in found if str(path.relative_to(REPOSITORY)) not in documents()
    )


def blocks_of(document: str, text: str | None = None) -> list[Block]:
    """Return a document's blocks in order.

    Raises
    ------
    ValueError
        If a block does not say its language, is only indented, or does not end.
    """
    lines = (text if text is not None else (REPOSITORY / document).read_text()).splitlines()
    blocks: list[Block] = []
    begin, language = 0, ""
    for number, line in enumerate(lines, 1):
        if line.startswith(_FENCE) and not begin:
            begin, language = number + 1, line.removeprefix(_FENCE)
            if not language.isalnum():
                raise ValueError(f"{document}:{number}: a fence that does not name its language")
        elif line.startswith(_FENCE):
            blocks.append(Block(document, begin, language, "\n".join(lines[begin - 1 : number - 1])))
            begin = 0
        elif not begin and line.startswith("    ") and not lines[number - 2].strip():
            raise ValueError(f"{document}:{number}: a block that is only indented; use a fence that names its language")
    if begin:
        raise ValueError(f"{document}:{begin - 1}: a fence that does not end")
    return blocks
