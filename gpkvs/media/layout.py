"""The bytes on media, and the invariants that `gpkvs check` reports by name.

Everything is little-endian. docs/format.md describes the files; gpkvs/kernels/base/layout.cuh holds what kernels touch.

Invariants
----------
root-copy         each of the two root copies has the magic, a known format version and a right checksum
roots-equal       the two copies are equal; in a store with a journal one may be a change behind the other
catalog           the catalogue file has the length and checksum that the root says
file-size         every file has the size that root and catalogue say; heap, undo log and indexes may be longer
growth            the table that is said to grow agrees with the catalogue, or was dropped
journal-extent    an extent of the journal lies in the heap's space, in no other one, and has no record and no tail
flag              the transaction flag is a state, an epoch and their checksum
descriptor        the descriptor of the flag's epoch has a right checksum and lies inside the store
undo-log          while the flag is ACTIVE: every entry carries the epoch, and their digest is the descriptor's; of a
                  run in chunks, those of a marked chunk have its marker's, and no marker before another one is missing
slot-kind         a slot is empty (all zero) or of a known kind; of one that expires only where the root says so
slot-bucket       a key lies in one of its two candidate buckets
slot-unique       a key is in one slot only
slot-reference    a slot's record lies inside one segment, or is longer and begins with one; before the heap's end
record-checksum   a record's CRC32C is right
record-table      a record names the table that refers to it
record-key        a record's key has the fingerprint of its slot
record-version    a record has its slot's version, below the next one to be given
slot-expiry       a slot is of the kind that expires if and only if its record has an expiry
slot-blob         a slot is of the kind with a blob if and only if its record has one
blob-checksum     a record's blob lies in the file of blobs, and the CRC32C of each of its pieces is right
row-size          in a table of rows every key has 8 bytes, and every value those of a row
blob-overlap      no two live blobs share a page
record-overlap    no two live records share a byte, and a long one shares none of its segments
version-unique    no two live records have one version
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

from gpkvs.columns import index_size
from gpkvs.native import crc32c

FORMAT_3, FORMAT_4 = 3, 4  # of stores
# In the root of a store of format 3 until a key expires. An older gpkvs would take slots of the kind 2 for damage.
UNEXPIRING_VERSION: Final = 2
# Of format 4. It had drafts before its bytes were final; `gpkvs copy` alone reads stores of these.
FINAL_DRAFT: Final = 0
DRAFTS: Final = (1, 2, 3)
DRAFT_WITHOUT_BLOBS: Final = 1
BYTE_ORDER: Final = 0x01020304
PAGE_BYTES: Final = 4096
STRUCTURE_BYTES: Final = 512  # roots and descriptors; the checksum is the 8-byte word at 504

WAYS: Final = 8
BLOCK_BYTES: Final = index_size.BLOCK_BYTES


@dataclass(frozen=True)
class SlotLayout:
    """How the slots of a table lie in its index: there are two ways; the name is part of the names of kernels."""

    name: str
    slot_bytes: int

    @property
    def has_records(self) -> bool:
        """Whether its slots refer to records of the heap."""
        return self.name == "bytes"

    @property
    def bucket_bytes(self) -> int:
        """Bytes of a bucket of eight slots."""
        return WAYS * self.slot_bytes

    @property
    def block_buckets(self) -> int:
        """Buckets in a block."""
        return BLOCK_BYTES // self.bucket_bytes

    @property
    def block_slots(self) -> int:
        """Slots in a block."""
        return BLOCK_BYTES // self.slot_bytes

    @property
    def entry_bytes(self) -> int:
        """Bytes of an entry of the undo log or of the journal: slot number, epoch, the slot."""
        return 16 + self.slot_bytes

    @property
    def chunk_entry_bytes(self) -> int:
        """Bytes of an entry of a chunk: slot number, the slot; the words of its key are not always there."""
        return 8 + self.slot_bytes

    @property
    def key_words(self) -> int:
        """Words of a slot that say whose it is; they come first."""
        return 2 if self.has_records else 1

    def entry_bytes_of(self, kind: int) -> int:
        """Bytes of an entry in a run of a kind."""
        return self.chunk_entry_bytes if kind == RunKind.CHUNKS else self.entry_bytes


LAYOUTS: Final = {name: SlotLayout(name, slot_bytes) for name, slot_bytes in index_size.SLOT_BYTES.items()}
BYTES_LAYOUT: Final = LAYOUTS["bytes"]
U64_LAYOUT: Final = LAYOUTS["u64"]


def slot_layout_of(layout: str) -> SlotLayout:
    """Return the slots of a table of a layout; raises InvalidArgumentError if there is no such layout."""
    return LAYOUTS[index_size.slots_of(layout)]


UNIT_BYTES: Final = 16
RECORD_HEADER_BYTES: Final = 32  # of format 3, and of format 4 with an expiry
SHORT_RECORD_HEADER_BYTES: Final = 24  # of format 4 without
KEY_BYTES_MAX: Final = {FORMAT_3: (1 << 32) - 1, FORMAT_4: (64 << 10) - 56}  # a record of 64 KiB holds it
REFERENCE_LENGTH_BITS: Final = 24  # of a reference, below the offset
RECORD_UNITS_MAX: Final = (1 << REFERENCE_LENGTH_BITS) - 1
LONGEST_RECORD_UNITS: Final = (32 << 20) // UNIT_BYTES
HEAP_UNITS_MAX: Final = 1 << 40
KIND_EXPIRING, KIND_BLOB, KIND_EXPIRING_BLOB = 2, 4, 7  # of slots (`Kind` in kernels/base/layout.cuh)
WITH_BLOB: Final = 5  # the bits in which these differ from the kinds 1 and 2
KIND_SHIFT: Final = 60  # in the last word of a slot, above the version
BLOB_PIECE_BYTES: Final = 64 << 10  # of a blob that has a checksum of its own
BLOB_CHECKSUM_BYTES: Final = 4
BLOB_WORDS_BYTES: Final = 24  # what its record says of a blob
HEAP_RECORD_BYTES: Final = 64 << 10  # a longer record has its value in a blob (format 4)

STRIPE_ENTRIES: Final = 32

VERSION_MAX: Final = (1 << 60) - 1

# File `root`: copy A in page 0, copy B in page 1, the flag at the start of page 2.
ROOT_OFFSETS: Final = (0, PAGE_BYTES)
FLAG_OFFSET: Final = 2 * PAGE_BYTES
ROOT_FILE_BYTES: Final = 3 * PAGE_BYTES
# File `log`: two descriptors in pages of their own, with markers of chunks behind them, then the entries.
DESCRIPTOR_OFFSETS: Final = (0, PAGE_BYTES)
CHUNK_MARKERS_OFFSET: Final = 1024  # in each of these pages
CHUNK_MARKERS: Final = 48
LOG_ENTRIES_OFFSET: Final = 2 * PAGE_BYTES

NO_SLOT: Final = (1 << 64) - 1
NO_RECORD: Final = 0
NO_OP: Final = (1 << 32) - 1


def reference_offset(reference: Any) -> Any:
    """Return where a record begins in the heap, in units; of one reference, or of a column of them."""
    return reference >> REFERENCE_LENGTH_BITS


def reference_length(reference: Any) -> Any:
    """Return how long a record is, in units."""
    return reference & RECORD_UNITS_MAX


def blob_pages(value_bytes: int) -> int:
    """Return how many pages the blob of a value takes (`blob_pages` in kernels/base/layout.cuh)."""
    words, pieces = -(-value_bytes // 8), -(-value_bytes // BLOB_PIECE_BYTES)
    return -(-(8 * words + BLOB_CHECKSUM_BYTES * pieces) // PAGE_BYTES)


def value_bytes_in(pages: int) -> int:
    """Return how long a value is that surely fits a blob of so many pages."""
    room = pages * PAGE_BYTES - BLOB_CHECKSUM_BYTES - 7
    return max(room // (BLOB_PIECE_BYTES + BLOB_CHECKSUM_BYTES) * BLOB_PIECE_BYTES, 0)


def slot_versions(words: Any) -> Any:
    """Return the versions in slots of a table with records, whose words this column has; 0 where a slot is empty."""
    return words[3::4] & VERSION_MAX


class ChangeKind(IntEnum):
    """What a batch does to one key's slot."""

    NONE = 0
    PUT = 1
    REMOVE = 2


