"""The workloads that run before a crash: short sequences of batches, one letter for each kind of batch.

    N  new SET        two keys that were not there
    U  update         the key that was written last, and a key of the base store
    D  DELETE, hits   the same two keys
    M  DELETE, misses two keys that are not there: the store may not store anything
    T  the same key twice in a batch: SET and SET of one key, SET and DELETE of another
    F  a full set     a new key whose two buckets are full: an occupant moves to its other bucket

A *workload* is a sequence of one to three letters, each a batch (a transaction) of its own. The explorer visits the
states that its last batch may leave. The earlier batches are the last ones of shorter workloads. Six letters give
6 + 36 + 216 = 258 workloads for each layout. Every pair of letters also runs as one batch of two requests, such as N+U:
36 more.

Three more letters are batches of operations that look first. They run alone, and in pairs with all others:

    S  sums           two increments of a new key, one of an older sum, one of a value that is no number
    Q  conditions     SETs and DELETEs on conditions of which some hold, some on what the batch wrote before
    G  guards         a request whose checks hold; one whose check fails on what the first one wrote; an increment

Three letters are of keys that expire (bytes only). They too run alone, and in pairs with all others. The script sets
the clock of the store. Whoever judges a state reads what is stored, as if nothing expired, and the clock is behind, as
after a restart with an earlier time: the store must keep the time of its batches.

    E  expiries       keys with an expiry: SET, INCREMENT, APPEND and EXPIRE give one; the first ones of the store
    A  afterwards     a batch meets some of these keys when they have expired: their removal, then the batch
    Y  the sweep      a step removes all keys that have expired, and nobody asked for

Before an A or a Y comes an E. A removal is a transaction of its own, so it is judged like a batch.

`EXTRA` has more workloads, of one letter each:

    J  a joined batch: six requests that insert, update, delete, repeat and displace, in one transaction
    W  a wide batch: 33 new keys, more than one stripe of the undo log
    L  large values: records of more lines than a thread can note until it writes them back (bytes only)
    V  a step of compaction: all records of a segment move to another one (bytes only)
    B  a step of compaction that moves records of both tables in one transaction (bytes only)
    H  a huge value, in a blob, over another one (bytes only, in format 4)
    R  a blob is freed, and its pages are used again (bytes only, in format 4)
    h  the key of a blob gets an expiry: its new record names the same blob (bytes only, in format 4)
    r  such a key expires, when another key has a blob, too: one of them is freed (bytes only, in format 4)
    C  a table is created
    X  a table is dropped
    O  the store is opened
    I  the store is opened when its incarnations are used up, with a batch to undo; then a batch (bytes only)
    Z  a store is created (bytes only)
    P  in the domain process a batch, a new table and a batch; then the store is opened in msync, and a batch runs
    K  the store's files are copied without a sync; then the copy is opened in msync, and a batch runs
    k  the same of a store of format 4 in which a value lies in a blob (bytes only)
    1  a table of one block grows: file and mapping, each step, and the catalogue, with a batch after each of them
    2, 3, 5  the same of a table of so many blocks

The letters of growth take minutes each: `gpkvs crash` runs them when they are named, and `make nightly` does.

In P, K and k, power fails only after the store was opened in msync: before, nothing promised to survive that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

from gpkvs.batch import Batch, BatchResult, Condition, Op
from gpkvs.engine.commit.undo_committer import UndoCommitter
from gpkvs.engine.state.table import Table
from gpkvs.engine.tables.growth import Growing
from gpkvs.media.layout import BLOCK_BYTES, BYTES_LAYOUT, LAYOUTS, U64_LAYOUT
from gpkvs.recovery.proof.batch_runner import BatchRunner, EngineName
from gpkvs.recovery.proof.expiring import BEGIN_MS, as_stored, at_time, expired, expiries_of
from gpkvs.recovery.proof.model import Asked, Held, Kept, Model, batch_of, number
from gpkvs.recovery.proof.powerfail.base_store import OTHER_TABLE, Keys, table_of, value_of
from gpkvs.store import Store

LETTERS = "NUDMTF"
LOOKING = "SQG"
EXPIRING = "EAY"
GROWTH = "1235"
WITH_BLOBS = "HRhrk"
EXTRA = "JWLVBCXOIZPK" + WITH_BLOBS + GROWTH
BOTH, TABLE, DROP, OPEN, RENEW, CREATE, PROCESS, COPY = "BCXOIZPK"
COPY_WITH_BLOB = "k"
_BEGIN, _MOVE, _FINISH = "begin", "move", "finish"
BLOB, _BLOB_OVER, _BLOB_GONE, _BLOB_KEPT = "blob", "blob over", "blob gone", "blob kept"
_BLOB_BYTES = 66_000
_OF_BLOBS = {
    "H": [BLOB, _BLOB_OVER],
    "R": [BLOB, _BLOB_GONE, BLOB],
    "h": [BLOB, _BLOB_KEPT],
    "r": [BLOB, _BLOB_KEPT, BLOB, "Y"],
}
_OF_ONE_LAYOUT = dict.fromkeys("LVBIZ" + WITH_BLOBS + EXPIRING, BYTES_LAYOUT.name)
LENGTH_MAX = 3
_SOON_MS, _LATER_MS = 1000, 10**9
_SLACK_MS = 1000  # the sweep comes so long after a key has expired
Operation = tuple[Op, bytes] | tuple[Op, bytes, bytes]
Contents = dict[bytes, bytes]


@dataclass(frozen=True)
class Workload:
    """Batches before a crash, to a table of one layout."""

    layout: str
    letters: str

    def __str__(self) -> str:
        return f"{self.layout}:{self.letters}"

    @property
    def steps(self) -> list[str]:
        """The batches: a letter each, or letters joined by a plus; of growth, its steps and batches between them."""
        if self.letters in GROWTH:
            return [_BEGIN, "U", *[_MOVE, "N"] * int(self.letters), _FINISH, "U"]
        if self.letters in _OF_BLOBS:
            return _OF_BLOBS[self.letters]
        if "+" in self.letters:
            return [self.letters]
        at = next((at for at, letter in enumerate(self.letters) if letter in "AY"), len(self.letters))
        gives = [] if at == len(self.letters) or "E" in self.letters[:at] else ["E"]
        return [*self.letters[:at], *gives, *self.letters[at:]]

    @property
    def has_blobs(self) -> bool:
        """Whether its store is of format 4, and values lie in blobs."""
        return self.letters in WITH_BLOBS

    @staticmethod
    def parse(text: str) -> Workload:
        """Read ``layout:letters``; raise `ValueError` if the text is something else."""
        layout, _, letters = text.partition(":")
        single = len(letters) == 1 and letters in EXTRA
        single &= _OF_ONE_LAYOUT.get(letters, layout) == layout
        usual = all(
            letter
            and letter in (LETTERS if "+" in letters else LETTERS + LOOKING + EXPIRING)
            and _OF_ONE_LAYOUT.get(letter, layout) == layout
            for letter in (letters.split("+") if "+" in letters else letters)
        )
        if layout not in LAYOUTS or not letters or not (single or usual):
            raise ValueError(
                f"{text!r}: a workload is bytes: or u64: and letters of {LETTERS}{LOOKING} (bytes: {EXPIRING} too), "
                f"or two of {LETTERS} with a plus between them, or one of {EXTRA}"
            )
        return Workload(layout, letters)


def all_workloads(depth: int = 1) -> list[Workload]:
    """Return every workload but those of growth; at depth 2 only sequences of at most two letters, no joined ones."""
    longest = LENGTH_MAX if depth == 1 else LENGTH_MAX - 1
    sequences = ["".join(letters) for length in range(1, longest + 1) for letters in product(LETTERS, repeat=length)]
    new = LOOKING + EXPIRING
    sequences += new
    sequences += ["".join(two) for two in product(LETTERS + new, repeat=2) if set(two) & set(new)]
    sequences += ["+".join(letters) for letters in product(LETTERS, repeat=2)] if depth == 1 else []
    usual = EXTRA.removesuffix(GROWTH)
    extra = [(letter, layout) for letter in usual for layout in LAYOUTS if _OF_ONE_LAYOUT.get(letter, layout) == layout]
    return [
        *(
            Workload(layout, letters)
            for letters in sequences
            for layout in LAYOUTS
            if all(_OF_ONE_LAYOUT.get(letter, layout) == layout for letter in letters)
        ),
        *(Workload(layout, letter) for letter, layout in extra),
    ]


class Script:
    """Runs the letters of a workload, one after the other, and knows what the store must hold after each.

    Parameters
    ----------
    workload
        It says to which table the batches go.
    keys
        The keys of that table.
    tables
        What each table holds at first.
    engine
        Runs the batches.

    Attributes
    ----------
    natively : int
        How many batches the native engine ran.
    """

    def __init__(self, workload: Workload, keys: Keys, tables: dict[str, Contents], engine: EngineName) -> None:
        self._engine: EngineName = engine
        self.natively = 0
        self._layout = workload.layout
        self._table = OTHER_TABLE if workload.letters in GROWTH else table_of(workload.layout)
        self.tables = {name: dict(contents) for name, contents in tables.items()}
        self._absent = list(keys.absent)
        self._full = list(keys.full)
        # Without the keys in full buckets, which must stay full.
        self._recent = list(keys.present)
        self._values = 1000
        self._sum: bytes | None = None  # the key that was incremented last
        self.now = BEGIN_MS  # by the clock of the store
        self._expiring: tuple[bytes, ...] = ()  # what the batch of an A meets, and what lives longer
        self._written: set[bytes] = set()  # by the batch that runs
        self._operations: dict[str, Callable[[], list[Operation]]] = {
            "N": lambda: self._new(2),
            "U": lambda: [self._set(self._recent[-1]), self._set(self._recent[0])],
            "D": lambda: [(Op.DELETE, self._recent[-1]), (Op.DELETE, self._recent[0])],
            "M": lambda: [(Op.DELETE, key) for key in self._absent[-2:]],
            "T": self._twice,
            "F": lambda: [self._set(self._full.pop(0))],
            "W": lambda: self._new(33),
            "L": lambda: [self._set(self._absent.pop(0), 3000) for _ in range(2)],
            BLOB: lambda: [self._set_blob(self._absent.pop(0))],
            _BLOB_OVER: lambda: [self._set_blob(self._recent[-1])],
            _BLOB_GONE: lambda: [(Op.DELETE, self._recent[-1])],
        }
        self._steps: dict[str, Callable[[Store], None]] = {
            "S": lambda store: self._look(store, self._sums()),
            "Q": lambda store: self._look(store, self._conditions(store)),
            "G": lambda store: self._look(store, self._guards()),
            "E": lambda store: self._look(store, self._expiries()),
            _BLOB_KEPT: lambda store: self._look(store, [[self._expire(self._recent[-1])]]),
            "A": self._afterwards,
            "Y": self._sweep,
            "J": self._join,
            BOTH: _compact_both,
            "C": self._create,
            "X": self._drop,
            "V": _compact,
            _BEGIN: self._begin_growth,
            _MOVE: self._move_block,
            _FINISH: self._finish_growth,
        }

    def step(self, letters: str, store: Store) -> None:
        """Run one letter, or several that are joined."""
        if letters in self._steps:
            self._steps[letters](store)
            return
        requests = []
        for letter in letters.split("+"):
            requests.append(self._operations[letter]())
            self._note(self._table, requests[-1])
        self._written = {operation[1] for operations in requests for operation in operations}
        self._requests(store, requests)
        self._written = set()

    @property
    def table(self) -> str:
        """The table to which the batches go."""
        return self._table

    def take_time(self, store: Store) -> None:
        """Have a store ask this script for the time, and sweep only when a letter says so."""
        at_time(store, lambda: self.now)
        store._engine.expiry._look_at = math.inf

    def remove(self, table: int, keys: list[bytes], store: Store) -> None:
        """Take note that the store has removed keys that have expired."""
        assert table == store.table(self._table).id
        for key in keys:
            if key not in self._written:  # else it is noted what the batch does with it
                del self.tables[self._table][key]
                self._recent = [other for other in self._recent if other != key]

    def _set(self, key: bytes, size: int = 0) -> Operation:
        self._values += 1
        value = value_of(self._layout, self._values)
        return Op.SET, key, value if self._layout == U64_LAYOUT.name else value.ljust(size, b"+")

    def _set_blob(self, key: bytes) -> Operation:
        self._values += 1
        return Op.SET, key, (b"%d." % self._values * _BLOB_BYTES)[:_BLOB_BYTES]  # no page is that of another value

    def _new(self, count: int) -> list[Operation]:
        return [self._set(self._absent.pop(0)) for _ in range(count)]

    def _twice(self) -> list[Operation]:
        updated, gone = self._recent[-1], self._absent.pop(0)
        return [self._set(updated), self._set(gone), self._set(updated), (Op.DELETE, gone)]

    def _note(self, table: str, operations: list[Operation]) -> None:
        for op, key, *value in operations:
            self._recent = [other for other in self._recent if other != key]
            if op is Op.SET:
                self.tables[table][key] = value[0]
                self._recent.append(key)
            else:
                self.tables[table].pop(key, None)

    @property
    def _is_numbers(self) -> bool:
        return self._layout == U64_LAYOUT.name

    def _sums(self) -> list[list[Asked]]:
        new, other = self._absent.pop(0), self._recent[0]
        add = partial(Asked, Op.INCREMENT)
        sums = [add(new, number(7)), add(new, number(-9)), add(other, number(1)), Asked(Op.GET, new)]
        older = self._sum or new
        self._sum = new
        return [sums, [add(older, number(100))]]

    def _conditions(self, store: Store) -> list[list[Asked]]:
        new, absent, updated, other = self._absent.pop(0), self._absent[-1], self._recent[-1], self._recent[0]
        self._values += 4
        values = [value_of(self._layout, self._values - at) for at in range(4)]
        equals, held = Condition.EQUALS, self._held(store)
        expected = int.from_bytes(held[updated].value, "little") if self._is_numbers else held[updated].version
        return [
            [
                Asked(Op.SET, new, values[0], Condition.ABSENT),
                Asked(Op.SET, new, values[1], Condition.ABSENT),
                Asked(Op.SET, absent, values[1], Condition.PRESENT),
                Asked(Op.SET, updated, values[2], equals, expected),
            ],
            [
                Asked(Op.SET, updated, values[3], equals, expected),
                Asked(Op.DELETE, updated, b"", equals, expected),
                Asked(Op.DELETE, other, b"", Condition.PRESENT),
            ],
        ]

    def _guards(self) -> list[list[Asked]]:
        guarded, updated = self._absent.pop(0), self._recent[-1]
        untouched = self._absent[-1]
        self._values += 3
        values = [value_of(self._layout, self._values - at) for at in range(3)]
        absent = Asked(Op.CHECK, guarded, b"", Condition.ABSENT)
        done = [absent, Asked(Op.SET, guarded, values[0]), Asked(Op.SET, updated, values[1])]
        refused = [Asked(Op.SET, untouched, values[2]), Asked(Op.DELETE, updated), absent]
        return [done, refused, [Asked(Op.INCREMENT, self._sum or untouched, number(1))]]

    def _expiries(self) -> list[list[Asked]]:
        """Return requests after which two keys expire soon, and one later."""
        met, later, older = self._absent.pop(0), self._absent.pop(0), self._recent[-1]
        soon = self.now + _SOON_MS
        self._values += 1
        self._expiring = met, later
        return [
            [
                Asked(Op.SET, met, value_of(self._layout, self._values), Condition.ABSENT, expiry=soon),
                self._expire(older),
            ],
            [Asked(Op.INCREMENT, later, number(5), expiry=self.now + _LATER_MS), Asked(Op.EXPIRY, older)],
        ]

    def _expire(self, key: bytes) -> Asked:
        return Asked(Op.EXPIRE, key, expiry=self.now + _SOON_MS)

    def _afterwards(self, store: Store) -> None:
        """Have a batch meet a key that has expired; the other one stays, until the sweep."""
        self.now += _SOON_MS
        met, later = self._expiring
        counts = Asked(Op.INCREMENT, met, number(2))  # from nothing: what it held is no number
        self._look(store, [[Asked(Op.GET, met), Asked(Op.EXPIRE, later)], [counts, Asked(Op.APPEND, later, b"6")]])

    def _sweep(self, store: Store) -> None:
        """Sweep until nothing is due."""
        self.now += _SOON_MS + _SLACK_MS
        expiry = store._engine.expiry
        while expiry.idle_step():
            pass
        assert not expired(self._held(store), [*self.tables[self._table]], self.now), "the sweep left a key"

    def _held(self, store: Store) -> Held:
        """Return what the table holds, what has expired too."""
        contents = [*self.tables[self._table]]
        with as_stored(store):
            found = store.execute(Batch.of([(Op.GET, key) for key in contents]), table=self._table)
            expiries = expiries_of(store, self._table, contents)
        columns = zip(contents, found.value_list(), found.versions.tolist(), expiries, strict=True)
        return {key: Kept(value, version, expiry) for key, value, version, expiry in columns}

    def _look(self, store: Store, requests: list[list[Asked]]) -> None:
        """Run requests as one batch, and compare their results with the model."""
        model = Model(self._held(store), not self._is_numbers)
        table = store.table(self._table).id
        result = self._run(store, batch_of(table, requests))
        assert result.requests == len(requests)
        for key in [key for key in model.held if key not in self.tables[self._table]]:  # it had expired
            del model.held[key]
        asked = [one.key for request in requests for one in request]
        assert not expired(model.held, asked, self.now), "a batch met keys that have expired, and left them"
        for at, request in enumerate(requests):
            before = dict(model.held)
            assert not [*model.differences(request, result, at)]
            for one in request:
                if model.held.get(one.key) != before.get(one.key):
                    self._recent = [other for other in self._recent if other != one.key]
                    self._recent += [one.key] * (one.key in model.held)
        self.tables[self._table] = {key: kept.value for key, kept in model.held.items()}
        assert self._held(store) == model.held

    def _join(self, store: Store) -> None:
        updated, deleted = self._recent[-1], self._recent[0]
        operations: list[Operation] = [
            *self._new(1),
            self._set(updated),
            (Op.DELETE, deleted),
            (Op.DELETE, self._absent[-1]),
            self._set(updated),
            self._set(self._full.pop(0)),
        ]
        self._note(self._table, operations)
        self._requests(store, [[operation] for operation in operations])

    def _requests(self, store: Store, requests: list[list[Operation]]) -> None:
        batch = Batch.concatenate([Batch.of(operations) for operations in requests])
        result = self._run(store, batch.on_table(store.table(self._table).id))
        assert result.requests == len(requests)
        assert not result.rejected

    def _run(self, store: Store, batch: Batch) -> BatchResult:
        runner = BatchRunner(store, self._engine)
        result = runner.run(batch)
        self.natively += runner.natively
        return result

    def _create(self, store: Store) -> None:
        store.create_table(OTHER_TABLE, layout=self._layout, index_bytes=BLOCK_BYTES)
        self.tables[OTHER_TABLE] = {}

    def _drop(self, store: Store) -> None:
        store.drop_table(OTHER_TABLE)
        del self.tables[OTHER_TABLE]

    def _begin_growth(self, store: Store) -> None:
        growing, table = _growing(store)
        assert growing.is_reserved(table, waits=True)
        growing.begin(table)

    def _move_block(self, store: Store) -> None:
        growing, table = _growing(store)
        growing.move_to(table, table.index.unmoved - 1)

    def _finish_growth(self, store: Store) -> None:
        growing, table = _growing(store)
        growing.finish(table)


def _compact(store: Store) -> None:
    store._engine.free_space.compactor.empty(store._engine.heap.tail.segment)


def _compact_both(store: Store) -> None:
    _compact(store)
    committer = store._engine.committer
    assert isinstance(committer, UndoCommitter)
    assert len(committer.transaction.current.runs) == len(store._engine.tables), "records of one table alone moved"


def _growing(store: Store) -> tuple[Growing, Table]:
    return store._engine.growth, store._engine.tables[store.table(OTHER_TABLE).id]
