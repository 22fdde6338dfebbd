"""The interface of a store for the engine's benchmark, and the errors of benchmarks."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol, get_args

from gpkvs.bench.engine.workload import Columns, Workload
from gpkvs.errors import GpkvsError
from gpkvs.pm.domain import find_domain

_LOOK_SECONDS, _QUIET_SECONDS, _SETTLE_SECONDS_MAX = 0.01, 0.15, 180.0

Promise = Literal["process", "msync"]
"""What an acknowledged batch survives: only the death of the process, or also a loss of power."""


Progress = Callable[[str], None]
"""It is told each step that begins."""


class BenchError(GpkvsError):
    """A benchmark cannot run: something that it needs is missing, or a store returned wrong values."""


class Contender(Protocol):
    """A store that holds a workload.

    A batch is prepared before the clock starts: it is made into the objects that the store's interface takes. The time
    runs from there to the result, which for a SET means that the batch is kept as promised.
    """

    name: str
    version: str
    settings: str  # one line: how the store was opened, which gives the same promise

    def load(self, workload: Workload) -> None:
        """Store all records, in the way that is best for this store."""

    def prepare_set(self, columns: Columns) -> Any:
        """Return what `set` takes."""

    def set(self, prepared: Any) -> None:
        """Store a batch as one transaction."""

    def prepare_get(self, columns: Columns) -> Any:
        """Return what `get` takes."""

    def get(self, prepared: Any) -> Any:
        """Read a batch."""

    def values(self, result: Any) -> bytes:
        """Return all values of a result of `get`, joined in the order of the keys."""

    def is_tidying(self) -> bool:
        """Whether the store does now what SETs left to be done later: a checkpoint, a compaction."""

    def settle(self) -> None:
        """Return when nothing of that is left to be done."""

    def close(self) -> None:
        """Close the store."""


def wait_until_tidy(contender: Contender) -> None:
    """Return when a store has been at rest for a moment.

    Raises
    ------
    BenchError
        If that takes minutes.
    """
    give_up, quiet_since = time.monotonic() + _SETTLE_SECONDS_MAX, time.monotonic()
    while time.monotonic() - quiet_since < _QUIET_SECONDS:
        time.sleep(_LOOK_SECONDS)
        if contender.is_tidying():
            quiet_since = time.monotonic()
        if time.monotonic() > give_up:
            raise BenchError(f"{contender.name} is not at rest after {_SETTLE_SECONDS_MAX:.0f} s")


def need_extra(module: str, extra: str = "bench") -> ModuleType:
    """Import a peer from an extra.

    Raises
    ------
    BenchError
        If it is not installed; the message says how to install it.
    """
    try:
        return __import__(module)
    except ImportError as error:
        raise BenchError(
            f"{module} is not installed ({error}): run pip install 'gpkvs[{extra}]', or leave it out with --peer"
        ) from error


def found_promise(directory: Path) -> Promise:
    """Return what stores in a directory survive, if the peers can be set up for the same.

    Raises
    ------
    BenchError
        If they cannot.
    """
    found = _domain_of(directory)
    for promise in get_args(Promise):
        if promise == found:
            return promise  # type: ignore[no-any-return]
    raise BenchError(f"{directory} is of the persistence domain {found}, for which the peers have no setting")


def require_promise(directory: Path, promise: Promise) -> None:
    """Make sure that stores in a directory survive exactly what is promised.

    Raises
    ------
    BenchError
        If they survive something else: the peers could not be set up for the same.
    """
    found = _domain_of(directory)
    if found != promise:
        raise BenchError(
            f"{directory} is of the persistence domain {found}, not {promise}: name another directory "
            "(process needs tmpfs, msync a disk)"
        )


def _domain_of(directory: Path) -> str:
    with tempfile.TemporaryDirectory(dir=directory, prefix="gpkvs-bench-") as store:
        (Path(store) / "LOCK").touch()  # `find_domain` looks at the first file of a store
        return find_domain(Path(store), "auto").name
