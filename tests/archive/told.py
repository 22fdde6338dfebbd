"""What a source tells beside its archive, and what a dictionary makes of it at any moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import gpkvs
from gpkvs.archive.archiver import ArchiveConfig, Archiver
from gpkvs.archive.contents import read_contents
from gpkvs.archive.moment import Moment
from gpkvs.archive.recorder import SegmentBounds
from gpkvs.archive.restore import RestoreReport, restore
from gpkvs.backup.source import Source
from gpkvs.changes import Changes, Position
from gpkvs.client import Client
from tests.backup.writers import Model, held_by

SMALL_SEGMENTS = ArchiveConfig(1000, bounds=SegmentBounds(size=20_000, sync_seconds=0.05))


class Remote(Client):
    """A client that follows all tables."""

    def open_tables(self) -> Any:
        """Describe all tables."""
        return self.list_tables()

    def follow(self, since: Position | None = None, **options: Any) -> Any:
        """Follow all tables."""
        return super().follow(since, **({"all_tables": True} | options))


class Told:
    """All that a source told from a moment on at which nobody wrote."""

    def __init__(self, source: Any) -> None:
        self._following = source.follow()
        self._start = Model.of(source)
        self.entries: list[Changes] = []

    def finish(self) -> None:
        """Read all there is."""
        newest = self._following.newest()
        while not self._following.position.reaches(newest):
            self.entries += self._following.read(timeout=60)
        self._following.close()

    def at(self, moment: Moment) -> Model:
        """Return what the source held then."""
        model = Model({name: dict(rows) for name, rows in self._start.tables.items()}, dict(self._start.layouts))
        for entry in self.entries:
            if isinstance(moment, Position):
                if entry.number > moment.number:
                    break
            elif entry.time_ms > moment:
                break
            model.apply(entry)
        return model


@contextmanager
def archiving(
    source: Any,
    folder: Path,
    config: ArchiveConfig = SMALL_SEGMENTS,
    *,
    has_base: bool = False,
    say: Callable[[str], object] = print,
) -> Iterator[Archiver]:
    """Archive a store or a client meanwhile, with a base at once, or once there is one with its newest entry."""
    keeps = {"keep_seconds": 60.0} if isinstance(source, gpkvs.Store) else {}

    def follow(since: Position | None) -> Any:
        return source.follow(since, **keeps)

    with Archiver(folder, Source("source", source, lambda: follow(None)), follow, config, say) as archiver:
        if not has_base:
            take_base(archiver, folder)
        yield archiver
        wait_for(archiver, source)


def wait_for(archiver: Archiver, source: Any) -> None:
    """Wait until all that has changed is archived."""
    with closing(source.follow()) as following:
        newest = following.position
    while not (at := archiver.recorder.position) or at.timeline != newest.timeline or not at.reaches(newest):
        archiver.recorder.require_going()
        time.sleep(0.01)


def take_base(archiver: Archiver, folder: Path) -> None:
    """Have a base taken when the archive follows."""
    before = len(bases(folder))
    while len(bases(folder)) == before:
        archiver.keep_up()


def bases(folder: Path) -> list[Path]:
    """Return the bases of an archive."""
    return sorted(path for path in folder.glob("*Z") if path.is_dir())


def segments(folder: Path) -> list[Path]:
    """Return the segments of an archive."""
    return sorted(folder.glob("*.changes"))


def restored(folder: Path, new: Path, until: Moment | None = None) -> RestoreReport:
    """Restore, without a word."""
    return restore(folder, new, until, lambda _step, _share: None)


def assert_holds(new: Path, report: RestoreReport, wanted: Model) -> None:
    """Fail unless a restored store is exactly this."""
    found = held_by(new)
    assert found.layouts == wanted.layouts
    living = wanted.living(wanted.time_ms)
    for name, rows in found.living(wanted.time_ms).items():
        assert rows == living[name], name
    # Of those that had expired, the base has removed some when it was brought further.
    assert sum(map(len, living.values())) <= report.keys <= wanted.keys


def read_all(folder: Path) -> list[bytes]:
    """Return the keys of all entries of which the newest moment would be restored."""
    chosen = read_contents(folder).choose(None)
    assert chosen.run
    found = list(chosen.run.entries(chosen.base.position.number, chosen.position.number))
    assert found[-1].number == chosen.position.number
    return [entry.keys.tobytes() for entry in found]


def archived_numbers(folder: Path) -> list[int]:
    """Return behind which numbers the last run may be restored, but for bases."""
    run = read_contents(folder).runs[-1]
    return [entry.number for entry in run.entries(run.bases[0].position.number, run.end.number) if entry.is_whole]