class BadBytesError(ValueError):
    """A structure read from media fails its own checks."""


class BadFormatError(BadBytesError):
    """A structure is whole, but of another format version or byte order."""


def _other_version(is_older: bool) -> str:
    """Return what to do with a store of another format version."""
    if is_older:
        return "run `gpkvs copy OLD NEW`, which makes a new store of what it holds"
    return "a newer gpkvs made it"


def _seal(body: bytes) -> bytes:
    """Pad a structure to 504 bytes and append its checksum word."""
    assert len(body) <= STRUCTURE_BYTES - 8
    padded = body.ljust(STRUCTURE_BYTES - 8, b"\0")
    return padded + struct.pack("<Q", crc32c(padded))


def _unseal(data: bytes, what: str) -> bytes:
    if len(data) != STRUCTURE_BYTES:
        raise BadBytesError(f"{what} is cut short")
    body, checksum = data[:-8], struct.unpack("<Q", data[-8:])[0]
    if crc32c(body) != checksum:
        raise BadBytesError(f"{what} has a wrong checksum")
    return body


# In a root's flags: in use without an undo log, and not closed since.
UNSAFE: Final = 1
# In a root's flags: keys may expire (and format 3 has version 3). Both copies say so, durably, before any slot does.
EXPIRES: Final = 2

