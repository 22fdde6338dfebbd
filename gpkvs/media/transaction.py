"""The transaction flag, the epochs, and the two descriptors: when a batch is there and when it is not.

Invariants (docs/design.md, section 4): I1 log (if it is not in chunks), records and D(e) are durable before ACTIVE(e);
I2 no slot is stored to before ACTIVE(e) is durable; I3 the slots are durable before IDLE(e); I4 nothing is acknowledged
before IDLE(e) is durable; I7 the log and D(e) are stored over only after that. The committer calls the methods in this
order; a native one has the same steps (``kernels/commit/commit_undo.hpp``).
"""

from __future__ import annotations

import ctypes
from typing import Any

from gpkvs.errors import CorruptStoreError
from gpkvs.media.chunks import forget_chunks
from gpkvs.media.files import StoreFiles
from gpkvs.media.layout import (
    COUNTER_BITS,
    DESCRIPTOR_OFFSETS,
    FLAG_OFFSET,
    INCARNATION_MAX,
    NEXT_SEQUENCE_WORD,
    STRUCTURE_BYTES,
    TIME_HORIZON_WORD,
    BadBytesError,
    Descriptor,
    State,
    make_epoch,
    pack_flag,
    unpack_flag,
)
from gpkvs.process import failpoint


def read_flag(files: StoreFiles) -> tuple[State, int]:
    """Return the state and epoch of the flag.

    Raises
    ------
    CorruptStoreError
        If the flag is damaged.
    """
    try:
        return unpack_flag(files.root_region.read(FLAG_OFFSET, 8))
    except BadBytesError as error:
        raise CorruptStoreError("flag", str(error), path=files.root_region.path, offset=FLAG_OFFSET) from error


def store_flag(files: StoreFiles, state: State, epoch: int) -> None:
    """Store the flag; durable only after `files.root_region.persist()`."""
    files.root_region.store(FLAG_OFFSET, pack_flag(state, epoch))


def read_descriptors(files: StoreFiles) -> tuple[Descriptor | BadBytesError, ...]:
    """Return both descriptors as found; one may be torn."""

    def one(offset: int) -> Descriptor | BadBytesError:
        try:
            return Descriptor.unpack(files.log.read(offset, STRUCTURE_BYTES))
        except BadBytesError as error:
            return error

    return tuple(one(offset) for offset in DESCRIPTOR_OFFSETS)


def find_descriptor(files: StoreFiles, epoch: int) -> Descriptor:
    """Return the descriptor of an epoch.

    Raises
    ------
    CorruptStoreError
        If neither copy is that descriptor, whole.
    """
    found = read_descriptors(files)
    for descriptor in found:
        if isinstance(descriptor, Descriptor) and descriptor.epoch == epoch:
            return descriptor
    raise CorruptStoreError(
        "descriptor", f"no whole descriptor of epoch {epoch:#x}, which the flag names", path=files.log.path
    )


def begin_incarnation(files: StoreFiles, current: Descriptor, **opening: Any) -> Descriptor:
    """Make the next incarnation durable in both root copies, before the first store of its epochs.

    The flag is IDLE. When all incarnations are used up, their numbers begin again (`renew_epochs`). A crash may keep
    the new number without the new flag: then the current epoch is no older one, and they begin again once more.
    `opening` is what else the roots are to say.

    Returns
    -------
    Descriptor
        The one that is current now.
    """
    failpoint.hit("before_incarnation")
    incarnation = files.root.incarnation + 1
    if incarnation > INCARNATION_MAX or current.epoch >= make_epoch(incarnation, 0):
        current = renew_epochs(files, current)
        incarnation = 1
    files.roots.change(incarnation=incarnation, **opening)
    return current


