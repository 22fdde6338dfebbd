"""What all objects over a file of gpkvs.gpm have: the file, a place for their kernels, and an end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

from gpkvs.config import DurabilityName
from gpkvs.errors import InvalidArgumentError
from gpkvs.gpm.file import GpmFile, create, discard, open_file, publish
from gpkvs.gpm.names import require_name
from gpkvs.gpm.place import Place, find_place
from gpkvs.pm.domain import Domain


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


_O = TypeVar("_O", bound=Opened)


def made(
    kind: type[_O],
    path: Path | str,
    about: Mapping[str, Any],
    data_bytes: int,
    *,
    place: Place | str,
    durability: DurabilityName,
    replace: bool,
    state: Sequence[int] = (),
) -> _O:
    """Make a file and return an object over it; if that fails, nothing has changed.

    Parameters
    ----------
    kind
        Of the object.
    path, about, data_bytes, durability, state
        As `gpkvs.gpm.file.create` has them.
    place
        Where kernels run.
    replace
        Whether a file of gpkvs.gpm that is there is replaced.

    Raises
    ------
    InvalidArgumentError, NoSpaceError, StoreMissingError, StoreAccessError, StoreLockedError, BackendError
        As `create`, `publish` and the object raise them.
    """
    where = find_place(place)
    require_name(path, replace=replace)
    file = create(path, kind.KIND, about, data_bytes, durability, state=state)
    try:
        found = kind(file, where)
    except BaseException:
        discard(file)
        raise
    try:
        publish(file, replace=replace)
    except BaseException:
        found.close()
        discard(file)
        raise
    return found


def opened(
    kind: type[_O], path: Path | str, *, place: Place | str, durability: DurabilityName, readonly: bool = False
) -> _O:
    """Open a file and return an object over it; raises as `open_file`, and as the object."""
    where = find_place(place)
    return over(kind, where, open_file(path, kind.KIND, durability, readonly=readonly))


def over(kind: type[_O], place: Place, file: GpmFile) -> _O:
    """Return an object over an open file, or close the file if that fails."""
    try:
        return kind(file, place)
    except BaseException:
        file.close()
        raise
