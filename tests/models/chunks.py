"""The undo log in chunks with markers, and two batches in flight: a model with crashes at any store.

``python -m tests.models.runs chunks 20000 right right+rot`` tries the rules, `wrong` each of them broken (`WRONG`).

Persistent memory is words (`Memory`). A store is durable when its actor has fenced after it; a crash keeps any part of
the others. A table's slots have numbers, or the cells of rows. Recovery may crash, too, and runs again; the store then
lives on. After each recovery it must hold a state that a dictionary had: none older than what was acknowledged or seen.
With rot, one word or one page of root, flag, descriptor, marker or entries is damaged: then it may also be refused.

The log
-------
C1   The changed slots of a batch are cut into chunks. A chunk has slots of one table and of one processor. No slot is
     in two chunks. (A compaction step has several tables: one flag is for all of them.)
C2   An entry is the slot's number and its words as the plan found them, taken before the mirror changes. It is short,
     without the key's words, if and only if these are equal before and after the batch, whatever the operations were.
C3   Of each chunk: entries -> (durable) -> marker, twice -> (durable) -> any slot of the chunk.
C4   A marker has the epoch, its place (half, processor, number), table, generation, first word, how many entries are
     short and full, their digest, and a checksum of all that. Its two copies lie in different pages, at places where
     nothing else ever lies, however large the log becomes.
C5   Each processor marks its chunks in order, from 0 on. There is no order between processors.
C6   The log has two halves, each with places for markers of its own. Batches with entries use them in turn: by use, not
     by the parity of epochs. A half is written again when the batch that used it last is IDLE, durably. The entries of
     a batch lie inside its half, those that leave block 0 included.

The commit
----------
C7   IDLE of the batch before, durable -> D(e), over the older descriptor -> (durable) -> ACTIVE(e) -> (durable) ->
     any slot. The log may be written before, beside and after.
C8   All slots, logs and rows durable -> IDLE(e) -> (durable) -> the batch is acknowledged. (Rows need not be durable
     before ACTIVE: `rows_before_idle` finds nothing.)

Two in flight
-------------
C9   A plan is made on the mirror, which has all batches planned before. Mirror, allocator, epochs and halves change
     when the plan is accepted. From then on nothing but the end of the process stops the batch: whatever may refuse it
     (log, heap, memory, places of markers) has been asked before.
C10  What batch n frees is given to batches that are planned after IDLE(n) is durable.
C11  A result leaves when the newest batch that it may have seen is IDLE, durably. Nobody reads PM while anything is in
     flight.
C12  A batch of the host begins when nothing is in flight, plans on PM, and has one chunk for each table. The mirror has
     its slots before the next plan begins. (Where lines or files must be flushed, each batch is such a one.)

What begins when nothing is in flight
-------------------------------------
C13  Growth of a table and of the log, tables made and dropped, and the next incarnation begin when all that is planned
     is IDLE, durably. The next plan begins when they are done: none made before counts. (Targets of growth may be
     stored from the mirror before that, `targets_in_flight`; not from PM. The heap waits for its mapping alone,
     `heap_grows_in_flight`.)
C14  Targets durable -> D says that their sources have moved -> IDLE. What leaves block 0 is a batch like any other,
     whose descriptor says m = 0. Only when that is IDLE, durably, comes the catalogue of twice the blocks. The mirror
     moves with it.
C15  File longer, durably -> both root copies say so -> any use of cells, words of the log, or tables.

Epochs
------
C16  Each opening, and each counter that is used up, raises the incarnation in both root copies before any store to the
     log: the log of a batch that never was ACTIVE may be whole.
C17  Epochs are renewed by: all markers of both halves cleared, both copies, and D(0), durably -> IDLE(0), with the
     roots.

Recovery
--------
C18  Under ACTIVE(e): D(e) and an older descriptor must be whole. A marker counts if a copy is whole and of epoch e;
     its epoch is looked at before all else in it. Chunks with one are undone, of the others nothing was stored. The
     store is refused, before the first store to it, if a processor lacks a marker before a whole one, if a digest is
     wrong, or if a marker names a table, generation, slot, or words outside its half that cannot be.
C19  Growth, sequence and tail are those of the older descriptor. Undone slots durable -> IDLE of it. Free space is
     counted after that.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from tests.models.chunk_media import (
    ACTIVE,
    HEAP_STEP,
    IDLE,
    LOG_STEP,
    MARKER_WORDS,
    Descriptor,
    Marker,
    Root,
    UndoMedia,
)
from tests.models.memory import Steps, WrongError, finish, run_actors
from tests.models.tables import BLOCKS_MAX, EMPTY, TABLES_MAX, WAYS, Entry, Growth, Plan, Slot

# What breaks which rule. `+rot`: found where something rots.
WRONG = {
    "C1": ["slot_in_two_chunks"],
    "C2": ["short_by_operation", "short_if_delete_and_new", "old_from_changed_mirror"],
    "C3": ["marker_before_entries", "marker_with_entries", "slots_before_marker_fence"],
    "C4": [
        *("marker_without_crc", "table_outside_checksum+rot", "table_not_in_marker", "marker_once+rot"),
        "copies_side_by_side+rot",
    ],
    "C5": ["one_order_of_processors"],
    "C6": ["half_reused_early", "half_by_parity", "block_0_without_room"],
    "C7": ["descriptor_early", "descriptor_before_idle", "active_before_idle", "active_after_slot", "active_unfenced"],
    "C8": ["idle_before_all_writers", "rows_after_idle", "ack_before_idle_fence"],
    "C9": ["planned_on_refused", "planned_without_predecessor"],
    "C10": ["cell_reused_in_flight"],
    "C11": ["answers_before_gate", "host_reads_in_flight"],
    "C12": ["host_batch_in_flight", "host_batch_untold"],
    "C13": [
        *("growth_in_flight", "plan_kept_over_growth", "targets_from_media_in_flight", "log_grows_in_flight"),
        *("drop_in_flight", "renewal_in_flight"),
    ],
    "C14": ["targets_unfenced", "block_0_unlogged", "catalogue_before_last_step", "growth_untold"],
    "C15": [
        *("log_root_before_file", "log_used_before_root", "heap_root_before_file", "heap_used_before_root"),
        *("table_used_before_root", "one_root_copy+rot"),
    ],
    "C16": ["epoch_goes_on"],
    "C17": ["renewal_keeps_markers", "renewal_clears_one_half", "renewal_clears_one_copy", "renewal_clears_late"],
    "C18": ["epoch_not_compared", "table_checked_before_epoch", "entries_not_verified+rot"],
    "C19": ["growth_of_undone", "recovery_idle_early", "counted_before_undo"],
}
# What one might take for wrong, and is not.
HARMLESS = [
    *("host_reads_when_empty", "targets_in_flight", "heap_grows_in_flight", "rows_before_idle"),
    "renewal_clears_with_descriptor",
]

COUNTER_BITS = 24
HEAP_MAX, LOG_MAX = 24, 48


@dataclass
class Chunk:
    """Slots of one table that are logged, then stored: those with short entries first."""

    entry: Entry
    slots: list[int]
    shorts: int
    first: int


@dataclass
class Batch:
    """A batch that nothing but the end of the process can stop."""

    number: int
    epoch: int
    sequence: int
    growth: Growth | None
    plan: Plan
    half: int
    half_free: int  # when this batch is IDLE
    processors: list[list[Chunk]]
    marked: list[int]
    place: int = 0
    has_rows: bool = False
    logged: int = 0  # processors
    stored: int = 0  # writers
    has_stored: bool = False

    @property
    def writers(self) -> int:
        """A GPU and the host's threads for each processor's chunks."""
        return 2 * len(self.processors)


class Store(UndoMedia):
    """A store with an undo log in chunks, and its programs. See `Tables`."""

    def __init__(self, seed: int, wrong: str, reached: Counter[str]) -> None:
        super().__init__(seed, wrong, reached)
        self.counter_max = self.random.choice((3, 1 << 20))
        self.given: set[int] = set()
        self.incarnation_max = self.random.choice((2, 3, 1 << 20))

    def open(self) -> None:
        """Begin a life: recovery is done."""
        flag = self.memory.load(("flag",))
        self.place, current = next((place, d) for place, d in self.descriptors() if d.epoch == flag[1])
        self.epoch, self.growth = current.epoch, self.adopted
        self.counter = 0
        self.uses = 0
        self.planned = self.idle = 0
        self.half_users = [0, 0]
        self.is_changing = False
        self.busy = "opening"
        if self.wrong == "epoch_goes_on" and self.random.random() < 0.9:
            self.counter = self.epoch & ((1 << COUNTER_BITS) - 1)
            finish(self.change_root())
        else:
            finish(self.begin_incarnation())
        self.busy = ""
        self.mirror = self.read_slots()
        self.free = self.count_free(self.root.heap)
        if self.wrong == "counted_before_undo":
            self.free = self.counted

    def live(self, actions: int) -> None:
        """See `Tables.live`."""
        self.open()
        run_actors(self.random, self.plan_batches(actions), self._look_on)

    def _look_on(self) -> None:
        if self.random.random() < 0.1:
            self.answer()

    def answer(self) -> None:
        """Let a result leave, or somebody on the host read PM."""
        at_rest = self.planned == self.idle and not self.busy
        if self.wrong == "host_reads_in_flight" or (self.wrong == "host_reads_when_empty" and at_rest):
            found, tables = self.contents(), self.mirror
            near = self.states[max(self.acked - 1, 0) : self.acked + 3]
            if not any(all(found.get(t, {}) == state.get(t, {}) for t in tables) for state in near):
                raise WrongError("dirty: a reader saw a part of a batch")
        # Right: a result leaves when the newest batch that it may have seen is IDLE, durably.
        seen = len(self.states) - 1 if self.wrong == "answers_before_gate" else self.acked
        self.revealed = max(self.revealed, seen)

    def land(self, *relaxed: str) -> Steps:
        """Wait until nothing is in flight."""
        if self.wrong not in relaxed:
            yield lambda: self.idle == self.planned
        elif self.idle != self.planned:
            self.reached["a rule about the flight was broken"] += 1

    def plan_batches(self, actions: int) -> Steps:
        """Be the launching thread: plan one batch ahead of the one that is committed."""
        ahead = 3 if self.wrong == "half_reused_early" else 2
        for _ in range(actions):
            yield lambda: self.planned - self.idle < ahead
            if self.counter >= self.counter_max:
                yield from self.land("renewal_in_flight")
                yield from self.begin_incarnation()
            what = self.random.random()
            if what < 0.62:
                yield from self.run_batch()
            elif what < 0.69:
                yield from self.run_host_batch()
            elif what < 0.84:
                yield from self.grow_table()
            elif what < 0.88:
                yield from self.grow_heap()
            elif what < 0.92:
                yield from self.grow_log()
            elif what < 0.96:
                yield from self.create_table()
            else:
                yield from self.drop_table()

    def is_short(self, plan: Plan, at: tuple[int, int]) -> bool:
        """Whether an entry needs no key: the slot has the same one before and after."""
        old, new = plan.before[at][0], plan.after[at][0]
        if self.wrong == "short_by_operation" and at in plan.displaced and old is not None:
            return True
        if self.wrong == "short_if_delete_and_new" and at in plan.deleted and None not in (old, new):
            return True
        return bool(old == new)

    def words_of(self, plan: Plan) -> int:
        """Return what the entries of a plan take of the log."""
        return sum(2 if self.is_short(plan, at) else 3 for at in plan.after)

    def run_batch(self) -> Steps:
        """Plan a batch on the mirror, and have it committed beside the next plan."""
        operations = self.choose()
        plan = self.plan(self.mirror, operations)
        if self.words_of(plan) > self.root.log // 2:
            yield from self.grow_log()
            plan = self.plan(self.mirror, operations)  # again: what was free is not all that is free now
        if self.words_of(plan) > self.root.log // 2:
            return
        is_refused = self.random.random() < 0.1  # for want of memory, or by a limit
        if is_refused and self.wrong == "planned_on_refused":
            self.mirror, self.free = plan.slots, plan.free
        if is_refused or not plan.after:
            return
        if self.wrong == "plan_kept_over_growth" and self.random.random() < 0.5:
            yield from self.grow_table()
            if any(len(plan.slots[table]) > len(self.mirror.get(table, [])) for table in plan.slots):
                return
            plan.slots = {
                table: plan.slots[table] + slots[len(plan.slots[table]) :] for table, slots in self.mirror.items()
            }
        yield from self.begin(self.accept(plan))

    def run_host_batch(self) -> Steps:
        """Have the host's threads plan a batch on PM, and tell the mirror."""
        yield from self.land("host_batch_in_flight")
        plan = self.plan(self.read_slots(), self.choose())
        if not plan.after or self.words_of(plan) > self.root.log // 2:
            return
        self.reached["a batch of the host"] += 1
        mirror = self.mirror
        yield from self.begin(self.accept(plan, is_of_host=True))
        if self.wrong == "host_batch_untold":
            self.mirror = mirror
        yield from self.land("host_batch_in_flight")

    def next_epoch(self) -> int:
        """Return the epoch of the next transaction."""
        self.counter += 1
        if self.wrong == "half_by_parity" and self.random.random() < 0.3:
            self.counter += 1  # one is given, and not used
        self.epoch = self.root.incarnation << COUNTER_BITS | self.counter
        if self.epoch in self.given:
            self.reached["an epoch given again after a renewal"] += 1
        self.given.add(self.epoch)
        return self.epoch

    def accept(self, plan: Plan, *, is_of_host: bool = False, growth: Growth | None = None) -> Batch:
        """Take a plan into account: from here on it commits, or the process ends."""
        if self.wrong == "old_from_changed_mirror":
            plan.before = {
                (t, n): plan.slots[t][n] if self.random.random() < 0.5 else old for (t, n), old in plan.before.items()
            }
        self.planned += 1
        epoch = self.next_epoch()
        half = epoch % 2 if self.wrong == "half_by_parity" else self.uses % 2
        self.uses += 1
        half_free, self.half_users[half] = self.half_users[half], self.planned
        if self.wrong in ("half_reused_early", "half_by_parity"):
            half_free = self.planned - 2 if self.wrong == "half_by_parity" else 0
        processors = self._cut(plan, half, is_of_host=is_of_host)
        if plan.state is not self.states[-1]:
            self.states.append(plan.state)
        batch = Batch(
            self.planned,
            epoch,
            len(self.states) - 1,
            growth or self.growth,
            plan,
            half,
            half_free,
            processors,
            [0] * len(processors),
        )
        if self.wrong != "planned_without_predecessor":
            self.mirror = plan.slots
        self.free = plan.free + (plan.freed if self.wrong == "cell_reused_in_flight" else [])
        return batch

    def _cut(self, plan: Plan, half: int, *, is_of_host: bool) -> list[list[Chunk]]:
        """Cut the changed slots into chunks, each of one processor and one table."""
        first = half * (self.root.log // 2)
        count = 1 if is_of_host else self.random.randint(1, 2)
        processors: list[list[Chunk]] = [[] for _ in range(count)]
        for number, chunks in enumerate(processors):
            for entry in self.tables:
                slots = [slot for table, slot in plan.after if table == entry.table and slot % count == number]
                self.random.shuffle(slots)
                pieces = 1 if is_of_host else self.random.randint(1, 2)
                for piece in range(pieces):
                    part = slots[piece::pieces]
                    if self.wrong == "slot_in_two_chunks" and piece:
                        part = part + slots[:1]
                    if not part:
                        continue
                    short = [slot for slot in part if self.is_short(plan, (entry.table, slot))]
                    full = [slot for slot in part if slot not in short]
                    chunks.append(Chunk(entry, short + full, len(short), first))
                    first += 2 * len(short) + 3 * len(full)
        if first > (half + 1) * (self.root.log // 2) and self.wrong != "slot_in_two_chunks":
            raise WrongError("torn: entries lie in the other half")
        self._note_equal_words(plan)
        return processors

    def _note_equal_words(self, plan: Plan) -> None:
        shorts: dict[tuple[int, Any], set[int]] = {}
        for (table, slot), old in plan.before.items():
            if old[0] == plan.after[table, slot][0]:
                shorts.setdefault((slot, old[0]), set()).add(table)
        if any(len(tables) > 1 for tables in shorts.values()):
            self.reached["short entries with equal words in two tables"] += 1

    # The log.

    def begin(self, batch: Batch) -> Steps:
        """Begin the actors of a batch."""
        yield self.store_rows(batch)
        for processor in range(len(batch.processors)):
            yield self.log(batch, processor)
        yield self.commit(batch)

    def store_rows(self, batch: Batch) -> Steps:
        """Append the rows."""
        actor = f"rows{batch.number}"
        if self.wrong == "rows_after_idle":
            yield lambda: self.idle >= batch.number
        for cell, row in batch.plan.rows.items():
            for word in (0, 1):
                self.memory.store(actor, ("row", cell, word), row[word])
                yield
        self.memory.fence(actor)
        batch.has_rows = True

    def log(self, batch: Batch, processor: int) -> Steps:
        """Store a processor's chunks to the log: entries, fence, marker, fence."""
        wrong, memory, actor = self.wrong, self.memory, f"log{batch.number}.{processor}"
        yield lambda: self.idle >= batch.half_free
        if batch.half_free and self.wrong == "" and self.idle < batch.number - 1:
            self.reached["a log written beside the commit before it"] += 1
        for number, chunk in enumerate(batch.processors[processor]):
            words = self.entries_of(batch, chunk)
            marker = self.marker_of(batch, chunk, words)
            place = (batch.half, processor, number)
            if wrong == "one_order_of_processors":
                place = (batch.half, 0, sum(map(len, batch.processors[:processor])) + number)
            if wrong == "marker_before_entries":
                yield from self.store_marker(actor, place, marker)
                memory.fence(actor)
            for at, word in enumerate(words):
                memory.store(actor, ("e", chunk.first + at), word)
                yield
            if wrong not in ("marker_with_entries", "marker_before_entries"):
                memory.fence(actor)
                yield
            if wrong != "marker_before_entries":
                yield from self.store_marker(actor, place, marker)
            if wrong == "slots_before_marker_fence":
                batch.marked[processor] = number + 1
                yield
            memory.fence(actor)
            batch.marked[processor] = number + 1
            yield
        batch.logged += 1

    def entries_of(self, batch: Batch, chunk: Chunk) -> list[Any]:
        """Return the words of a chunk's entries."""
        words: list[Any] = []
        table = chunk.entry.table
        again = self.wrong == "slot_in_two_chunks"
        for number, slot in enumerate(chunk.slots):
            old = batch.plan.before[table, slot]
            if again and slot in self._logged_before(batch, chunk):
                old = batch.plan.after[table, slot]  # what the first chunk stores
            words += [slot, old[1]] if number < chunk.shorts else [slot, *old]
        return words

    def _logged_before(self, batch: Batch, chunk: Chunk) -> set[int]:
        chunks = next(chunks for chunks in batch.processors if chunk in chunks)
        before = chunks[: chunks.index(chunk)]
        return {slot for other in before if other.entry == chunk.entry for slot in other.slots}

    def marker_of(self, batch: Batch, chunk: Chunk, words: list[Any]) -> Marker:
        """Return what says that a chunk's entries are durable."""
        entry, fulls = chunk.entry, len(chunk.slots) - chunk.shorts
        head = Marker(batch.epoch, entry.table, entry.generation, chunk.first, chunk.shorts, fulls, 0)
        return head._replace(digest=self.digest_of(head, words))

    def store_marker(self, actor: str, place: tuple[int, int, int], marker: Marker) -> Steps:
        """Store both copies of a marker."""
        numbered = [*enumerate(marker), (MARKER_WORDS - 1, self.checksum_of(place, marker))]
        for copy in (0,) if self.wrong == "marker_once" else (0, 1):
            self.random.shuffle(numbered)
            for number, word in numbered:
                self.memory.store(actor, ("m", copy, *place, number), word)
                yield

    # The commit.

    def commit(self, batch: Batch) -> Steps:
        """Make a batch durable: descriptor, ACTIVE, slots beside the log, IDLE."""
        wrong, memory, before = self.wrong, self.memory, batch.number - 1
        if wrong == "descriptor_early":
            yield lambda: self.idle >= before - 1
            place = self.place if self.idle == before - 1 else 1 - self.place
            yield from self.store_descriptor("commit", place, batch)
            memory.fence("commit")
        if wrong == "active_before_idle":
            yield lambda: self.idle >= before - 1
        else:
            yield lambda: self.idle >= before
        if wrong != "rows_before_idle":
            yield lambda: batch.has_rows or wrong == "rows_after_idle"
        batch.place = 1 - self.place
        if wrong not in ("descriptor_early", "descriptor_before_idle"):
            yield from self.store_descriptor("commit", batch.place, batch)
            memory.fence("commit")
            yield
        if wrong != "active_after_slot":
            yield from self.store_flag("commit", ACTIVE, batch.epoch, is_durable=wrong != "active_unfenced")
        for processor in range(len(batch.processors)):
            for who in (0, 1):
                yield self.store_slots(batch, processor, who)
        if wrong == "active_after_slot":
            yield lambda: batch.has_stored or batch.stored == batch.writers
            yield from self.store_flag("commit", ACTIVE, batch.epoch)
        needed = batch.writers - (1 if wrong == "idle_before_all_writers" else 0)
        yield lambda: batch.stored >= needed and batch.logged == len(batch.processors)
        yield lambda: batch.has_rows or wrong == "rows_after_idle"
        if wrong == "active_before_idle":
            yield lambda: self.idle >= before
        if wrong == "descriptor_before_idle":
            yield from self.store_descriptor("commit", batch.place, batch)
            memory.fence("commit")
        yield from self.store_flag("commit", IDLE, batch.epoch, is_durable=wrong != "ack_before_idle_fence")
        # Nothing but assignments from here on: the batch is durable.
        self.place = batch.place
        self.acked = max(self.acked, batch.sequence)
        if wrong != "cell_reused_in_flight":
            self.free = self.free + batch.plan.freed
        if wrong == "planned_without_predecessor":
            self.mirror = batch.plan.slots
        self.idle = batch.number

    def store_descriptor(self, actor: str, place: int, batch: Batch) -> Steps:
        """Store a batch's descriptor."""
        yield from self.memory.store_structure(
            actor, ("d", place), Descriptor(batch.epoch, batch.sequence, batch.growth)
        )

    def store_flag(self, actor: str, state: str, epoch: int, *, is_durable: bool = True) -> Steps:
        """Store the flag."""
        self.memory.store(actor, ("flag",), (state, epoch))
        yield
        if is_durable:
            self.memory.fence(actor)
            yield

    def store_slots(self, batch: Batch, processor: int, who: int) -> Steps:
        """Be the GPU, or the host's threads: store a part of each chunk whose marker is durable."""
        actor = f"slots{batch.number}.{processor}.{who}"
        for number, chunk in enumerate(batch.processors[processor]):
            yield lambda number=number: batch.marked[processor] > number
            for slot in chunk.slots[who::2]:
                yield from self.store_slot(actor, chunk.entry.table, slot, batch.plan.after[chunk.entry.table, slot])
                batch.has_stored = True
        self.memory.fence(actor)
        batch.stored += 1

    # What begins when nothing is in flight.

    def change_root(self, **fields: Any) -> Steps:
        """Store both copies of the root, one after the other: the older one first."""
        yield lambda: not self.is_changing
        self.is_changing = True
        root = self.root._replace(sequence=self.root.sequence + 1, **fields)
        words = [self.memory.load_structure(("root", copy), len(Root._fields)) for copy in (0, 1)]
        self.take_root(root)
        order = (1, 0) if words[1] != words[0] and words[0] == max(filter(None, words)) else (0, 1)
        for copy in order:
            yield from self.memory.store_structure("root", ("root", copy), root)
            self.memory.fence("root")
            yield
            if self.wrong == "one_root_copy":
                break
        self.is_changing = False

    def change_root_for(self, *early: str, **fields: Any) -> Steps:
        """Do the same; with a broken rule, what needs it does not wait."""
        yield lambda: not self.is_changing
        if self.wrong not in early:
            yield from self.change_root(**fields)
            return
        yield self._change_root_late(**fields)
        self.take_root(self.root._replace(**fields))

    def _change_root_late(self, **fields: Any) -> Steps:
        for _ in range(60):
            yield
        yield from self.change_root(**fields)

    def begin_incarnation(self) -> Steps:
        """Raise the incarnation durably, or begin again with the first one."""
        busy, self.busy = self.busy, self.busy or "incarnation"
        incarnation = self.root.incarnation + 1
        if incarnation > self.incarnation_max or self.epoch >= incarnation << COUNTER_BITS:
            yield from self._renew_epochs()
            incarnation = 1
        yield from self.change_root(incarnation=incarnation)
        self.counter = 0
        self.busy = busy

    def _renew_epochs(self) -> Steps:
        memory = self.memory
        self.busy = "renewal"
        left = [at for at, word in memory.view.items() if at[0] == "m" and word is not None]
        if left:
            self.reached["epochs renewed while markers are left"] += 1
        if self.wrong == "renewal_clears_one_half":
            left = [at for at in left if at[2] == 0]
        if self.wrong == "renewal_clears_one_copy":
            left = [at for at in left if at[1] == 0]
        actor = "late" if self.wrong == "renewal_clears_late" else "root"
        if self.wrong != "renewal_keeps_markers":
            for at in left:
                memory.store(actor, at, None)
                yield
        if self.wrong not in ("renewal_clears_late", "renewal_clears_with_descriptor"):
            memory.fence("root")
        yield from memory.store_structure("root", ("d", 1 - self.place), Descriptor(0, self.acked, self.growth))
        memory.fence("root")
        yield
        self.place = 1 - self.place
        self.epoch = 0
        memory.store("root", ("flag",), (IDLE, 0))
        yield

    def describe(self) -> Steps:
        """Commit a transaction of nothing: its descriptor says how far growth is."""
        place = 1 - self.place
        descriptor = Descriptor(self.next_epoch(), self.acked, self.growth)
        yield from self.memory.store_structure("grow", ("d", place), descriptor)
        self.memory.fence("grow")
        yield
        yield from self.store_flag("grow", IDLE, descriptor.epoch)
        self.place = place

    def grow_table(self) -> Steps:
        """Begin the growth of a table, do a step of it, or end it."""
        if self.growth is None:
            entry = self.random.choice(self.tables)
            if 2 * entry.blocks > BLOCKS_MAX or entry.table not in self.mirror:
                return
            yield from self.land()
            self.growth = Growth(entry.table, entry.blocks, entry.blocks)
            self.mirror = {**self.mirror, entry.table: self.mirror[entry.table] + [EMPTY] * (entry.blocks * WAYS)}
            return
        if self.growth.unmoved:
            yield from self._move()
        else:
            yield from self._end_growth()

    def _end_growth(self) -> Steps:
        assert self.growth
        self.busy = "end of growth"
        yield from self.land()
        entry = self.entry(self.growth.table)
        if entry and entry.blocks == self.growth.blocks:
            yield from self.change_root(tables=self.doubled())
        self.growth = None
        self.busy = ""

    def _move(self) -> Steps:
        """Move the last blocks that have not moved: targets, then the descriptor that says so."""
        growth = self.growth
        assert growth
        self.busy = "growth"
        yield from self.land("growth_in_flight", "targets_in_flight", "targets_from_media_in_flight")
        first = self.first_to_move()
        slots = list(self.mirror[growth.table])
        if self.wrong == "targets_from_media_in_flight":
            slots = [self.slot(growth.table, number) for number in range(len(slots))]
        moved = self.moved(slots, first)
        for number in range(max(2 * first, 1) * WAYS, 2 * growth.unmoved * WAYS):  # block 0 is its own target
            yield from self.store_slot("targets", growth.table, number, moved[number])
        if self.wrong != "targets_unfenced":
            self.memory.fence("targets")
        yield from self.land("growth_in_flight")
        if not first and self.wrong == "catalogue_before_last_step":
            yield from self.change_root(tables=self.doubled())
        after = growth._replace(unmoved=first)
        leaving = None if first else self._leaving(slots, moved)
        if leaving and self.wrong == "block_0_unlogged":
            for (table, slot), new in leaving.after.items():
                yield from self.store_slot("targets", table, slot, new)
            self.memory.fence("targets")
        if leaving and leaving.after and self.wrong != "block_0_unlogged":
            if self.words_of(leaving) > self.root.log // 2 and self.wrong != "block_0_without_room":
                yield from self.grow_log()
            self.busy = "block 0"
            leaving.slots[growth.table] = moved
            batch = self.accept(leaving, growth=after)
            self.growth = after
            yield from self.begin(batch)
            yield from self.land()
        else:
            self.growth = after
            if self.wrong != "growth_untold":
                self.mirror = {**self.mirror, growth.table: moved}
            yield from self.describe()
        self.busy = ""

    def _leaving(self, slots: list[Slot], moved: list[Slot]) -> Plan:
        """Return what removes from block 0 what leaves it."""
        assert self.growth
        table = self.growth.table
        plan = Plan(dict(self.mirror), list(self.free), self.states[-1])
        for number in range(WAYS):
            if slots[number] != moved[number]:
                plan.before[table, number], plan.after[table, number] = slots[number], EMPTY
        return plan

    def grow_heap(self) -> Steps:
        """Have more cells: the file is longer, durably; then the root; then they are used."""
        size = self.root.heap + HEAP_STEP
        if size > HEAP_MAX:
            return
        self.busy = "growth of the heap"
        yield from self.land("heap_grows_in_flight")
        yield from self._extend("heap", size)
        had = self.root.heap
        yield from self.change_root_for("heap_used_before_root", heap=size)
        self.free = self.free + list(range(had, size))
        self.busy = ""

    def _extend(self, file: str, size: int) -> Steps:
        self.memory.store("files", ("size", file), size)
        yield
        if self.wrong != f"{file}_root_before_file":
            self.memory.fence("files")
            yield

    def grow_log(self) -> Steps:
        """Have larger halves."""
        size = self.root.log + LOG_STEP
        if size > LOG_MAX:
            return
        self.busy = "growth of the log"
        yield from self.land("log_grows_in_flight")
        yield from self._extend("log", size)
        yield from self.change_root_for("log_used_before_root", log=size)
        self.busy = ""

    def create_table(self) -> Steps:
        """Make a table: its index is there, durably; then the root names it; then it is used."""
        if len(self.tables) == TABLES_MAX:
            return
        self.busy = "a new table"
        yield from self.land()
        entry = Entry(self.root.next_table, 0, self.random.random() < 0.5, 1)
        for slot in range(WAYS):
            yield from self.store_slot("index", entry.table, slot, EMPTY)
        self.memory.fence("index")
        self.named_next = self.named | {entry.table}
        self.mirror = {**self.mirror, entry.table: [EMPTY] * WAYS}
        yield from self.change_root_for(
            "table_used_before_root", tables=(*self.tables, entry), next_table=entry.table + 1
        )
        self.named = self.named_next
        self.busy = ""

    def drop_table(self) -> Steps:
        """Drop a table, which may be growing."""
        if len(self.tables) < 2:
            return
        self.busy = "a table dropped"
        yield from self.land("drop_in_flight")
        entry = self.tables[-1]
        self.named_next = self.named - {entry.table}
        kept = tuple(other for other in self.tables if other is not entry)
        yield from self.change_root(tables=kept)
        self.named = self.named_next
        self.mirror = {table: slots for table, slots in self.mirror.items() if table != entry.table}
        if self.growth and self.growth.table == entry.table:
            self.growth = None
            self.reached["a table dropped while it grows"] += 1
        self.free = self.count_free(self.root.heap)
        self.busy = ""