def renew_epochs(files: StoreFiles, current: Descriptor) -> Descriptor:
    """Make the current descriptor that of epoch 0, as in a new store, so that all epochs can be given again.

    The descriptor is durable before the flag that names it; the flag becomes durable with the roots. A crash before
    leaves a store that opens, and that renewal begins again. The descriptor with the old epoch is the one that the
    next batch stores over. What the log holds of old epochs means nothing: a log counts only whole, by its digest. A
    chunk of it would count by its marker alone, so no marker stays.

    Returns
    -------
    Descriptor
        The current one, as epoch 0.
    """
    # The flag may have been stored a moment ago, by recovery. On media it must not name the descriptor that goes next.
    files.root_region.persist_unlogged()
    copy = read_descriptors(files).index(current)
    forget_chunks(files)
    first = current._replace(epoch=make_epoch(0, 0), runs=(), log_digest=0)
    files.log.store(DESCRIPTOR_OFFSETS[1 - copy], first.pack())
    files.log.persist_unlogged()
    failpoint.hit("before_renewal_flag")
    store_flag(files, State.IDLE, first.epoch)
    failpoint.hit("after_renewal_flag")
    return first


class Transaction(ctypes.Structure):
    """The flag, epochs and descriptors of an open store. Native code shares it (``kernels/commit/commit_undo.hpp``).

    Parameters
    ----------
    files
        The store's files; the root has the incarnation of this opening.
    current
        The descriptor of the last committed batch.
    """

    _fields_ = [
        ("_incarnation", ctypes.c_uint64),
        ("_counter", ctypes.c_uint64),
        ("_current_copy", ctypes.c_uint64),
        ("_current", ctypes.c_uint64 * (STRUCTURE_BYTES // 8)),
    ]
    _incarnation: int
    _counter: int
    _current_copy: int
    _current: ctypes.Array[ctypes.c_uint64]

    def __init__(self, files: StoreFiles, current: Descriptor) -> None:
        super().__init__()
        self._files = files
        self._words = self._current  # the struct's own, as each read of the field would make an object
        self._take(current)

    def _take(self, current: Descriptor) -> None:
        """Take the descriptor of the last committed batch, which the undo log has."""
        self._set_current(current)
        self._current_copy = read_descriptors(self._files).index(current)

    def _set_current(self, current: Descriptor) -> None:
        ctypes.memmove(self._words, current.pack(), STRUCTURE_BYTES)

    @property
    def current(self) -> Descriptor:
        """The descriptor of the last committed batch."""
        return Descriptor.unpack(bytes(self._words))

    @property
    def next_sequence(self) -> int:
        """The version that the next SET may get."""
        return self._words[NEXT_SEQUENCE_WORD]

    @property
    def time_horizon_ms(self) -> int:
        """The time that the last committed batch has kept."""
        return self._words[TIME_HORIZON_WORD]

    @property
    def has_epoch(self) -> bool:
        """Whether there is an epoch for the next batch in this incarnation."""
        return self._counter + 1 < 1 << COUNTER_BITS

    def have_epoch(self) -> None:
        """Have an epoch for the next batch that no batch had since epochs were renewed."""
        if not self.has_epoch:
            self._take(begin_incarnation(self._files, self.current))
            self._counter = 0
        self._incarnation = self._files.root.incarnation

    def next_epoch(self) -> int:
        """Return this epoch; it is not given again, whatever becomes of it."""
        self.have_epoch()
        self._counter += 1
        return make_epoch(self._incarnation, self._counter)

    def describe(self, descriptor: Descriptor) -> None:
        """Store D(e) over the older of the two descriptors and make it durable, with the log (I1)."""
        self._files.log.store(DESCRIPTOR_OFFSETS[1 - self._current_copy], descriptor.pack())
        failpoint.hit("before_log_persist")
        self._files.log.persist()

    def activate(self, epoch: int) -> None:
        """Turn the flag ACTIVE, durably: from here on only `commit` or recovery may clear it."""
        failpoint.hit("before_active_flag")
        store_flag(self._files, State.ACTIVE, epoch)
        failpoint.hit("before_active_persist")
        self._files.root_region.persist()

    def commit(self, descriptor: Descriptor) -> None:
        """Turn the flag IDLE, durably: the commit point (I3, I4)."""
        failpoint.hit("before_idle_flag")
        store_flag(self._files, State.IDLE, descriptor.epoch)
        failpoint.hit("before_idle_persist")
        self._files.root_region.persist()
        self.begun(descriptor)

    def begun(self, descriptor: Descriptor) -> None:
        """Take the descriptor of a batch for current that only the end of the process can keep from its commit."""
        self._set_current(descriptor)
        self._current_copy = 1 - self._current_copy
