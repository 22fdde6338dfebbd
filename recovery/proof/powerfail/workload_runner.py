"""Runs workloads and recoveries under a recorder."""

from __future__ import annotations

import os
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from unittest.mock import patch

from gpkvs.batch import Batch, Op
from gpkvs.config import DurabilityName
from gpkvs.media.layout import BLOCK_BYTES
from gpkvs.recovery.proof.batch_runner import EngineName
from gpkvs.recovery.proof.expiring import on_removal
from gpkvs.recovery.proof.powerfail.base_store import (
    OTHER_TABLE,
    ExploredEngine,
    Keys,
    make_base,
    open_tiny,
    use_up_incarnations,
    value_of,
)
from gpkvs.recovery.proof.powerfail.recorder import TraceRecorder
from gpkvs.recovery.proof.powerfail.state_judge import Disk, Dump, dump
from gpkvs.recovery.proof.powerfail.trace import CHANGES, HOST_STORE, Image, Kind, Mutation, Trace
from gpkvs.recovery.proof.powerfail.workloads import (
    BLOB,
    BOTH,
    COPY,
    COPY_WITH_BLOB,
    CREATE,
    DROP,
    GROWTH,
    OPEN,
    PROCESS,
    RENEW,
    Script,
    Workload,
)
from gpkvs.recovery.proof.table_changes import on_taken_number
from gpkvs.store import Store


@dataclass(frozen=True)
class WorkloadRun:
    """A workload that ran to its end: its trace, and what the store must hold after each batch.

    Parameters
    ----------
    dumps
        What the store held before the first batch, and after each. In the trace a MARK ends each batch.
    last
        The first event that is explored: the last batch begins there, or a part that no other workload has.
    promised
        The event from which on the store survives a power failure; before it, the store may run in a weaker domain.
    natively
        How many batches the native engine ran.
    """

    trace: Trace
    dumps: tuple[Dump, ...]
    last: int
    promised: int
    natively: int = 0


