"""Mistakes in the journal that the explorer must see.

Each is a text of the source that is replaced when the module is loaded: no copy of the checkout is made. This file is
run by its path, since nothing of gpkvs may be loaded before::

    python recovery/proof/diskfail/mutants.py NAME --seconds 60 --stop-early
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

_COMMITTER, _CHECKPOINT = "gpkvs.engine.commit.journal_committer", "gpkvs.engine.commit.checkpoint"
_JOURNAL, _ROOTS, _REPLAY = "gpkvs.media.journal", "gpkvs.media.root_copies", "gpkvs.recovery.startup.replay"
_RECOVER, _ENGINE, _FILES = "gpkvs.recovery.startup.recover", "gpkvs.engine.engine", "gpkvs.media.files"


_HEAP_GROWTH = "gpkvs.engine.space.heap_growth"


@dataclass(frozen=True)
class Mutant:
    """A mistake."""

    name: str
    changes: tuple[tuple[str, str, str], ...]  # a module, a text that is there once, and what replaces it
    harm: str

    @property
    def schedule(self) -> str:
        """The script that shows it; empty: lives at random do."""
        return SHOWN_BY.get(self.name, "")

    @property
    def is_of_phases(self) -> bool:
        """Whether only phases and the committer's steps in Python have it; native code does the same without it."""
        return any(change == _IN_STEPS or change[0] == _ENGINE for change in self.changes)


def _one(name: str, module: str, old: str, new: str, harm: str) -> Mutant:
    return Mutant(name, ((module, old, new),), harm)


def _several(name: str, module: str, changes: tuple[tuple[str, str], ...], harm: str) -> Mutant:
    return Mutant(name, tuple((module, old, new) for old, new in changes), harm)


# What one native call does is done by Python's steps, which have the mistake: `gpkvs crash` needs no compiler.
_IN_STEPS = (_COMMITTER, "self.is_native = True\n", "self.is_native = False\n")


def _in_steps(name: str, module: str, old: str, new: str, harm: str) -> Mutant:
    return Mutant(name, (_IN_STEPS, (module, old, new)), harm)


