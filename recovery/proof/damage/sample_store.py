"""The store that `gpkvs bitflip` damages: the smallest possible, and the same to the byte each time it is made.

There are some images of it with each commit. With an undo log: ``idle``, after its last batch; ``active`` and
``active-u64``, whose process was killed in the last batch, on the table of bytes or of numbers, when every slot was
changed and the flag was ACTIVE. Recovery must bring these back to the state before that batch. With a journal:
``closed``, by a close that left the journal as it was, and ``killed``, whose process was killed when the last batch was
durable and nobody was told, both with a checkpoint in the middle of their batches; and ``checkpoint``, whose process
was killed at the end of another one: the indexes show the last batch, which the roots do not say.

Some images come once more in format 4, with large values, whose blobs lie in a file of their own: ``idle-blobs`` and so
on. One large value was deleted, and one is replaced in the last batch, by one that lies where the deleted one was.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.config import CommitName
from gpkvs.engine.commit.journal_committer import JournalCommitter
from gpkvs.errors import GpkvsError
from gpkvs.media.files import open_files
from gpkvs.media.layout import (
    DESCRIPTOR_OFFSETS,
    FLAG_OFFSET,
    LOG_ENTRIES_OFFSET,
    ROOT_OFFSETS,
    STRUCTURE_BYTES,
    U64_LAYOUT,
)
from gpkvs.media.transaction import find_descriptor, read_flag
from gpkvs.pm.domain import find_domain
from gpkvs.process import failpoint
from gpkvs.recovery.proof.damage.parts import UNDO_PARTS, Part, blob_places, journal_places
from gpkvs.store import Store

IMAGES = {
    "undo": ("idle", "active", "active-u64", "idle-blobs", "active-blobs"),
    "journal": ("closed", "killed", "checkpoint", "closed-blobs", "killed-blobs"),
}  # by commit
NUMBERS = "numbers"  # the u64 table; the other one is the default table
BYTES_INDEX, NUMBERS_INDEX = "index-0-0", "index-1-0"

# Where their process is killed.
_KILLED_AT = {
    **dict.fromkeys(("active", "active-u64"), "before_idle_flag"),
    "killed": "before_reply",
    "checkpoint": "before_checkpoint_root",
}
_SEED = 1
_BYTES_KEYS = 600
_U64_KEYS = 900
_LAST_CHANGES = 9
_OPERATIONS_MAX = 200
_EXTENT_SEGMENTS = 2
_INDEX_BYTES = 64 << 10
_HEAP_BYTES = 256 << 10
_BLOB_BYTES_MAX = 1 << 20
_LARGE_VALUES = (66_000, 210_000, 66_000, 66_000)  # two or four pieces; the last but one is replaced, the last deleted
_BLOBS = "-blobs"  # at the end of the names of images that have some

Model = dict[bytes, bytes]
Operation = tuple[Op, bytes] | tuple[Op, bytes, bytes]


@dataclass(frozen=True)
class Contents:
    """The contents of a store, by table."""

    bytes_table: Model
    u64_table: Model


@dataclass(frozen=True)
class SampleStore:
    """One image: its files, and the places of the structures that the store promises to check.

    Parameters
    ----------
    files
        The bytes of each file, by name.
    structures
        File, first byte and length of each of which every bit is inverted.
    parts
        The files, or parts of them. The first one that has a byte counts.
    """

    files: dict[str, bytes]
    structures: tuple[tuple[str, int, int], ...]
    parts: tuple[Part, ...]

    def names(self, file: str, offset: int, mask: bytes) -> list[str]:
        """Return the names of the parts that have the bytes which a mask changes."""
        changed = [offset + i for i, bits in enumerate(mask) if bits]
        found = [next((part.name for part in self.parts if part.has(file, at)), file) for at in changed]
        return list(dict.fromkeys(found))


def commit_of(image: str) -> CommitName:
    """Return how the batches of an image become durable."""
    return "undo" if image in IMAGES["undo"] else "journal"


def without_blobs(image: str) -> str:
    """Return the image that is the same but for large values."""
    return image.removesuffix(_BLOBS)


def open_sample(path: Path, image: str) -> Store:
    """Open a store as small as the sample, with one thread: a process opens thousands of them a minute."""
    has_blobs = image != without_blobs(image)
    return gpkvs.open(
        path,
        threads=1,
        commit=commit_of(image),
        store_format="4" if has_blobs else "auto",
        index_bytes=_INDEX_BYTES,
        heap_bytes=_HEAP_BYTES,
        heap_bytes_max=_BLOB_BYTES_MAX if has_blobs else _HEAP_BYTES,
        log_bytes=128 << 10,
        journal_bytes=1 << 20,
    )


def contents(image: str) -> Contents:
    """Return the contents of an image after recovery: those of the active ones are before the last batch."""
    of_bytes, of_numbers = _bytes_batches(image), _u64_batches()
    return Contents(
        _apply(of_bytes[:-1] if without_blobs(image) == "active" else of_bytes),
        _apply(of_numbers[:-1] if image == "active-u64" else of_numbers),
    )


def absent(image: str) -> Contents:
    """Return keys that must be absent: deleted ones, and some that were never written. Their values mean nothing."""
    there = contents(image)
    touched = [{o[1] for batch in batches for o in batch} for batches in (_bytes_batches(image), _u64_batches())]
    never = [{b"never-%d" % i for i in range(20)}, {_number(1 << 40 | i) for i in range(20)}]
    return Contents(
        dict.fromkeys((touched[0] | never[0]) - there.bytes_table.keys(), b""),
        dict.fromkeys((touched[1] | never[1]) - there.u64_table.keys(), b""),
    )


def make(directory: Path, images: Sequence[str]) -> dict[str, SampleStore]:
    """Make images, each at its name below a directory, and leave them there.

    Each has a process of its own. All are forks of one, which has loaded gpkvs: that takes longer than an image.

    Raises
    ------
    GpkvsError
        If an image could not be made.
    """
    environment = {name: value for name, value in os.environ.items() if name != failpoint.VARIABLE}
    command = [sys.executable, "-P", "-m", "gpkvs.recovery.proof.damage.sample_store", str(directory), *images]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise GpkvsError(f"the samples could not be made (exit status {done.returncode}): {done.stderr[-2000:]}")
    return {image: read(directory / image, image) for image in images}


def read(path: Path, image: str) -> SampleStore:
    """Read an image that was made."""
    files = {file.name: file.read_bytes() for file in sorted(path.iterdir())}
    if commit_of(image) == "undo":
        structures, parts = (*_fixed_structures(), _log_runs(path)), UNDO_PARTS
    else:
        structures, parts = journal_places(path)
    if image == without_blobs(image):
        return SampleStore(files, structures, parts)
    # Its other structures are those of the image without blobs.
    return SampleStore(files, *blob_places(files, *_large_values(image), parts))


def _fixed_structures() -> list[tuple[str, int, int]]:
    roots = [("root", offset, STRUCTURE_BYTES) for offset in ROOT_OFFSETS]
    descriptors = [("log", offset, STRUCTURE_BYTES) for offset in DESCRIPTOR_OFFSETS]
    return [*roots, ("root", FLAG_OFFSET, 8), *descriptors]


def _log_runs(path: Path) -> tuple[str, int, int]:
    files = open_files(path, None)
    try:
        descriptor = find_descriptor(files, read_flag(files)[1])
        last = descriptor.runs[-1]
        return ("log", LOG_ENTRIES_OFFSET, 8 * (last.first_word + last.words))
    finally:
        files.close()


def _large_values(image: str) -> tuple[list[bytes], list[bytes]]:
    """Return the values that lie in blobs: those of a last batch that may be cut, and the others."""
    there = contents(image).bytes_table
    last = {operation[1] for operation in _bytes_batches(image)[-1]} if without_blobs(image) == "killed" else set()
    large = {key: value for key, value in there.items() if len(value) >= min(_LARGE_VALUES)}
    return [large[key] for key in large if key in last], [large[key] for key in large if key not in last]


def _build(path: Path, image: str) -> None:
    plain = without_blobs(image)
    with open_sample(path, image) as store:
        _without_thread(store)
    _take_out_chance(path)
    with open_sample(path, image) as store:
        _without_thread(store)
        committer = store._engine.committer
        store.create_table(NUMBERS, layout=U64_LAYOUT.name, index_bytes=_INDEX_BYTES)
        numbers = store.table(NUMBERS).id
        _grow_journal(store)
        pairs = list(zip(_bytes_batches(image), _u64_batches(), strict=True))
        for i, operations in enumerate(pairs):
            if isinstance(committer, JournalCommitter) and i == len(pairs) // 2:
                committer.checkpointer.write(paced=False)
            batches = [Batch.of(operations[1]).on_table(numbers), Batch.of(operations[0])]
            if image == "active-u64":
                batches.reverse()
            assert not store.execute_requests(batches[0]).rejected
            if i == len(pairs) - 1 and image != "checkpoint":
                failpoint.arm(_KILLED_AT.get(plain, ""))
            assert not store.execute_requests(batches[1]).rejected
        if image == "checkpoint":
            assert isinstance(committer, JournalCommitter)
            failpoint.arm(_KILLED_AT[image])
            committer.checkpointer.write(paced=False)


def _without_thread(store: Store) -> None:
    """End the thread of checkpoints: it would append frames by the clock, and write a checkpoint at the close."""
    committer = store._engine.committer
    if isinstance(committer, JournalCommitter):
        committer.checkpointer.stop()


def _grow_journal(store: Store) -> None:
    """Have the second segment of the journal, if there is one, in the heap's space."""
    growth = store._engine._journal_growth
    if growth:
        assert not store._engine._heap_growth.extend_for_journal(_EXTENT_SEGMENTS)
        assert growth._finish_unused()


