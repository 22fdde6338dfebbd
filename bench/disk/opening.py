"""Opening a store whose last user was killed, over what cannot be spared: Python's start, reading image and journal."""

from __future__ import annotations

import json
import subprocess
from contextlib import closing
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from gpkvs.bench.disk.options import OWN, DiskOptions, Found
from gpkvs.bench.disk.rounds import in_turn
from gpkvs.bench.engine.workload import SHAPES, Shape
from gpkvs.bench.peers.contender import BenchError, Progress
from gpkvs.bench.report.comparison import Comparison
from gpkvs.bench.server.measured_server import python_program
from gpkvs.media.data_file import DataFile
from gpkvs.media.directory import DATA_FILE
from gpkvs.media.image import Image
from gpkvs.pm.mapping import map_memory

_READ_BYTES = 8 << 20
_SECONDS_MAX = 300.0
_AIM = 1.5


def measure_opening(options: DiskOptions, progress: Progress, found: Found) -> None:
    """Measure stores of both shapes of records."""
    for shape in SHAPES.values():
        with TemporaryDirectory(dir=options.directory, prefix="gpkvs-bench-") as folder:
            _measure_shape(options, shape, Path(folder) / "store", progress, found)


def _measure_shape(options: DiskOptions, shape: Shape, path: Path, progress: Progress, found: Found) -> None:
    progress(f"opening, {options.records:,} records of {shape.text}: {options.rounds} rounds")
    sizes = (options.records, options.batch, options.journal_bytes)
    loaded, _ = _child("killed_store", str(path), shape.name, *map(str, sizes))
    journal_bytes = loaded["journal_bytes"]
    openings, starts, reads = in_turn(
        options.rounds,
        [
            lambda: _child("opened_store", str(path)),
            lambda: _child("opened_store")[1],
            lambda: _read(path, journal_bytes),
        ],
    )
    seconds = [taken for _, taken in openings]
    replayed = openings[0][0]["replayed_batches"]
    image_bytes = reads[0][0]
    found.comparisons.append(
        Comparison(
            what=f"opening, {shape.text}",
            store=OWN,
            beside="start and reading",
            ratios=[taken / (start + read) for taken, start, (_, read) in zip(seconds, starts, reads, strict=True)],
            aim=_AIM,
            is_least=False,
            note=(
                f"{median(seconds):.2f} s; Python {median(starts):.2f} s; {image_bytes >> 20} MiB of image and "
                f"{journal_bytes >> 20} MiB of journal read in {median(read for _, read in reads):.2f} s; "
                f"{replayed} batches replayed"
            ),
        )
    )


def _child(module: str, *arguments: str) -> tuple[dict[str, int], float]:
    """Run a process of this package; return what it said, and the seconds until it did."""
    began = perf_counter()
    command = python_program(f"gpkvs.bench.disk.{module}", *arguments)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stderr
            line = process.stdout.readline()
            seconds = perf_counter() - began
            if not line:
                raise BenchError(f"{' '.join(command)}: {process.stderr.read()}")
            process.wait(_SECONDS_MAX)
        finally:
            process.kill()
    said: dict[str, int] = json.loads(line)
    return said, seconds


def _read(path: Path, journal_bytes: int) -> tuple[int, float]:
    """Read as much as the opening must, past the page cache, one piece after the other.

    Returns
    -------
    tuple
        Bytes of images, and seconds.
    """
    into = map_memory(_READ_BYTES)
    pieces = [(file, piece) for file in sorted(path.glob("index-*")) for piece in _data_of(file)]
    image_bytes = sum(last - first for _, (first, last) in pieces)
    began = perf_counter()
    for file, (first, last) in [*pieces, (path / DATA_FILE, (0, journal_bytes))]:
        with closing(DataFile(file, write=False)) as data:
            for at in range(first, last, _READ_BYTES):
                data.read_pages(into[: min(_READ_BYTES, last - at)], at)
    return image_bytes, perf_counter() - began


def _data_of(file: Path) -> list[tuple[int, int]]:
    with closing(Image(file, write=False)) as image:
        return list(image.extents())