_ROOT_MAGIC: Final = b"GPKVSRT\0"
_ROOT_PREFIX = struct.Struct("<8sII")
_ROOT = struct.Struct("<8sIIQQ16s16sQQIIQQQQIIQ9QQ3II")
_ROOT_DRAFT = struct.Struct("<I")
_ROOT_DRAFT_OFFSET: Final = _ROOT.size - _ROOT_DRAFT.size
_EXTENT = struct.Struct("<IIQ")
EXTENTS_MAX: Final = 12  # that a root has room for
NO_SERIAL: Final = (1 << 64) - 1


class CommitKind(IntEnum):
    """How a store's batches become durable; fixed when the store is made."""

    UNDO = 1  # an undo log and a transaction flag, slots stored in place
    JOURNAL = 2  # a journal of new slot contents, and checkpoints of the indexes


class Growth(NamedTuple):
    """A table whose index is being doubled: of its `blocks`, the first `unmoved` are where they were.

    Of all keys, those of the other blocks are where twice the blocks have them (`gpkvs.media.growth`).
    """

    table_id: int
    blocks: int
    unmoved: int


NO_GROWTH: Final = Growth(0, 0, 0)


class Checkpoint(NamedTuple):
    """What a journal's replay begins with: the batch c whose slots, and those of all before, are in the index files.

    Attributes
    ----------
    epoch
        c.
    tail_segment, tail_bytes, next_sequence, time_horizon_ms, applied_sequence
        As in the descriptor of c.
    position
        Where the frame after c begins in the journal, in pages.
    digest
        Of frame c, which the frame after it names.
    recovered_epoch
        The last batch that the last opening recovered: a journal that ends before it is damaged.
    growth
        As in the descriptor of c.
    """

    epoch: int
    tail_segment: int
    tail_bytes: int
    next_sequence: int
    time_horizon_ms: int
    applied_sequence: int
    position: int
    digest: int
    recovered_epoch: int
    growth: Growth = NO_GROWTH


class Extent(NamedTuple):
    """Whole segments of the heap's space that are the journal's for ever (`gpkvs.media.journal.Ring`).

    Attributes
    ----------
    first_segment, segments
        Of the heap's space.
    serial
        Of the journal's segment that was the newest when these joined the ring; `NO_SERIAL` while they have not.
    """

    first_segment: int
    segments: int
    serial: int = NO_SERIAL


class Opened(NamedTuple):
    """What the store was like when it was opened last; positions in its changes rest on it (`gpkvs.changes`).

    Attributes
    ----------
    number
        The next sequence number.
    timeline
        Of the positions of this opening; 0: nobody has followed.
    ended
        The timelines that ended at this number, the newest first; empty in stores of format 3.
    """

    number: int
    timeline: int
    ended: tuple[int, ...]

    def again(self, number: int) -> Opened:
        """Return what the next opening is like, which finds this next sequence number, and lost nothing."""
        ended = (self.timeline, *(self.ended if number == self.number else ()))
        return Opened(number, 0, tuple(timeline for timeline in ended if timeline)[:ENDED_MAX])


ENDED_MAX: Final = 3  # that a root has room for
NEVER_OPENED: Final = Opened(0, 0, ())
_OPENED = struct.Struct(f"<QQ{ENDED_MAX}Q")


