"""What an archive holds: runs of segments without a hole, and bases in them.

    DIR/SERIAL-TIMELINE-NUMBER.changes      a segment (`gpkvs.archive.segment`)
    DIR/2026-11-29T10-00-00Z                a base: a backup, which is a store
    DIR/2026-11-29T10-00-00Z.partial        a base on its way

A run begins where the archive began anew, or behind a segment that is missing or damaged; each of its segments begins
where the one before ends, perhaps with the timeline of a later opening. A base is in a run if its position lies in it.
A moment can be restored if a run has a base at it or before, and tells the time of something at it or behind: what
changed in a hole, nobody knows.

- The clock of what is archived says when something was: each entry has its time, at least that of the one before.
- A base is an entry's equal: its position may be restored, but only the entries around it say which time that was.
- Nothing that is missing is passed over: a moment that needs it is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from pathlib import Path
from typing import NamedTuple

from gpkvs.archive.moment import Moment, format_moment, format_time
from gpkvs.archive.segment import Segment, read_segment, segment_paths, serial_of
from gpkvs.backup.kept import backups_in
from gpkvs.backup.manifest import BackupReport, read_manifest
from gpkvs.changes import Changes, Position
from gpkvs.errors import InvalidArgumentError, StoreError
from gpkvs.media.directory import access_errors


@dataclass
class Run:
    """Segments without a hole.

    Parameters
    ----------
    segments
        In their order; each begins where the one before ends.
    loss
        What is damaged or missing before it; empty: the archive begins here, or began anew.
    bases
        In it, in the order of their positions.
    ahead
        Those behind its end: their own changes came sooner than the archive's.
    """

    segments: list[Segment]
    loss: str = ""
    bases: list[BackupReport] = field(default_factory=list)
    ahead: list[BackupReport] = field(default_factory=list)

    @property
    def first(self) -> Position:
        """Behind which it begins."""
        return self.segments[0].header.first

    @property
    def end(self) -> Position:
        """Behind its last entry."""
        return self.segments[-1].end

    @property
    def last_ms(self) -> int:
        """When its last entry was; 0: it has none."""
        return _Opening(self.segments).last_ms

    @property
    def first_ms(self) -> int:
        """The first time that can be restored; 0: there is none."""
        if not self.bases:
            return 0
        return _Opening(self.segments).first_ms(self.bases[0].position.number)

    def has(self, position: Position) -> bool:
        """Whether a position lies in it."""
        return any(
            segment.header.first.timeline == position.timeline
            and segment.header.first.number <= position.number <= segment.last
            for segment in self.segments
        )

    def is_behind(self, position: Position) -> bool:
        """Whether it will have a position, once what comes next is archived."""
        return self.end.timeline == position.timeline and self.end.number < position.number

    def position(self, number: int) -> Position:
        """Return the position of an entry with this number, or of where the run begins."""
        segment = next(segment for segment in self.segments if number <= segment.last)
        return Position(segment.header.first.timeline, number)

    def entries(self, behind: int, last: int) -> Iterator[Changes]:
        """Yield the entries behind a number, up to another one."""
        for segment in self.segments:
            if segment.last > behind and segment.header.first.number < last:
                for entry in takewhile(lambda entry: entry.number <= last, segment.entries()):
                    if entry.number > behind:
                        yield entry

    def lasts_at(self, time_ms: int) -> list[int]:
        """Return the numbers of the last entries that were executed by then: several, if a clock was set back.

        Times do not go back within an opening of the store. From the base on only, since it holds what was before.
        """
        base = self.bases[0].position.number
        openings = [_Opening(list(found)) for _, found in groupby(self.segments, lambda one: one.header.first.timeline)]
        openings = [opening for opening in openings if opening.last >= base and opening.last_ms]
        firsts_ms = [opening.first_ms(base) for opening in openings]
        found = []
        for opening, first_ms, next_ms in zip(openings, firsts_ms, [*firsts_ms[1:], 0], strict=True):
            is_within = 0 < first_ms <= time_ms <= opening.last_ms
            is_between = first_ms > 0 and opening.last_ms < time_ms < next_ms
            if is_within or is_between:
                found.append(opening.last_at(time_ms))
        return found


@dataclass(frozen=True)
class _Opening:
    """The segments of a run that are of one opening of the store."""

    segments: list[Segment]

    @property
    def last(self) -> int:
        return self.segments[-1].last

    @property
    def last_ms(self) -> int:
        """When its last entry was; 0: it has none."""
        return max(segment.time_ms for segment in self.segments)

    def first_ms(self, base: int) -> int:
        """Return the time of its first entry that lies at a base or behind it; 0: there is none."""
        for segment in self.segments:
            if segment.time_ms and segment.last >= base:
                return next(entry.time_ms for entry in segment.entries() if entry.number >= base)
        return 0

    def last_at(self, time_ms: int) -> int:
        """Return the number of the last entry that was executed by then."""
        number = self.segments[0].header.first.number
        for segment in self.segments:
            if segment.time_ms and segment.time_ms <= time_ms:
                number = segment.last
            elif segment.time_ms:
                for entry in takewhile(lambda entry: entry.time_ms <= time_ms, segment.entries()):
                    number = entry.number
                return number
        return number


class Chosen(NamedTuple):
    """What a moment is restored of.

    Attributes
    ----------
    base
        Which is copied.
    run
        Whose entries are applied to it; None: none are.
    position
        The last transaction.
    note
        What else is to be known; empty: nothing.
    """

    base: BackupReport
    run: Run | None
    position: Position
    note: str


@dataclass
class Contents:
    """What an archive holds.

    Parameters
    ----------
    folder
        Of it.
    runs
        In the order in which they were archived.
    bases
        All of them, by name.
    loss
        What is damaged behind the last run; empty: nothing.
    damaged
        What is wrong with bases that are not among these, and with segments that were read.
    """

    folder: Path
    runs: list[Run]
    bases: list[BackupReport] = field(default_factory=list)
    loss: str = ""
    damaged: list[str] = field(default_factory=list)

    def first_ms(self, run: Run) -> int:
        """Return the first time of a run that can be restored; 0: there is none, or what would say it is damaged."""
        try:
            return run.first_ms
        except StoreError as error:
            if str(error) not in self.damaged:
                self.damaged.append(str(error))
            return 0

    def choose(self, until: Moment | None) -> Chosen:
        """Say of what a moment is restored; None: the newest one.

        Raises
        ------
        InvalidArgumentError
            If it lies before the first base, behind the end, or in a hole.
        StoreError
            If something that it takes is damaged or missing.
        """
        if until is None:
            return self._newest()
        return self._at(until) if isinstance(until, Position) else self._by(until)

    def _newest(self) -> Chosen:
        if self.loss:
            raise StoreError(f"{self.loss}; --until gives an earlier moment: {self._nearest()}")
        note = ""
        for run in reversed(self.runs):
            if run.ahead:
                return Chosen(run.ahead[-1], None, run.ahead[-1].position, note)
            if run.bases:
                return Chosen(run.bases[-1], run, run.end, note)
            if run.loss or self.damaged:
                lost = run.loss or self.damaged[-1]
                raise StoreError(f"{lost}; --until gives an earlier moment: {self._nearest()}")
            note = f"what was archived behind {run.first} is left out: no base of it is whole yet"
        raise StoreError(f"{self.folder} holds no base that is whole: wait until gpkvs archive has made one")

    def _at(self, position: Position) -> Chosen:
        for base in self.bases:
            if base.position == position:
                return Chosen(base, None, position, "")
        for run in self.runs:
            bases = [base for base in run.bases if base.position.number <= position.number]
            if bases and run.has(position):
                if position.number not in {entry.number for entry in run.entries(position.number - 1, position.number)}:
                    raise self._refused(position, "is amid changes that are archived together")
                return Chosen(bases[-1], run, position, "")
        raise self._refused(position, "cannot be restored")

    def _by(self, time_ms: int) -> Chosen:
        found = [
            (run, number) for run in self.runs if run.bases and self.first_ms(run) for number in run.lasts_at(time_ms)
        ]
        if not found:
            raise self._refused(time_ms, "cannot be restored")
        if len(found) > 1:
            raise InvalidArgumentError(
                f"{format_time(time_ms)} was more than once, since a clock was set back: give a position, such as "
                + " or ".join(str(run.position(number)) for run, number in found),
                field="until",
            )
        [(run, number)] = found
        base = [base for base in run.bases if base.position.number <= number][-1]
        return Chosen(base, run, run.position(number), "")

    def _refused(self, moment: Moment, why: str) -> InvalidArgumentError:
        losses = [text for text in (*(run.loss for run in self.runs), self.loss, *self.damaged) if text]
        damage = f"; {'; '.join(losses)}" if losses else ""
        return InvalidArgumentError(
            f"{format_moment(moment)} {why}: {self._nearest(moment)}{damage}; see gpkvs restore --list {self.folder}",
            field="until",
        )

    def _nearest(self, moment: Moment | None = None) -> str:
        """Say which moments are nearest to one that cannot be restored."""
        if isinstance(moment, int):
            before = max((run.last_ms for run in self.runs if self.first_ms(run) and run.last_ms < moment), default=0)
            after = min((first for run in self.runs if (first := self.first_ms(run)) > moment), default=0)
            nearest = [f"the nearest moment before it is {format_time(before)}"] * bool(before)
            nearest += [f"the nearest after it is {format_time(after)}"] * bool(after)
        else:
            numbers = {base.position for base in self.bases}
            for run in self.runs:
                if run.bases:
                    numbers |= {run.end} | self._around(run, moment)
            number = moment.number if moment else 1 << 63
            own = [found for found in numbers if moment is None or _are_one(found, moment)]
            before_it = max((found.number for found in own if found.number < number), default=None)
            after_it = min((found.number for found in own if found.number > number), default=None)
            names = {found.number: str(found) for found in own}
            nearest = [f"the nearest position before it is {names[before_it]}"] if before_it is not None else []
            nearest += [f"the nearest after it is {names[after_it]}"] if after_it is not None else []
        return " and ".join(nearest) or "nothing near it can be"

    def _around(self, run: Run, moment: Position | None) -> set[Position]:
        if moment is None or not run.has(moment):
            return set()
        found: set[Position] = set()
        for entry in run.entries(run.bases[0].position.number, run.end.number):
            here = run.position(entry.number)
            found = {*[other for other in found if other.number < moment.number][-1:], here}
            if here.number > moment.number:
                break
        return found


def _are_one(one: Position, other: Position) -> bool:
    return one.timeline == other.timeline


def read_contents(folder: Path) -> Contents:
    """Return what an archive holds.

    Raises
    ------
    StoreError
        If it is no archive, or a base is damaged.
    StoreAccessError
        If the operating system refuses.
    """
    with access_errors(folder):
        if not segment_paths(folder):
            raise StoreError(f"{folder} is no archive: gpkvs archive makes one")
        runs, loss = read_runs(folder)
        contents = Contents(folder, runs, loss=loss)
        for path in backups_in(folder):
            try:
                contents.bases.append(read_manifest(path))
            except StoreError as error:
                contents.damaged.append(str(error))
    for base in sorted(contents.bases, key=lambda base: base.position.number):
        for run in reversed(contents.runs):
            if run.has(base.position):
                run.bases.append(base)
                break
            if run.is_behind(base.position):
                run.ahead.append(base)
                break
    return contents


def read_runs(folder: Path) -> tuple[list[Run], str]:
    """Return the runs of an archive, and what is damaged behind the last one; empty: nothing.

    Raises
    ------
    OSError
        If the operating system refuses.
    """
    runs: list[Run] = []
    loss, before = "", 0
    for path in segment_paths(folder):
        if before and serial_of(path) != before + 1:
            loss = loss or f"{folder}: a segment is missing before {path.name}"
        before = serial_of(path)
        try:
            segment = read_segment(path)
        except StoreError as error:
            loss = loss or str(error)
            continue
        header = segment.header
        if runs and not loss and header.goes_on:
            if runs[-1].end.number == header.first.number:
                runs[-1].segments.append(segment)
                continue
            last = runs[-1].segments[-1]
            loss = f"{last.path} at byte {last.bytes_whole}: what comes behind, up to {header.first}, is not there"
        runs.append(Run([segment], loss))
        loss = ""
    return runs, loss