def _take_out_chance(path: Path) -> None:
    """Replace what the creation drew at random, before anything depends on it."""
    rng = random.Random(_SEED)
    files = open_files(path, find_domain(path, "auto"))
    root = replace(files.root, store_id=rng.randbytes(16), hash_key=rng.randbytes(16), created_ms=0)
    files.roots.write(root)
    files.close()


def _bytes_batches(image: str) -> list[list[Operation]]:
    rng = random.Random(_SEED)
    keys = [b"key-%d" % i + b"k" * rng.choice((0, 0, 1, 30)) for i in range(_BYTES_KEYS)]
    # Some values are empty.
    batches = _batches(rng, keys, lambda: rng.randbytes(rng.choice((0, 1, 7, 8, 20, 100, 300))))
    if image != without_blobs(image):
        large = [b"large-%d" % i for i in range(len(_LARGE_VALUES))]
        batches[0] += [(Op.SET, key, rng.randbytes(size)) for key, size in zip(large, _LARGE_VALUES, strict=True)]
        batches[1] += [(Op.DELETE, large[-1])]
        batches[-1] += [(Op.SET, large[-2], rng.randbytes(_LARGE_VALUES[-2]))]
    return batches


def _u64_batches() -> list[list[Operation]]:
    rng = random.Random(_SEED + 1)
    return _batches(rng, [_number(i) for i in range(_U64_KEYS)], lambda: rng.randbytes(8))