_CHECKPOINT_NUMBERS: Final = len(Checkpoint._fields) - 1  # without the growth
FIRST_CHECKPOINT: Final = Checkpoint(0, 0, 0, 1, 0, 0, 0, 0, 0)


@dataclass(frozen=True)
class Root:
    """What a store is; changes only while the flag is IDLE (I1 to I7 rest on it)."""

    sequence: int
    incarnation: int
    store_id: bytes
    hash_key: bytes
    flags: int
    catalog_generation: int
    catalog_bytes: int
    catalog_crc: int
    segment_bytes: int
    heap_bytes: int
    log_bytes: int
    created_ms: int
    commit: int
    journal_segment_bytes: int
    journal_bytes: int
    checkpoint: Checkpoint
    heap_bytes_max: int = 0  # 0: the heap does not grow; the journal's extents are not counted
    journal_extents: tuple[Extent, ...] = ()
    opened: Opened = NEVER_OPENED
    store_format: int = FORMAT_4
    draft: int = FINAL_DRAFT  # of format 4

    def pack(self) -> bytes:
        """Return the 512 bytes of one copy."""
        extents = b"".join(_EXTENT.pack(*extent) for extent in self.journal_extents)
        number, timeline, ended = self.opened
        opened = _OPENED.pack(number, timeline, *ended, *(0,) * (ENDED_MAX - len(ended)))
        return _seal(
            _ROOT.pack(
                _ROOT_MAGIC,
                self.format_version,
                BYTE_ORDER,
                self.sequence,
                self.incarnation,
                self.store_id,
                self.hash_key,
                self.flags,
                self.catalog_generation,
                self.catalog_bytes,
                self.catalog_crc,
                self.segment_bytes,
                self.heap_bytes,
                self.log_bytes,
                self.created_ms,
                self.commit,
                self.journal_segment_bytes,
                self.journal_bytes,
                *self.checkpoint[:_CHECKPOINT_NUMBERS],
                self.heap_bytes_max,
                *self.checkpoint.growth,
                self.draft,
            )
            + (extents.ljust(EXTENTS_MAX * _EXTENT.size, b"\0") + opened if self.has_timelines else extents)
        )

    @staticmethod
    def unpack(data: bytes, drafts: Sequence[int] = (FINAL_DRAFT,)) -> Root:
        """Read one copy, of format 3, or of some drafts of format 4.

        Raises
        ------
        BadFormatError
            If the copy is of another format version or byte order.
        BadBytesError
            If the copy is damaged.
        """
        magic, version, byte_order = _ROOT_PREFIX.unpack_from(data)
        if magic != _ROOT_MAGIC:
            raise BadBytesError("the root has a wrong magic")
        if byte_order == int.from_bytes(BYTE_ORDER.to_bytes(4, "little"), "big"):
            raise BadFormatError("the store was written on a machine of another byte order")
        # The version is looked at before the checksum: a later format may seal its root in another way.
        if version not in (UNEXPIRING_VERSION, FORMAT_3, FORMAT_4) and byte_order == BYTE_ORDER:
            raise BadFormatError(
                f"the store has format version {version}, this gpkvs opens {UNEXPIRING_VERSION} to {FORMAT_4}: "
                f"{_other_version(version < UNEXPIRING_VERSION)}"
            )
        draft = _ROOT_DRAFT.unpack_from(data, _ROOT_DRAFT_OFFSET)[0]
        if version == FORMAT_4 and draft not in drafts:
            raise BadFormatError(
                f"the store has draft {draft} of format version {version}, this gpkvs opens the final one: "
                f"{_other_version(draft in DRAFTS)}"
            )
        body = _unseal(data, "the root")
        fields = _ROOT.unpack_from(body)[len(_ROOT_PREFIX.unpack_from(data)) :]
        *fixed, heap_bytes_max, table_id, blocks, unmoved, draft = fields
        numbers = fixed[-_CHECKPOINT_NUMBERS:]
        checkpoint = Checkpoint._make((*numbers, Growth(table_id, blocks, unmoved)))
        all_extents = (Extent(*_EXTENT.unpack_from(body, _ROOT.size + n * _EXTENT.size)) for n in range(EXTENTS_MAX))
        extents = tuple(extent for extent in all_extents if extent.segments)
        number, timeline, *ended = _OPENED.unpack_from(body, _ROOT.size + EXTENTS_MAX * _EXTENT.size)
        opened = Opened(number, timeline, tuple(timeline for timeline in ended if timeline))
        if any(body[_ROOT.size + EXTENTS_MAX * _EXTENT.size + _OPENED.size :]):
            raise BadFormatError(f"the root has fields that this gpkvs does not know: {_other_version(is_older=False)}")
        more = extents, opened, max(version, FORMAT_3), draft
        root = Root(*(*fixed[:-_CHECKPOINT_NUMBERS], checkpoint, heap_bytes_max, *more))
        if version != root.format_version:
            raise BadBytesError(f"the root has format version {version}, and flags of {root.format_version}")
        return root

    @property
    def may_expire(self) -> bool:
        """Whether keys of the store may expire."""
        return bool(self.flags & EXPIRES)

    @property
    def format_version(self) -> int:
        """The version that the root says: of format 3, an older gpkvs opens a store in which no key ever expired."""
        return self.store_format if self.store_format != FORMAT_3 or self.may_expire else UNEXPIRING_VERSION

    @property
    def format_text(self) -> str:
        """The format, for people."""
        return f"{self.store_format}, draft {self.draft}" if self.draft else str(self.store_format)

    @property
    def has_blobs(self) -> bool:
        """Whether it has a file of blobs."""
        return self.store_format == FORMAT_4 and self.draft != DRAFT_WITHOUT_BLOBS

    @property
    def has_timelines(self) -> bool:
        """Whether it knows of its last opening, so that a position may be of an earlier one."""
        return self.store_format == FORMAT_4

    @property
    def extent_bytes(self) -> int:
        """Bytes of the heap's space that are the journal's."""
        return sum(extent.segments for extent in self.journal_extents) * self.segment_bytes

    @property
    def unused_extent(self) -> Extent | None:
        """The extent of the journal that is not in the ring yet, if there is one."""
        return next((extent for extent in self.journal_extents if extent.serial == NO_SERIAL), None)

    @property
    def journal_bytes_all(self) -> int:
        """The size of the journal: its first part, and its extents."""
        return self.journal_bytes + self.extent_bytes

    @property
    def heap_bytes_own(self) -> int:
        """The size of the heap, without the journal's extents."""
        return self.heap_bytes - self.extent_bytes

    @property
    def has_journal(self) -> bool:
        """Whether batches are committed to a journal."""
        return self.commit == CommitKind.JOURNAL

    @property
    def is_unsafe(self) -> bool:
        """Whether the store is, or was when it last crashed, in use without an undo log."""
        return bool(self.flags & UNSAFE)

    @property
    def hash_keys(self) -> tuple[int, int]:
        """The key of the fingerprint, as two 64-bit numbers."""
        low, high = struct.unpack("<QQ", self.hash_key)
        return low, high


