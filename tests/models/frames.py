"""Two batches in flight in a store with a journal: a model with crashes at any store.

``python -m tests.models.runs frames 20000 right right+rot`` tries the rules, `wrong` each of them broken (`WRONG`).

Memory, tables and promises are those of ``chunks.py``. The journal is a ring of pages. The file with journal and rows
is durable up to where it was flushed; a crash keeps any part of what was written later. Growth of the ring is not in
the model, and rot only of what a later frame calls durable: what none covers cannot be told from what never came.
W1 to W7 (docs/design.md) hold as ever. What two in flight add:

J1   There is no undo log, so there are no markers: a frame counts whole, or not at all. Its entries may cross the link
     in chunks. The writer gets it when all of its entries and rows are written.
J2   Batch n + 1 is planned on the mirror while n is committed. Frames are appended in the order of plans, one at a
     time. The images have all slots of n before n + 1 is appended; they get none before the frame has begun.
J3   An epoch is given when its frame is appended, not with the plan: an empty frame may come between. So the gate of a
     result, also of one that only reads, is taken when its turn comes: when all that was planned before is appended.
     With a plan ahead, the newest epoch begun does not cover what the plan saw.
J4   What may refuse a frame (its size, memory for it and for what it frees) is asked before the plan is accepted. Room
     in the ring is waited for, after that.
J5   Checkpoints and their changes of the root run beside the flight, and never wait until it is empty: a batch in it
     may wait for their space. They copy the images, never the mirror, which is ahead. c is the newest batch whose slots
     all are in the images. Space before c is used again when both root copies say c.
J6   The checkpoint's thread appends an empty frame only if there is room, which it looks at while nobody else appends.
     An opening that finds the ring full writes a checkpoint before its first frame.
J7   What a batch frees is given to plans made after a durable frame has called that batch durable (W6).
J8   Growth, tables made and dropped, and batches of the host begin when the images have the slots of all plans; frames
     may be on their way. The catalogue of twice the blocks waits for the flush of the frame that says m = 0 (W7).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.models.memory import RefusedError, Steps, WrongError, digest, finish, run_actors
from tests.models.tables import BLOCKS_MAX, EMPTY, TABLES_MAX, WAYS, Catalogue, Entry, Growth, Plan, Slot, Tables, adopt

# What breaks which rule.
WRONG = {
    "J1": ["frame_before_entries", "rows_after_frame"],
    "J2": ["commit_out_of_turn", "image_before_begin"],
    "J3": ["gate_at_plan", "numbers_at_plan", "ack_before_flush"],
    "J4": ["refused_after_plan", "ring_overrun"],
    "J5": [
        *("checkpoint_waits_for_flight", "checkpoint_copies_mirror", "checkpoint_names_begun"),
        "ring_reused_before_root",
    ],
    "J6": ["empty_frame_in_full_journal", "opening_in_full_journal"],
    "J7": ["cells_free_at_flush", "cells_free_at_end"],
    "J8": [
        *("growth_in_flight", "plan_kept_over_growth", "catalogue_before_flush", "fill_left_out"),
        *("table_used_before_root", "host_batch_untold"),
    ],
}
HARMLESS: list[str] = []

CELLS = 10
RING = 12  # pages
PAGE_ENTRIES = 3
FRAME_PAGES_MAX = 4


class Redo(NamedTuple):
    """What a slot holds from here on; or blocks of a table that become empty."""

    table: int
    slot: int
    new: Slot
    cell: int | None = None  # of a row that the batch wrote
    empty: tuple[int, int] | None = None


class Head(NamedTuple):
    """The first words of a frame."""

    position: int
    incarnation: int  # without it, an empty frame written again would lead to frames of a life that was cut
    previous: int  # the digest of the frame before
    durable: int  # the newest epoch that was durable when the batch began
    pages: int
    epoch: int
    sequence: int
    growth: Growth | None
    entries: int  # a digest
    rows: int  # a digest


@dataclass(frozen=True)
class Written:
    """What the next frame and a checkpoint must know of a batch."""

    epoch: int
    sequence: int
    growth: Growth | None
    position: int  # the page after its frame
    digest: int


class Root(NamedTuple):
    """What a store is."""

    sequence: int
    incarnation: int
    tables: Catalogue
    next_table: int
    checkpoint: Written
    recovered: int  # the epoch that the last opening found


@dataclass
class Batch:
    """A batch that nothing but the end of the process can stop."""

    number: int
    sequence: int
    plan: Plan
    gate: int = 0  # as it was guessed when it was planned


FIRST = Written(0, 0, None, 0, 0)


class Store(Tables):
    """A store with a journal, and its programs. See `Tables`."""

    def __init__(self, seed: int, wrong: str, reached: Counter[str]) -> None:
        super().__init__(seed, wrong, reached)
        self.root = Root(1, 1, self.tables, 3, FIRST, 0)
        self.image: dict[int, list[Slot]] = {}
        self.last = FIRST
        for copy in (0, 1):
            finish(self.memory.store_structure("make", ("root", copy), self.root))
        self.memory.fence("make")

    @property
    def sequence(self) -> int:
        """See `Tables.sequence`."""
        return self.last.sequence

    def slot(self, table: int, number: int) -> Slot:
        """Return a slot of an image."""
        slots = self.image[table]
        return slots[number] if number < len(slots) else EMPTY

    # A life.

    def live(self, actions: int) -> None:
        """See `Tables.live`."""
        self.ended = self.last
        self.begun = self.durable = self.last.epoch
        self.freed_to = self.root.checkpoint.position
        self.marks = {(table, block): 0 for table, slots in self.image.items() for block in range(len(slots) // WAYS)}
        self.copied: dict[tuple[int, int], int] = {}
        self.names: list[tuple[int, int]] = []  # of frames: epoch, what they call durable
        self.waiting: list[tuple[int, list[int]]] = []  # cells that epochs freed
        self.queue: list[tuple[Head, list[list[Redo]]]] = []
        self.planned = self.appended = self.done = 0  # batches: planned, with an epoch, with all slots stored
        self.late: list[Any] = []
        self.is_appending = self.is_changing = self.is_full = self.has_ended = False
        self.mirror = self.read_slots()
        self.free = self.count_free(CELLS)
        run_actors(self.random, self._begin(actions))

    def _begin(self, actions: int) -> Steps:
        """Begin an opening: the first frame is durable before anything is served."""
        yield self.write_frames()
        if self.last.position - self.freed_to == RING and self.wrong != "opening_in_full_journal":
            self.reached["an opening with a full journal"] += 1
            yield from self.write_checkpoint()
        yield from self.commit_nothing()
        yield lambda: self.durable == self.begun
        yield self.write_checkpoints()
        yield from self.plan_batches(actions)
        yield lambda: self.done == self.planned and self.durable == self.begun
        self.has_ended = True

    @property
    def covered(self) -> int:
        """The newest epoch that a durable frame calls durable."""
        return max((named for epoch, named in self.names if epoch <= self.durable), default=0)

    def land(self, *relaxed: str) -> Steps:
        """Wait until nothing is in flight: all slots of all plans are stored to the images."""
        if self.wrong not in relaxed:
            yield lambda: self.done == self.planned

    def plan_batches(self, actions: int) -> Steps:
        """Be the launching thread: plan one batch ahead of the one that is committed."""
        for _ in range(actions):
            yield lambda: self.planned - self.done < 2
            what = self.random.random()
            if what < 0.6:
                yield from self.run_batch()
            elif what < 0.7:
                yield self.read(len(self.states) - 1)
            elif what < 0.77:
                yield from self.run_host_batch()
            elif what < 0.9:
                yield from self.grow_table()
            elif what < 0.95:
                yield from self.create_table()
            else:
                yield from self.drop_table()

    def run_batch(self) -> Steps:
        """Plan a batch on the mirror."""
        plan = self.plan(self.mirror, self.choose())
        if not plan.after or self.pages_of(len(plan.after)) > FRAME_PAGES_MAX:
            return
        if self.random.random() < 0.1:  # no memory for its frame, or for what it frees
            if self.wrong == "refused_after_plan":
                self.mirror, self.free = plan.slots, plan.free
            return
        if self.wrong == "plan_kept_over_growth" and self.random.random() < 0.5:
            yield from self.grow_table()
            if any(len(plan.slots[table]) > len(self.mirror.get(table, [])) for table in plan.slots):
                return
            plan.slots = {t: plan.slots[t] + slots[len(plan.slots[t]) :] for t, slots in self.mirror.items()}
        yield self.commit(self.accept(plan))

    def run_host_batch(self) -> Steps:
        """Have the host's threads plan a batch on the images, and tell the mirror."""
        yield from self.land()
        plan = self.plan(self.read_slots(), self.choose())
        if not plan.after or self.pages_of(len(plan.after)) > FRAME_PAGES_MAX:
            return
        mirror = self.mirror
        yield self.commit(self.accept(plan))
        if self.wrong == "host_batch_untold":
            self.mirror = mirror
        yield from self.land()

    def accept(self, plan: Plan) -> Batch:
        """Take a plan into account: from here on it commits, or the process ends."""
        self.planned += 1
        self.states.append(plan.state)
        self.mirror, self.free = plan.slots, plan.free
        if self.planned - self.done == 2:
            self.reached["planned beside a commit"] += 1
        return Batch(self.planned, len(self.states) - 1, plan, self.begun + self.planned - self.appended)

    @staticmethod
    def pages_of(entries: int) -> int:
        """Return the pages of a frame."""
        return max(1, -(-entries // PAGE_ENTRIES))

    # Frames.

    def commit(self, batch: Batch) -> Steps:
        """Append a batch's frame when its turn comes, then store its slots to the images."""
        wrong = self.wrong
        if wrong != "commit_out_of_turn":
            yield lambda: self.done == batch.number - 1
        yield lambda: not self.is_appending
        self.is_appending = True
        plan = batch.plan
        if wrong == "image_before_begin":
            yield from self.store_image(plan, self.last.epoch + 1)
        have_rows = {entry.table for entry in self.tables if entry.has_rows}
        redo = [
            Redo(table, slot, new, new[1] if table in have_rows and new[1] in plan.rows else None)
            for (table, slot), new in plan.after.items()
        ]
        yield from self.append(redo, batch.sequence, self.growth, plan)
        if wrong != "image_before_begin":
            yield from self.store_image(plan, self.last.epoch)
        self.end()
        if plan.freed:
            self.waiting.append((self.last.epoch, plan.freed))
        self.release()
        self.done = batch.number
        gate = batch.gate if wrong == "numbers_at_plan" else self.last.epoch
        yield self.acknowledge(batch, gate)

    def acknowledge(self, batch: Batch, gate: int) -> Steps:
        """Tell the client that a batch is durable."""
        if self.wrong != "ack_before_flush":
            yield lambda: self.durable >= gate
        self.acked = max(self.acked, batch.sequence)
        self.revealed = max(self.revealed, batch.sequence)
        yield

    def read(self, seen: int) -> Steps:
        """Be a batch that only reads: it saw all that is planned."""
        number, gate = self.planned, self.begun
        if self.done < number:
            self.reached["read beside a commit"] += 1
        if self.wrong != "gate_at_plan":
            yield lambda: self.done >= number  # its turn
            gate = self.begun
        yield lambda: self.durable >= gate
        self.revealed = max(self.revealed, seen)
        yield

    def append(self, redo: list[Redo], sequence: int, growth: Growth | None, plan: Plan | None = None) -> Steps:
        """Append a frame: room, rows, entries; then the writer has it."""
        pages, before, wrong = self.pages_of(len(redo)), self.last, self.wrong
        if before.position + pages - self.freed_to > RING:
            self.reached["a full journal"] += 1
            if self.planned - self.done == 2:
                self.reached["a full journal with two in flight"] += 1
            self.is_full = True
        if wrong != "ring_overrun":
            yield lambda: before.position + pages - self.freed_to <= RING
        self.is_full = False
        rows = plan.rows if plan else {}
        if wrong != "rows_after_frame":
            yield from self.store_rows(rows)
        durable = self.durable
        parts = [redo[at : at + PAGE_ENTRIES] for at in range(0, len(redo), PAGE_ENTRIES)] or [[]]
        digests = digest(parts), digest(sorted(rows.items()))
        life = self.root.incarnation
        head = Head(before.position, life, before.digest, durable, pages, before.epoch + 1, sequence, growth, *digests)
        if wrong != "checkpoint_names_begun":
            self.begun = head.epoch
        self.appended += plan is not None
        yield
        self.last = Written(head.epoch, sequence, growth, before.position + pages, digest(*head))
        self.begun = head.epoch
        if wrong == "checkpoint_names_begun":
            self.ended = self.last
        self.names.append((head.epoch, durable))
        self.queue.append((head, parts))
        yield
        if wrong == "rows_after_frame":
            yield from self.store_rows(rows)

    def store_rows(self, rows: dict[int, tuple[int, int]]) -> Steps:
        """Write rows to the heap, which is in the journal's file."""
        for cell, row in rows.items():
            for word in (0, 1):
                self.memory.store("data", ("row", cell, word), row[word])
                yield

    def store_image(self, plan: Plan, epoch: int) -> Steps:
        """Store slots to the images; a page's mark is there first."""
        for (table, slot), new in plan.after.items():
            if table not in self.image:
                raise WrongError("lost: a table was dropped under a batch")
            self.marks[table, slot // WAYS] = epoch
            self.image[table][slot] = new
            yield

    def end(self) -> None:
        """All slots of the last batch are stored."""
        self.ended = self.last
        self.is_appending = False

    def release(self) -> None:
        """Free the cells whose epochs a durable frame calls durable."""
        upto = {"cells_free_at_flush": self.durable, "cells_free_at_end": self.last.epoch}.get(self.wrong, self.covered)
        for epoch, cells in [*self.waiting]:
            if epoch <= upto:
                self.free = self.free + cells
                self.waiting.remove((epoch, cells))

    def commit_nothing(self) -> Steps:
        """Append an empty frame."""
        yield lambda: not self.is_appending
        yield from self.append_nothing()

    def append_nothing(self) -> Steps:
        """Append an empty frame; nobody else does."""
        self.is_appending = True
        yield from self.append([], self.last.sequence, self.growth)
        self.end()

    def write_frames(self) -> Steps:
        """Be the thread that writes all frames that wait, and flushes once."""
        while True:
            yield lambda: bool(self.queue) or (self.has_ended and not self.is_appending)
            if not self.queue:
                return
            for _ in range(self.random.choice((0, 0, 0, 80))):  # the disk is slow
                yield
            frames, self.queue = self.queue, []
            if len(frames) > 1:
                self.reached["one flush for several frames"] += 1
            for head, parts in frames:
                for number, part in enumerate(parts):
                    at = ("f", (head.position + number) % RING)
                    words = (head if number == 0 else None, tuple(part))
                    if self.wrong == "frame_before_entries" and number:
                        self.late.append((at, words))
                        continue
                    yield from self.memory.store_structure("data", at, words)
            self.memory.fence("data")
            self.durable = frames[-1][0].epoch
            yield
            while self.late:
                yield from self.memory.store_structure("data", *self.late.pop())

    # Checkpoints.

    def write_checkpoints(self) -> Steps:
        """Be the thread that writes pages of the images to their files, and frees the journal's space."""
        while not self.has_ended:
            wake = self.last.epoch + self.random.randint(0, 3)
            yield lambda wake=wake: self.has_ended or self.is_full or self.last.epoch >= wake
            if self.has_ended:
                return
            has_room = self.last.position < self.freed_to + RING or self.wrong == "empty_frame_in_full_journal"
            if self.random.random() < 0.5 and not self.is_appending and has_room:
                if self.planned > self.done:
                    self.reached["an empty frame between two in flight"] += 1
                yield from self.append_nothing()
            else:
                yield from self.write_checkpoint()

    def write_checkpoint(self) -> Steps:
        """Write the dirty pages; then both root copies name the newest batch whose slots were all stored."""
        c = self.ended
        if self.wrong == "checkpoint_waits_for_flight":
            yield from self.land()
        for page in [*self.marks]:
            if page in self.marks and self.copied.get(page, -1) < self.marks[page]:
                yield from self._write_page(*page)
        yield lambda: self.durable >= c.epoch
        self.memory.fence("index")
        yield
        if self.wrong == "ring_reused_before_root":
            self.freed_to = c.position
        yield from self.change_root(checkpoint=c)
        self.freed_to = c.position

    def _write_page(self, table: int, block: int) -> Steps:
        # What others store to it from here on comes with the next checkpoint, even with the same mark.
        self.copied[table, block] = min(self.marks[table, block], self.ended.epoch)
        of = self.mirror if self.wrong == "checkpoint_copies_mirror" else self.image
        copy, begun = of[table][block * WAYS : (block + 1) * WAYS], self.begun
        yield lambda: self.durable >= begun
        for way, slot in enumerate(copy):
            for word in (0, 1):
                self.memory.store("index", ("t", table, block * WAYS + way, word), slot[word])
            yield

    def change_root(self, **fields: Any) -> Steps:
        """Store both copies of the root, one after the other: the older one first."""
        yield lambda: not self.is_changing
        self.is_changing = True
        root = self.root._replace(sequence=self.root.sequence + 1, **fields)
        words = [self.memory.load_structure(("root", copy), len(Root._fields)) for copy in (0, 1)]
        self.root, self.tables = root, root.tables
        first = 1 if words[0] and (not words[1] or words[1][0] < words[0][0]) else 0
        for copy in (first, 1 - first):
            yield from self.memory.store_structure("root", ("root", copy), root)
            self.memory.fence("root")
            yield
        self.is_changing = False

    # What begins when nothing is in flight.

    def grow_table(self) -> Steps:
        """Begin the growth of a table, do a step of it, or end it."""
        self.busy = "growth"
        yield from self.land("growth_in_flight")
        if self.growth is None:
            entry = self.random.choice(self.tables)
            if 2 * entry.blocks <= BLOCKS_MAX:
                self.growth = Growth(entry.table, entry.blocks, entry.blocks)
                self._widen(entry.table)
        elif self.growth.unmoved:
            yield from self._move()
        else:
            yield from self._end_growth()
        self.busy = ""

    def _widen(self, table: int) -> None:
        """Have twice the blocks in memory."""
        slots = self.image[table]
        self.marks.update({(table, block): 0 for block in range(len(slots) // WAYS, 2 * len(slots) // WAYS)})
        self.image[table] = slots + [EMPTY] * len(slots)
        self.mirror = {**self.mirror, table: self.mirror[table] + [EMPTY] * len(self.mirror[table])}

    def _move(self) -> Steps:
        """Move blocks: a frame that empties the targets and has all of their slots."""
        growth = self.growth
        assert growth
        first = self.first_to_move()
        slots = self.moved(self.mirror[growth.table], first)
        redo: list[Redo] = (
            []
            if self.wrong == "fill_left_out"
            else [Redo(growth.table, 0, EMPTY, None, (2 * first, 2 * growth.unmoved))]
        )
        targets = range(2 * first * WAYS, 2 * growth.unmoved * WAYS)
        redo += [Redo(growth.table, number, slots[number]) for number in targets if slots[number] != EMPTY]
        if self.pages_of(len(redo)) > RING // 2:
            return
        yield lambda: not self.is_appending
        self.is_appending = True
        after = growth._replace(unmoved=first)
        yield from self.append(redo, self.last.sequence, after)
        self.growth = after
        for number in targets:
            self.marks[growth.table, number // WAYS] = self.last.epoch
            self.image[growth.table][number] = slots[number]
            if number % WAYS == 0:
                yield
        self.mirror = {**self.mirror, growth.table: slots}
        self.end()

    def _end_growth(self) -> Steps:
        """Write the catalogue of twice the blocks, when the frame that says so is durable."""
        assert self.growth
        if self.wrong != "catalogue_before_flush":
            gate = self.last.epoch
            yield lambda: self.durable >= gate
        yield from self.change_root(tables=self.doubled())
        self.growth = None

    def create_table(self) -> Steps:
        """Make a table: the root names it; then it is used."""
        if len(self.tables) == TABLES_MAX:
            return
        self.busy = "a new table"
        yield from self.land()
        yield lambda: not self.is_changing
        entry = Entry(self.root.next_table, 0, self.random.random() < 0.5, 1)
        self.named_next = self.named | {entry.table}
        changing = self.change_root(tables=(*self.tables, entry), next_table=entry.table + 1)
        if self.wrong == "table_used_before_root":
            yield changing
            self.tables = (*self.tables, entry)
        else:
            yield from changing
        self.image[entry.table] = [EMPTY] * WAYS
        self.marks[entry.table, 0] = 0
        self.mirror = {**self.mirror, entry.table: [EMPTY] * WAYS}
        self.named = self.named_next
        self.busy = ""

    def drop_table(self) -> Steps:
        """Drop a table, which may be growing. Frames that name it mean nothing from here on."""
        if len(self.tables) < 2:
            return
        self.busy = "a table dropped"
        yield from self.land()
        yield lambda: not self.is_changing
        entry = self.tables[-1]
        self.named_next = self.named - {entry.table}
        yield from self.change_root(tables=tuple(other for other in self.tables if other is not entry))
        self.named = self.named_next
        if entry.has_rows:  # what blocks hold that have moved is not the table's any more
            self.waiting.append((self.last.epoch, [cell for _, _, cell in self.live_slots(entry)]))
        del self.image[entry.table]
        self.mirror = {table: slots for table, slots in self.mirror.items() if table != entry.table}
        self.marks = {page: mark for page, mark in self.marks.items() if page[0] != entry.table}
        if self.growth and self.growth.table == entry.table:
            self.growth = None
        self.busy = ""

    # Recovery.

    def recover(self) -> None:
        """See `Tables.recover`: the journal is replayed."""
        words = [self.memory.load_structure(("root", copy), len(Root._fields)) for copy in (0, 1)]
        whole = [Root(*copy) for copy in words if copy]
        if not whole:
            raise RefusedError("no whole root")
        self.root = max(whole, key=lambda root: root.sequence)
        self.tables = self.root.tables
        self.is_changing = False
        frames = self._find_frames()
        self._load_images([self.root.checkpoint.growth, *(head.growth for head, _ in frames)])
        for _, redo in frames:
            self._replay(redo)
        self.last = self._written(frames[-1][0]) if frames else self.root.checkpoint
        self.growth = adopt(self.tables, self.root.next_table, self.last.growth)
        self._check_references()
        if frames:
            self.reached["frames replayed"] += 1
        finish(self.change_root(incarnation=self.root.incarnation + 1, recovered=self.last.epoch))

    @staticmethod
    def _written(head: Head) -> Written:
        return Written(head.epoch, head.sequence, head.growth, head.position + head.pages, digest(*head))

    def _page(self, position: int) -> tuple[Any, ...] | None:
        return self.memory.load_structure(("f", position % RING), 2)

    def _find_frames(self) -> list[tuple[Head, list[Redo]]]:
        """Return the longest chain of frames; those that none calls durable only with their rows."""
        before = self.root.checkpoint
        chain: list[tuple[Head, list[Redo]]] = []
        while frame := self._load_frame(before):
            chain.append(frame)
            before = self._written(frame[0])
        covered = max((head.durable for head, _ in chain), default=0)
        for number, (head, redo) in enumerate(chain):
            if head.epoch > covered and not self._has_rows(head, redo):
                self.reached["a frame cut for its rows"] += 1
                chain = chain[:number]
                break
        last = chain[-1][0].epoch if chain else self.root.checkpoint.epoch
        if last < self.root.recovered:
            raise RefusedError("the journal ends before what was recovered")
        heads = [page[0] for position in range(RING) if (page := self._page(position)) and page[0]]
        if any(head.durable > last for head in heads):
            raise RefusedError("a frame that was durable is missing")
        return chain

    def _load_frame(self, before: Written) -> tuple[Head, list[Redo]] | None:
        first = self._page(before.position)
        if not first or not first[0] or first[0].previous != before.digest or first[0].position != before.position:
            return None
        head: Head = first[0]
        pages = [self._page(head.position + number) for number in range(head.pages)]
        parts = [list(page[1]) for page in pages if page]
        if len(parts) < head.pages or digest(parts) != head.entries:
            return None
        return head, [redo for part in parts for redo in part]

    def _has_rows(self, head: Head, redo: list[Redo]) -> bool:
        cells = sorted(one.cell for one in redo if one.cell is not None)
        return digest([(cell, self.row(cell)) for cell in cells]) == head.rows

    def _load_images(self, growths: list[Growth | None]) -> None:
        load = self.memory.load
        self.image = {}
        for entry in self.tables:
            grows = any(growth and growth[:2] == (entry.table, entry.blocks) for growth in growths)
            numbers = range(entry.blocks * WAYS * (2 if grows else 1))
            self.image[entry.table] = [
                (load(("t", entry.table, n, 0)), load(("t", entry.table, n, 1))) for n in numbers
            ]

    def _replay(self, frame: list[Redo]) -> None:
        for redo in frame:
            slots = self.image.get(redo.table)
            if slots is None:
                self.reached["a frame of a table that was dropped"] += 1
            elif redo.empty:
                first, last = (block * WAYS for block in redo.empty)
                slots[first:last] = [EMPTY] * (last - first)
            elif redo.slot >= len(slots):
                raise RefusedError("a frame names no slot")
            else:
                slots[redo.slot] = redo.new

    def _check_references(self) -> None:
        for entry in self.tables:
            for _, _, cell in self.live_slots(entry):
                if entry.has_rows and (cell is None or cell >= CELLS):
                    raise RefusedError("a slot refers to what is not the heap's")

    # A crash.

    def crash(self) -> None:
        """See `Tables.crash`."""
        self.memory.crash()
        if self.busy:
            self.reached[f"crash in: {self.busy}"] += 1
        if self.planned - self.done == 2:
            self.reached["crash with two in flight"] += 1
            if self.is_full:
                self.reached["crash with two in flight and a full journal"] += 1

    def rot(self) -> None:
        """See `Tables.rot`: what no later frame covers cannot be told from what was never written."""
        media, random = self.memory.media, self.random
        heads = [page[0] for position in range(RING) if (page := self._page(position)) and page[0]]
        covered = max((head.durable for head in heads), default=0)
        pages = {(head.position + n) % RING for head in heads if head.epoch <= covered for n in range(head.pages)}
        at = random.choice([at for at in media if at[0] == "root" or (at[0] == "f" and at[1] in pages)])
        for other in media:
            if other == at or (random.random() < 0.2 and other[:2] == at[:2]):
                media[other] = random.randrange(1 << 20)
        self.memory.view = dict(media)
