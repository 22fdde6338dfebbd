"""The space of large values, against a model: what is free is found again, and never more than once."""

from __future__ import annotations

import errno
import os
import random
import tempfile
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise, permutations
from pathlib import Path
from random import Random

import numpy as np
import pytest

from gpkvs.engine.state import blob_space, refused
from gpkvs.engine.state.blob_pages import PageCounts, Run
from gpkvs.engine.state.blob_space import BlobSpace
from gpkvs.errors import CorruptStoreError, NoSpaceError
from gpkvs.media.file_space import holes, punch
from gpkvs.media.layout import PAGE_BYTES

KIB, MIB = 1 << 10, 1 << 20
NO_LIMIT = 1 << 50


def _random() -> Random:
    seed = int(os.environ.get("GPKVS_SEED", Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    return Random(seed)


class Blobs:
    """Blobs of a file as a store has them, and what it knows of them.

    Attributes
    ----------
    live, taken, waiting
        What nobody else may get; the last ones with the epoch that they wait for.
    """

    def __init__(self, path: Path, *, is_in_memory: bool = False) -> None:
        self.path = path
        self.is_in_memory = is_in_memory
        self.live: list[Run] = []
        self.taken: list[Run] = []
        self.waiting: list[tuple[int, Run]] = []
        self.begun = self.durable = self.settled = 0
        self.bytes_max = NO_LIMIT
        self.file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self.open()

    def open(self) -> None:
        first, pages = (np.array([blob[field] for blob in self.live], np.uint64) for field in (0, 1))
        self.space = BlobSpace(self.file, self.path, first, pages, self.settle, is_in_memory=self.is_in_memory)
        self.waiting, self.taken = [], []
        self.begun = self.durable = 0

    def settle(self) -> None:
        self.settled += 1
        self.release(self.begun)

    def take(self, pages: int) -> Run:
        first = self.space.pages.take(pages)
        while first is None:
            self.space.make_room(pages, self.bytes_max)
            first = self.space.pages.take(pages)
        blob = Run(first, pages)
        self.taken.append(blob)
        return blob

    def commit(self, blob: Run) -> None:
        os.pwrite(self.file, b"x" * (blob.pages * PAGE_BYTES), blob.first * PAGE_BYTES)
        self.taken.remove(blob)
        self.space.pages.commit(blob.pages)
        self.live.append(blob)

    def give_back(self, blob: Run) -> None:
        self.taken.remove(blob)
        self.space.pages.give_back(*blob)

    def free(self, blob: Run, *, waits: bool = True) -> None:
        self.live.remove(blob)
        self.begun += waits
        self.space.pages.free_after(self.begun if waits else 0, *blob)
        if waits:
            self.waiting.append((self.begun, blob))

    def release(self, epoch: int) -> None:
        had = len(self.waiting)
        self.durable = max(self.durable, epoch)
        self.waiting = [(gate, blob) for gate, blob in self.waiting if gate > epoch]
        assert self.space.pages.release(epoch) == (len(self.waiting) < had)

    def write(self, pages: int) -> Run:
        blob = self.take(pages)
        self.commit(blob)
        return blob

    def check(self) -> None:
        """Fail unless all agrees with what is known, and with what the file system says."""
        used = sorted([*self.live, *self.taken, *(blob for _, blob in self.waiting)])
        for blob, after in pairwise(used):
            assert blob.first + blob.pages <= after.first
        counts = self.space.pages.counts
        assert not used or used[-1].first + used[-1].pages <= counts.file
        assert os.fstat(self.file).st_size == counts.file * PAGE_BYTES
        assert not self.is_in_memory or self.disk_bytes == self.space.present_bytes
        assert counts.live == sum(blob.pages for blob in self.live)
        assert counts.taken == sum(blob.pages for blob in self.taken)
        assert counts.waiting == sum(blob.pages for _, blob in self.waiting)
        assert counts.lost == 0
        assert counts.file == sum(counts[PageCounts._fields.index("live") : -1])
        assert self.space.pages.newest == max((gate for gate, _ in self.waiting), default=0)

    @property
    def disk_bytes(self) -> int:
        return os.fstat(self.file).st_blocks * 512

    @property
    def live_bytes(self) -> int:
        return sum(blob.pages for blob in self.live) * PAGE_BYTES

    def close(self) -> None:
        os.close(self.file)


@pytest.fixture
def blobs(tmp_path: Path) -> Iterator[Blobs]:
    made = Blobs(tmp_path / "blobs")
    yield made
    made.close()


@pytest.fixture
def in_memory() -> Iterator[Blobs]:
    """Blobs of a file in memory: the time that a disk takes is not what is tested."""
    parent = Path("/dev/shm")
    if not parent.is_dir():
        pytest.skip(f"no tmpfs at {parent}")
    with tempfile.TemporaryDirectory(prefix="gpkvs-test-", dir=parent) as folder:
        made = Blobs(Path(folder, "blobs"), is_in_memory=True)
        yield made
        made.close()


def test_any_order_of_steps_agrees_with_a_model(in_memory: Blobs) -> None:
    random, blobs = _random(), in_memory

    def take() -> None:
        blobs.take(random.choice((17, 18, random.randrange(1, 300))))

    def end(step: Callable[[Run], None], among: list[Run]) -> None:
        if among:
            step(random.choice(among))

    def reopen() -> None:
        for blob in list(blobs.taken):
            blobs.give_back(blob)
        blobs.open()

    steps: list[tuple[int, Callable[[], object]]] = [
        (30, take),
        (25, lambda: end(blobs.commit, blobs.taken)),
        (5, lambda: end(blobs.give_back, blobs.taken)),
        (20, lambda: end(blobs.free, blobs.live)),
        (3, lambda: end(lambda blob: blobs.free(blob, waits=False), blobs.live)),
        (10, lambda: blobs.release(random.randint(0, blobs.begun))),
        (5, lambda: blobs.space.tidy(blobs.begun, random.choice((blobs.begun, blobs.durable)).__ge__)),
        (1, reopen),
    ]
    for _ in range(3000):
        random.choices([step for _, step in steps], [weight for weight, _ in steps])[0]()
        blobs.check()


def test_what_is_freed_is_used_again(blobs: Blobs) -> None:
    first, _, second, _ = [blobs.write(pages) for pages in (40, 1, 30, 1)]
    blobs.free(first)
    blobs.free(second)
    blobs.settle()
    assert blobs.take(30) == second, "the smallest run that fits"
    assert blobs.take(10).first == first.first, "its low end"
    blobs.check()


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_neighbours_are_one_run(blobs: Blobs, order: tuple[int, ...]) -> None:
    neighbours = [blobs.write(pages) for pages in (20, 30, 40)]
    blobs.write(1)
    for number in order:
        blobs.free(neighbours[number], waits=False)
    assert blobs.space.pages.take(90) == neighbours[0].first


def test_what_waits_is_nobodys(blobs: Blobs) -> None:
    old = [blobs.write(20) for _ in range(2)]
    blobs.write(2000)  # so much may wait
    for blob in old:
        blobs.free(blob)
    blobs.take(20)
    blobs.release(1)
    assert blobs.space.pages.take(20) == old[0].first
    assert blobs.space.pages.take(20) != old[1].first
    assert blobs.settled == 0


def test_room_is_made_of_what_waits_if_that_is_much(blobs: Blobs) -> None:
    old, _ = blobs.write(100), blobs.write(60)
    blobs.free(old)
    assert blobs.take(100) == old
    assert blobs.settled == 1


@pytest.mark.parametrize("shuffles", [False, True], ids=["same-sizes", "other-sizes"])
@pytest.mark.parametrize("sizes", ["64-KiB", "256-KiB", "mixed"])
def test_space_stays_near_what_is_live(in_memory: Blobs, sizes: str, shuffles: bool) -> None:
    random, blobs = _random(), in_memory
    draw: dict[str, Callable[[], int]] = {
        "64-KiB": lambda: 17,
        "256-KiB": lambda: 65,
        "mixed": lambda: int(17 * 64 ** random.random()),
    }
    values: list[Run] = []
    while blobs.live_bytes < 64 * MIB:
        values.append(blobs.write(draw[sizes]()))
    pages = [blob.pages for blob in values]
    assert blobs.disk_bytes <= 1.15 * blobs.live_bytes
    largest, most = max(pages) * PAGE_BYTES, blobs.live_bytes
    for _ in range(3):
        if shuffles:
            random.shuffle(pages)
        for number in random.sample(range(len(values)), len(values)):
            old, values[number] = values[number], blobs.write(pages[number])
            blobs.free(old)
            most = max(most, blobs.live_bytes)
            assert blobs.disk_bytes <= 1.15 * most + 2 * largest, "what waits is bounded, too"
            if random.random() < 0.2:
                blobs.release(blobs.begun - 1)
    blobs.check()
    blobs.settle()
    while blobs.space.tidy(blobs.begun, blobs.begun.__ge__):
        pass
    assert blobs.disk_bytes <= 1.15 * blobs.live_bytes
    assert blobs.space.present_bytes == blobs.disk_bytes


def test_space_is_durable_before_it_is_anybodys(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    sync, synced = os.fsync, []

    def fsync(file: int) -> None:
        assert not blobs.space.pages.fits(1)
        assert os.fstat(file).st_size >= 20 * PAGE_BYTES
        sync(file)
        synced.append(file)

    monkeypatch.setattr(os, "fsync", fsync)
    blobs.take(20)
    assert synced == [blobs.file]


def test_what_is_not_needed_goes_back_when_a_batch_is_durable(in_memory: Blobs) -> None:
    blobs = in_memory
    for blob in [blobs.write(1024) for _ in range(20)]:
        blobs.free(blob, waits=False)
    blobs.begun = 7
    had = blobs.disk_bytes
    assert not blobs.space.tidy(blobs.begun, (6).__ge__)
    assert blobs.disk_bytes == had, "the batch is not durable"
    blobs.write(1024)  # what was chosen is there again
    assert not blobs.space.tidy(blobs.begun, (6).__ge__)
    assert not blobs.space.tidy(8, (6).__ge__), "nor is it now"
    assert blobs.space.tidy(8, (7).__ge__)
    assert had - 16 * MIB <= blobs.disk_bytes < had, "not all at once"
    while blobs.space.tidy(8, (8).__ge__):
        pass
    assert blobs.disk_bytes == blobs.space.present_bytes == (1024 + 128) * PAGE_BYTES
    blobs.check()


def test_an_opening_finds_what_is_free_and_what_is_absent(in_memory: Blobs) -> None:
    blobs = in_memory
    written = [blobs.write(50) for _ in range(40)]
    for blob in written[:6:2]:
        blobs.free(blob, waits=False)
    blobs.give_back(blobs.take(60))  # reserved, not written
    assert blobs.space.pages.counts.present >= 210
    punch(blobs.file, written[2].first * PAGE_BYTES, 50 * PAGE_BYTES)
    blobs.open()
    blobs.check()
    assert blobs.space.present_bytes == blobs.disk_bytes
    assert blobs.space.pages.take(50) == written[0].first
    assert blobs.space.pages.take(50) == written[4].first, "the place between is absent"


@pytest.mark.machine
def test_what_a_sparse_copy_lacks_is_reserved(blobs: Blobs) -> None:
    blobs.write(50)
    sparse, _ = blobs.write(50), blobs.write(50)
    punch(blobs.file, sparse.first * PAGE_BYTES, 20 * PAGE_BYTES)
    if not holes(blobs.file, 0, 150 * PAGE_BYTES):
        pytest.skip("the file system does not say where holes are")
    blobs.open()
    assert not holes(blobs.file, 0, 150 * PAGE_BYTES)
    blobs.check()


def test_blobs_that_overlap_are_named_and_stay(blobs: Blobs) -> None:
    a, b, c = [blobs.write(20) for _ in range(3)]
    d = Run(b.first + 5, 20)  # over b and c
    blobs.live = [c, d, a, b]
    blobs.open()
    assert blobs.space.overlaps == [(1, 3), (0, 1)]
    blobs.free(b, waits=False)
    assert blobs.space.pages.take(5) is None, "its pages are another's too"
    assert blobs.space.pages.counts.lost == 20
    blobs.free(a, waits=False)
    assert blobs.space.pages.take(20) == a.first


def test_an_blob_beyond_the_end_is_damage(blobs: Blobs) -> None:
    blobs.live = [blobs.write(20), Run(1000, 20)]
    with pytest.raises(CorruptStoreError, match=r"file-size: has 81,920 bytes, a value ends at 4,177,920"):
        blobs.open()


def _refuse(code: int) -> Callable[..., None]:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return refuse


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_refuses_until_there_is_room(in_memory: Blobs, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    blobs = in_memory
    monkeypatch.setattr(blob_space, "reserve", half_reserved(blobs, 120 * PAGE_BYTES, code))
    old = [blobs.write(20) for _ in range(6)]
    with pytest.raises(NoSpaceError, match=r"heap full: a value asked for .* the disk has .* free: make room, and try"):
        blobs.take(20)
    blobs.check()
    assert blobs.disk_bytes == blobs.live_bytes
    blobs.free(old[1])
    blobs.free(old[4])
    blobs.write(40)  # two holes are given back for a place that is long enough
    blobs.check()
    assert blobs.disk_bytes == blobs.live_bytes == 120 * PAGE_BYTES
    assert blobs.space.pages.counts.absent == 40
    with pytest.raises(NoSpaceError, match="the disk has"):
        blobs.take(20)  # inside the file
    blobs.check()


def half_reserved(blobs: Blobs, most: int, code: int) -> Callable[[int, int, int], None]:
    """Return how a disk of some bytes reserves space: it takes what there is before it refuses."""

    def reserve(file: int, offset: int, count: int) -> None:
        for at in range(offset, offset + count, PAGE_BYTES):
            had = blobs.disk_bytes
            os.posix_fallocate(file, at, PAGE_BYTES)
            if blobs.disk_bytes > most:
                punch(file, at, PAGE_BYTES)
                assert blobs.disk_bytes == had
                raise OSError(code, os.strerror(code))

    return reserve


def test_a_limit_refuses_and_holds(blobs: Blobs) -> None:
    blobs.bytes_max = 100 * PAGE_BYTES
    old = [blobs.write(20) for _ in range(5)]
    with pytest.raises(NoSpaceError, match=r"409,600 of the 409,600 bytes .* delete keys, .* larger --heap-bytes-max"):
        blobs.take(1)
    blobs.check()
    blobs.free(old[0])
    blobs.free(old[2])
    blobs.write(40)
    assert blobs.space.present_bytes <= blobs.bytes_max
    blobs.check()


def test_memory_that_others_need_is_left_to_them(in_memory: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused, "free_bytes", lambda: 32 * MIB)
    with pytest.raises(NoSpaceError, match=r"is in memory, of which 33,554,432 bytes are free"):
        in_memory.take(1)
    in_memory.check()


def test_a_file_system_that_cannot_punch_keeps_its_space(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(blob_space, "punch", _refuse(errno.EOPNOTSUPP))
    old = [blobs.write(100) for _ in range(10)]
    for blob in old[::2]:
        blobs.free(blob, waits=False)
    assert not blobs.space.tidy(0, (0).__ge__)
    blobs.write(150)
    blobs.check()
    assert blobs.space.present_bytes == blobs.space.file_bytes == 1150 * PAGE_BYTES
    assert [record.message for record in caplog.records] == [
        f"space of values is not given back: {blobs.path}: {os.strerror(errno.EOPNOTSUPP)}"
    ]
    assert {blobs.take(100) for _ in range(5)} < set(old)


def test_threads_get_places_of_their_own(in_memory: Blobs) -> None:
    space, found, mutex = in_memory.space, [], threading.Lock()

    def live(seed: int) -> None:
        random = Random(seed)
        mine: list[Run] = []
        for _ in range(400):
            pages = random.randrange(1, 60)
            while (first := space.pages.take(pages)) is None:
                space.make_room(pages, NO_LIMIT)
            space.pages.commit(pages)
            mine.append(Run(first, pages))
            if random.random() < 0.6:
                space.pages.free_after(0, *mine.pop(random.randrange(len(mine))))
        with mutex:
            found.extend(mine)

    threads = [threading.Thread(target=live, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    in_memory.live = found
    in_memory.check()


def test_a_batch_of_several_blobs_finds_room_in_the_end(tmp_path: Path) -> None:
    """What one of them got may look spare when the next one asks; a try begins with all given back that was taken."""
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    blobs = Blobs(tmp_path / "blobs")
    for _ in range(300):
        wanted = [rng.choice((18, 513, 513, 514, 769)) for _ in range(rng.randrange(2, 5))]
        for tries in range(20):
            for blob in list(blobs.taken):
                blobs.give_back(blob)
            lacking = next((pages for pages in wanted if not take_if_any(blobs, pages)), None)
            if lacking is None:
                break
            blobs.space.make_room(lacking, blobs.bytes_max, is_again=tries > 0)
        assert lacking is None, wanted
        for blob in list(blobs.taken):
            blobs.commit(blob)
        while len(blobs.live) > 3:
            blobs.free(rng.choice(blobs.live), waits=False)


def take_if_any(blobs: Blobs, pages: int) -> bool:
    first = blobs.space.pages.take(pages)
    if first is not None:
        blobs.taken.append(Run(first, pages))
    return first is not None
