"""`gpkvs check`: a read-only verifier of every structure of a store, invariant by invariant (`gpkvs.media.layout`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.cpu.backend import CpuBackend
from gpkvs.engine.space.recount import recount
from gpkvs.engine.state.heap import SegmentCounts
from gpkvs.errors import CorruptStoreError, FormatError
from gpkvs.media.catalog import TableEntry
from gpkvs.media.directory import access_errors
from gpkvs.media.files import StoreFiles, open_files
from gpkvs.media.growth import adopt, make_room
from gpkvs.media.layout import (
    BYTES_LAYOUT,
    NO_GROWTH,
    PAGE_BYTES,
    ROOT_OFFSETS,
    U64_LAYOUT,
    UNIT_BYTES,
    VERSION_MAX,
    BadBytesError,
    Descriptor,
    State,
    reference_length,
    reference_offset,
)
from gpkvs.media.root_copies import COPY_NAMES
from gpkvs.media.store_lock import lock_store
from gpkvs.media.transaction import find_descriptor, read_flag
from gpkvs.native import audits
from gpkvs.recovery.startup.recover import check_tail, previous_descriptor, verify_log
from gpkvs.recovery.startup.replay import load_images, replay
from gpkvs.recovery.startup.salvage import audit
from gpkvs.text import quoted

_REPORTED_MAX = 20


@dataclass(frozen=True)
class Violation:
    """One invariant that does not hold, and where."""

    invariant: str
    file: str
    offset: int  # bytes
    message: str


@dataclass
class CheckReport:
    """What a check found."""

    path: Path
    needs_recovery: bool = False
    is_unsafe: bool = False  # in use without an undo log, and not closed
    records: int = 0
    slots: int = 0
    growing: str = ""  # which table grows, and how far
    violations: list[Violation] = field(default_factory=list)
    more_violations: int = 0  # beyond those listed

    @property
    def is_clean(self) -> bool:
        """Whether every invariant holds, no recovery is due, and no batch may be torn."""
        return not self.violations and not self.needs_recovery and not self.is_unsafe

    def add(self, invariant: str, path: Path, offset: int, message: str) -> None:
        """Report a violation; the first ones of each invariant are listed, the others counted."""
        if sum(violation.invariant == invariant for violation in self.violations) < _REPORTED_MAX:
            self.violations.append(Violation(invariant, path.name, offset, message))
        else:
            self.more_violations += 1


def check(path: Path) -> CheckReport:
    """Verify a store that no process has open; nothing is written.

    Parameters
    ----------
    path
        Its directory.

    Returns
    -------
    CheckReport
        With every violation, or with `needs_recovery` if a batch was in progress (slots are then not looked at).

    Raises
    ------
    StoreLockedError
        If a process has it open.
    StoreMissingError, StoreAccessError, FormatError
        If there is nothing that can be read.
    StoreError
        If a file of the store is a link, or has several names.
    """
    with access_errors(path):
        lock = lock_store(path, shared=True)
        try:
            return _check_locked(path)
        finally:
            lock.release()


def _check_locked(path: Path) -> CheckReport:
    report = CheckReport(path)
    try:
        files = open_files(path, None)
    except FormatError:
        raise
    except CorruptStoreError as error:
        report.add(error.invariant, error.path, error.offset, str(error))
        return report
    backend = CpuBackend()
    report.is_unsafe = files.root.is_unsafe
    try:
        _check_roots(files, report)
        descriptor = _check_journal(files, backend, report) if files.data else _check_flag(files, backend, report)
        report.growing = _growing(files)
        if not report.needs_recovery:
            _check_tables(files, backend, report, descriptor)
    finally:
        files.close()
        backend.close()
    return report


def _growing(files: StoreFiles) -> str:
    """Say which table grows."""
    if files.growth == NO_GROWTH:
        return ""
    table_id, blocks, unmoved = files.growth
    return f"table {quoted(files.table(table_id).name)} is growing, {blocks - unmoved:,} of {blocks:,} blocks"


def _check_roots(files: StoreFiles, report: CheckReport) -> None:
    first, second = files.roots.found.copies
    for copy, name, offset in zip((first, second), COPY_NAMES, ROOT_OFFSETS, strict=True):
        if isinstance(copy, BadBytesError):
            report.add("root-copy", files.root_region.path, offset, f"copy {name}: {copy}")
    if isinstance(first, BadBytesError) or isinstance(second, BadBytesError) or first == second:
        return
    # Roots change while a store is used: a kill between the copies is no violation. The next opening ends the change.
    if abs(first.sequence - second.sequence) != 1:
        report.add(
            "roots-equal",
            files.root_region.path,
            ROOT_OFFSETS[0],
            "the two root copies differ (the newer one counts)",
        )


def _check_flag(files: StoreFiles, backend: CpuBackend, report: CheckReport) -> Descriptor | None:
    """Check flag, descriptors and an active log; return the current descriptor."""
    try:
        state, epoch = read_flag(files)
        descriptor = find_descriptor(files, epoch)
        check_tail(files, descriptor)
        if state is State.ACTIVE:
            report.needs_recovery = True
            before = previous_descriptor(files, epoch)
            check_tail(files, before)
            make_room(files, descriptor.growth)
            adopt(files, before.growth)
            verify_log(files, backend, descriptor)
        else:
            adopt(files, descriptor.growth)
    except CorruptStoreError as error:
        report.add(error.invariant, error.path, error.offset, str(error))
        return None
    return descriptor


def _check_journal(files: StoreFiles, backend: CpuBackend, report: CheckReport) -> Descriptor | None:
    """Replay the journal in memory; return the descriptor of its last batch."""
    try:
        load_images(files)
        descriptor = replay(files, backend, _no_progress).last.descriptor
    except CorruptStoreError as error:
        report.add(error.invariant, error.path, error.offset, str(error))
        return None
    return descriptor


def _no_progress(step: str, share: float) -> None:
    """Report nothing."""


def _check_tables(files: StoreFiles, backend: CpuBackend, report: CheckReport, descriptor: Descriptor | None) -> None:
    """Audit every slot of every table and its record, then the records against each other."""
    next_sequence = descriptor.next_sequence if descriptor else VERSION_MAX
    slots = [
        _check_bytes_table(files, backend, report, table, next_sequence)
        for table in files.catalog.tables
        if table.slot_layout.has_records
    ]
    for table in files.catalog.tables:
        if table.slot_layout is U64_LAYOUT:
            _check_u64_table(files, backend, report, table)
    records = np.concatenate(slots) if slots else np.empty((0, 4), np.uint64)
    _check_extents(files, report, records[:, 2])
    _check_overlap(files, report, records[:, 2])
    _check_blobs(files, backend, report)
    versions = np.sort(records[:, 3])
    for version in versions[1:][versions[1:] == versions[:-1]].tolist():
        report.add("version-unique", files.path, 0, f"version {version & VERSION_MAX} is given twice")


def _check_bytes_table(
    files: StoreFiles, backend: CpuBackend, report: CheckReport, table: TableEntry, next_sequence: int
) -> NDArray[np.uint64]:
    """Audit a table; return its good slots, four words each."""
    index, broken = files.indexes[table.id], audit(files, backend, table, next_sequence)
    slots = index.region.words(0, index.slots_mapped * 4).reshape(-1, 4)
    for slot in np.flatnonzero(broken).tolist():
        _, _, reference, meta = slots[slot].tolist()
        report.add(
            audits()[broken[slot]],
            index.region.path,
            slot * BYTES_LAYOUT.slot_bytes,
            f"slot {slot} of table {table.name!r} with record at heap byte {reference_offset(reference) * UNIT_BYTES}, "
            f"version {meta & VERSION_MAX}",
        )
    is_live = np.zeros(len(slots), np.bool_)
    for first, last in index.live_ranges:
        is_live[first * BYTES_LAYOUT.block_slots : last * BYTES_LAYOUT.block_slots] = True
    good = np.flatnonzero(is_live & (slots[:, 3] != 0) & (broken == 0))
    report.slots += index.slots
    report.records += len(good)
    return slots[good]


def _check_u64_table(files: StoreFiles, backend: CpuBackend, report: CheckReport, table: TableEntry) -> None:
    index, broken = files.indexes[table.id], audit(files, backend, table, VERSION_MAX)
    for slot in np.flatnonzero(broken).tolist():
        offset = slot * U64_LAYOUT.slot_bytes
        report.add(
            audits()[broken[slot]],
            index.region.path,
            offset,
            f"slot {slot} of table {table.name!r} with key {int(index.region.words(offset, 1)[0])}",
        )
    report.slots += index.slots
    report.records += recount(files, backend, index, SegmentCounts.of(0)).records


def _check_extents(files: StoreFiles, report: CheckReport, reference: NDArray[np.uint64]) -> None:
    """Look for whole records in the journal's extents: the heap stored them there."""
    begins, units = reference_offset(reference), files.segment_units
    ends = begins + reference_length(reference)
    for extent in files.root.journal_extents:
        first, last = extent.first_segment * units, (extent.first_segment + extent.segments) * units
        for begin in begins[(begins < last) & (ends > first)].tolist():
            place = begin * UNIT_BYTES
            report.add(
                "journal-extent", files.heap.path, place, f"the record at byte {place} lies in an extent of the journal"
            )


