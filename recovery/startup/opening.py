"""Opening a store's directory: locked, created where there is none, mapped, and recovered."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast, get_args

from gpkvs.backends.base import Backend
from gpkvs.backends.choose import choose_backend
from gpkvs.config import CommitName, DurabilityName, FormatName, Sizes, StoreConfig
from gpkvs.config_checks import journal_stays, no_journal
from gpkvs.engine.commit.journal_growth import journal_space_max
from gpkvs.engine.state.heap import Heap
from gpkvs.engine.tables.schema import remove_orphans, reserve_catalog
from gpkvs.errors import InvalidArgumentError
from gpkvs.media.directory import (
    HEAP_SEGMENTS_MAX,
    LOCK_FILE,
    Progress,
    StoreKind,
    access_errors,
    create_store,
    finish_creation,
    make_directory,
    round_up,
    short_segment_bytes,
    store_exists,
)
from gpkvs.media.files import StoreFiles, open_files
from gpkvs.media.ignored_settings import ignored_heap_bytes_max, ignored_settings
from gpkvs.media.journal import Journal
from gpkvs.media.layout import FORMAT_3, FORMAT_4, CommitKind
from gpkvs.media.store_lock import StoreLock, lock_store
from gpkvs.pm.domain import Domain, DomainName, find_domain
from gpkvs.recovery.startup.memory import require_memory
from gpkvs.recovery.startup.recover import Recovered, make_room_for_log, recover

COMMIT_VARIABLE = "GPKVS_COMMIT"  # in the environment: how the batches of new stores become durable
FORMAT_VARIABLE = "GPKVS_FORMAT"  # and which format their files have


@dataclass(frozen=True)
class OpenedDirectory:
    """What an open store holds, and gives back when it is closed."""

    lock: StoreLock
    backend: Backend
    domain: Domain
    is_new: bool
    files: StoreFiles
    recovered: Recovered

    def close(self) -> None:
        """Give all of it back."""
        if isinstance(self.recovered.log, Journal):
            self.recovered.log.close()
        self.backend.close()  # before the files are unmapped: a GPU must let go of them
        self.files.close()
        self.lock.release()


def open_directory(path: Path, config: StoreConfig, *, create: bool, on_progress: Progress) -> OpenedDirectory:
    """Open the directory of a store; a failure gives everything back.

    Parameters
    ----------
    path
        Its directory.
    config
        How to open it.
    create
        Whether to create a store where there is none.
    on_progress
        Called with the name of a step and the share of the work done, 0 to 1.

    Raises
    ------
    GpkvsError
        As `gpkvs.open` says.
    """
    with access_errors(path), ExitStack() as undo:
        if create:
            make_directory(path)
        lock = StoreLock(path) if create else lock_store(path, shared=False)
        undo.callback(lock.release)
        is_new = not store_exists(path)
        lock.sign()
        backend = choose_backend(config.backend, config.threads, config.gpus)
        undo.callback(backend.close)
        domain = find_domain(path, config.durability)
        if is_new:
            commit = choose_commit(config.commit, domain)
            if commit is CommitKind.JOURNAL:
                require_memory(config.sizes.index_bytes)
            kind = StoreKind(commit, format_of(config.store_format), domain.is_volatile)
            first_version = config.making.first_version if config.making else 1
            create_store(path, _sizes_of(config, kind), kind, on_progress, first_version)
            lock.lock_root()
        finish_creation(path)
        files = open_files(path, domain)
        undo.callback(files.close)
        undo.callback(backend.close)  # first: a GPU must let go of the files
        for ignored in ignored_settings(files.root, files.catalog, config):
            ignored.log()
        require_commit(files, domain)
        if files.data:
            # The host's threads replay. A GPU mirrors the images when they are whole.
            recovered = recover(files, backend.host, on_progress, flushes=domain.name is not DomainName.PROCESS)
            if isinstance(recovered.log, Journal):
                undo.callback(recovered.log.close)  # its thread must end before the files are closed
            _attach(backend, files)
        else:
            make_room_for_log(files)  # before a GPU takes the addresses of indexes
            _attach(backend, files)
            recovered = recover(files, backend, on_progress, accept_loss=config.accept_loss)
        allow_heap(files, recovered.heap, config)
        remove_orphans(files)
        reserve_catalog(files)
        undo.pop_all()
        return OpenedDirectory(lock, backend, domain, is_new, files, recovered)


def _sizes_of(config: StoreConfig, kind: StoreKind) -> Sizes:
    """Return the sizes of a new store."""
    is_said = config.heap_bytes is not None or config.heap_bytes_max is not None
    if is_said or not kind.is_in_memory:
        return config.sizes
    return replace(config.sizes, heap_bytes_max=HEAP_SEGMENTS_MAX * short_segment_bytes(kind.store_format))


def allow_heap(files: StoreFiles, heap: Heap, config: StoreConfig) -> None:
    """Let the heap grow as far as this opening says; where it says nothing, as far as it was said before."""
    root, asked = files.root, config.heap_bytes_max
    if ignored := ignored_heap_bytes_max(root, config):
        ignored.log()
    if asked is not None:
        # Much is as large as the number of segments: a store that was made small does not become huge.
        asked = min(round_up(asked, root.segment_bytes), HEAP_SEGMENTS_MAX * root.segment_bytes)
        size_max = max(asked, root.heap_bytes_own)
        if size_max != max(root.heap_bytes_max, root.heap_bytes_own):
            files.roots.change(heap_bytes_max=size_max)
    heap.allow(files.root.heap_bytes_max, journal_space_max(root) if root.has_journal else 0)


def choose_commit(wanted: CommitName, domain: Domain) -> CommitKind:
    """Return how the batches of a new store become durable.

    Raises
    ------
    InvalidArgumentError
        If a journal is asked for where nothing is to be durable.
    """
    if wanted == "auto":
        usual: CommitName = "journal" if domain.name is DomainName.MSYNC else "undo"
        asked = cast(CommitName, _asked(COMMIT_VARIABLE, get_args(CommitName)))
        wanted = usual if asked == "auto" or not domain.is_logged else asked
    if wanted == "undo":
        return CommitKind.UNDO
    if not domain.is_logged:
        raise no_journal()
    return CommitKind.JOURNAL


def usual_commit(directory: Path, durability: DurabilityName, wanted: CommitName) -> str:
    """Return the commit that a new store in an existing directory would have: ``undo`` or ``journal``."""
    lock = directory / LOCK_FILE
    lock.touch()  # `find_domain` looks at it
    try:
        return choose_commit(wanted, find_domain(directory, durability)).name.lower()
    finally:
        lock.unlink()


def format_of(wanted: FormatName) -> int:
    """Return the format of a new store's files."""
    if wanted == "auto":
        wanted = cast(FormatName, _asked(FORMAT_VARIABLE, get_args(FormatName)))
    return FORMAT_3 if wanted == "3" else FORMAT_4


def _asked(variable: str, names: tuple[str, ...]) -> str:
    """Return what the environment says, for stores that are made without a word about it; else ``auto``."""
    asked = os.environ.get(variable) or "auto"
    if asked not in names:
        raise InvalidArgumentError(f"{variable}={asked}: there are {', '.join(names)}")
    return asked


def require_commit(files: StoreFiles, domain: Domain) -> None:
    """Raise `InvalidArgumentError` if the store has a journal, and nothing is to be durable."""
    if files.root.has_journal and not domain.is_logged:
        raise journal_stays()


def _attach(backend: Backend, files: StoreFiles) -> None:
    """Make the files that kernels store to reachable for the backend; records stay with the host."""
    if files.undo_log:
        backend.attach(files.undo_log)
    for index in files.indexes.values():
        backend.attach_index(index)