MUTANTS = (
    _one("no-flush", _JOURNAL, "*(data.file, data.direct, flushes),", "*(data.file, data.direct, False),", "W1"),
    _several(
        "result-before-gate",
        _ENGINE,
        (
            ("        else:\n            self.committer.wait(gate)\n", ""),
            ("        self.committer.wait(gate)\n        failpoint.hit", "        failpoint.hit"),
        ),
        "W1: a result is seen before its batch is durable",
    ),
    _one(
        "told-before-gate",
        "gpkvs.engine.host.change_log",
        "durable = self._committer.durable_gate",
        "durable = 1 << 62",
        "F3: a follower is told of what a crash takes back",
    ),
    _one(
        "page-before-durable",
        _CHECKPOINT,
        "            self._journal.wait(self._batches.begun)\n",
        "",
        "W2: the checkpoint shows a batch that is not durable",
    ),
    _one(
        "mark-cleared",
        "gpkvs.media.image",
        "        return int(count), following.value\n",
        "        __import__('time').sleep(0.0005)\n"
        "        self.marks[numbers[: int(count)]] = 0\n        return int(count), following.value\n",
        "a slot stored while its page was copied is never written again",
    ),
    _one(
        "copied-by-mark",
        _CHECKPOINT,
        "image.copy_pages(first, self._batches.ended.epoch,",
        "image.copy_pages(first, self._batches.begun,",
        "the same, where the batch has begun but not ended",
    ),
    Mutant(
        "begun-after-slots",
        (
            _IN_STEPS,
            (_COMMITTER, '        self.journal.begin(epoch)\n        failpoint.hit("before_frame")\n', ""),
            (
                _COMMITTER,
                '        lap("apply")\n        # Nothing but',
                '        self.journal.begin(epoch)\n        lap("apply")\n        # Nothing but',
            ),
        ),
        "W2: a checkpoint copies slots of a batch, and does not wait for it",
    ),
    Mutant(
        "ended-before-slots",
        (
            _IN_STEPS,
            (_COMMITTER, '        failpoint.hit("before_apply")\n', "        self.journal.end()\n"),
            (
                _COMMITTER,
                "        self.journal.end()\n        self._count(write_set,",
                "        self._count(write_set,",
            ),
        ),
        "a checkpoint is said to have a batch whose slots its pages have not",
    ),
    _in_steps(
        "growth-not-in-frames",
        _COMMITTER,
        "            growth=self._files.growth,\n            runs=write_set.runs,\n",
        "            growth=type(before.growth)(0, 0, 0),\n            runs=write_set.runs,\n",
        "W7: after a crash, keys are looked for where they were before the table grew",
    ),
    _one(
        "growth-not-in-checkpoint",
        _CHECKPOINT,
        "        descriptor.growth,\n",
        "",
        "W7: a checkpoint after which nothing came says that no table grows",
    ),
    _one(
        "catalogue-before-last-step",
        "gpkvs.engine.tables.growth",
        "        self._committer.wait(self._last_gate)\n",
        "",
        "W7: the catalogue of twice the blocks is durable before the frame that says that all have moved",
    ),
    _one(
        "targets-not-emptied",
        _REPLAY,
        "            fill_blocks(backend, index, run.first_word, run.count, frame.header.epoch)\n",
        "",
        "W5: a replay leaves in the targets what their blocks held before",
    ),
    _one("c-newest-begun", _CHECKPOINT, "c = self._batches.ended\n", "c = self._journal.last\n", "W3"),
    _one(
        "c-read-late",
        _CHECKPOINT,
        "        self._end(c)\n",
        "        self._end(self._batches.ended)\n",
        "c is a batch that ended after pages were looked at",
    ),
    _several(
        "one-root-copy",
        _ROOTS,
        (
            (
                "        self._region.store(second, root.pack())\n"
                "        self._region.persist_unlogged()\n        self.current",
                "        self.current",
            ),
            ('stale = COPY_NAMES.index(RootCopies.read(self._region).repaired or "A")', "stale = 0"),
        ),
        "W3: when the copy is torn, the other one names a checkpoint whose journal was used again",
    ),
    _one(
        "root-copies-in-turn",
        _ROOTS,
        "        self._region.store(second, root.pack())\n"
        "        self._region.persist_unlogged()\n        self.current",
        "        self.current",
        "each change writes the older copy, and no other",
    ),
    _one(
        "first-root-copy-first",
        _ROOTS,
        'stale = COPY_NAMES.index(RootCopies.read(self._region).repaired or "A")',
        "stale = 0",
        "after a crash that tore the second copy, the opening stores over the only whole one",
    ),
    _one(
        "roots-flushed-together",
        _ROOTS,
        '        self._region.persist_unlogged()\n        failpoint.hit("between_roots")\n',
        "",
        "a crash may tear both copies",
    ),
    _one(
        "second-root-not-flushed",
        _ROOTS,
        "        self._region.store(second, root.pack())\n        self._region.persist_unlogged()\n",
        "        self._region.store(second, root.pack())\n",
        "W3: the journal is used again while one copy is old",
    ),
    Mutant(
        "late-reservation",
        (
            _IN_STEPS,
            (_JOURNAL, "self.ring.capacity, freed_to, ctypes", "1 << 62, freed_to, ctypes"),
            (
                _COMMITTER,
                '        failpoint.hit("before_frame")\n',
                "        while self.journal.used_pages + frame.count > self.journal.ring.capacity:\n"
                "            __import__('time').sleep(0.001)\n",
            ),
        ),
        "a full journal locks up: the checkpoint waits for the batch that waits for it",
    ),
    _one(
        "no-reservation",
        _JOURNAL,
        "self.ring.capacity, freed_to, ctypes",
        "1 << 62, freed_to, ctypes",
        "W3: frames that a replay needs are overwritten",
    ),
    _several(
        "freed-before-roots",
        _CHECKPOINT,
        (
            (
                "            _change_checkpoint(self._files, c)\n        self._journal.free(c.position)\n",
                "            _change_checkpoint(self._files, c)\n",
            ),
            (
                '            failpoint.hit("before_checkpoint_root")\n',
                '            self._journal.free(c.position)\n            failpoint.hit("before_checkpoint_root")\n',
            ),
        ),
        "W3: frames that a replay needs are overwritten",
    ),
    _one(
        "head-over-used-segment",
        _JOURNAL,
        "return (self.segments - 1) * self.segment_pages",
        "return self.segments * self.segment_pages",
        "the head of a segment is stored over one in use",
    ),
    _one(
        "pages-not-flushed",
        _CHECKPOINT,
        "            image.sync()\n",
        "            pass\n",
        "W3: the root names a checkpoint whose pages are lost",
    ),
    _one(
        "root-before-c-is-durable",
        _CHECKPOINT,
        "        self._journal.wait(c.epoch)\n",
        "",
        "the root names a batch that is lost",
    ),
    _in_steps(
        "space-when-durable",
        _JOURNAL,
        "        return int(frames_covered_by(self.address, durable))\n",
        "        return durable\n",
        "W6: space of e is used when e is durable but not covered",
    ),
    _in_steps(
        "space-at-once",
        _COMMITTER,
        "            self._heap.release_later(epoch, freed_units)",
        "            self._heap._release_units(freed_units)",
        "W6: space of e is used before e is durable",
    ),
    _one(
        "dropped-space-at-once",
        _COMMITTER,
        "        self._heap.release_later(self.begun, counts.live)\n        self._heap.discharge(counts.charged)",
        "        self._heap.release(counts)",
        "W6: space of a dropped table is used while batches that name it are verified",
    ),
    _one(
        "no-first-frame",
        _COMMITTER,
        "        self._commit_nothing()\n        self.checkpointer.start()",
        "        self.checkpointer.start()",
        "W4",
    ),
    _one(
        "first-frame-not-awaited",
        _COMMITTER,
        "        self._commit_nothing()\n        self.checkpointer.start()",
        "        with self.journal.appending:\n            self._append_empty()\n        self.checkpointer.start()",
        "W4: free space is used before the first frame is durable",
    ),
    _one("incarnation-kept", _RECOVER, "incarnation=files.root.incarnation + 1, checkpoint", "checkpoint", "W4"),
    _one(
        "recovered-epoch-kept",
        _RECOVER,
        "files.root.checkpoint._replace(recovered_epoch=replayed.last.epoch)",
        "files.root.checkpoint",
        "W4",
    ),
    _one("stale-frames-count", _REPLAY, "if not follows or is_stale or not fits:", "if not follows or not fits:", "W4"),
    _in_steps(
        "durable-ahead",
        _COMMITTER,
        'durable = self.journal.durable\n        self.journal.begin(epoch)\n        failpoint.hit("before_frame',
        'durable = epoch - 1\n        self.journal.begin(epoch)\n        failpoint.hit("before_frame',
        "a frame says that one is durable which is not",
    ),
    _one(
        "durable-ahead-of-empty",
        _COMMITTER,
        "self.journal.append(descriptor, 0, self.journal.durable)",
        "self.journal.append(descriptor, 0, before.epoch)",
        "an empty frame says that one is durable which is not",
    ),
    _one("no-chain", _REPLAY, " and header.previous == before.digest", "", "a frame of an earlier life is replayed"),
    _several(
        "neither-chain-nor-stale",
        _REPLAY,
        (
            (" and header.previous == before.digest", ""),
            ("if not follows or is_stale or not fits:", "if not follows or not fits:"),
        ),
        "a frame of an earlier life is replayed; either check alone keeps it out",
    ),
    _one(
        "records-always-verified",
        _REPLAY,
        "        while uncovered and uncovered[0].header.epoch <= frame.header.durable_upto:\n",
        "        while (\n            uncovered and uncovered[0].header.epoch <= frame.header.durable_upto\n"
        "            and _verify_records(files, backend, uncovered[0])\n        ):\n",
        "good stores are refused: space of old records was used again",
    ),
    _one(
        "replay-unmarked",
        _REPLAY,
        "            marks=index.region.marks,\n",
        "            marks=index.region.marks.copy(),\n",
        "what was replayed is in no checkpoint, and its journal is used again",
    ),
    _one(
        "freed-at-opening",
        _JOURNAL,
        "        freed_to = root.checkpoint.position\n",
        "        freed_to = last.position\n",
        "W3: frames that were replayed and are in no checkpoint are overwritten",
    ),
    _one(
        "records-never-verified",
        _REPLAY,
        "while uncovered and _verify_records(files, backend, uncovered[0]):",
        "while uncovered:",
        "a frame whose records are torn counts",
    ),
    _one(
        "entries-never-verified",
        _REPLAY,
        "        if not _verify_entries(files, backend, frame):\n            break\n",
        "        _verify_entries(files, backend, frame)\n",
        "a torn frame counts",
    ),
    _one(
        "replay-beyond-a-torn-frame",
        _REPLAY,
        "        if not _verify_entries(files, backend, frame):\n            break\n",
        "        if not _verify_entries(files, backend, frame):\n            continue\n",
        "a batch is lost from the middle",
    ),
    _one(
        "changed-nothing-gate-0",
        _ENGINE,
        "        return planned.result, gate\n",
        "        if planned.write_set and not any(writes.slots for writes in planned.write_set.tables):\n"
        "            gate = 0\n        return planned.result, gate\n",
        "versions that were given are given again",
    ),
    _one(
        "read-gate-0",
        _ENGINE,
        "return planned.result, self.committer.read_gate()",
        "return planned.result, 0",
        "a reader sees what a crash takes back",
    ),
    _one(
        "data-not-settled",
        _FILES,
        "            self.data.sync()\n",
        "            pass\n",
        "a kill, then a power failure",
    ),
    _one(
        "blobs-not-settled",
        _FILES,
        "            self.blobs.fsync()\n",
        "            pass\n",
        "a kill, then a power failure",
    ),
    _one(
        "index-not-settled",
        _FILES,
        "            index.region.fsync()\n",
        "            pass\n",
        "a kill, then a power failure",
    ),
    _one(
        "root-not-settled",
        _FILES,
        "        self.root_region.redirty()\n        self.root_region.fsync()\n",
        "",
        "a kill, then a power failure",
    ),
    _one(
        "drop-not-settled",
        "gpkvs.store",
        "                self._engine.settle()\n",
        "",
        "a table is gone whose batches are verified no more",
    ),
    _one(
        "longer-heap-not-synced",
        _HEAP_GROWTH,
        "            sync_path(path)\n",
        "            pass\n",
        "the file is shorter than the root says",
    ),
    _one(
        "longer-heap-not-in-the-root",
        _HEAP_GROWTH,
        "                files.roots.change(heap_bytes=size, journal_extents=extents)\n",
        "                pass\n",
        "records lie beyond the end that the root names",
    ),
    _one(
        "extent-not-in-the-ring-of-the-root",
        _COMMITTER,
        "                    self._files.roots.change(journal_extents=extents)\n",
        "                    object.__setattr__(self._files.root, 'journal_extents', extents)\n",
        "frames lie in segments that no root names",
    ),
    _one(
        "ring-grows-too-early",
        _JOURNAL,
        "        return self.last.position // self.ring.segment_pages\n",
        "        return self.last.position // self.ring.segment_pages - 1\n",
        "a segment that is in use gets another place",
    ),
    _one(
        "ring-grows-too-late",
        _JOURNAL,
        "        return self.last.position // self.ring.segment_pages\n",
        "        return self.last.position // self.ring.segment_pages + 1\n",
        "the oldest segment that is in use is stored over",
    ),
    _one(
        "ring-in-the-order-of-places",
        _JOURNAL,
        "        return Ring(self.segment_bytes, all_places)\n",
        "        return Ring(self.segment_bytes, np.sort(all_places))\n",
        "segments that are in use get other places",
    ),
    _one(
        "heap-not-told-of-extents",
        _HEAP_GROWTH,
        "            self._heap.leave(np.arange(extent.first_segment, extent.first_segment + extent.segments))\n",
        "",
        "records and frames in one place",
    ),
    _one(
        "empty-table-not-written",
        "gpkvs.engine.tables.schema",
        "                index.region.write_all()\n",
        "                pass\n",
        "key 0 is there in a new u64 table",
    ),
)


