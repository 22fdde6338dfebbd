"""The model of an ordinary disk: what a power failure keeps.

A flush of a file makes durable what had been written to it when the flush began. Of everything else any part may
survive, in any order, cut at sectors of 512 bytes; where several survivors meet, the newest one counts. Names are
durable when the directory was flushed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

import numpy as np
from numpy.typing import NDArray

from gpkvs.recovery.proof.diskfail.recorder import Event, Kind

SECTOR = 512
_PAGE_SECTORS = 8
Mask = NDArray[np.bool_]


class Unit:
    """A change that is not durable yet; a crash keeps some of its parts.

    Attributes
    ----------
    issued
        Its place among all changes.
    parts
        Sectors of a write; 1 for others.
    """

    parts = 1

    def __init__(self, issued: int, file: int) -> None:
        self.issued = issued
        self.file = file
        self.has_ended = True


class Write(Unit):
    """Bytes written to a file."""

    def __init__(self, issued: int, file: int, at: int, data: bytes) -> None:
        super().__init__(issued, file)
        self.at = at
        self.data = np.frombuffer(data, np.uint8)
        self.parts = -(-(at + len(data)) // SECTOR) - at // SECTOR if data else 0
        self.has_ended = False

    def runs(self, kept: Mask) -> Iterable[tuple[int, int]]:
        """Return the byte ranges of the file that survive."""
        edges = np.flatnonzero(np.diff(kept, prepend=False, append=False)).reshape(-1, 2)
        first = self.at // SECTOR
        for start, stop in edges.tolist():
            yield max((first + start) * SECTOR, self.at), min((first + stop) * SECTOR, self.at + len(self.data))

    def __str__(self) -> str:
        return f"write file {self.file} at {self.at} +{len(self.data)}"


class Size(Unit):
    """The size of a file."""

    def __init__(self, issued: int, file: int, size: int) -> None:
        super().__init__(issued, file)
        self.size = size

    def __str__(self) -> str:
        return f"size file {self.file} {self.size}"


class Names(Unit):
    """Names in the directory, and the files that they lead to; 0 is none."""

    def __init__(self, issued: int, names: dict[str, int]) -> None:
        super().__init__(issued, 0)
        self.names = names

    def __str__(self) -> str:
        return f"names {self.names}"


class File:
    """What is durable of a file."""

    def __init__(self, data: NDArray[np.uint8] | None = None) -> None:
        self.data = np.zeros(0, np.uint8) if data is None else data
        self.issued = np.zeros(-(-len(self.data) // SECTOR), np.int64)  # by which change each sector is as it is
        self.size = len(self.data)

    def copy(self) -> File:
        """Return another one of the same contents."""
        other = File(self.data.copy())
        other.issued = self.issued.copy()
        other.size = self.size
        return other

    def _grow(self, size: int) -> None:
        size = -(-size // SECTOR) * SECTOR
        if size > len(self.data):
            room = max(size, 2 * len(self.data))
            self.data = np.concatenate([self.data, np.zeros(room - len(self.data), np.uint8)])
            grown = -(-room // SECTOR) - len(self.issued)
            self.issued = np.concatenate([self.issued, np.zeros(grown, np.int64)])

    def resize(self, size: int) -> None:
        """Change the size; what is new is zero."""
        self._grow(size)
        self.size = size

    def store(self, write: Write, kept: Mask) -> None:
        """Store the sectors of a write that survive, where nothing newer is."""
        if not kept.any():
            return
        self._grow(write.at + len(write.data))
        first = write.at // SECTOR
        newer = self.issued[first : first + write.parts] > write.issued
        kept = kept & ~newer
        for start, stop in write.runs(kept):
            self.data[start:stop] = write.data[start - write.at : stop - write.at]
            self.size = max(self.size, stop)
        self.issued[first : first + write.parts][kept] = write.issued

    @property
    def contents(self) -> NDArray[np.uint8]:
        """All bytes of the file."""
        self._grow(self.size)
        return self.data[: self.size]


State = dict[str, NDArray[np.uint8]]  # the files of a directory, by name


class Choice(dict[int, Mask]):
    """What survives of each unit, by its number.

    Attributes
    ----------
    torn
        The units and the part of each that survives by half: a disk that promises less than whole sectors.
    """

    torn: dict[int, int]

    def __init__(self, kept: dict[int, Mask] | None = None) -> None:
        super().__init__(kept or {})
        self.torn = {}

    def tear(self, number: int, part: int) -> None:
        """Keep a part of a write by half."""
        self[number][part] = True
        self.torn[number] = part


@dataclass
class Disk:
    """A disk at one point of a trace."""

    files: dict[int, File] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)  # durable ones
    pending: list[Unit] = field(default_factory=list)
    by_inode: dict[int, int] = field(default_factory=dict)
    _open: dict[int, Write] = field(default_factory=dict)  # writes under way, by id
    _flushes: dict[int, list[Unit]] = field(default_factory=dict)  # what each covers
    _issued: int = 0

    @staticmethod
    def of(state: State) -> Disk:
        """Return a disk on which a state is durable."""
        disk = Disk()
        for number, (name, data) in enumerate(state.items(), 1):
            disk.files[number] = File(data.copy())
            disk.names[name] = number
        return disk

    @staticmethod
    def of_copy(state: State) -> Disk:
        """Return a disk to which a state was copied, and nothing was flushed."""
        disk = Disk()
        for number, (name, data) in enumerate(state.items(), 1):
            disk.files[number] = File()
            write = Write(0, number, 0, data.tobytes())
            write.has_ended = True
            disk.pending += [Names(0, {name: number}), Size(0, number, len(data)), write]
        return disk

    def attach(self, inodes: dict[str, int]) -> None:
        """Say which inodes the files have in the trace to come, by their newest names."""
        names = self._names(True)
        self.by_inode = {inodes[name]: number for name, number in names.items()}
        self._open.clear()
        self._flushes.clear()
        for unit in self.pending:
            unit.has_ended = True

    def apply(self, event: Event) -> None:
        """Take an event of the trace into account."""
        kind, file = event.kind, self.by_inode.get(event.inode, 0)
        self._issued += 1
        if kind is Kind.WRITE:
            self._open[event.id] = write = Write(self._issued, file, event.at, event.data)
            self.pending.append(write)
        elif kind is Kind.WRITE_END:
            self._open.pop(event.id).has_ended = True
        elif kind is Kind.SIZE:
            self.pending.append(Size(self._issued, file, event.amount))
        elif kind is Kind.CREATE:
            number = self.by_inode[event.inode] = len(self.files) + 1
            self.files[number] = File()
            self.pending.append(Names(self._issued, {event.names[0]: number}))
        elif kind is Kind.RENAME:
            self.pending.append(Names(self._issued, {event.names[0]: 0, event.names[1]: file}))
        elif kind is Kind.UNLINK:
            self.pending.append(Names(self._issued, {event.names[0]: 0}))
        elif kind is Kind.FLUSH:
            covered = [unit for unit in self.pending if unit.file == file and unit.has_ended]
            self._flushes[event.id] = [unit for unit in covered if not isinstance(unit, Names)]
        elif kind is Kind.NAMES_FLUSH:
            self._flushes[event.id] = [unit for unit in self.pending if isinstance(unit, Names)]
        elif kind in (Kind.FLUSH_END, Kind.NAMES_FLUSH_END):
            self._settle(self._flushes.pop(event.id))

    def _settle(self, covered: list[Unit]) -> None:
        done = {id(unit) for unit in covered}
        still = {id(unit) for unit in self.pending}
        for unit in covered:
            if id(unit) in still:  # else another flush made it durable
                self._keep(self.files, self.names, unit, np.ones(unit.parts, np.bool_))
        self.pending = [unit for unit in self.pending if id(unit) not in done]

    @staticmethod
    def _keep(files: dict[int, File], names: dict[str, int], unit: Unit, kept: Mask) -> None:
        if isinstance(unit, Write):
            files[unit.file].store(unit, kept)
        elif isinstance(unit, Size) and kept.all():
            files[unit.file].resize(unit.size)
        elif isinstance(unit, Names) and kept.all():
            for name, number in unit.names.items():
                if number:
                    names[name] = number
                else:
                    names.pop(name, None)

    def _names(self, kept: Choice | bool) -> dict[str, int]:
        names = dict(self.names)
        for number, unit in enumerate(self.pending):
            if isinstance(unit, Names) and (kept is True or (kept is not False and kept[number].all())):
                self._keep({}, names, unit, np.ones(1, np.bool_))
        return names

    def state(self, choice: Choice) -> State:
        """Return what a crash leaves that keeps a choice of what is not durable."""
        names = self._names(choice)
        touched = {unit.file for number, unit in enumerate(self.pending) if unit.file and choice[number].any()}
        files = {
            number: self.files[number].copy() if number in touched else self.files[number] for number in self.files
        }
        for number, unit in enumerate(self.pending):
            if number in choice.torn and isinstance(unit, Write):
                self._tear(files[unit.file], unit, choice[number], choice.torn[number])
            elif unit.file:
                self._keep(files, {}, unit, choice[number])
        return {name: files[number].contents for name, number in names.items()}

    @staticmethod
    def _tear(file: File, write: Write, kept: Mask, part: int) -> None:
        """Store what survives of a write; one of its sectors by half."""
        middle = (write.at // SECTOR + part) * SECTOR + SECTOR // 2
        before = file.data[middle : middle + SECTOR // 2].copy()
        file.store(write, kept)
        file.data[middle : middle + len(before)] = before

    def everything(self) -> Choice:
        """Return the choice of a kill: nothing is lost."""
        return Choice({number: np.ones(unit.parts, np.bool_) for number, unit in enumerate(self.pending)})

    def nothing(self) -> Choice:
        """Return the choice that loses all that is not durable."""
        return Choice({number: np.zeros(unit.parts, np.bool_) for number, unit in enumerate(self.pending)})

    def systematic(self, units_max: int = 24) -> list[Choice]:
        """Return the extremes; all of one file, or of all but one; each of the newest units lost alone, or kept alone.

        Of a write of several pages also its second half is lost alone. And there is a choice in which all writes of
        small files, which roots and indexes are, lose half of their first sector.
        """
        chosen = [self.nothing(), self.everything()]
        files = {unit.file for unit in self.pending}
        for file in sorted(files) if len(files) > 1 else ():
            chosen += [self._of_files({file}), self._of_files(files - {file})]
        for number in range(max(0, len(self.pending) - units_max), len(self.pending)):
            for choice, keeps in ((self.everything(), False), (self.nothing(), True)):
                choice[number][:] = keeps
                chosen.append(choice)
            if self.pending[number].parts > _PAGE_SECTORS:
                half = self.everything()
                half[number][self.pending[number].parts // 2 :] = False
                chosen.append(half)
        torn = self.everything()
        for number in self._small_writes():
            torn.tear(number, 0)
        return [*chosen, torn] if torn.torn else chosen

    def choices(self, random: Random, count: int) -> list[Choice]:
        """Return the extremes, and random choices."""
        if not self.pending:
            return [Choice()]
        chosen = [self.nothing(), self.everything()] if random.random() < 0.5 else []
        files = {unit.file for unit in self.pending}
        if len(files) > 1:
            some = random.choice(sorted(files))
            chosen += [self._of_files({some}), self._of_files(files - {some})]
        makers = (self._one, self._one, self._by_unit, self._by_unit, self._by_sector, self._mixed, self._torn)
        while len(chosen) < count:
            chosen.append(random.choice(makers)(random))
        return chosen[:count]

    def _one(self, random: Random) -> Choice:
        """All but one sector, or but one unit; or only it."""
        is_lost = random.random() < 0.6
        choice = self.everything() if is_lost else self.nothing()
        number = self._any(random)
        parts = self.pending[number].parts
        if random.random() < 0.5 or not parts:
            choice[number][:] = not is_lost
        else:
            choice[number][random.randrange(parts)] = not is_lost
        return choice

    def _any(self, random: Random) -> int:
        """Choose a unit; the newest ones more often."""
        last = len(self.pending) - 1
        return random.randint(0, last) if random.random() < 0.5 else random.randint(max(0, last - 4), last)

    def _by_unit(self, random: Random) -> Choice:
        share = random.choice((0.1, 0.5, 0.9))
        return Choice(
            {number: np.full(unit.parts, random.random() < share) for number, unit in enumerate(self.pending)}
        )

    def _by_sector(self, random: Random) -> Choice:
        share, numbers = random.choice((0.1, 0.5, 0.9, 0.99)), np.random.default_rng(random.randrange(1 << 32))
        return Choice({number: numbers.random(unit.parts) < share for number, unit in enumerate(self.pending)})

    def _mixed(self, random: Random) -> Choice:
        some = self._by_sector(random)
        masks = {
            number: random.choice((mask, np.ones_like(mask), np.zeros_like(mask))) for number, mask in some.items()
        }
        return Choice(masks)

    def _torn(self, random: Random) -> Choice:
        """Keep one sector or two by half; most often of small files, which roots and indexes are."""
        choice = random.choice((self._by_unit, self._mixed))(random)
        writes, small = self._writes(), self._small_writes()
        some = small if small and random.random() < 0.8 else writes
        for number in random.sample(some, min(len(some), random.choice((1, 1, 2)))):
            choice.tear(number, random.randrange(self.pending[number].parts))
        return choice

    def _writes(self) -> list[int]:
        return [number for number, unit in enumerate(self.pending) if isinstance(unit, Write) and unit.parts]

    def _small_writes(self) -> list[int]:
        return [number for number in self._writes() if self.files[self.pending[number].file].size < 1 << 20]

    def _of_files(self, kept: set[int]) -> Choice:
        """Keep all of some files, and nothing of the others; file 0 is the names."""
        return Choice({number: np.full(unit.parts, unit.file in kept) for number, unit in enumerate(self.pending)})