class RunKind(IntEnum):
    """What a run of log entries is for."""

    UNDO = 1
    REDO = 2
    FILL = 3  # no entries: `count` blocks from the block `first_word` on become empty
    CHUNKS = 4  # as UNDO, in chunks that have markers


_RUN = struct.Struct("<IIIIQQ")
RUNS_MAX: Final = 10  # so many tables may one transaction touch; a descriptor has room for more


# In the first word of an entry of a chunk, above the slot's number: the slot got another key.
KEY_CHANGES: Final = 1 << 63
_CHUNK_MARKER = struct.Struct("<QIIQQQQIIQ")
CHUNK_MARKER_BYTES: Final = _CHUNK_MARKER.size


class ChunkMarker(NamedTuple):
    """What says that the entries of a chunk are durable (`RunKind.CHUNKS`).

    Attributes
    ----------
    epoch
        Of its batch.
    number, processor
        Of the chunk, and of the processor that planned it: each has chunks of its own, and marks them in order.
    first, entries
        The first of its entries in the run, and how many it has.
    digest
        The sum of theirs.
    first_word, table_id, generation
        Of the run.
    """

    epoch: int
    number: int
    processor: int
    first: int
    entries: int
    digest: int
    first_word: int
    table_id: int
    generation: int

    @staticmethod
    def unpack(data: bytes) -> ChunkMarker | None:
        """Read one copy; None if it is damaged, or none was ever written."""
        *fields, checksum = _CHUNK_MARKER.unpack(data)
        return ChunkMarker(*fields) if checksum == crc32c(data[:-8]) else None


