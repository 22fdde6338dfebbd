"""The models of a crash: which changes of a trace it may keep.

Changes to one *unit* reach the medium in order. Of those that are not durable yet, a crash keeps the first few: any
number, whatever it keeps of other units. So a state is a number for each unit.

    model   a unit is                           a change is durable when
    adr     a 64-byte line                      the line was written back, and that thread then fenced
    adr8    an aligned 8-byte word              the same: a line may be torn into its words
    gpu     an aligned 8-byte word              the thread that stored it fenced
    page    a 512-byte sector                   the file was synced since
    kill    what one thread has stored so far   the kernel, or the host's store, has returned
            (of a block, what all its threads have: they wait for each other)

In all models but `kill`, a crash keeps all or nothing of what is stored to a page of the file `blobs` and not durable
yet. A blob has thousands of words, and any loss in a page is the same to who reads it: a checksum is wrong. (`gpkvs
bitflip` tries single bits.)

In all models but `kill`, files that are written (not mapped) and names follow the same rules. A sector, the size of a
file, and the file that a name leads to are units. Changes to a file are durable by its fsync, a name by fsync of the
directory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from gpkvs.media.directory import BLOBS_FILE
from gpkvs.media.layout import PAGE_BYTES
from gpkvs.pm.domain import DomainName
from gpkvs.recovery.proof.powerfail.trace import CHANGES, SECTOR_BYTES, WORD_BYTES, Event, Image, Kind, Trace, block_of

LINE_WORDS = 64 // WORD_BYTES
SECTOR_WORDS = SECTOR_BYTES // WORD_BYTES
_PAGE_WORDS = PAGE_BYTES // WORD_BYTES


class Model(StrEnum):
    """What a crash keeps."""

    ADR = "adr"
    ADR8 = "adr8"
    GPU = "gpu"
    PAGE = "page"
    KILL = "kill"


# The models of each persistence domain. In `fence` the caches survive: an x86-64 processor leaves a prefix of a
# thread's stores, as after a kill, and a GPU any part of them.
MODEL_OF_DOMAIN = {
    DomainName.FENCE: (Model.KILL, Model.GPU),
    DomainName.FLUSH: (Model.ADR, Model.ADR8),
    DomainName.MSYNC: (Model.PAGE,),
    DomainName.PROCESS: (Model.KILL,),
}

Unit = Hashable
Change = tuple[int, Event]  # a change and its place in the trace


@dataclass(frozen=True)
class Epoch:
    """The states between two events that make changes durable.

    Parameters
    ----------
    number
        Counted from 0 in each trace and model.
    durable
        The image that no crash can take back.
    units
        The changes of each unit, as steps: a crash keeps the first few. A step may hold several events.
    acknowledged
        How many batches must be there.
    in_progress
        Whether the next batch may be there too.
    """

    number: int
    durable: Image
    units: tuple[tuple[tuple[Change, ...], ...], ...]
    acknowledged: int
    in_progress: bool

    @property
    def steps(self) -> tuple[int, ...]:
        """How many steps each unit has."""
        return tuple(len(unit) for unit in self.units)

    def state(self, choice: tuple[int, ...]) -> Image:
        """Return the image that a crash leaves which keeps so many steps of each unit."""
        image = self.durable.copy()
        for event in self.changes(choice):
            image.apply(event)
        return image

    def changes(self, choice: tuple[int, ...]) -> list[Event]:
        """Return the changes that such a crash keeps, in order."""
        kept = [
            change for unit, steps in zip(self.units, choice, strict=True) for step in unit[:steps] for change in step
        ]
        # A file has its size before anything is written inside it.
        return [event for _, event in sorted(kept, key=lambda change: (change[1].kind is not Kind.SIZE, change[0]))]


class Machine:
    """Applies a model to a trace: knows which changes are durable, and which are not yet.

    Parameters
    ----------
    model
        What a unit is, and what makes its changes durable.
    before
        The directory before the trace.
    """

    def __init__(self, model: Model, before: Image) -> None:
        self.model = model
        self.durable = before.copy()
        self.pending: dict[Unit, list[Change]] = {}
        self._now: dict[tuple[int, int], int] = {}  # the words as they are now, where anything was stored
        self._written_back: dict[
            int, dict[tuple[int, int], int]
        ] = {}  # by thread and line: the event of the last write-back

    def add(self, place: int, event: Event) -> bool:
        """Take a change; return whether any word differs then."""
        self.pending.setdefault(self._unit(event), []).append((place, event))
        return self._differs(event, self._now)

    def made_durable(self, place: int, event: Event) -> Callable[[Change, Unit], bool] | None:
        """Return a function that says which pending changes an event makes durable; `None` if it makes none."""
        kind, model = event.kind, self.model
        if model is Model.KILL:
            # A kill takes back nothing of a kernel, or of a file operation, that has returned.
            return (lambda change, unit: True) if kind is Kind.RETURN else None
        if kind is Kind.FILE_SYNC or (kind is Kind.SYNC and model is Model.PAGE):
            return lambda change, unit: change[1].file == event.file and change[1].kind is not Kind.NAME
        if kind is Kind.NAMES_SYNC:
            return lambda change, unit: change[1].kind is Kind.NAME
        if kind is Kind.WRITE_BACK:
            self._written_back.setdefault(event.thread, {})[event.file, event.at // LINE_WORDS] = place
        if kind is Kind.FENCE and model is Model.GPU:
            return lambda change, unit: change[1].kind is Kind.STORE and change[1].thread == event.thread
        if kind is Kind.FENCE and model in (Model.ADR, Model.ADR8):
            lines = self._written_back.pop(event.thread, {})
            return lambda change, unit: (
                change[1].kind is Kind.STORE and change[0] < lines.get((change[1].file, change[1].at // LINE_WORDS), 0)
            )
        return None

    def settle(self, is_durable: Callable[[Change, Unit], bool]) -> None:
        """Make changes durable, and with each all earlier ones of its unit."""
        settled: list[Change] = []
        for unit, changes in list(self.pending.items()):
            count = max((n + 1 for n, change in enumerate(changes) if is_durable(change, unit)), default=0)
            settled += changes[:count]
            if count == len(changes):
                del self.pending[unit]
            else:
                del changes[:count]
        for _, event in sorted(settled, key=lambda change: (change[1].kind is not Kind.SIZE, change[0])):
            self.durable.apply(event)

    def _unit(self, event: Event) -> Unit:
        if event.kind is Kind.STORE:
            if self.model is Model.KILL:
                return "thread", block_of(event.thread)
            words = {Model.ADR: LINE_WORDS, Model.PAGE: SECTOR_WORDS}.get(self.model, 1)
            return "memory", event.file, event.at // words
        if self.model is Model.KILL:
            return "thread", 0
        if event.kind is Kind.NAME:
            return "name", event.name
        return ("size", event.file) if event.kind is Kind.SIZE else ("sector", event.file, event.at // SECTOR_WORDS)

    def units(self) -> tuple[tuple[tuple[Change, ...], ...], ...]:
        """Return the steps of each unit that has any. A change without effect joins the step of the next change."""
        found = []
        shared = self._shared()
        blobs = self.durable.names.get(BLOBS_FILE) if self.model is not Model.KILL else None
        pages: dict[int, list[Change]] = {}  # of blobs
        for changes in self.pending.values():
            steps: list[tuple[Change, ...]] = []
            waiting: list[Change] = []
            seen: dict[tuple[int, int], int] = {}
            for change in changes:
                waiting.append(change)
                event = change[1]
                if self._differs(event, seen) or any((event.file, at) in shared for at in _places(event)):
                    steps.append(tuple(waiting))
                    waiting = []
            event = changes[0][1]
            if event.file == blobs and event.kind is Kind.STORE:
                pages.setdefault(event.at // _PAGE_WORDS, []).extend(change for step in steps for change in step)
            elif steps:
                found.append(tuple(steps))
        return (*found, *((tuple(changes),) for changes in pages.values() if changes))

    def _shared(self) -> set[tuple[int, int]]:
        """Return the words that several units change: their contents depend on which units a crash keeps."""
        owners: dict[tuple[int, int], Unit] = {}
        return {
            (change[1].file, at)
            for unit, changes in self.pending.items()
            for change in changes
            for at in _places(change[1])
            if owners.setdefault((change[1].file, at), unit) != unit
        }

    def _differs(self, event: Event, seen: dict[tuple[int, int], int]) -> bool:
        """Whether a change has an effect; `seen` holds the words that earlier changes of its unit left."""
        if event.kind in (Kind.NAME, Kind.SIZE):
            return True
        words = self.durable.files.get(event.file)
        differs = False
        for at, word in enumerate(event.words, event.at):
            old = seen.get((event.file, at))
            if old is None:
                old = int(words[at]) if words is not None and at < len(words) else 0
            differs |= old != word
            seen[event.file, at] = word
        return differs


def _places(event: Event) -> range:
    return range(event.at, event.at + len(event.words))


def epochs(trace: Trace, model: Model, first: int = 0) -> Iterator[Epoch]:
    """Walk a trace and return its epochs.

    An epoch ends where something becomes durable. It also ends where a batch is acknowledged: from there on every state
    must hold the batch.

    Parameters
    ----------
    trace
        From a recorder.
    model
        Of the crash.
    first
        The event from which on epochs are returned; earlier events are only applied.
    """
    machine = Machine(model, trace.before)
    acknowledged = number = 0
    grown = False

    def epoch(in_progress: bool) -> Epoch:
        return Epoch(number, machine.durable.copy(), machine.units(), acknowledged, in_progress)

    for place, event in enumerate(trace.events):
        if event.kind is Kind.MARK:
            acknowledged += 1
            if place >= first:
                yield epoch(in_progress=False)
            number += 1
        elif event.kind in CHANGES:
            grown |= machine.add(place, event)
            if model is Model.KILL and event.kind is not Kind.STORE:
                if place >= first:
                    yield epoch(in_progress=True)
                number += 1
                machine.settle(lambda change, unit: True)
        else:
            is_durable = machine.made_durable(place, event)
            if is_durable and any(
                is_durable(change, unit) for unit, changes in machine.pending.items() for change in changes
            ):
                # The states between here and the next change are among those before, so they are no epoch of their own.
                if grown and place >= first:
                    yield epoch(in_progress=True)
                number += grown
                grown = False
                machine.settle(is_durable)
    if grown and first <= len(trace.events):
        yield epoch(in_progress=True)