# The scripts that show what lives at random seldom or never do.
SHOWN_BY = {
    "page-before-durable": "stored-by-halves",
    "copied-by-mark": "stored-by-halves",
    "begun-after-slots": "stored-by-halves",
    "ended-before-slots": "stored-by-halves",
    "catalogue-before-last-step": "growth",
    "growth-not-in-checkpoint": "growth",
    "growth-not-in-frames": "growth",
    "targets-not-emptied": "growth",
    "changed-nothing-gate-0": "told-too-early",
    "read-gate-0": "told-too-early",
    "result-before-gate": "told-too-early",
    "told-before-gate": "followed-too-early",
    "replay-beyond-a-torn-frame": "frame-torn-before-another",
    "space-when-durable": "space-of-uncovered",
    "no-first-frame": "space-at-opening",
    "first-frame-not-awaited": "space-at-opening",
    "durable-ahead-of-empty": "cover-too-much",
    "drop-not-settled": "drop-in-flight",
    "freed-before-roots": "journal-before_checkpoint_root",
    "no-reservation": "more-than-fits",
    "late-reservation": "more-than-fits",
    "freed-at-opening": "frames-of-two-lives",
    "roots-flushed-together": "two-checkpoints",
    "second-root-not-flushed": "two-checkpoints",
    "one-root-copy": "root-while-used-again",
    "first-root-copy-first": "second-root-torn",
    "root-not-settled": "killed-between-roots",
    "blobs-not-settled": "killed-before-blob-flush",
    "index-not-settled": "copied",
    "durable-ahead": "frame-lost-before-another",
    "neither-chain-nor-stale": "frame-lost-before-another",
    "incarnation-kept": "empty-frame-again",
    "longer-heap-not-synced": "heap-grows",
    "longer-heap-not-in-the-root": "heap-grows",
    "extent-not-in-the-ring-of-the-root": "journal-grows",
    "ring-grows-too-early": "journal-grows",
    "ring-grows-too-late": "journal-grows",
    "ring-in-the-order-of-places": "journal-grows",
    "heap-not-told-of-extents": "journal-grows",
}