@dataclass(frozen=True)
class LogRun:
    """`count` entries of one kind, table and generation, from the log's word `first_word` on; or `RunKind.FILL`."""

    kind: int
    table_id: int
    generation: int
    entry_bytes: int
    first_word: int
    count: int

    @property
    def words(self) -> int:
        """Words that the run takes: whole stripes."""
        if self.kind == RunKind.FILL:
            return 0
        stripes = -(-self.count // STRIPE_ENTRIES)
        return stripes * STRIPE_ENTRIES * self.entry_bytes // 8


_DESCRIPTOR_MAGIC: Final = b"GPKVSDS\0"
_DESCRIPTOR = struct.Struct("<8sQQQQQQQQIIII")
NEXT_SEQUENCE_WORD: Final = 5
TIME_HORIZON_WORD: Final = 6


class Descriptor(NamedTuple):
    """D(e): what must be known of the batch with epoch e, durable before the flag turns ACTIVE."""

    epoch: int
    runs: tuple[LogRun, ...]
    tail_segment: int
    tail_bytes: int
    first_sequence: int
    next_sequence: int
    time_horizon_ms: int
    applied_sequence: int
    log_digest: int
    growth: Growth = NO_GROWTH

    def pack(self) -> bytes:
        """Return the 512 bytes of one copy."""
        header = _DESCRIPTOR.pack(
            _DESCRIPTOR_MAGIC,
            self.epoch,
            self.tail_segment,
            self.tail_bytes,
            self.first_sequence,
            self.next_sequence,
            self.time_horizon_ms,
            self.applied_sequence,
            self.log_digest,
            len(self.runs),
            *self.growth,
        )
        runs = (
            _RUN.pack(run.kind, run.table_id, run.generation, run.entry_bytes, run.first_word, run.count)
            for run in self.runs
        )
        return _seal(header + b"".join(runs))

    @staticmethod
    def unpack(data: bytes) -> Descriptor:
        """Read one copy; raises `BadBytesError` if it is damaged."""
        body = _unseal(data, "the descriptor")
        magic, epoch, segment, tail, first, following, horizon, applied, digest, count, *growth = (
            _DESCRIPTOR.unpack_from(body)
        )
        if magic != _DESCRIPTOR_MAGIC or _DESCRIPTOR.size + count * _RUN.size > len(body):
            raise BadBytesError("the descriptor has a wrong magic or too many runs")
        runs = tuple(LogRun(*_RUN.unpack_from(body, _DESCRIPTOR.size + r * _RUN.size)) for r in range(count))
        return Descriptor(epoch, runs, segment, tail, first, following, horizon, applied, digest, Growth(*growth))


class State(IntEnum):
    """Of the transaction flag. Zero is neither, so that an unwritten flag is not taken for a state."""

    IDLE = 1
    ACTIVE = 2


EPOCH_BITS: Final = 46
COUNTER_BITS: Final = 24
INCARNATION_MAX: Final = (1 << (EPOCH_BITS - COUNTER_BITS)) - 1


def make_epoch(incarnation: int, counter: int) -> int:
    """Join the incarnation (22 bits) and the counter inside it (24 bits)."""
    assert incarnation <= INCARNATION_MAX
    assert counter < 1 << COUNTER_BITS
    return incarnation << COUNTER_BITS | counter


def pack_flag(state: State, epoch: int) -> bytes:
    """Return the flag: one aligned 8-byte word of state, epoch and CRC16."""
    body = (state << EPOCH_BITS | epoch).to_bytes(6, "little")
    return binascii.crc_hqx(body, 0xFFFF).to_bytes(2, "little") + body


def unpack_flag(word: bytes) -> tuple[State, int]:
    """Read the flag; raises `BadBytesError` if it is none."""
    body = word[2:]
    value = int.from_bytes(body, "little")
    if binascii.crc_hqx(body, 0xFFFF) != int.from_bytes(word[:2], "little"):
        raise BadBytesError("the flag has a wrong checksum")
    try:
        return State(value >> EPOCH_BITS), value & ((1 << EPOCH_BITS) - 1)
    except ValueError:
        raise BadBytesError("the flag has an unknown state") from None
