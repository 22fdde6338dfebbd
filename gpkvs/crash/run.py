"""Running a workload, or recovery, under a recorder."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from pathlib import Path
from random import Random

from gpkvs.crash.base import OTHER_TABLE, Keys, make_base, open_tiny
from gpkvs.crash.bench import Disk, Dump, dump
from gpkvs.crash.recorder import Recorder
from gpkvs.crash.trace import Image, Kind, Mutation, Trace
from gpkvs.crash.workloads import CREATE, DROP, OPEN, Script, Workload
from gpkvs.layout import BLOCK_BYTES
from gpkvs.store import Store


@dataclass(frozen=True)
class Run:
    """A workload that ran to its end: its trace, and what must be there after each of its batches."""

    trace: Trace
    dumps: tuple[Dump, ...]  # before the first batch, and after each
    last: int  # the first event of the last batch


class Runner:
    """Runs workloads, each from the base store of its layout.

    Parameters
    ----------
    directory
        In memory, for this process alone.
    seed
        Permutes the threads of kernels.
    mutation
        What the build that runs leaves out.
    """

    def __init__(self, directory: Path, seed: int, mutation: Mutation | None = None) -> None:
        self._directory = directory
        self._seed = seed
        self._mutation = mutation
        self._bases: dict[str, tuple[Image, Keys]] = {}

    def mutated(self, mutation: Mutation | None) -> Runner:
        """Return a runner of another build, with the same base stores."""
        other = copy(self)
        other._mutation = mutation
        return other

    def keys(self, layout: str) -> Keys:
        """Return every key that the workloads of a layout may store."""
        return self._base(layout)[1]

    def run(self, workload: Workload) -> Run:
        """Run a workload to its end.

        Raises
        ------
        AssertionError
            If what is there after a batch is not what the batch says, or a file changed outside of the trace.
        """
        base, keys = self._base(workload.layout)
        disk = Disk(self._directory / "run")
        if workload.letters == CREATE:
            return self._open(disk, workload, Image(), keys)
        disk.lay(base)
        if workload.letters == OPEN:
            return self._open(disk, workload, disk.image().copy(), keys)
        with open_tiny(disk.path) as store:
            if workload.letters == DROP:
                store.create_table(OTHER_TABLE, layout=workload.layout, index_bytes=BLOCK_BYTES)
            return self._batches(disk, workload, store, keys)

    def _batches(self, disk: Disk, workload: Workload, store: Store, keys: Keys) -> Run:
        before = disk.image().copy()
        dumps = [dump(store, keys.all)]
        script = Script(workload, keys, _contents(dumps[0]))
        with self._recorder(disk, before, str(workload)) as recorder:
            for step in workload.steps:
                script.step(step, store)
                recorder.mark()
                dumps.append(dump(store, keys.all))
                assert _contents(dumps[-1]) == script.tables, f"{workload}: {step} is not there as it was given"
        return self._finished(disk, recorder, dumps)

    def _open(self, disk: Disk, workload: Workload, before: Image, keys: Keys) -> Run:
        disk.lay(before)
        with self._recorder(disk, before, str(workload)) as recorder:
            store = open_tiny(disk.path, create=workload.letters == CREATE)
            recorder.mark()
        with store:
            found = dump(store, keys.all)
        return self._finished(disk, recorder, [found, found])

    def recovery(self, disk: Disk, state: Image, name: str) -> Trace:
        """Recover a state; return the trace of it, which ends with a MARK.

        Raises
        ------
        GpkvsError
            If it cannot be opened.
        """
        disk.lay(state)
        with self._recorder(disk, state, name) as recorder:
            store = open_tiny(disk.path, create=True)
            recorder.mark()
        store.close()
        return recorder.trace().mutated(self._mutation)

    def _finished(self, disk: Disk, recorder: Recorder, dumps: list[Dump]) -> Run:
        trace = recorder.trace()
        _assert_complete(trace, disk.image())
        trace = trace.mutated(self._mutation)
        marks = [place for place, event in enumerate(trace.events) if event.kind is Kind.MARK]
        return Run(trace, tuple(dumps), marks[-2] + 1 if len(marks) > 1 else 0)

    def _recorder(self, disk: Disk, before: Image, name: str) -> Recorder:
        return Recorder(disk.path, before, Random(f"{self._seed} {name}"))

    def _base(self, layout: str) -> tuple[Image, Keys]:
        if layout not in self._bases:
            path = self._directory / f"base-{layout}"
            keys = make_base(path, layout)
            self._bases[layout] = Disk(path).image().copy(), keys
        return self._bases[layout]


def _contents(found: Dump) -> dict[str, dict[bytes, bytes]]:
    return {name: {key: value for key, value, _ in records} for name, _, records in found.tables}


def _assert_complete(trace: Trace, after: Image) -> None:
    """Raise if a file changed outside of the trace: that would be a hole in every result."""
    traced = trace.after()
    assert traced.names.keys() == after.names.keys(), (traced.names, after.names)
    for name, number in after.names.items():
        assert (traced.files[traced.names[name]] == after.files[number]).all(), f"{name} changed outside of the trace"
