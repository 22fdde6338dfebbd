"""Doing something at a named step of a backup that runs in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import gpkvs
from gpkvs.backup.manifest import BackupReport
from gpkvs.process import failpoint
from tests.backup.writers import History, assert_is


@contextmanager
def at_step(point: str, act: Callable[[], object]) -> Iterator[None]:
    """Have something done when a backup gets to a failpoint."""
    reached: list[object] = []

    def stop() -> None:
        reached.append(act())

    failpoint.stop_instead(stop)
    failpoint.arm(point)
    try:
        yield
        assert reached, f"{point} was not reached"
    finally:
        failpoint.arm("")
        failpoint.stop_instead(None)


def back_up_while(
    store: gpkvs.Store, directory: Path, act: Callable[[], object], point: str = "mid_backup_scan:2"
) -> BackupReport:
    """Make a backup, and do something meanwhile; fail unless the backup is what the store was at its position."""
    history = History(store)
    with at_step(point, act):
        report = store.backup(directory)
    assert_is(directory, report, history.at(report.position.number))
    history.close()
    return report
