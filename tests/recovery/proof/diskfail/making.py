"""Power failures while a backup is made: ``LD_PRELOAD=... python -m tests.recovery.proof.diskfail.making FOLDER SEED``.

All that a backup does to the directory of its new store is recorded, while its source changes. Then states are derived
that a power failure may leave at each place, and each is opened.

    unfinished   a state with the mark is refused
    between      a state without the mark is refused, empty or whole
    published    from where the backup is to get its name on, each state is whole

The process prints what it has visited; a state that breaks a rule ends it. ``--mistake NAME`` plants one.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import gpkvs
from gpkvs.backup import copier
from gpkvs.backup.manifest import read_manifest
from gpkvs.backup.place import partial_of
from gpkvs.backup.source import Source
from gpkvs.batch import Batch, Op
from gpkvs.config import Making, StoreConfig
from gpkvs.errors import GpkvsError, StoreError
from gpkvs.media import directory
from gpkvs.media.directory import UNFINISHED_FILE
from gpkvs.process import failpoint
from gpkvs.recovery.proof.diskfail.disk import Choice, Disk, State
from gpkvs.recovery.proof.diskfail.judge import lay
from gpkvs.recovery.proof.diskfail.recorder import Event, Kind, Mark, Recorder
from gpkvs.recovery.startup.check import check
from gpkvs.store import Store
from tests.backup.writers import Model

CHOICES = 3  # of each place
SIZES = {"index_bytes": 64 << 10, "heap_bytes": 1 << 20, "journal_bytes": 1 << 20}


class WrongError(Exception):
    """A state breaks a rule."""


def recorded(folder: Path, seed: int) -> tuple[list[Event], int]:
    """Make a backup of a store that changes; return what was done to the new store, and where it is whole."""
    random, recorder, hit = Random(seed), Recorder(), failpoint.hit
    partial = partial_of(folder / "backup")
    with gpkvs.open(folder / "source", **SIZES) as store:
        for key in range(300):
            store.set(b"%d" % key, random.randbytes(random.randrange(200)))

        def act(name: str) -> None:
            if name == "before_backup_store":
                (partial / "store").mkdir()
                recorder.start(partial / "store", 0, seed)
            elif name == "mid_backup_scan":
                keys = [b"%d" % random.randrange(400) for _ in range(20)]
                changes = [(Op.SET, key, b"later") if random.random() < 0.7 else (Op.DELETE, key) for key in keys]
                store.execute(Batch.of(changes))
            elif name == "before_backup_rename":
                recorder.mark(Mark.ACKNOWLEDGED)
            hit(name)

        failpoint.hit = act
        try:
            source = Source("source", store, store.follow)
            copier.back_up(source, folder / "backup", _open, lambda *_: None)
        finally:
            failpoint.hit = hit
        events = recorder.stop()
    published = next(at for at, event in enumerate(events) if event.kind is Kind.MARK and event.at == Mark.ACKNOWLEDGED)
    return events, published


def _open(path: Path, config: StoreConfig) -> Store:
    """Open the new store as on a disk, wherever the folder is."""
    return Store(path, replace(config, durability="msync", commit="journal"))


def contents(path: Path) -> dict[str, object]:
    """Return all that a store holds."""
    store = _open(path, StoreConfig("cpu", threads=1, making=Making(1)))
    try:
        return {name: dict(rows) for name, rows in Model.of(store).tables.items()}
    finally:
        store.close()


def judge(place: Path, state: State, whole: dict[str, object], *, is_published: bool) -> str:
    """Open a state; return what it is.

    Raises
    ------
    WrongError
        If that breaks a rule.
    """
    lay(place, state)
    try:
        if is_published:
            read_manifest(place)
            if not check(place).is_clean:
                raise WrongError("published: it is not clean")
        found = contents(place)
    except (GpkvsError, OSError) as error:
        if is_published:
            raise WrongError(f"published: {error}") from error
        if UNFINISHED_FILE in state and not (isinstance(error, StoreError) and "was not finished" in str(error)):
            raise WrongError(f"unfinished: {error}") from error
        return "unfinished" if UNFINISHED_FILE in state else "refused"
    if UNFINISHED_FILE in state:
        raise WrongError("unfinished: it opens")
    if found == whole:
        return "published" if is_published else "whole"
    if is_published or any(found.values()):
        raise WrongError(f"{'published' if is_published else 'between'}: it holds neither nothing nor all")
    return "empty"


def explore(folder: Path, seed: int, places: int) -> Counter[str]:
    """Visit the states of a backup, at so many places."""
    events, published = recorded(folder, seed)
    whole = contents(folder / "backup")
    random, counts, disk = Random(seed), Counter[str](), Disk()
    disk.attach({})
    wanted = {len(events), *random.sample(range(len(events)), min(places, len(events)))}
    for place in range(len(events) + 1):
        is_published = place > published
        for choice in _choices(disk, random, is_published=is_published) if place in wanted else ():
            try:
                what = judge(folder / "state", disk.state(choice), whole, is_published=is_published)
            except WrongError as error:
                raise WrongError(f"place {place} of {len(events)}: {error}") from error
            counts[what] += 1
        if place < len(events):
            disk.apply(events[place])
    return counts


def _choices(disk: Disk, random: Random, *, is_published: bool) -> list[Choice]:
    return disk.choices(random, CHOICES) + (disk.systematic() if is_published else [])


def _no_sync(_path: Path) -> None:
    """Make nothing durable."""


MISTAKES = {
    "mark-not-durable": (copier, "sync_path", _no_sync),
    "manifest-not-durable": (directory, "sync_path", _no_sync),
}


def main() -> None:
    """Explore, and print what was visited."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("--places", type=int, default=1 << 30)
    parser.add_argument("--mistake", choices=MISTAKES)
    given = parser.parse_args()
    if given.mistake:
        setattr(*MISTAKES[given.mistake])
    try:
        counts = explore(given.folder, given.seed, given.places)
    except WrongError as error:
        sys.exit(str(error))
    shutil.rmtree(given.folder)
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
