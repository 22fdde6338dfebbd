"""What all objects over a file of gpkvs.gpm have: the file, a place for their kernels, and an end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import ClassVar, Self, TypeVar

from gpkvs.errors import InvalidArgumentError
from gpkvs.gpm.file import GpmFile
from gpkvs.gpm.place import Place
from gpkvs.pm.domain import Domain

_T = TypeVar("_T")


def opened(kind: Callable[[GpmFile, Place], _T], place: Place, file: GpmFile) -> _T:
    """Return an object over a file, or close the file if that fails.

    The place comes before the file: if there is no such place, no file is made.
    """
    try:
        return kind(file, place)
    except BaseException:
        file.close()
        raise


def made(kind: Callable[[GpmFile, Place], _T], place: Place, file: GpmFile) -> _T:
    """Return an object over a file that was made for it, or remove the file if that fails."""
    try:
        return kind(file, place)
    except BaseException:
        file.path.unlink(missing_ok=True)
        file.close()
        raise


class Closing(ABC):
    """What is closed at the end of a `with` block."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the file."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Opened(Closing):
    """An object over an open file.

    Attributes
    ----------
    path : Path
        The file.
    place : Place
        Where kernels that use it run.
    """

    KIND: ClassVar[str]  # as the file's header says it

    def __init__(self, file: GpmFile, place: Place) -> None:
        self._file = file
        self.path = file.path
        self.place = place

    @property
    def domain(self) -> Domain:
        """What "durable" means for the file (docs/persistence.md)."""
        return self._file.domain

    @abstractmethod
    def verify(self) -> None:
        """Raise `FormatError` or `CorruptStoreError` unless all is right that the file has checksums for."""

    @abstractmethod
    def _about(self) -> str:
        """Return what else `repr` says."""

    def __repr__(self) -> str:
        state = "closed" if self._file.is_closed else self.domain.name
        said = (str(self.path), self._about(), self.place.name, state)
        return f"<{type(self).__name__} {', '.join(filter(None, said))}>"

    def _require_own(self, place: Place) -> None:
        """Raise `InvalidArgumentError` unless a kernel that it is handed to is of its place."""
        self._file.require_writable()
        if place is not self.place:
            raise InvalidArgumentError(
                f"{self.path} was opened for {self.place.name}, and the kernel is {place.name}'s"
            )