def _check_blobs(files: StoreFiles, backend: CpuBackend, report: CheckReport) -> None:
    if not files.blobs:
        return
    named: list[NDArray[np.uint64]] = [np.empty(0, np.uint64)]
    for index in files.indexes.values():
        recount(files, backend, index, SegmentCounts.of(files.segments), named)
    reference = np.sort(np.concatenate(named))
    first, ends = reference_offset(reference), reference_offset(reference) + reference_length(reference)
    for blob in np.flatnonzero(ends[:-1] > first[1:]).tolist():
        report.add(
            "blob-overlap",
            files.blobs.path,
            int(first[blob + 1]) * PAGE_BYTES,
            f"the blob at byte {int(first[blob]) * PAGE_BYTES} reaches into the next one",
        )


def _check_overlap(files: StoreFiles, report: CheckReport, reference: NDArray[np.uint64]) -> None:
    reference = np.sort(reference)
    offsets, lengths = reference_offset(reference), reference_length(reference)
    segment_units = np.uint64(files.segment_units)
    is_long = lengths > segment_units  # it has its segments to their end
    taken = np.where(is_long, -(-lengths.astype(np.int64) // files.segment_units) * files.segment_units, lengths)
    overlapping = np.flatnonzero(offsets[:-1] + taken[:-1].astype(np.uint64) > offsets[1:])
    for record in overlapping.tolist():
        report.add(
            "record-overlap",
            files.heap.path,
            int(offsets[record + 1]) * UNIT_BYTES,
            f"the record at byte {int(offsets[record]) * UNIT_BYTES} reaches into the next one",
        )