def _batches(rng: random.Random, keys: list[bytes], value: Callable[[], bytes]) -> list[list[Operation]]:
    writes: list[Operation] = [(Op.SET, key, value()) for key in keys]
    writes += [(Op.SET, key, value()) for key in rng.sample(keys, len(keys) // 4)]
    writes += [(Op.DELETE, key) for key in rng.sample(keys, len(keys) // 10)]
    batches = [writes[first : first + _OPERATIONS_MAX] for first in range(0, len(writes), _OPERATIONS_MAX)]
    count = _LAST_CHANGES // 3
    live = sorted(_apply(batches))
    changed = rng.sample(live, 2 * count)
    last: list[Operation] = [(Op.SET, key, value()) for key in changed[:count]]
    last += [(Op.DELETE, key) for key in changed[count:]]
    last += [(Op.SET, key[:-1] + b"\xff", value()) for key in live[:count]]
    # Both tables have as many batches: those of the smaller one are filled with reads.
    wanted = -(-2 * max(_BYTES_KEYS, _U64_KEYS) // _OPERATIONS_MAX)
    batches += [[(Op.GET, live[0])]] * (wanted - len(batches))
    return [*batches, last]


def _apply(batches: list[list[Operation]]) -> Model:
    model: Model = {}
    for operation in (operation for batch in batches for operation in batch):
        if operation[0] is Op.SET:
            model[operation[1]] = operation[-1]
        elif operation[0] is Op.DELETE:
            model.pop(operation[1], None)
    return model


def _number(value: int) -> bytes:
    return value.to_bytes(8, "little")


def _main(directory: Path, images: Sequence[str]) -> None:
    for image in images:
        process = os.fork()
        if not process:
            _build(directory / image, image)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if status != (-signal.SIGKILL if without_blobs(image) in _KILLED_AT else 0):
            sys.exit(f"{image}: status {status}")


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2:])
