"""The bytes of a store with an undo log in chunks, and what recovery makes of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.models.memory import RefusedError, Steps, finish
from tests.models.memory import digest as digest_of
from tests.models.tables import WAYS, Catalogue, Growth, Slot, Tables, adopt

PLACES = 6  # of the markers of a processor in a half
HEAP_STEP = 6  # cells
LOG_STEP = 12  # words of both halves
IDLE, ACTIVE = "IDLE", "ACTIVE"


class Root(NamedTuple):
    """What a store is."""

    sequence: int
    incarnation: int
    tables: Catalogue
    next_table: int
    heap: int
    log: int


class Descriptor(NamedTuple):
    """What recovery must know of a batch."""

    epoch: int
    sequence: int
    growth: Growth | None


class Marker(NamedTuple):
    """Says that the entries of a chunk are durable: short ones, then full ones."""

    epoch: int
    table: int
    generation: int
    first: int
    shorts: int
    fulls: int
    digest: int

    @property
    def words(self) -> int:
        """What its entries take of the log."""
        return 2 * self.shorts + 3 * self.fulls


MARKER_WORDS = len(Marker._fields) + 1


class UndoMedia(Tables):
    """A store with an undo log, as it lies on media. See `Tables`."""

    adopted: Growth | None
    counted: list[int]

    def __init__(self, seed: int, wrong: str, reached: Counter[str]) -> None:
        super().__init__(seed, wrong, reached)
        self.root = Root(1, 1, self.tables, 3, HEAP_STEP, LOG_STEP)
        memory = self.memory
        for copy in (0, 1):
            finish(memory.store_structure("make", ("root", copy), self.root))
        finish(memory.store_structure("make", ("d", 0), Descriptor(0, 0, None)))
        memory.store("make", ("flag",), (IDLE, 0))
        memory.store("make", ("size", "heap"), self.root.heap)
        memory.store("make", ("size", "log"), self.root.log)
        memory.fence("make")

    def load_root(self) -> Root:
        """Return the newest copy of the root that is whole."""
        words = [self.memory.load_structure(("root", copy), len(Root._fields)) for copy in (0, 1)]
        whole = [Root(*copy) for copy in words if copy]
        if not whole:
            raise RefusedError("no whole root")
        return max(whole)

    def take_root(self, root: Root) -> None:
        """Take what a root says."""
        self.root, self.tables = root, root.tables

    @property
    def named_tables(self) -> tuple[Catalogue, int]:
        """What the catalogue says."""
        return self.root.tables, self.root.next_table

    @property
    def sequence(self) -> int:
        """The number of the state that recovery left."""
        _, epoch = self.memory.load(("flag",))
        return next(descriptor.sequence for _, descriptor in self.descriptors() if descriptor.epoch == epoch)

    def descriptors(self) -> Iterator[tuple[int, Descriptor]]:
        """Return the whole descriptors, with their places."""
        for place in (0, 1):
            words = self.memory.load_structure(("d", place), len(Descriptor._fields))
            if words:
                yield place, Descriptor(*words)

    def slot(self, table: int, number: int) -> Slot:
        """Return a slot as programs see it."""
        return self.memory.load(("t", table, number, 0)), self.memory.load(("t", table, number, 1))

    def store_slot(self, actor: str, table: int, number: int, slot: Slot) -> Steps:
        """Store a slot, word by word."""
        for word in self.random.sample((0, 1), 2):
            self.memory.store(actor, ("t", table, number, word), slot[word])
            yield

    def digest_of(self, marker: Marker, words: list[Any]) -> int:
        """Return the digest of a chunk: its epoch makes entries of another one wrong."""
        return digest_of(marker.epoch, *words)

    def checksum_of(self, place: tuple[int, int, int], marker: Marker) -> int:
        """Return the checksum of a marker."""
        if self.wrong == "table_outside_checksum":
            marker = marker._replace(table=0, generation=0)
        return digest_of(*place, *marker)

    # Recovery.

    def recover(self) -> None:
        """See `Tables.recover`: the batch in progress is undone."""
        memory, wrong = self.memory, self.wrong
        self.take_root(self.load_root())
        flag = memory.load(("flag",))
        if not isinstance(flag, tuple):
            raise RefusedError("the flag is damaged")
        state, epoch = flag
        found = {descriptor.epoch: descriptor for _, descriptor in self.descriptors()}
        older = [descriptor for descriptor in found.values() if descriptor.epoch < epoch]
        if wrong != "descriptor_before_idle" and epoch not in found:
            raise RefusedError("no descriptor is the flag's")
        if state == ACTIVE and not older:
            raise RefusedError("no older descriptor")
        current = found[epoch] if state == IDLE else max(older)
        self.adopted = self.growth = adopt(*self.named_tables, current.growth)
        for file in ("heap", "log"):
            if memory.load(("size", file)) < getattr(self.root, file):
                raise RefusedError(f"the file {file} is too short")
        if wrong == "counted_before_undo":
            self.counted = self.count_free(self.root.heap)
        if state == ACTIVE:
            self._undo(epoch, found.get(epoch, current))
            if wrong == "growth_of_undone":
                self.adopted = self.growth = adopt(*self.named_tables, found[epoch].growth)
            if wrong != "recovery_idle_early":
                memory.fence("recover")
            memory.store("recover", ("flag",), (IDLE, current.epoch))
            memory.fence("recover")
        self._check_references()

    def _check_references(self) -> None:
        for entry in self.tables:
            for _, _, cell in self.live_slots(entry):
                if entry.has_rows and (cell is None or cell >= self.root.heap):
                    raise RefusedError("a slot refers to what is not the heap's")

    def _undo(self, epoch: int, descriptor: Descriptor) -> None:
        """Store the old words of all chunks that have a marker, after all of them are found whole."""
        chunks = self._find_chunks(epoch, descriptor)
        for marker, words in chunks:
            table = self.tables[0].table if self.wrong == "table_not_in_marker" else marker.table
            short_words = 2 * marker.shorts
            for at in range(0, short_words, 2):
                self.memory.store("recover", ("t", table, words[at], 1), words[at + 1])
            for at in range(short_words, len(words), 3):
                self.memory.store("recover", ("t", table, words[at], 0), words[at + 1])
                self.memory.store("recover", ("t", table, words[at], 1), words[at + 2])
        self._note_undo([marker for marker, _ in chunks], descriptor)

    def _note_undo(self, markers: list[Marker], descriptor: Descriptor) -> None:
        reached = self.reached
        reached["a batch undone"] += bool(markers)
        reached["a batch of several tables undone"] += len({marker.table for marker in markers}) > 1
        reached["a batch undone while a table grows"] += bool(markers) and descriptor.growth is not None

    def _find_chunks(self, epoch: int, descriptor: Descriptor) -> list[tuple[Marker, list[Any]]]:
        chunks = []
        for half in (0, 1):
            found = [self._find_markers(half, processor, epoch) for processor in (0, 1)]
            for marker in [*found[0], *found[1]]:
                words = self._load_entries(half, marker, descriptor)
                if words is not None:
                    chunks.append((marker, words))
            self.reached["processors out of step at a crash"] += len(found[0]) != len(found[1]) and all(found)
        return chunks

    def _find_markers(self, half: int, processor: int, epoch: int) -> list[Marker]:
        """Return the markers of a processor, which has marked its chunks in order."""
        found = [self._load_marker((half, processor, number), epoch) for number in range(2 * PLACES)]
        whole = [marker for marker in found if marker]
        is_strict = self.wrong not in ("epoch_not_compared", "marker_without_crc")
        if is_strict and None in found[: len(whole)]:
            raise RefusedError("a marker is missing before a whole one")
        return whole

    def _load_marker(self, place: tuple[int, int, int], epoch: int) -> Marker | None:
        for copy in (0, 1):
            words = [self.memory.load(("m", copy, *place, number)) for number in range(MARKER_WORDS)]
            if None in words:
                continue
            marker = Marker(*words[:-1])
            if words[-1] != self.checksum_of(place, marker) and self.wrong != "marker_without_crc":
                continue
            if self.wrong == "table_checked_before_epoch" and self.entry(marker.table) is None:
                raise RefusedError("a marker names no table")
            if marker.epoch == epoch or self.wrong == "epoch_not_compared":
                return marker
            if self.entry(marker.table) is None:
                self.reached["recovery met a marker of a table that was dropped"] += 1
        return None

    def _load_entries(self, half: int, marker: Marker, descriptor: Descriptor) -> list[Any] | None:
        """Return the words of a chunk, which must be whole, and possible."""
        is_strict = self.wrong != "marker_without_crc"
        entry = self.entry(marker.table)
        count = marker.words
        half_words = self.root.log // 2
        is_inside = half * half_words <= marker.first and marker.first + count <= (half + 1) * half_words
        if entry is None or entry.generation != marker.generation or not is_inside:
            if not is_strict:
                return None
            raise RefusedError("a marker cannot be")
        words = [self.memory.load(("e", marker.first + at)) for at in range(count)]
        if marker.digest != self.digest_of(marker, words) and self.wrong != "entries_not_verified":
            if not is_strict:
                return None
            raise RefusedError("the entries of a marker are damaged")
        numbers = [*words[0 : 2 * marker.shorts : 2], *words[2 * marker.shorts :: 3]]
        grows = descriptor.growth is not None and descriptor.growth.table == marker.table
        if any(not isinstance(n, int) or n >= entry.blocks * WAYS * (2 if grows else 1) for n in numbers):
            raise RefusedError("an entry names no slot")
        return words

    # A crash.

    def crash(self) -> None:
        """See `Tables.crash`."""
        self.memory.crash()
        state, epoch = self.memory.media["flag",]
        epochs: dict[int, set[int]] = {0: set(), 1: set()}
        for at, word in self.memory.media.items():
            if at[0] == "m" and at[-1] == 0 and word is not None and self._is_whole(at):
                epochs[at[2]].add(word)
        self._note_crash(state, epoch, epochs)

    def marked_words(self) -> set[tuple[Any, ...]]:
        """Return the words of markers and entries that say how an ACTIVE batch is undone."""
        state, epoch = self.memory.media["flag",]
        words: set[tuple[Any, ...]] = set()
        for at, word in self.memory.media.items():
            if state == ACTIVE and at[0] == "m" and at[-1] == 0 and word == epoch and self._is_whole(at):
                of_marker = [(*at[:-1], number) for number in range(MARKER_WORDS)]
                marker = Marker(*(self.memory.media[word] for word in of_marker[:-1]))
                words.update(of_marker)
                words.update(("e", marker.first + n) for n in range(marker.words))
        return words

    def _is_whole(self, at: tuple[Any, ...]) -> bool:
        words = [self.memory.media.get((*at[:-1], number)) for number in range(MARKER_WORDS)]
        return None not in words and words[-1] == self.checksum_of(at[2:5], Marker(*words[:-1]))

    def _note_crash(self, state: str, epoch: int, epochs: dict[int, set[int]]) -> None:
        reached = self.reached
        both = sorted(epochs[0]), sorted(epochs[1])
        newest = [max(half, default=0) for half in both]
        if state == ACTIVE:
            reached["crash under ACTIVE"] += 1
            if epoch in newest and max(newest) > epoch:
                reached["crash between the markers of two halves"] += 1
            if epoch not in newest and max(newest) > epoch:
                reached["crash under ACTIVE with markers of the next batch only"] += 1
        elif max(newest) > epoch:
            reached["crash under IDLE with markers of the next batch"] += 1
        if self.busy:
            reached[f"crash in: {self.busy}"] += 1
            if self.busy in ("growth", "block 0", "end of growth", "growth of the log") and max(newest):
                reached[f"crash in: {self.busy}, with markers of batches before it"] += 1

    def rot(self) -> None:
        """See `Tables.rot`: most of the time, the log of a batch in progress is hit."""
        media, random = self.memory.media, self.random
        kind = random.choice(("m", "m", "e", "e", "d", "root", "flag"))
        places = [at for at in media if at[0] == kind]
        if random.random() < 0.7:
            marked = self.marked_words()
            places = [at for at in places if at[0] not in ("m", "e") or at in marked] or places
        if not places:
            return
        at = random.choice(places)
        is_page, mask = random.random() < 0.4, random.choice((1, 2, 3, 1 << 30))
        for other in places:
            if other == at or (is_page and self._page_of(other) == self._page_of(at)):
                media[other] = media[other] ^ mask if isinstance(media[other], int) else mask
        self.memory.view = dict(media)

    def _page_of(self, at: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return in which page a word lies: the copies of a structure never lie in one."""
        if self.wrong == "copies_side_by_side" and at[0] == "m":
            return at[2:4]
        return (at[1] // 4,) if at[0] == "e" else at[1:2]
