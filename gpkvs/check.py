"""`gpkvs check`: a read-only verifier of every structure of a store, invariant by invariant (`gpkvs.layout`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gpkvs.backends.cpu import CpuBackend
from gpkvs.batch import U64
from gpkvs.directory import DirectoryLock, access_errors, require_store
from gpkvs.errors import CorruptStoreError, FormatError
from gpkvs.files import StoreFiles, open_files
from gpkvs.layout import (
    BLOCK_BUCKETS,
    ROOT_OFFSETS,
    SLOT_BYTES,
    UNIT_BYTES,
    VERSION_MAX,
    BadBytesError,
    Descriptor,
    State,
)
from gpkvs.recovery.recover import check_tail, previous_descriptor, verify_log
from gpkvs.roots import COPY_NAMES
from gpkvs.transaction import find_descriptor, read_flag

# The codes of `audit` in kernels/scan.cu.
_AUDITED = (
    "",
    "slot-kind",
    "slot-bucket",
    "slot-unique",
    "slot-reference",
    "record-checksum",
    "record-table",
    "record-key",
    "record-version",
)
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
    records: int = 0
    slots: int = 0
    violations: list[Violation] = field(default_factory=list)
    more_violations: int = 0  # beyond those listed

    @property
    def is_clean(self) -> bool:
        """Whether every invariant holds and no recovery is due."""
        return not self.violations and not self.needs_recovery

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
    """
    with access_errors(path):
        require_store(path)
        lock = DirectoryLock(path, write=False)
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
    try:
        _check_roots(files, report)
        descriptor = _check_flag(files, backend, report)
        if not report.needs_recovery:
            _check_slots(files, backend, report, descriptor)
    finally:
        files.close()
        backend.close()
    return report


def _check_roots(files: StoreFiles, report: CheckReport) -> None:
    first, second = files.root_copies.copies
    for copy, name, offset in zip((first, second), COPY_NAMES, ROOT_OFFSETS, strict=True):
        if isinstance(copy, BadBytesError):
            report.add("root-copy", files.root_region.path, offset, f"copy {name}: {copy}")
    whole = not isinstance(first, BadBytesError) and not isinstance(second, BadBytesError)
    if whole and first != second:
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
            check_tail(files, previous_descriptor(files, epoch))
            verify_log(files, backend, descriptor)
    except CorruptStoreError as error:
        report.add(error.invariant, error.path, error.offset, str(error))
        return None
    return descriptor


def _check_slots(files: StoreFiles, backend: CpuBackend, report: CheckReport, descriptor: Descriptor | None) -> None:
    """Audit every slot and its record, then the records against each other."""
    table = files.table
    report.slots = table.slots
    next_sequence = descriptor.next_sequence if descriptor else VERSION_MAX
    key0, key1 = files.root.hash_keys
    broken = np.zeros(table.slots, np.uint8)
    backend.launch(
        "audit",
        table.slots,
        index=files.index.address,
        buckets=table.blocks * BLOCK_BUCKETS,
        heap=files.heap.address,
        heap_bytes=files.heap.bytes,
        segment_units=files.root.segment_bytes // UNIT_BYTES,
        hash_key0=key0,
        hash_key1=key1,
        table_id=table.id,
        next_sequence=next_sequence,
        broken=broken,
    )
    for slot in np.flatnonzero(broken).tolist():
        words = files.index.words(slot * SLOT_BYTES, 4)
        report.add(
            _AUDITED[broken[slot]],
            files.index.path,
            slot * SLOT_BYTES,
            f"slot {slot} with record at heap byte {(int(words[2]) >> 24) * UNIT_BYTES}, version "
            f"{int(words[3]) & VERSION_MAX}",
        )
    slots = files.index.words(0, table.slots * 4).reshape(-1, 4)
    good = np.flatnonzero((slots[:, 3] != 0) & (broken == 0))
    report.records = len(good)
    _check_overlap(files, report, slots[good, 2])
    versions = np.sort(slots[good, 3])
    for version in versions[1:][versions[1:] == versions[:-1]].tolist():
        report.add("version-unique", files.index.path, 0, f"version {version & VERSION_MAX} is given twice")


def _check_overlap(files: StoreFiles, report: CheckReport, reference: U64) -> None:
    reference = np.sort(reference)
    offsets, lengths = reference >> np.uint64(24), reference & np.uint64(0xFFFFFF)
    overlapping = np.flatnonzero(offsets[:-1] + lengths[:-1] > offsets[1:])
    for record in overlapping.tolist():
        report.add(
            "record-overlap",
            files.heap.path,
            int(offsets[record + 1]) * UNIT_BYTES,
            f"the record at byte {int(offsets[record]) * UNIT_BYTES} reaches into the next one",
        )
