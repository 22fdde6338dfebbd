"""What the workloads in examples/gpm have in common: a face for tests and the benchmark, and a command line."""

from __future__ import annotations

import argparse
import shutil
import sys
import zlib
from abc import ABC, abstractmethod
from pathlib import Path
from time import perf_counter, sleep
from types import TracebackType
from typing import Any, ClassVar, Protocol, Self, get_args

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpkvs import gpm
from gpkvs.config import DurabilityName
from gpkvs.errors import GpkvsError, NoSpaceError

_GIB = 1 << 30


class Size(Protocol):
    """How large a workload is."""

    @property
    def file_bytes(self) -> int:
        """What its files take."""

    @property
    def memory_bytes(self) -> int:
        """What its arrays take in the memory of its place, beside the files."""


class Workload(ABC):
    """A program that goes on after a crash where it was; its constructor opens what is there, or begins.

    Parameters
    ----------
    folder
        Where its files are, or will be.
    size
        One of `SIZES`. It must be the same until the program is done.
    place
        Where it runs: "cpu", "cuda", "cuda:1".
    durability
        As `gpkvs.open` has it.
    """

    SIZES: ClassVar[dict[str, Any]]

    @abstractmethod
    def __init__(
        self, folder: Path, size: Any, place: gpm.Place | str = "cpu", durability: DurabilityName = "auto"
    ) -> None: ...

    @abstractmethod
    def step(self) -> bool:
        """Do the next part, durably, and return True; return False if all is done."""

    @abstractmethod
    def result(self) -> dict[str, NDArray[Any]]:
        """Return what must not depend on crashes, on the host."""

    @abstractmethod
    def close(self) -> None:
        """Close its files."""

    def run(self, pause: float = 0) -> int:
        """Do all that is left, with a pause of so many seconds after each step; return how many steps that took."""
        steps = 0
        while self.step():
            steps += 1
            sleep(pause)
        return steps

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def persistent(
    path: Path, shape: int | tuple[int, ...], dtype: DTypeLike, place: gpm.Place, durability: DurabilityName
) -> gpm.PersistentArray:
    """Open an array if it is there, else make one of zeros: a file has its name only when it is whole."""
    if path.exists():
        return gpm.PersistentArray.open(path, place=place, durability=durability)
    return gpm.PersistentArray.create(path, shape, dtype, place=place, durability=durability)


def require_room(folder: Path, size: Size, place: gpm.Place) -> None:
    """Raise `NoSpaceError` unless files and memory of a size fit.

    Files of a tmpfs are memory of the host: they count there, too.
    """
    have = shutil.disk_usage(folder).free + sum(at.stat().st_size for at in folder.rglob("*") if at.is_file())
    if have < size.file_bytes:
        raise NoSpaceError(
            "disk",
            f"{folder}: {size.file_bytes / _GIB:.1f} GiB of files are needed, and {have / _GIB:.1f} GiB are free: "
            "choose --size small, or another --path",
        )
    free = place.free_bytes()
    if free < size.memory_bytes:
        raise NoSpaceError(
            "memory",
            f"{place.name}: {size.memory_bytes / _GIB:.1f} GiB of memory are needed, and {free / _GIB:.1f} GiB are "
            "free: choose --size small",
        )


def digest(result: dict[str, NDArray[Any]]) -> str:
    """Return a few digits that differ if a result differs."""
    sums = (zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data) for array in result.values())
    return " ".join(f"{name} {number:08x}" for name, number in zip(result, sums, strict=True))


def main(workload: type[Workload], text: str | None) -> None:
    """Run a workload as a program: it begins, or resumes what a run before left, and removes its files at the end."""
    name = Path(sys.argv[0]).stem
    parser = argparse.ArgumentParser(
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Kill it and start it again with the same options: it goes on where it was.",
    )
    parser.add_argument("--place", default="cpu", help="where kernels run: cpu, cuda, cuda:1 (default: %(default)s)")
    parser.add_argument(
        "--size",
        choices=list(workload.SIZES),
        default="small",
        help="paper is that of Table 1 of GPM, and takes gigabytes (default: %(default)s)",
    )
    parser.add_argument(
        "--path",
        type=Path,
        default=Path("/dev/shm/gpkvs-gpm"),
        help="the directory of its files; kernels store to persistent memory or a tmpfs (default: %(default)s)",
    )
    parser.add_argument(
        "--durability",
        choices=get_args(DurabilityName),
        default="auto",
        help="what stored data must survive; auto takes what the directory gives (docs/persistence.md)",
    )
    parser.add_argument(
        "--pause", type=float, default=0, help="seconds to wait after each step, to have time for a kill (default: 0)"
    )
    parser.add_argument("--keep", action="store_true", help="leave the files there when all is done")
    options = parser.parse_args()
    folder = options.path / f"{name}-{options.size}"
    resumes = folder.exists() and any(folder.iterdir())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with workload(folder, workload.SIZES[options.size], options.place, options.durability) as work:
            print(f"{name}: {'resumed' if resumes else 'begun'} in {folder}, on {options.place}")
            begin = perf_counter()
            steps = work.run(options.pause)
            print(f"{steps} steps in {perf_counter() - begin:.2f} s; result: {digest(work.result())}")
    except (GpkvsError, OSError) as error:
        if not resumes:  # there is nothing to go on with
            shutil.rmtree(folder, ignore_errors=True)
        sys.exit(f"{name}: {error}")
    if not options.keep:
        shutil.rmtree(folder)