# Mistakes that no power failure shows, and why.
EQUIVALENT = {
    "stale-frames-count": "the incarnation is a part of a frame's digest, by which the next frame names it: what an "
    "earlier life left does not follow a frame of a later one. A frame that was cut may be read again until the first "
    "frame of the opening is durable in its place. Until then its records stay as bad as they are (W4), and it is cut "
    "again (neither-chain-nor-stale lacks both checks)",
    "no-chain": "all that the last opening recovered was durable then, so nothing else can be in its place. Beyond it "
    "only frames of that opening count, and an opening writes an epoch once, at one place",
    "root-before-c-is-durable": "whoever wrote a page, in this checkpoint or before, waited for c. If c changed no "
    "page, it is an empty frame, or a batch that changes nothing in the end: the root then has all there is of it",
    "head-over-used-segment": "the chain is walked by positions, which stay apart, and needs no head. A head only "
    "lets the search for a later frame skip a segment, if its number is too low. One that is stored early has a higher "
    "one, so nothing is skipped that counts",
    "dropped-space-at-once": "a table is dropped when all batches are durable, and both root copies say so before its "
    "space is counted. From then on no frame that names the table is verified, and no other frame names its records",
    "root-copies-in-turn": "the copy that is not written is durable, and the newest one before. No journal that it "
    "needs is used again before the next copy is durable. Two equal copies are for damage, not for power failures",
}


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module of a mutant."""

    mutant: Mutant
    changes: Sequence[tuple[str, str]]

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        for old, new in self.changes:
            if source.count(old) != 1:
                sys.exit(f"{self.mutant.name}: {self.path} has the text {source.count(old)} times: {old!r}")
            source = source.replace(old, new)
        return compile(source, self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of a mutant."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        changes = [(old, new) for module, old, new in self._mutant.changes if module == fullname]
        if not changes:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert spec
        assert spec.origin
        spec.loader = _Loader(fullname, spec.origin)
        spec.loader.mutant, spec.loader.changes = self._mutant, changes
        return spec


def main() -> None:
    """Load the mutant that the command line names, then explore with the options that follow."""
    mutant = next((mutant for mutant in MUTANTS if mutant.name == sys.argv[1]), None)
    if mutant is None:
        sys.exit(f"{sys.argv[1]}: no such mutant")
    sys.path.pop(0)  # the folder of this file
    sys.meta_path.insert(0, _Finder(mutant))
    sys.argv[0:2] = [sys.argv[0]]
    runpy.run_module("gpkvs.recovery.proof.diskfail", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
