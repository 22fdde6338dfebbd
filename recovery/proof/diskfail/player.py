"""Plays schedules: their lives are recorded and crash as those of the explorer do, but states are chosen by rule."""

from __future__ import annotations

import faulthandler
import time
import zlib
from copy import deepcopy
from random import Random

from gpkvs.recovery.proof.diskfail.coverage import reached
from gpkvs.recovery.proof.diskfail.disk import Choice, Disk, State
from gpkvs.recovery.proof.diskfail.expected import Contents, Expected
from gpkvs.recovery.proof.diskfail.explorer import EMPTY, Explorer, Start, walk
from gpkvs.recovery.proof.diskfail.judge import lay
from gpkvs.recovery.proof.diskfail.life import open_store
from gpkvs.recovery.proof.diskfail.recorder import Event, Kind, Mark
from gpkvs.recovery.proof.diskfail.schedules import Schedule
from gpkvs.recovery.proof.diskfail.scripts import Script
from gpkvs.recovery.proof.diskfail.stage import Stage, quiet

_STUCK_SECONDS = 180  # a script that takes longer never ends, on a busy machine too


class Player:
    """Plays schedules.

    Parameters
    ----------
    explorer
        Judges states, and counts.
    """

    def __init__(self, explorer: Explorer) -> None:
        self._explorer = explorer
        self._known: set[tuple[object, ...]] = set()

    def play(self, schedule: Schedule) -> None:
        """Play a schedule."""
        explorer = self._explorer
        self._known.clear()
        lay(explorer.life, {})
        open_store(explorer.life, schedule.shape).close()
        state = explorer.files()
        start = self._live(schedule, f"{schedule.name}/0", schedule.first, Start(Disk.of(state), state, [EMPTY]))
        if schedule.second and start:
            self._live(schedule, f"{schedule.name}/1", schedule.second, start)

    def _live(self, schedule: Schedule, name: str, script: Script, start: Start) -> Start | None:
        """Run one life and judge its states; return what the next one begins with."""
        explorer, began = self._explorer, time.monotonic()
        faulthandler.dump_traceback_later(_STUCK_SECONDS, exit=True)
        start.disk.attach(lay(explorer.life, start.state))
        expected = Expected(start.before)
        explorer.recorder.start(explorer.life, 0, 1)
        explorer.totals.lives += 1
        stage = Stage(explorer.life, schedule.shape, explorer.options.engine, expected, explorer.recorder)
        error: Exception | None = None
        with quiet(stage):
            try:
                script(stage)
            except Exception as wrong:  # noqa: BLE001 - whatever a broken store raises
                error = wrong
            finally:
                stage.close()
        events = explorer.recorder.stop()
        faulthandler.cancel_dump_traceback_later()
        explorer.totals.live_seconds += time.monotonic() - began
        if error:
            explorer.add_error(f"{name}/-", error, start, schedule.shape, events)
            return None
        return self._visit(schedule, name, start.disk, events, expected)

    def _visit(
        self, schedule: Schedule, name: str, disk: Disk, events: list[Event], expected: Expected
    ) -> Start | None:
        explorer, after = self._explorer, None
        watched, crashed = _places(events)
        explorer.totals.reached.update(reached(events))
        for place, progress in walk(disk, events, [*watched, *crashed]):
            allowed = list(expected.allowed(progress))
            if place in crashed:
                after = self._after(schedule, disk, allowed)
            if place not in watched:
                continue
            explorer.totals.points += 1
            for number, choice in enumerate(disk.systematic()):
                if self._is_new(disk.state(choice), allowed):
                    explorer.visit_state(
                        f"{name}/{place}/{number}", disk, choice, allowed, progress, schedule.shape, Random(number)
                    )
            if explorer.options.stop_early and explorer.totals.violations:
                return None
        explorer.require_whole(disk)
        return after

    def _is_new(self, state: State, allowed: list[Contents]) -> bool:
        """Whether no such state was judged where the same was allowed."""
        known = (
            *((contents.next_version, *contents.tables) for contents in allowed),
            *((name, zlib.crc32(data.data)) for name, data in state.items()),
        )
        is_new = known not in self._known
        self._known.add(known)
        return is_new

    @staticmethod
    def _after(schedule: Schedule, disk: Disk, allowed: list[Contents]) -> Start:
        choice: Choice | None = schedule.crash(disk)
        if choice is None:
            killed = deepcopy(disk)
            return Start(killed, killed.state(killed.everything()), allowed)
        state = {name: data.copy() for name, data in disk.state(choice).items()}
        return Start(Disk.of_copy(state) if schedule.is_copied else Disk.of(state), state, allowed)


def _places(events: list[Event]) -> tuple[set[int], set[int]]:
    """Return after how many events a script wants states to be judged, and where the next life begins."""
    watched, crashed, is_watched = set(), set(), False
    for place, event in enumerate(events, 1):
        if event.kind is Kind.MARK and event.at == Mark.WATCHED:
            is_watched = event.amount == 1 or (is_watched and event.amount == 2)
            watched.add(place)
        elif event.kind is Kind.MARK and event.at == Mark.CRASHED:
            crashed.add(place)
        elif is_watched:
            watched.add(place)
    return watched, crashed