class WorkloadRunner:
    """Runs workloads, each from the base store of its layout.

    Parameters
    ----------
    directory
        In memory, for this process alone.
    seed
        Permutes the threads of kernels.
    engine
        Runs their batches.
    mutation
        What the mutated build leaves out, if anything.
    """

    def __init__(self, directory: Path, seed: int, engine: ExploredEngine, mutation: Mutation | None = None) -> None:
        self._directory = directory
        self._seed = seed
        self._is_pair = engine == "pair"
        self._engine: EngineName = "phases" if engine == "pair" else engine
        self._mutation = mutation
        self._bases: dict[tuple[str, bool], tuple[Image, Keys]] = {}

    def mutated(self, mutation: Mutation | None) -> WorkloadRunner:
        """Return a runner that leaves something else out, with the same base stores."""
        other = copy(self)
        other._mutation = mutation
        return other

    def _open_tiny(self, path: Path, *, create: bool = False, durability: DurabilityName | None = None) -> Store:
        # On a disk, a pair would leave all stores to the host's threads, as a GPU does.
        with_all_persists: DurabilityName = "flush" if self._is_pair else "msync"
        return open_tiny(path, create=create, durability=durability or with_all_persists, is_pair=self._is_pair)

    def keys(self, layout: str) -> Keys:
        """Return every key that the workloads of a layout may store."""
        return self._base(layout)[1]

    def run(self, workload: Workload) -> WorkloadRun:
        """Run a workload to its end.

        Raises
        ------
        AssertionError
            If a batch did not do what it says, or a file changed outside of the trace.
        """
        base, keys = self._base(workload.layout, has_blobs=workload.has_blobs)
        disk = Disk(self._directory / "run")
        if workload.letters == CREATE:
            return self._open(disk, workload, Image(), keys)
        disk.lay(base)
        if workload.letters == OPEN:
            return self._open(disk, workload, disk.image().copy(), keys)
        if workload.letters == RENEW:
            in_progress = self._before_idle(Workload(workload.layout, "N"))
            disk = Disk(self._directory / "run")  # `_before_idle` replaced the files of the first one
            disk.lay(in_progress)
            return self._renewed(disk, workload, keys)
        if workload.letters in (PROCESS, COPY, COPY_WITH_BLOB):
            return self._two_domains(disk, workload, keys)
        if workload.letters in GROWTH:
            return self._grown(disk, workload, keys)
        with self._open_tiny(disk.path) as store:
            if workload.letters in (BOTH, DROP):
                store.create_table(OTHER_TABLE, layout=workload.layout, index_bytes=BLOCK_BYTES)
            if workload.letters == BOTH:
                store.execute(Batch.of([(Op.SET, key, b"other") for key in keys.present[:4]]), table=OTHER_TABLE)
            return self._batches(disk, workload, store, keys)

    def _batches(self, disk: Disk, workload: Workload, store: Store, keys: Keys) -> WorkloadRun:
        before = disk.image().copy()
        dumps = [dump(store, keys.all)]
        script = Script(workload, keys, _contents(dumps[0]), self._engine)
        with self._recorder(disk, before, str(workload)) as recorder:

            def removing(table: int, gone: list[bytes], run: Callable[[], None]) -> None:
                run()
                script.remove(table, gone, store)
                recorder.mark()  # it is a transaction of its own, and durable before the batch that met these keys
                dumps.append(_without(dumps[-1], script.table, gone, script.now))

            def taking(run: Callable[[], None]) -> None:
                run()
                recorder.mark()  # a change of the tables comes behind it
                dumps.append(replace(dumps[-1], next_version=dumps[-1].next_version + 1))

            on_removal(store, removing)
            on_taken_number(store, taking)
            script.take_time(store)
            for step in workload.steps:
                earlier = len(dumps) - 1
                script.step(step, store)
                recorder.mark()
                found = dump(store, keys.all)
                has_time = store._engine.expiry.is_used and found.next_version > dumps[-1].next_version
                dumps.append(replace(found, kept_ms=script.now if has_time else dumps[-1].kept_ms))
                assert _contents(dumps[-1]) == script.tables, f"{workload}: {step} is not there as it was given"
        return replace(self._finished(disk, recorder, dumps, earlier), natively=script.natively)

    def _grown(self, disk: Disk, workload: Workload, keys: Keys) -> WorkloadRun:
        """Have a table with some keys grow; every step of that is explored."""
        with self._open_tiny(disk.path) as store:
            index_bytes = int(workload.letters) * BLOCK_BYTES
            store.create_table(OTHER_TABLE, layout=workload.layout, index_bytes=index_bytes)
            there = keys.present[:4] + keys.absent[-20:]
            operations = [(Op.SET, key, value_of(workload.layout, 77)) for key in there]
            store.execute(Batch.of(operations), table=OTHER_TABLE)
        # Steps come when the workload says so, not in proportion to its new keys.
        with self._open_tiny(disk.path) as store, patch.object(store._engine.growth, "after"):
            return replace(self._batches(disk, workload, store, keys), last=0, promised=0)

    def _open(self, disk: Disk, workload: Workload, before: Image, keys: Keys) -> WorkloadRun:
        disk.lay(before)
        with self._recorder(disk, before, str(workload)) as recorder:
            store = self._open_tiny(disk.path, create=workload.letters == CREATE)
            recorder.mark()
        with store:
            found = dump(store, keys.all)
        return self._finished(disk, recorder, [found, found])

    def _renewed(self, disk: Disk, workload: Workload, keys: Keys) -> WorkloadRun:
        """Open a store whose incarnations are used up, then run a batch, which stores over the last old descriptor."""
        use_up_incarnations(disk.path)
        before = disk.image().copy()
        disk.lay(before)
        with self._recorder(disk, before, str(workload)) as recorder:
            store = self._open_tiny(disk.path)
            recorder.mark()
            found = dump(store, keys.all)
            script = Script(workload, keys, _contents(found), self._engine)
            script.step("N", store)
            recorder.mark()
        with store:
            run = self._finished(disk, recorder, [found, found, dump(store, keys.all)])
        return replace(run, last=0, promised=0, natively=script.natively)

    def _before_idle(self, workload: Workload) -> Image:
        """Return what a batch leaves that has stored everything but its last flag: the next opening has to undo it."""
        trace = self.run(workload).trace
        image = trace.before.copy()
        for event in trace.events:
            if event.kind in CHANGES and event.site.startswith(f"{HOST_STORE} of IDLE"):
                break
            if event.kind in CHANGES:
                image.apply(event)
        return image

    def _two_domains(self, disk: Disk, workload: Workload, keys: Keys) -> WorkloadRun:
        """Run or copy what a power failure may take back; then open the store in msync, and run a batch."""
        with self._open_tiny(disk.path) as store:
            script = Script(workload, keys, _contents(dump(store, keys.all)), self._engine)
            if workload.has_blobs:
                script.step(BLOB, store)
        before = disk.image().copy()
        is_copy = workload.letters != PROCESS
        earlier = self._copy(disk, before) if is_copy else self._in_process(disk, before, script)
        with self._recorder(disk, earlier.after(), f"{workload}, opened") as recorder:
            store = self._open_tiny(disk.path)
            recorder.mark()
            found = dump(store, keys.all)
            assert _contents(found) == script.tables
            script.step("N", store)
            recorder.mark()
        with store:
            dumps = (found, found, dump(store, keys.all))
        trace = earlier.then(recorder.trace().events)
        _assert_complete(trace, disk.image())
        trace = trace.mutated(self._mutation)
        opened = next(place for place, event in enumerate(trace.events) if event.kind is Kind.MARK)
        return WorkloadRun(trace, dumps, len(earlier.events) if is_copy else 0, opened, script.natively)

    def _in_process(self, disk: Disk, before: Image, script: Script) -> Trace:
        """Return the trace of batches in the domain process, which syncs nothing and writes no cache line back."""
        with self._recorder(disk, before, "in process") as recorder:
            store = self._open_tiny(disk.path, durability="process")
            for letter in "NCU":
                script.step(letter, store)
        store.close()
        events = recorder.trace().events
        return Trace(before, tuple(event for event in events if event.kind is not Kind.WRITE_BACK))

    def _copy(self, disk: Disk, image: Image) -> Trace:
        """Return the trace of copying files into an empty directory as `cp` does: without a sync."""
        disk.lay(Image())
        with self._recorder(disk, Image(), "copied") as recorder:
            for name, words in image.items():
                file = os.open(disk.path / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
                os.write(file, words.tobytes())
                os.close(file)
        return recorder.trace()

    def recovery(self, disk: Disk, state: Image, name: str) -> Trace:
        """Recover a state; return the trace of that, which ends with a MARK.

        Raises
        ------
        GpkvsError
            If it cannot be opened.
        """
        disk.lay(state)
        with self._recorder(disk, state, name) as recorder:
            store = self._open_tiny(disk.path, create=True)
            recorder.mark()
        store.close()
        return recorder.trace().mutated(self._mutation)

    def _finished(
        self, disk: Disk, recorder: TraceRecorder, dumps: list[Dump], earlier: int | None = None
    ) -> WorkloadRun:
        """Return a run; the first `earlier` batches are not explored, by default all but the last."""
        trace = recorder.trace()
        _assert_complete(trace, disk.image())
        trace = trace.mutated(self._mutation)
        marks = [place for place, event in enumerate(trace.events) if event.kind is Kind.MARK]
        earlier = len(marks) - 1 if earlier is None else earlier
        last = marks[earlier - 1] + 1 if earlier else 0
        return WorkloadRun(trace, tuple(dumps), last, last)

    def _recorder(self, disk: Disk, before: Image, name: str) -> TraceRecorder:
        return TraceRecorder(disk.path, before, Random(f"{self._seed} {name}"))

    def _base(self, layout: str, *, has_blobs: bool = False) -> tuple[Image, Keys]:
        which = layout, has_blobs
        if which not in self._bases:
            path = self._directory / f"base-{layout}{'-blobs' * has_blobs}"
            keys = make_base(path, layout, has_blobs=has_blobs)
            self._bases[which] = Disk(path).image().copy(), keys
        return self._bases[which]


def _contents(found: Dump) -> dict[str, dict[bytes, bytes]]:
    return {name: {key: value for key, value, *_ in records} for name, _, records in found.tables}


def _without(before: Dump, table: str, gone: list[bytes], now: int) -> Dump:
    """Return what a store holds when a transaction has removed keys that have expired."""
    tables = []
    for name, layout, records in before.tables:
        removed = [expiry for key, _, _, expiry in records if name == table and key in gone]
        assert len(removed) == (len(gone) if name == table else 0)
        assert all(0 < expiry <= now for expiry in removed), "a key that lives is removed"
        left = tuple(record for record in records if name != table or record[0] not in gone)
        tables.append((name, layout, left))
    return Dump(before.next_version + len(gone), tuple(tables), now)


def _assert_complete(trace: Trace, after: Image) -> None:
    """Raise if a file changed outside of the trace: that would be a hole in every result."""
    traced = trace.after()
    assert traced.names.keys() == after.names.keys(), (traced.names, after.names)
    for name, number in after.names.items():
        assert (traced.files[traced.names[name]] == after.files[number]).all(), f"{name} changed outside of the trace"
