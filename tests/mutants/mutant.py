"""A mutant: a small mistake in a copy of the source, and the tests that must see it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# Where C++ is, and the library that is made of it.
_LIBRARIES = {"gpkvs/kernels/": "_kernels.so", "door/": "_door.so"}


class StaleError(Exception):
    """The text that a mutant replaces is not in its file exactly once: the code went on without the mutant."""


@dataclass(frozen=True)
class Mutant:
    """One mistake.

    Parameters
    ----------
    name
        For the command line.
    file
        Where the mistake is, from the root of the repository.
    old, new
        The text that is there, exactly once, and what replaces it. A short `old` survives changes around it.
    why
        What a user would suffer.
    tests
        The tests that must see it, as pytest names them, without the folder ``tests/``: quick ones.
    """

    name: str
    file: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...]

    @property
    def library(self) -> str | None:
        """The library that must be built again, if any."""
        return next((library for folder, library in _LIBRARIES.items() if self.file.startswith(folder)), None)

    def text(self, root: Path) -> str:
        """Return the file with the mistake in it.

        Raises
        ------
        StaleError
            If `old` is not there, or several times.
        """
        path = root / self.file
        source = path.read_text() if path.exists() else ""
        if (times := source.count(self.old)) != 1:
            raise StaleError(f"{self.file} has the text {times} times: {self.old!r}")
        return source.replace(self.old, self.new)
