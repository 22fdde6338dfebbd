"""The phases that plan one table's share of a transaction, kernel by kernel. They only read PM.

route -> order -> find -> fold -> measure, then place -> stage; a batch that only reads goes route -> look -> measure.
Each kernel exists once for each layout; phases_bytes.py and phases_u64.py hold what else depends on the layout.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpkvs import failpoint
from gpkvs.backends.base import Argument, Column, Processor
from gpkvs.batch import U8, U32, U64, Batch, RequestResult, Status, constant
from gpkvs.engine.capacity import DoesNotFitError, reads_too_much, result_bytes_by_request
from gpkvs.engine.device.plan import NOTHING_SEEN, Chains, Fingerprints, Folded, PlacedChains, Plan, Seen, SlotChanges
from gpkvs.engine.device.slot_placement import Placement
from gpkvs.engine.meter import Meter
from gpkvs.engine.table import Table
from gpkvs.media.files import StoreFiles
from gpkvs.media.layout import NO_SLOT, UNIT_BYTES, ChangeKind

_PLACES_BITS = 2  # of an operation: so few GETs are ordered because another key has the place of theirs
_BOUND_SLACK = np.uint32(UNIT_BYTES - 1)  # by so much a bound may be too large


class Phases(ABC):
    """The phases of one table, on one processor.

    Parameters
    ----------
    place
        Where the plan runs: it runs the kernels and holds the columns.
    files
        The mapped store.
    table
        Whose operations are planned.
    result_bytes_max
        Values that one request may read.
    meter
        Told when a phase ends.
    """

    def __init__(self, place: Processor, files: StoreFiles, table: Table, result_bytes_max: int, meter: Meter) -> None:
        self._backend = place
        self._files = files
        self._index = table.index
        self._hash_key0, self._hash_key1 = table.index.hash_keys
        self._placement = Placement(place, table)
        self._meter = meter
        self.table = table
        self.result_bytes_max = result_bytes_max

    @property
    def _xp(self) -> ModuleType:
        return self._backend.xp

    def begin(self, batch: Batch, first_sequence: int, now: int) -> Plan:
        """Return an empty plan of some operations; the arguments are those of `Plan`."""
        return Plan(self._backend, batch, first_sequence, now)

    def read(self, plan: Plan) -> None:
        """Find every key and what each operation sees; PM is only read.

        Raises
        ------
        ExpiredKeysError
            If some key looks expired.
        """
        failpoint.hit("before_route")
        if plan.batch.has_writes:
            if not self._has_versions:
                plan.fetch()  # in a bytes table, the values go from the host to the heap
            fingerprints = self._route(plan, plan.keys, len(plan.batch))
            self._meter.lap("route")
            plan.chains = self._find(plan, fingerprints)
            failpoint.hit("before_fold")
            plan.folded = self._last_sets(plan) if plan.batch.has_only_sets else self._fold(plan, plan.seen)
            if plan.batch.has_reads:
                self._see_own_writes(plan)
            self._meter.lap("fold")
        else:
            self._look(plan)
            self._meter.lap("find")
        if plan.now:
            self._require_present(plan)

    def measure(self, plan: Plan) -> None:
        """Find out how long the values of all GETs are, which reads and checks the records that they come from."""
        plan.result_bytes = self._result_bytes(plan) if plan.batch.has_reads else 0
        self._meter.lap("measure")

    def place(self, plan: Plan) -> None:
        """Find a way for every new key.

        Raises
        ------
        DoesNotFitError
            With the requests whose keys find none.
        """
        if plan.batch.has_only_sets:
            changed = self._xp.arange(len(plan.chains), dtype=np.uint32)
        else:
            changed = self._backend.numbers_where(plan.folded.change != ChangeKind.NONE.value)
        failpoint.hit("before_place")
        plan.placed = self._placement.place(plan, changed)
        self._meter.lap("place")

    def _scratch(self, count: int, *types: type[np.generic]) -> list[NDArray[Any]]:
        """Return new columns, one of each type, that last as long as the transaction."""
        return [self._backend.scratch(count, dtype) for dtype in types]

    def _route(self, plan: Plan, keys: U8, count: int) -> Fingerprints:
        """Hash the keys of a plan, or of a part of it where they are all alike in length."""
        word0, word1 = self._scratch(count, np.uint64, np.uint64)
        self._launch(
            "route",
            count,
            **self._route_arguments(plan),
            keys=keys,
            hash_key0=self._hash_key0,
            hash_key1=self._hash_key1,
            fingerprint0=word0,
            fingerprint1=word1,
        )
        return Fingerprints(word0, word1)

    def _find(self, plan: Plan, fingerprints: Fingerprints) -> Chains:
        failpoint.hit("before_order")
        order, chain_of, start, last_write = self._order(plan, fingerprints)
        count = len(start) - 1
        word0, word1, slot, old_word = self._scratch(count, *[np.uint64] * 4)
        (block,) = self._scratch(count, np.uint32)
        (old_meta,) = self._scratch(count if self._has_versions else 0, np.uint64)
        chains = Chains(order, chain_of, start, last_write, word0, word1, block, slot, old_word, old_meta)
        self._meter.lap("order")
        failpoint.hit("before_find")
        self._launch(
            "find",
            count,
            **self._key_arguments(plan.keys),
            **({"old_meta": old_meta} if self._has_versions else {}),
            order=order,
            chain_start=start,
            fingerprint0=fingerprints.word0,
            fingerprint1=fingerprints.word1,
            index=self._index,
            **self._index.geometry,
            chain_fingerprint0=word0,
            chain_fingerprint1=word1,
            block=block,
            slot=slot,
            old_word=old_word,
        )
        self._meter.lap("find")
        return chains

    def _order(self, plan: Plan, fingerprints: Fingerprints) -> tuple[U32, U32, U32, U32]:
        """Sort operations as `Backend.order` does; of a batch of many GETs, not those whose keys it does not write."""
        batch, word0, word1 = plan.batch, fingerprints.word0, fingerprints.word1
        if not batch.has_only_sets and plan.seen is NOTHING_SEEN:
            plan.seen = self.columns_of_seen(len(batch))
        if 2 * batch.gets >= len(batch):
            self._look_up(plan.keys, fingerprints, plan.seen)
            numbers = self._to_order(plan, fingerprints)
            order, chain_of, start, last_write = self._backend.order(*self._take(plan, fingerprints, numbers))
            return numbers[order], chain_of, start, last_write
        return self._backend.order(word0, word1, plan.ops)

    def _take(self, plan: Plan, fingerprints: Fingerprints, numbers: U32) -> tuple[U64, U64, U8]:
        """Return fingerprints and kinds of some operations."""
        count = len(numbers)
        word0, word1 = self._scratch(count, np.uint64, np.uint64)
        (ops,) = self._scratch(count, np.uint8)
        self._backend.launch(
            "take_ops",
            count,
            numbers=numbers,
            fingerprint0=fingerprints.word0,
            fingerprint1=fingerprints.word1,
            ops=plan.ops,
            taken0=word0,
            taken1=word1,
            taken_ops=ops,
        )
        return word0, word1, ops

    def columns_of_seen(self, count: int) -> Seen:
        """Return uninitialised columns for what the operations of a batch with writes see."""
        status, versions = self._result_columns(count)
        return Seen(status, versions, *self._scratch(count, np.uint64, np.uint32))

    def _to_order(self, plan: Plan, fingerprints: Fingerprints) -> U32:
        """Return the operations that must be ordered, in arrival order; all others see what the table holds."""
        count = len(plan.batch)
        places = 1 << (count.bit_length() + _PLACES_BITS)
        written, (needs,) = self._xp.zeros(places, np.uint8), self._scratch(count, np.uint8)
        word0, launch = fingerprints.word0, self._backend.launch
        launch("mark_written", count, ops=plan.ops, fingerprint0=word0, places=places, written=written)
        launch(
            "needs_order",
            count,
            ops=plan.ops,
            fingerprint0=word0,
            places=places,
            written=written,
            needs=needs,
            source_op=plan.seen.source_op,
        )
        return self._backend.numbers_where(needs)

    def _look(self, plan: Plan) -> None:
        """Look up the keys of a batch that only reads."""
        count = len(plan.batch)
        status, versions = self._result_columns(count)
        plan.seen = Seen(status, versions, self._xp.empty(count, np.uint64), self._xp.empty(0, np.uint32))
        fingerprints = self._route(plan, plan.keys, count)
        self._meter.lap("route")
        self._look_up(plan.keys, fingerprints, plan.seen)

    def _look_up(self, keys: U8, fingerprints: Fingerprints, seen: Seen) -> None:
        self._launch(
            "look",
            len(seen.status),
            **self._key_arguments(keys),
            **({"versions": seen.versions} if self._has_versions else {}),
            fingerprint0=fingerprints.word0,
            fingerprint1=fingerprints.word1,
            index=self._index,
            **self._index.geometry,
            status=seen.status,
            source_word=seen.source_word,
        )

    def _result_columns(self, count: int) -> tuple[U8, U64]:
        """Return columns for status and, where there are any, versions; they outlive the transaction."""
        return self._xp.empty(count, np.uint8), self._xp.empty(count if self._has_versions else 0, np.uint64)

    def _launch(self, kernel: str, items: int, /, **arguments: Argument) -> None:
        """Run the kernel of this table's layout."""
        self._backend.launch(f"{kernel}_{self._index.layout.name}", items, keys_per_item=1, **arguments)

    def _last_sets(self, plan: Plan) -> Folded:
        """Fold a batch of SETs only: each sees that it is done, the last one of each key stays."""
        chains = plan.chains
        change, final_op = self._scratch(len(chains), np.uint8, np.uint32)
        self._backend.launch(
            "last_set", len(chains), order=chains.order, chain_start=chains.start, change=change, final_op=final_op
        )
        return Folded(change, final_op)

    def _fold(self, plan: Plan, seen: Seen) -> Folded:
        chains = plan.chains
        change, final_op = self._scratch(len(chains), np.uint8, np.uint32)
        of_versions: dict[str, Argument] = {
            "old_meta": chains.old_meta,
            "first_sequence": plan.first_sequence,
            "versions": seen.versions,
        }
        self._launch(
            "fold",
            len(chains.order),
            **(of_versions if self._has_versions else {}),
            order=chains.order,
            chain_of=chains.chain_of,
            chain_start=chains.start,
            last_write=chains.last_write,
            ops=plan.ops,
            slot=chains.slot,
            old_word=chains.old_word,
            status=seen.status,
            source_word=seen.source_word,
            source_op=seen.source_op,
            change=change,
            final_op=final_op,
        )
        return Folded(change, final_op)

    def check_results(self, plan: Plan) -> None:
        """Refuse requests that would return too much.

        Raises
        ------
        DoesNotFitError
            With these requests.
        """
        if plan.result_bytes > self.result_bytes_max:
            self._refuse_large(self.by_request(plan, self.lengths(plan)))

    def check_bounds(self, plan: Plan) -> None:
        """Refuse requests that would surely return too much, before their records are read.

        Raises
        ------
        DoesNotFitError
            With these requests.
        """
        bounds = self.bounds(plan)
        self._refuse_large(self.by_request(plan, bounds - self._xp.minimum(bounds, _BOUND_SLACK)))

    def _refuse_large(self, result_bytes: NDArray[np.int64]) -> None:
        too_large = np.flatnonzero(result_bytes > self.result_bytes_max).tolist()
        if too_large:
            raise DoesNotFitError(dict.fromkeys(too_large, reads_too_much(self.result_bytes_max)))

    def by_request(self, plan: Plan, lengths: U32) -> NDArray[np.int64]:
        """Return the sum of its GETs' lengths for each request of a plan."""
        download = self._backend.download
        return result_bytes_by_request(plan.batch, download(plan.get_op), download(lengths))

    def stage(self, plan: Plan) -> None:
        """Work out the new contents of every slot that changes."""
        placed = plan.placed
        assert isinstance(placed, PlacedChains)
        m = placed.changes
        moved = placed.chain[:0] if placed.moved_to is None else self._backend.numbers_where(placed.moved_to != NO_SLOT)
        words = self._index.layout.slot_bytes // 8
        changed_slot = self._backend.scratch(m + len(moved), np.uint64)
        contents = self._backend.scratch((m + len(moved)) * words, np.uint64).reshape(-1, words)
        self._launch(
            "stage",
            m,
            **self._stage_arguments(plan),
            changed_chain=placed.chain,
            change=plan.folded.change,
            final_op=plan.folded.final_op,
            slot=placed.slot,
            changed_slot=changed_slot,
            contents=contents,
        )
        if placed.moved_to is not None:
            changed_slot[m:] = placed.moved_to[moved]
            self._launch("load_slots", len(moved), slot=changed_slot[moved], index=self._index, contents=contents[m:])
        digest = self._backend.scratch(len(changed_slot), np.uint64)
        plan.changes = SlotChanges(changed_slot, contents, digest)

    def removed(self, plan: Plan) -> int:
        """Return how many keys the table loses."""
        if plan.batch.has_only_sets:
            return 0
        return self._backend.total(plan.folded.change == ChangeKind.REMOVE.value)

    def result(self, plan: Plan) -> RequestResult:
        """Return the results of a plan, with the values of its GETs, where the keys are: on the host or the device.

        On their way to the host they are there after `Backend.delivered`: the commit need not wait for them.
        """
        on_host, count = isinstance(plan.batch.keys, np.ndarray), len(plan.batch)
        if plan.batch.has_only_sets:
            return self._result_of_sets(plan)
        deliver = self._backend.deliver if on_host else _as_it_is
        versions = deliver(plan.seen.versions) if self._has_versions else constant(np.uint64(0), count)
        values = deliver(self._values(plan) if plan.result_bytes else self._xp.empty(0, np.uint8))
        alike = not self._has_versions and plan.result_bytes == 8 * plan.gets
        lengths = constant(np.uint32(8), plan.gets) if alike else deliver(self.lengths(plan))
        return RequestResult(deliver(plan.seen.status), versions, lengths, values)

    def _result_of_sets(self, plan: Plan) -> RequestResult:
        """Return the results of SETs only: all are done, with versions in the order of their arrival."""
        count, first = len(plan.batch), plan.first_sequence
        versions = constant(np.uint64(0), count)
        if self._has_versions:
            versions = self._backend.deliver(self._xp.arange(first, first + count, dtype=np.uint64))
        status = constant(np.uint8(Status.OK), count)  # zeros would be a page fault for each 4 KiB
        return RequestResult(status, versions, np.empty(0, np.uint32), np.empty(0, np.uint8))

    def _result_bytes(self, plan: Plan) -> int:
        """Return the bytes of the values of all GETs."""
        return self._backend.total(self.lengths(plan))

    def lengths(self, plan: Plan) -> U32:
        """Return the length of each GET's value."""
        if plan.get_lengths is None:
            plan.get_lengths = self._lengths(plan)
        return plan.get_lengths

    def bounds(self, plan: Plan) -> U32:
        """Return how long each GET's value in the heap is at most, from what its slot says alone.

        What a GET sees of its own batch does not count: whether that SET has room is not known yet.
        """
        if plan.get_bounds is None:
            plan.get_bounds = self._bounds(plan)
        return plan.get_bounds

    @abstractmethod
    def _bounds(self, plan: Plan) -> U32:
        """Return how long each GET's value in the heap is at most, without reading it; up to 15 bytes too much."""

    def _see_own_writes(self, plan: Plan) -> None:
        """Have GETs that see a SET of their own batch see its value, where the layout keeps values in slots."""
        del plan

    @property
    @abstractmethod
    def _has_versions(self) -> bool:
        """Whether slots hold versions."""

    @abstractmethod
    def _require_present(self, plan: Plan) -> None:
        """Raise `ExpiredKeysError` if some key looks expired."""

    @abstractmethod
    def _route_arguments(self, plan: Plan) -> dict[str, Argument]:
        """Return what the layout's `route` takes beside the rest."""

    @abstractmethod
    def _key_arguments(self, keys: U8) -> dict[str, Argument]:
        """Return what the layout's `find` and `look` take to know a key."""

    @abstractmethod
    def _stage_arguments(self, plan: Plan) -> dict[str, Argument]:
        """Return what the layout's `stage` takes beside the rest."""

    @abstractmethod
    def _lengths(self, plan: Plan) -> U32:
        """Return the length of each GET's value, after checking where it comes from."""

    @abstractmethod
    def _values(self, plan: Plan) -> U8:
        """Return the values of the GETs, one after the other."""

    def old_expiring(self, plan: Plan) -> int:
        """Return how many slots with an expiry lose their record, to a new one or for good."""
        del plan
        return 0


def _as_it_is(column: Column) -> Column:
    return column
